//! Guards that keep the lock alive by an `Arc`, for holds without a lifetime.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::lock::PerCpuRwLock;
use super::read::ReadHold;

/// [`ReadGuard`](super::ReadGuard) of a lock in an `Arc`.
#[must_use = "the hold ends when this is dropped"]
pub struct ArcReadGuard<T: ?Sized> {
    lock: ManuallyDrop<Arc<PerCpuRwLock<T>>>,
    hold: ReadHold,
}

/// [`WriteGuard`](super::WriteGuard) of a lock in an `Arc`.
#[must_use = "the hold ends when this is dropped"]
pub struct ArcWriteGuard<T: ?Sized> {
    lock: ManuallyDrop<Arc<PerCpuRwLock<T>>>,
}

impl<T: ?Sized> PerCpuRwLock<T> {
    /// [`PerCpuRwLock::read`] by a guard that keeps the lock alive.
    pub fn read_arc(self: &Arc<Self>) -> ArcReadGuard<T> {
        ArcReadGuard { hold: self.raw().read(), lock: ManuallyDrop::new(self.clone()) }
    }

    /// [`PerCpuRwLock::try_read`] by a guard that keeps the lock alive.
    pub fn try_read_arc(self: &Arc<Self>) -> Option<ArcReadGuard<T>> {
        let hold = self.raw().try_read()?;
        Some(ArcReadGuard { hold, lock: ManuallyDrop::new(self.clone()) })
    }

    /// [`PerCpuRwLock::write`] by a guard that keeps the lock alive.
    pub fn write_arc(self: &Arc<Self>) -> ArcWriteGuard<T> {
        self.raw().write();
        ArcWriteGuard { lock: ManuallyDrop::new(self.clone()) }
    }

    /// [`PerCpuRwLock::try_write`] by a guard that keeps the lock alive.
    pub fn try_write_arc(self: &Arc<Self>) -> Option<ArcWriteGuard<T>> {
        let taken = self.raw().try_write();
        taken.then(|| ArcWriteGuard { lock: ManuallyDrop::new(self.clone()) })
    }
}

impl<T: ?Sized> ArcWriteGuard<T> {
    /// Makes the hold a shared one; no writer gets in between.
    pub fn downgrade(self) -> ArcReadGuard<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the hold is this guard's, which is gone now.
        let hold = unsafe { this.lock.raw().downgrade() };
        // SAFETY: this guard is not dropped.
        let lock = unsafe { ManuallyDrop::take(&mut this.lock) };
        ArcReadGuard { lock: ManuallyDrop::new(lock), hold }
    }
}

impl<T: ?Sized> Deref for ArcReadGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: held shared.
        unsafe { &*self.lock.data_ptr() }
    }
}

impl<T: ?Sized> Deref for ArcWriteGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: held exclusively.
        unsafe { &*self.lock.data_ptr() }
    }
}

impl<T: ?Sized> DerefMut for ArcWriteGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: held exclusively, by this guard.
        unsafe { &mut *self.lock.data_ptr() }
    }
}

impl<T: ?Sized> Drop for ArcReadGuard<T> {
    fn drop(&mut self) {
        // SAFETY: the hold is this guard's, which is gone now.
        unsafe { self.lock.raw().unlock_read(self.hold) };
        // SAFETY: once, here.
        unsafe { ManuallyDrop::drop(&mut self.lock) };
    }
}

impl<T: ?Sized> Drop for ArcWriteGuard<T> {
    fn drop(&mut self) {
        // SAFETY: the hold is this guard's, which is gone now.
        unsafe { self.lock.raw().unlock_write() };
        // SAFETY: once, here.
        unsafe { ManuallyDrop::drop(&mut self.lock) };
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for ArcReadGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for ArcWriteGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
