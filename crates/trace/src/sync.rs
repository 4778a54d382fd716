//! Atomics, and the one lock kind of the control plane.

pub(crate) mod atomic {
    #[cfg(not(loom))]
    pub(crate) use owlet_percpu::atomic::AtomicBool;
    #[cfg(feature = "tracing")]
    pub(crate) use owlet_percpu::atomic::AtomicUsize;
    pub(crate) use owlet_percpu::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

    /// Null pointers.
    #[cfg(all(not(loom), any(feature = "tracing", feature = "log")))]
    pub(crate) const fn nulls<T, const N: usize>() -> [AtomicPtr<T>; N] {
        [const { AtomicPtr::new(core::ptr::null_mut()) }; N]
    }

    #[cfg(loom)]
    pub(crate) fn nulls<T, const N: usize>() -> [AtomicPtr<T>; N] {
        core::array::from_fn(|_| AtomicPtr::new(core::ptr::null_mut()))
    }
}

/// The orders of protocols that have a model, by the letters of their tables. What ships is what is
/// written; in a model, [`without`](letter::without) takes one away.
#[cfg(all(not(loom), any(feature = "tracing", feature = "log")))]
pub(crate) mod letter {
    use super::atomic::Ordering;

    /// The order with that letter.
    #[inline(always)]
    pub(crate) const fn order(_letter: char, order: Ordering) -> Ordering {
        order
    }

    /// The fence with that letter.
    #[cfg(feature = "tracing")]
    #[inline(always)]
    pub(crate) fn fence(_letter: char, order: Ordering) {
        owlet_percpu::atomic::fence(order);
    }
}

#[cfg(loom)]
pub(crate) mod letter {
    use super::atomic::Ordering;
    use std::cell::Cell;

    // All threads of a model run on one thread of the system; models beside it have theirs.
    std::thread_local! { static WITHOUT: Cell<Option<char>> = const { Cell::new(None) } }

    /// From here on, the models of this thread run without what has that letter.
    pub(crate) fn without(letter: char) {
        WITHOUT.set(Some(letter));
    }

    pub(crate) fn order(letter: char, order: Ordering) -> Ordering {
        if WITHOUT.get() == Some(letter) { Ordering::Relaxed } else { order }
    }

    pub(crate) fn fence(letter: char, order: Ordering) {
        if WITHOUT.get() != Some(letter) {
            owlet_percpu::atomic::fence(order);
        }
    }
}

use core::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex that is consistent in a forked child: the thread that forks holds it meanwhile.
///
/// Poison is ignored: nothing of ours panics while holding it, and what a user's hook leaves behind
/// is his.
pub(crate) struct ForkMutex<T: 'static> {
    mutex: Mutex<T>,
    /// The guard of the thread that is inside `fork`; touched by that thread only.
    forking: UnsafeCell<Option<MutexGuard<'static, T>>>,
}

// SAFETY: `mutex` is Sync for `T: Send`. `forking` is written by `hold` only while the calling thread
// owns the mutex and read by `release`, which the same thread calls (fork handlers run in the forking
// thread, and its copy in the child), so no two threads touch it at once.
unsafe impl<T: Send> Sync for ForkMutex<T> {}

impl<T> ForkMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), forking: UnsafeCell::new(None) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Before `fork`: waits for the owner.
    pub(crate) fn hold(&'static self) {
        let guard = self.lock();
        // SAFETY: we own the mutex, see the `Sync` impl.
        unsafe { *self.forking.get() = Some(guard) };
    }

    /// After `fork`, in parent and child.
    pub(crate) fn release(&'static self) {
        // SAFETY: the calling thread owns the mutex since `hold`, see the `Sync` impl.
        let guard = unsafe { (*self.forking.get()).take() };
        drop(guard);
    }
}
