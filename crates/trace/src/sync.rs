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

pub(crate) use owlet_sys::lock::ForkMutex;
