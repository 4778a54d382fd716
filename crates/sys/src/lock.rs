//! A mutex that a forked child finds consistent.
//!
//! Whoever registers handlers with `pthread_atfork` calls [`ForkMutex::hold`] before the fork and
//! [`ForkMutex::release`] after it, in parent and child: then nobody is in the middle of anything in the
//! copy. Handlers that hold several such locks take them in the order in which code takes them.

use core::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex that is consistent in a forked child: the thread that forks holds it meanwhile.
///
/// Poison is ignored: nothing of ours panics while holding it, and what a user's hook leaves behind
/// is his.
#[derive(Debug)]
pub struct ForkMutex<T: 'static> {
    mutex: Mutex<T>,
    /// The guard of the thread that is inside `fork`; touched by that thread only.
    forking: UnsafeCell<Option<MutexGuard<'static, T>>>,
}

// SAFETY: `mutex` is Sync for `T: Send`. `forking` is written by `hold` only while the calling thread
// owns the mutex and read by `release`, which the same thread calls (fork handlers run in the forking
// thread, and its copy in the child), so no two threads touch it at once.
unsafe impl<T: Send> Sync for ForkMutex<T> {}

impl<T> ForkMutex<T> {
    /// A mutex that nobody holds.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), forking: UnsafeCell::new(None) }
    }

    /// Waits for the lock. Not for signal handlers.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Before `fork`: waits for the owner.
    pub fn hold(&'static self) {
        let guard = self.lock();
        // SAFETY: we own the mutex, see the `Sync` impl.
        unsafe { *self.forking.get() = Some(guard) };
    }

    /// After `fork`, in parent and child.
    pub fn release(&'static self) {
        // SAFETY: the calling thread owns the mutex since `hold`, see the `Sync` impl.
        let guard = unsafe { (*self.forking.get()).take() };
        drop(guard);
    }
}
