//! What one holds.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::time::Instant;

use super::lock::PerCpuRwLock;
use super::mapped::{MappedReadGuard, MappedWriteGuard};
use super::raw::RawRwLock;
use super::read::ReadHold;
use super::write::Patience;

/// A shared hold of a [`PerCpuRwLock`], ended when dropped, on whatever thread.
#[must_use = "the hold ends when this is dropped"]
pub struct ReadGuard<'a, T: ?Sized> {
    lock: &'a PerCpuRwLock<T>,
    hold: ReadHold,
}

/// An exclusive hold of a [`PerCpuRwLock`], ended when dropped, on whatever thread.
#[must_use = "the hold ends when this is dropped"]
pub struct WriteGuard<'a, T: ?Sized> {
    lock: &'a PerCpuRwLock<T>,
}

/// A shared hold of a [`PerCpuRwLock`] that can be made exclusive; ended when dropped, on whatever thread.
#[must_use = "the hold ends when this is dropped"]
pub struct UpgradableGuard<'a, T: ?Sized> {
    lock: &'a PerCpuRwLock<T>,
}

/// Readers of a lock are slow as long as this lives: [`PerCpuRwLock::hold_slow`].
#[must_use = "readers may be fast again when this is dropped"]
#[derive(Debug)]
pub struct HoldSlow<'a>(&'a RawRwLock);

impl<'a> HoldSlow<'a> {
    pub(super) fn new(raw: &'a RawRwLock) -> Self {
        raw.after_fork();
        raw.enter();
        Self(raw)
    }
}

impl Drop for HoldSlow<'_> {
    fn drop(&mut self) {
        self.0.exit();
    }
}

impl<'a, T: ?Sized> ReadGuard<'a, T> {
    #[inline(always)]
    pub(super) fn new(lock: &'a PerCpuRwLock<T>, hold: ReadHold) -> Self {
        Self { lock, hold }
    }

    /// A guard of a part of the value.
    pub fn map<U: ?Sized>(self, part: impl FnOnce(&T) -> &U) -> MappedReadGuard<'a, U> {
        let (raw, hold) = (self.lock.raw(), self.hold);
        // SAFETY: held shared by `self`, which the answer takes over.
        let value = part(unsafe { &*self.lock.data_ptr() });
        let mapped = MappedReadGuard::new(raw, hold, value);
        core::mem::forget(self);
        mapped
    }
}

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: held shared.
        unsafe { &*self.lock.data_ptr() }
    }
}

impl<T: ?Sized> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the hold is this guard's, which is gone now.
        unsafe { self.lock.raw().unlock_read(self.hold) };
    }
}

impl<'a, T: ?Sized> WriteGuard<'a, T> {
    #[inline(always)]
    pub(super) fn new(lock: &'a PerCpuRwLock<T>) -> Self {
        Self { lock }
    }

    /// Makes the hold a shared one; no writer gets in between.
    pub fn downgrade(self) -> ReadGuard<'a, T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: the hold is this guard's, which is gone now.
        let hold = unsafe { this.lock.raw().downgrade() };
        ReadGuard::new(this.lock, hold)
    }

    /// Makes the hold an upgradable one; no writer gets in between.
    pub fn downgrade_to_upgradable(self) -> UpgradableGuard<'a, T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: the hold is this guard's, which is gone now.
        unsafe { this.lock.raw().downgrade_to_upgradable() };
        UpgradableGuard::new(this.lock)
    }

    /// A guard of a part of the value.
    pub fn map<U: ?Sized>(self, part: impl FnOnce(&mut T) -> &mut U) -> MappedWriteGuard<'a, U> {
        let raw = self.lock.raw();
        // SAFETY: held exclusively by `self`, which the answer takes over.
        let value = part(unsafe { &mut *self.lock.data_ptr() });
        let mapped = MappedWriteGuard::new(raw, value);
        core::mem::forget(self);
        mapped
    }
}

impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: held exclusively.
        unsafe { &*self.lock.data_ptr() }
    }
}

impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: held exclusively, by this guard.
        unsafe { &mut *self.lock.data_ptr() }
    }
}

impl<T: ?Sized> Drop for WriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the hold is this guard's, which is gone now.
        unsafe { self.lock.raw().unlock_write() };
    }
}

impl<'a, T: ?Sized> UpgradableGuard<'a, T> {
    pub(super) fn new(lock: &'a PerCpuRwLock<T>) -> Self {
        Self { lock }
    }

    /// Makes the hold exclusive; waits for readers to leave. No other writer gets in between.
    pub fn upgrade(self) -> WriteGuard<'a, T> {
        while !self.lock.upgrade(Patience::Endless) {}
        self.exclusive()
    }

    /// [`UpgradableGuard::upgrade`] if there are no readers.
    ///
    /// # Errors
    /// The guard, if there are.
    pub fn try_upgrade(self) -> Result<WriteGuard<'a, T>, Self> {
        if self.lock.upgrade(Patience::None) { Ok(self.exclusive()) } else { Err(self) }
    }

    /// [`UpgradableGuard::upgrade`], for at most that long.
    ///
    /// # Errors
    /// The guard, if the time has passed.
    pub fn try_upgrade_for(self, time: Duration) -> Result<WriteGuard<'a, T>, Self> {
        match Instant::now().checked_add(time) {
            Some(deadline) => self.try_upgrade_until(deadline),
            None => Ok(self.upgrade()),
        }
    }

    /// [`UpgradableGuard::upgrade`] up to a deadline.
    ///
    /// # Errors
    /// The guard, if it has passed.
    pub fn try_upgrade_until(self, deadline: Instant) -> Result<WriteGuard<'a, T>, Self> {
        if self.lock.upgrade(Patience::Until(deadline)) { Ok(self.exclusive()) } else { Err(self) }
    }

    fn exclusive(self) -> WriteGuard<'a, T> {
        WriteGuard::new(ManuallyDrop::new(self).lock)
    }

    /// Makes the hold an ordinary shared one.
    pub fn downgrade(self) -> ReadGuard<'a, T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: the hold is this guard's, which is gone now.
        let hold = unsafe { this.lock.raw().downgrade_upgradable() };
        ReadGuard::new(this.lock, hold)
    }
}

impl<T: ?Sized> Deref for UpgradableGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: held shared: whoever has the seat keeps writers out.
        unsafe { &*self.lock.data_ptr() }
    }
}

impl<T: ?Sized> Drop for UpgradableGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the hold is this guard's, which is gone now.
        unsafe { self.lock.raw().unlock_upgradable() };
    }
}

/// `Debug` and `Display` of what a guard is of.
macro_rules! shown_as_its_value {
    ($($guard:ident),*) => {$(
        impl<T: ?Sized + fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }

        impl<T: ?Sized + fmt::Display> fmt::Display for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    )*};
}

shown_as_its_value!(ReadGuard, WriteGuard, UpgradableGuard);
