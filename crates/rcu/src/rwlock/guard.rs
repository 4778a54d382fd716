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
///
/// It is the thread's that took it: in a forked child of another, to which the guard was moved, it is over,
/// as shared holds are. Upgrading it there takes it anew first, and waits for that.
#[must_use = "the hold ends when this is dropped"]
pub struct UpgradableGuard<'a, T: ?Sized> {
    lock: &'a PerCpuRwLock<T>,
    turn: u64,
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
        Self { lock, turn: lock.raw().turn() }
    }

    /// True unless it was lost at a fork; taken anew if the patience is enough for that.
    fn renew(&mut self, patience: Patience) -> bool {
        let raw = self.lock.raw();
        if raw.is_still(self.turn) {
            return true;
        }
        let taken = raw.upgradable_with(patience);
        if taken {
            self.turn = raw.turn();
        }
        taken
    }

    /// Makes the hold exclusive; waits for readers to leave. No other writer gets in between.
    pub fn upgrade(mut self) -> WriteGuard<'a, T> {
        while !self.renew(Patience::Endless) || !self.lock.upgrade(Patience::Endless) {}
        self.exclusive()
    }

    /// [`UpgradableGuard::upgrade`] if there are no readers.
    ///
    /// # Errors
    /// The guard, if there are.
    pub fn try_upgrade(self) -> Result<WriteGuard<'a, T>, Self> {
        self.upgrade_with(Patience::None)
    }

    fn upgrade_with(mut self, patience: Patience) -> Result<WriteGuard<'a, T>, Self> {
        if self.renew(patience) && self.lock.upgrade(patience) {
            Ok(self.exclusive())
        } else {
            Err(self)
        }
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
        self.upgrade_with(Patience::Until(deadline))
    }

    fn exclusive(self) -> WriteGuard<'a, T> {
        WriteGuard::new(ManuallyDrop::new(self).lock)
    }

    /// Makes the hold an ordinary shared one.
    pub fn downgrade(mut self) -> ReadGuard<'a, T> {
        while !self.renew(Patience::Endless) {}
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
        if self.lock.raw().is_still(self.turn) {
            // SAFETY: the hold is this guard's, which is gone now.
            unsafe { self.lock.raw().unlock_upgradable() };
        }
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
