//! The orders of the protocol that has a model, by the letters of its table. What ships is what is
//! written; in a model, [`without`] takes one away.

use owlet_percpu::atomic::Ordering;

/// The order with that letter.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn order(_letter: char, order: Ordering) -> Ordering {
    order
}

#[cfg(loom)]
mod modelled {
    use super::Ordering;
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
}

#[cfg(loom)]
pub(crate) use modelled::{order, without};
