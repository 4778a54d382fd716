//! From a call site to its state: insert-only, lock-free, for ever.
//!
//! Levels of growing size, each made when the ones before are full where it matters. A level is an
//! array of buckets of [`WAYS`] pointers; a key belongs to one bucket of each level. Looking up is one
//! bucket (one cache line) per level there is, one level for programs of a few hundred call sites.
//!
//! # Invariants
//! 1. A pointer, once in, is never changed or freed; a level neither.
//! 2. A bucket is filled from its front, and a level is used for a key only when its buckets in all
//!    levels before are full. So a search may stop at the first gap, and of two threads that insert
//!    one key, the second meets what the first has put in.
//!
//! # Barriers
//! | letter | where | pairs with | orders |
//! |---|---|---|---|
//! | [A] | publish an entry | [B] | its contents before it can be found |
//! | [B] | find an entry | [A] | the same |
//! | [C] | publish a level | [D] | its null pointers before it can be found |
//! | [D] | find a level | [C] | the same |
//!
//! # Proof
//! `tests/loom.rs` runs this code: one finds and walks while another inserts into the second level;
//! three insert, two of them the same key. Its twins take one letter away.

use crate::sync::atomic::{AtomicPtr, Ordering, nulls};
use crate::sync::letter::order;
use core::ptr;

/// Entries of one bucket. A model has as few of everything as show it all.
const WAYS: usize = if cfg!(loom) { 2 } else { 8 };
/// Levels at most: 512, 4 Ki, 32 Ki, 256 Ki, 2 Mi entries.
const LEVELS: usize = if cfg!(loom) { 2 } else { 5 };
const FIRST_BUCKETS: usize = if cfg!(loom) { 1 } else { 64 };
/// A level has eight times the buckets of the one before.
const GROWTH_BITS: usize = if cfg!(loom) { 0 } else { 3 };

/// Up to `N` entries, put in from the front and never taken out.
#[derive(Debug)]
pub(crate) struct Ways<T: 'static, const N: usize>([AtomicPtr<T>; N]);

#[repr(align(64))]
struct Bucket<T: 'static>(Ways<T, WAYS>);

/// See the module.
pub(crate) struct Table<T: 'static> {
    levels: [AtomicPtr<Bucket<T>>; LEVELS],
    /// Levels that may be used.
    allowed: usize,
}

/// Where a search ended.
pub(crate) enum Place<'t, T: 'static> {
    Found(&'static T),
    Gap(&'t AtomicPtr<T>),
    Full,
}

impl<T: Sync + 'static, const N: usize> Ways<T, N> {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self(nulls())
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(nulls())
    }

    /// The entry for which `same` is true, or where it would be. Wait-free.
    #[inline]
    pub(crate) fn search(&self, same: &impl Fn(&T) -> bool) -> Place<'_, T> {
        for slot in &self.0 {
            // [B] Acquire: pairs with [A]; without it: a half-written entry.
            // SAFETY: invariant 1.
            match unsafe { slot.load(order('B', Ordering::Acquire)).as_ref() } {
                Some(entry) if same(entry) => return Place::Found(entry),
                Some(_) => {}
                None => return Place::Gap(slot),
            }
        }
        Place::Full
    }
}

/// The entry that `search` finds, made by `make` if there is none; `None` when there is no room.
/// `search` must find what `make` makes.
#[cold]
pub(crate) fn find_or_insert_slow<'t, T: 'static>(
    search: impl Fn() -> Place<'t, T>,
    make: impl FnOnce() -> T,
) -> Option<&'static T> {
    let mut make = Some(make);
    let mut new: *mut T = ptr::null_mut();
    let found = loop {
        match search() {
            Place::Found(entry) => break Some(entry),
            Place::Full => break None,
            Place::Gap(gap) => {
                if let Some(make) = make.take() {
                    new = Box::into_raw(Box::new(make()));
                }
                // [A] Release on success: pairs with [B]. Who fails searches again, and reads what
                // was put in with [B].
                let release = order('A', Ordering::Release);
                let put = gap.compare_exchange(ptr::null_mut(), new, release, Ordering::Relaxed);
                if put.is_ok() {
                    // SAFETY: published for ever (invariant 1).
                    return Some(unsafe { &*new });
                }
            }
        }
    };
    if !new.is_null() {
        // SAFETY: made above and not published.
        drop(unsafe { Box::from_raw(new) });
    }
    found
}

impl<T: Sync + 'static> Table<T> {
    /// A table of at most `allowed` levels.
    #[cfg(not(loom))]
    pub(crate) const fn new(allowed: usize) -> Self {
        Self { levels: nulls(), allowed }
    }

    #[cfg(loom)]
    pub(crate) fn new(allowed: usize) -> Self {
        Self { levels: nulls(), allowed }
    }

    /// The entry with this hash for which `same` is true. Wait-free.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, same: impl Fn(&T) -> bool) -> Option<&'static T> {
        match self.search(hash, &same, false) {
            Place::Found(entry) => Some(entry),
            Place::Gap(_) | Place::Full => None,
        }
    }

    /// The entry with this hash for which `same` is true, made by `make` if there is none; `None` when
    /// there is no room. `same` must be true for what `make` makes.
    #[cold]
    pub(crate) fn find_or_insert_slow(
        &self,
        hash: u64,
        same: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Option<&'static T> {
        find_or_insert_slow(|| self.search(hash, &same, true), make)
    }

    /// Calls `f` with every entry.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&'static T)) {
        for (level, buckets) in self.levels.iter().enumerate() {
            // [D] Acquire: pairs with [C].
            let start = buckets.load(order('D', Ordering::Acquire));
            if start.is_null() {
                return;
            }
            // SAFETY: a published level has that many buckets and is never freed (invariant 1).
            for bucket in unsafe { core::slice::from_raw_parts(start, buckets_of(level)) } {
                for slot in &bucket.0.0 {
                    // [B] Acquire: pairs with [A].
                    let entry = slot.load(order('B', Ordering::Acquire));
                    // SAFETY: invariant 1.
                    if let Some(entry) = unsafe { entry.as_ref() } {
                        f(entry);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn search(&self, hash: u64, same: &impl Fn(&T) -> bool, grow: bool) -> Place<'_, T> {
        for (level, buckets) in self.levels.iter().enumerate().take(self.allowed) {
            // [D] Acquire: pairs with [C]; without it: a level's pointers before they are null.
            let mut start = buckets.load(order('D', Ordering::Acquire));
            if start.is_null() {
                if !grow {
                    return Place::Full;
                }
                start = self.grow_slow(level);
            }
            let at = (hash >> 32) as usize & (buckets_of(level) - 1);
            // SAFETY: a published level has that many buckets and is never freed (invariant 1).
            let buckets = unsafe { core::slice::from_raw_parts(start, buckets_of(level)) };
            let Some(bucket) = buckets.get(at) else { return Place::Full };
            match bucket.0.search(same) {
                Place::Full => {}
                ended => return ended,
            }
        }
        Place::Full
    }

    #[cold]
    fn grow_slow(&self, level: usize) -> *mut Bucket<T> {
        let fresh: Box<[Bucket<T>]> = (0..buckets_of(level)).map(|_| Bucket(Ways::new())).collect();
        let fresh = Box::into_raw(fresh);
        let Some(slot) = self.levels.get(level) else { return fresh.cast() };
        // [C] Release on success: pairs with [D]. [D] Acquire on failure: somebody else's level.
        match slot.compare_exchange(
            ptr::null_mut(),
            fresh.cast(),
            order('C', Ordering::Release),
            order('D', Ordering::Acquire),
        ) {
            Ok(_) => fresh.cast(),
            Err(theirs) => {
                // SAFETY: made above and not published.
                drop(unsafe { Box::from_raw(fresh) });
                theirs
            }
        }
    }
}

const fn buckets_of(level: usize) -> usize {
    FIRST_BUCKETS << (GROWTH_BITS * level)
}

/// Spreads the bits of a word; the upper half is what tables use.
#[inline]
pub(crate) const fn mix(word: u64) -> u64 {
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
