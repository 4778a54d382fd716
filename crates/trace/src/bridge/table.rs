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
//! | [A] | publish an entry or a level | [B] | its contents before it can be found |
//! | [B] | find an entry or a level | [A] | the same |

use crate::sync::atomic::{AtomicPtr, Ordering};
use core::ptr;

/// Entries of one bucket.
const WAYS: usize = 8;
/// Levels at most: 512, 4 Ki, 32 Ki, 256 Ki, 2 Mi entries.
const LEVELS: usize = 5;
const FIRST_BUCKETS: usize = 64;

#[repr(align(64))]
struct Bucket<T>([AtomicPtr<T>; WAYS]);

/// See the module.
pub(crate) struct Table<T: 'static> {
    levels: [AtomicPtr<Bucket<T>>; LEVELS],
    /// Levels that may be used.
    allowed: usize,
}

/// Where a search ended.
enum Place<'t, T: 'static> {
    Found(&'static T),
    Gap(&'t AtomicPtr<T>),
    Full,
}

impl<T: Sync + 'static> Table<T> {
    /// A table of at most `allowed` levels.
    pub(crate) const fn new(allowed: usize) -> Self {
        Self { levels: [const { AtomicPtr::new(ptr::null_mut()) }; LEVELS], allowed }
    }

    /// The entry with this hash for which `same` is true. Wait-free.
    #[inline]
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
        let mut make = Some(make);
        let mut new: *mut T = ptr::null_mut();
        let found = loop {
            match self.search(hash, &same, true) {
                Place::Found(entry) => break Some(entry),
                Place::Full => break None,
                Place::Gap(gap) => {
                    if let Some(make) = make.take() {
                        new = Box::into_raw(Box::new(make()));
                    }
                    // [A] Release on success: pairs with [B].
                    let put = gap.compare_exchange(
                        ptr::null_mut(),
                        new,
                        Ordering::Release,
                        Ordering::Relaxed,
                    );
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

    /// Calls `f` with every entry.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&'static T)) {
        for (level, buckets) in self.levels.iter().enumerate() {
            // [B] Acquire: pairs with [A].
            let start = buckets.load(Ordering::Acquire);
            if start.is_null() {
                return;
            }
            // SAFETY: a published level has that many buckets and is never freed (invariant 1).
            for bucket in unsafe { core::slice::from_raw_parts(start, buckets_of(level)) } {
                for slot in &bucket.0 {
                    // [B] Acquire: pairs with [A].
                    // SAFETY: invariant 1.
                    if let Some(entry) = unsafe { slot.load(Ordering::Acquire).as_ref() } {
                        f(entry);
                    }
                }
            }
        }
    }

    #[inline]
    fn search(&self, hash: u64, same: &impl Fn(&T) -> bool, grow: bool) -> Place<'_, T> {
        for (level, buckets) in self.levels.iter().enumerate().take(self.allowed) {
            // [B] Acquire: pairs with [A]; without it: a level's pointers before they are null.
            let mut start = buckets.load(Ordering::Acquire);
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
            for slot in &bucket.0 {
                // [B] Acquire: pairs with [A]; without it: a half-written entry.
                // SAFETY: invariant 1.
                match unsafe { slot.load(Ordering::Acquire).as_ref() } {
                    Some(entry) if same(entry) => return Place::Found(entry),
                    Some(_) => {}
                    None => return Place::Gap(slot),
                }
            }
        }
        Place::Full
    }

    #[cold]
    fn grow_slow(&self, level: usize) -> *mut Bucket<T> {
        let empty = || Bucket([const { AtomicPtr::new(ptr::null_mut()) }; WAYS]);
        let fresh: Box<[Bucket<T>]> = (0..buckets_of(level)).map(|_| empty()).collect();
        let fresh = Box::into_raw(fresh);
        let Some(slot) = self.levels.get(level) else { return fresh.cast() };
        // [A] Release on success, [B] Acquire on failure.
        match slot.compare_exchange(
            ptr::null_mut(),
            fresh.cast(),
            Ordering::Release,
            Ordering::Acquire,
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
    FIRST_BUCKETS << (3 * level)
}

/// Spreads the bits of a word; the upper half is what tables use.
#[inline]
pub(crate) const fn mix(word: u64) -> u64 {
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
