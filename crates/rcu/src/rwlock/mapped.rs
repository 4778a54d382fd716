//! Guards of parts of what a lock protects.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::raw::RawRwLock;
use super::read::ReadHold;

/// A [`ReadGuard`](super::ReadGuard) of a part of the value.
#[must_use = "the hold ends when this is dropped"]
pub struct MappedReadGuard<'a, U: ?Sized> {
    raw: &'a RawRwLock,
    hold: ReadHold,
    value: NonNull<U>,
    _value: PhantomData<&'a U>,
}

/// A [`WriteGuard`](super::WriteGuard) of a part of the value.
#[must_use = "the hold ends when this is dropped"]
pub struct MappedWriteGuard<'a, U: ?Sized> {
    raw: &'a RawRwLock,
    value: NonNull<U>,
    _value: PhantomData<&'a mut U>,
}

// SAFETY: a shared reference, and a hold that may end on any thread.
unsafe impl<U: ?Sized + Sync> Send for MappedReadGuard<'_, U> {}
// SAFETY: gives shared references only.
unsafe impl<U: ?Sized + Sync> Sync for MappedReadGuard<'_, U> {}
// SAFETY: an exclusive reference, and a hold that may end on any thread.
unsafe impl<U: ?Sized + Send> Send for MappedWriteGuard<'_, U> {}
// SAFETY: shared, it gives shared references only.
unsafe impl<U: ?Sized + Sync> Sync for MappedWriteGuard<'_, U> {}

impl<'a, U: ?Sized> MappedReadGuard<'a, U> {
    pub(super) fn new(raw: &'a RawRwLock, hold: ReadHold, value: &U) -> Self {
        Self { raw, hold, value: NonNull::from(value), _value: PhantomData }
    }

    /// A guard of a part of this part.
    pub fn map<V: ?Sized>(self, part: impl FnOnce(&U) -> &V) -> MappedReadGuard<'a, V> {
        let mapped = MappedReadGuard::new(self.raw, self.hold, part(&self));
        core::mem::forget(self);
        mapped
    }
}

impl<'a, U: ?Sized> MappedWriteGuard<'a, U> {
    pub(super) fn new(raw: &'a RawRwLock, value: &mut U) -> Self {
        Self { raw, value: NonNull::from(value), _value: PhantomData }
    }

    /// A guard of a part of this part.
    pub fn map<V: ?Sized>(
        mut self,
        part: impl FnOnce(&mut U) -> &mut V,
    ) -> MappedWriteGuard<'a, V> {
        let mapped = MappedWriteGuard::new(self.raw, part(&mut self));
        core::mem::forget(self);
        mapped
    }
}

impl<U: ?Sized> Deref for MappedReadGuard<'_, U> {
    type Target = U;

    fn deref(&self) -> &U {
        // SAFETY: made of a reference into a value that is held shared.
        unsafe { self.value.as_ref() }
    }
}

impl<U: ?Sized> Deref for MappedWriteGuard<'_, U> {
    type Target = U;

    fn deref(&self) -> &U {
        // SAFETY: made of a reference into a value that is held exclusively.
        unsafe { self.value.as_ref() }
    }
}

impl<U: ?Sized> DerefMut for MappedWriteGuard<'_, U> {
    fn deref_mut(&mut self) -> &mut U {
        // SAFETY: as above, and by this guard.
        unsafe { self.value.as_mut() }
    }
}

impl<U: ?Sized> Drop for MappedReadGuard<'_, U> {
    fn drop(&mut self) {
        // SAFETY: the hold is this guard's, which is gone now.
        unsafe { self.raw.unlock_read(self.hold) };
    }
}

impl<U: ?Sized> Drop for MappedWriteGuard<'_, U> {
    fn drop(&mut self) {
        // SAFETY: the hold is this guard's, which is gone now.
        unsafe { self.raw.unlock_write() };
    }
}

impl<U: ?Sized + fmt::Debug> fmt::Debug for MappedReadGuard<'_, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<U: ?Sized + fmt::Debug> fmt::Debug for MappedWriteGuard<'_, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
