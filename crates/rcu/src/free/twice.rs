//! Builds with the checks: an object that is retired twice is noticed, and leaked.
//!
//! A table of the objects that wait, as many as fit: places are found by the address, eight to each; what
//! finds none goes without the check, and so do two threads that retire the same object at the same
//! instant. No lock, no allocation.

use super::arch::Words;

#[cfg(any(debug_assertions, feature = "checks"))]
mod table {
    use core::sync::atomic::{AtomicUsize, Ordering};

    const WAYS: usize = 8;
    const SETS: usize = 4096;
    /// Objects are aligned to more than a byte, if they have a size.
    const LEAK: usize = 1;

    static TABLE: [[AtomicUsize; WAYS]; SETS] =
        [const { [const { AtomicUsize::new(0) }; WAYS] }; SETS];

    fn set(at: usize) -> &'static [AtomicUsize] {
        let mixed = (at >> 4) ^ (at >> 16) ^ (at >> 28);
        TABLE.get(mixed % SETS).map_or(&[], |set| set.as_slice())
    }

    /// False if it is there already; then it is to be leaked.
    pub(super) fn insert(at: usize) -> bool {
        let set = set(at);
        for way in set {
            if way.load(Ordering::Relaxed) & !LEAK == at {
                way.store(at | LEAK, Ordering::Relaxed);
                return false;
            }
        }
        let free = |way: &&AtomicUsize| {
            way.compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let _ = set.iter().find(free);
        true
    }

    /// True if it is to be leaked.
    pub(super) fn remove(at: usize) -> bool {
        let here = |way: &&AtomicUsize| way.load(Ordering::Relaxed) & !LEAK == at;
        set(at).iter().find(here).is_some_and(|way| way.swap(0, Ordering::Relaxed) & LEAK != 0)
    }
}

/// The object's address, if it can be told from others.
#[cfg(any(debug_assertions, feature = "checks"))]
fn key(at: usize) -> Option<usize> {
    // Objects without a size have addresses that they share: their alignment.
    (at >= 4096 && at & 1 == 0 && !at.is_power_of_two()).then_some(at)
}

/// An object is being retired. False if it waits already: then it is not to be put in, and will not be
/// freed.
#[inline(always)]
pub(super) fn remember(words: Words) -> bool {
    #[cfg(any(debug_assertions, feature = "checks"))]
    if let [at, _] = words
        && let Some(at) = key(at)
    {
        return table::insert(at);
    }
    let _ = words;
    true
}

/// An object is about to be freed, or could not be put in; true if it is to be leaked.
#[inline(always)]
pub(super) fn forget(at: *mut ()) -> bool {
    #[cfg(any(debug_assertions, feature = "checks"))]
    if let Some(at) = key(at.addr()) {
        return table::remove(at);
    }
    let _ = at;
    false
}
