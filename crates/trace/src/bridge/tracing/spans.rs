//! The spans of one subscriber that are alive: from a span's id to what we know of it.
//!
//! Ids are words that are unique while their span lives. The table is set-associative: levels of
//! growing size, each an array of buckets of [`WAYS`] keys (one cache line) and as many states. A
//! key may lie anywhere in its bucket of any level; taking it out is one store. There is no chain
//! and no tombstone, so nothing has to be repaired, and a forked child finds at worst one way that
//! nobody will use again.
//!
//! Memory: 40 bytes for each span alive at the same time, at the most crowded moment; levels are kept
//! until the subscriber goes.
//!
//! # States of a way, told by its key
//! | key | meaning | next |
//! |---|---|---|
//! | 0 | free | `BUSY` by compare-exchange in [`Spans::insert`] |
//! | `BUSY` | its owner writes the state | the id |
//! | id | alive | 0, by whoever drops the last reference |
//!
//! # Invariants
//! 1. A level, once published, stays until the table is dropped.
//! 2. Only the thread that made a key `BUSY` writes the state behind it, references excepted.
//!
//! # Barriers
//! A state is read like a seqlock whose sequence is the key: an id that was forged, or used after
//! its span closed, is found missing instead of read in halves. An id may be used again at once, and
//! then the key does not tell: so the span's number is a second sequence, inside the first. (Spans that
//! are not recorded have none: two of them with one id are not told apart.)
//!
//! | letter | where | pairs with | orders |
//! |---|---|---|---|
//! | [A] | key becomes the id | [B] | the number before the id can be found to be still there |
//! | [B] | key is looked at again | [A] | the same |
//! | [C] | fence between `BUSY` and the state | [D] | nobody reads the new state under the old id |
//! | [D] | fence between the state and looking at the key again | [C] | the same |
//! | [E] | a level is published | [F] | its contents before it can be found |
//! | [F] | a level is looked at | [E] | the same |
//! | [G] | a reference goes | [G] | what other owners did before the span is closed |
//! | [H] | key becomes 0 | [I] | what all owners did before another span has the way |
//! | [I] | key becomes `BUSY` | [H] | the same |
//! | [J] | the number is written, last | [K] | the other words before the number that is theirs |
//! | [K] | the number is read, first | [J] | the same |
//!
//! # Proof
//! `tests/loom.rs` runs this code: a way is used again, for another id and for the same one, under
//! the eyes of one who looks for both spans; two insert into a table without a level; two owners go,
//! and the last one makes room for a new span. Its twins take one letter away.

use super::site::Site;
use crate::bridge::table::mix;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, nulls};
use crate::sync::letter::{fence, order};
use core::ptr;

/// A model has as few of everything as show it all.
const WAYS: usize = if cfg!(loom) { 1 } else { 8 };
/// Levels at most: 512, 4 Ki, 32 Ki, 256 Ki, 2 Mi, 16 Mi spans.
const LEVELS: usize = if cfg!(loom) { 2 } else { 6 };
const FIRST_BUCKETS: usize = if cfg!(loom) { 1 } else { 64 };
/// A level has eight times the buckets of the one before.
const GROWTH_BITS: usize = if cfg!(loom) { 0 } else { 3 };
const FREE: u64 = 0;
const BUSY: u64 = u64::MAX;

/// The subscriber inside does not know the span.
pub(crate) const OURS: u32 = 1;

#[repr(align(64))]
struct Keys([AtomicU64; WAYS]);

struct State {
    span: AtomicU64,
    since: AtomicU64,
    site: AtomicPtr<Site>,
    references: AtomicU32,
    flags: AtomicU32,
}

/// One bucket.
struct Bucket {
    keys: Keys,
    states: [State; WAYS],
}

/// What is known of a span that is alive.
#[derive(Clone, Copy)]
pub(crate) struct Known<'t> {
    id: u64,
    key: &'t AtomicU64,
    state: &'t State,
    /// Its number in traces; 0 when it is not recorded.
    pub(crate) span: u64,
    /// When it was created, by the monotonic clock.
    pub(crate) since: u64,
    pub(crate) site: &'static Site,
    pub(crate) flags: u32,
}

/// What a new entry holds.
pub(crate) struct New {
    pub(crate) span: u64,
    pub(crate) since: u64,
    pub(crate) site: &'static Site,
    pub(crate) flags: u32,
}

/// See the module.
pub(crate) struct Spans {
    levels: [AtomicPtr<Bucket>; LEVELS],
}

impl Spans {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { levels: nulls() }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { levels: nulls() }
    }

    /// The span with this id. Wait-free: one cache line a level, and the state.
    #[inline(always)]
    pub(crate) fn find(&self, id: u64) -> Option<Known<'_>> {
        if id == BUSY || id == FREE {
            // Forged: no span has it.
            return None;
        }
        let hash = mix(id);
        for (level, buckets) in self.levels.iter().enumerate() {
            // [F] Acquire: pairs with [E]; without it: a level's keys before they are free.
            let start = buckets.load(order('F', Ordering::Acquire));
            if start.is_null() {
                return None;
            }
            // SAFETY: a published level has that many buckets; invariant 1.
            let buckets = unsafe { core::slice::from_raw_parts(start, buckets_in(level)) };
            let Some(bucket) = buckets.get(bucket_of(hash, level)) else { continue };
            for (key, state) in bucket.keys.0.iter().zip(&bucket.states) {
                // Relaxed: what is read now counts if the key is the same at [B].
                if key.load(Ordering::Relaxed) == id {
                    return Known::read(key, state, id);
                }
            }
        }
        None
    }

    /// Puts a span in, with one reference. `false` when there is no room.
    pub(crate) fn insert(&self, id: u64, new: &New) -> bool {
        if id == BUSY || id == FREE {
            return false;
        }
        let hash = mix(id);
        for (level, buckets) in self.levels.iter().enumerate() {
            // [F] Acquire: pairs with [E].
            let mut start = buckets.load(order('F', Ordering::Acquire));
            if start.is_null() {
                let Some(grown) = self.grow_slow(level) else { return false };
                start = grown;
            }
            // SAFETY: a published level has that many buckets; invariant 1.
            let buckets = unsafe { core::slice::from_raw_parts(start, buckets_in(level)) };
            let Some(bucket) = buckets.get(bucket_of(hash, level)) else { continue };
            for (key, state) in bucket.keys.0.iter().zip(&bucket.states) {
                if key.load(Ordering::Relaxed) != FREE {
                    continue;
                }
                // [I] Acquire: pairs with [H]; without it: what the owners before did to the state
                // comes after what we do.
                let acquire = order('I', Ordering::Acquire);
                if key.compare_exchange(FREE, BUSY, acquire, Ordering::Relaxed).is_ok() {
                    // [C] Release fence: pairs with [D]; without it: a reader that found the old
                    // id reads the new state and does not notice.
                    fence('C', Ordering::Release);
                    state.write(new);
                    // [A] Release: pairs with [B].
                    key.store(id, order('A', Ordering::Release));
                    return true;
                }
            }
        }
        false
    }

    /// Number of spans alive. Walks the whole table.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        let mut count = 0;
        for (level, buckets) in self.levels.iter().enumerate() {
            let start = buckets.load(Ordering::Acquire);
            if start.is_null() {
                break;
            }
            // SAFETY: a published level has that many buckets; invariant 1.
            for bucket in unsafe { core::slice::from_raw_parts(start, buckets_in(level)) } {
                count += bucket.keys.0.iter().filter(|k| k.load(Ordering::Relaxed) != FREE).count();
            }
        }
        count
    }

    #[cold]
    fn grow_slow(&self, level: usize) -> Option<*mut Bucket> {
        let slot = self.levels.get(level)?;
        let fresh = allocate(level)?;
        // [E] Release on success: pairs with [F]. [F] Acquire on failure.
        match slot.compare_exchange(
            ptr::null_mut(),
            fresh,
            order('E', Ordering::Release),
            order('F', Ordering::Acquire),
        ) {
            Ok(_) => Some(fresh),
            Err(theirs) => {
                // SAFETY: allocated above, and not published.
                unsafe { free(fresh, level) };
                Some(theirs)
            }
        }
    }
}

// A model leaves its levels behind: its threads end in the middle when it fails.
#[cfg(not(loom))]
impl Drop for Spans {
    fn drop(&mut self) {
        for (level, slot) in self.levels.iter_mut().enumerate() {
            let start = *slot.get_mut();
            if !start.is_null() {
                // SAFETY: `grow_slow` allocated it for this level, and nobody has it any more: we are
                // borrowed uniquely.
                unsafe { free(start, level) };
            }
        }
    }
}

impl<'t> Known<'t> {
    #[inline(always)]
    fn read(key: &'t AtomicU64, state: &'t State, id: u64) -> Option<Self> {
        // [K] Acquire: pairs with [J]; without it: a new number and the words before.
        let span = state.span.load(order('K', Ordering::Acquire));
        let since = state.since.load(Ordering::Relaxed);
        let site = state.site.load(Ordering::Relaxed);
        let flags = state.flags.load(Ordering::Relaxed);
        // [D] Acquire fence: pairs with [C].
        fence('D', Ordering::Acquire);
        // [B] Acquire: pairs with [A]; without it: the same id is there for another span, whose
        // number we do not see yet.
        let same = key.load(order('B', Ordering::Acquire)) == id
            && state.span.load(Ordering::Relaxed) == span;
        if !same {
            return None;
        }
        // SAFETY: written together with the id that is still there, from a `&'static Site`.
        let site = unsafe { site.as_ref() }?;
        Some(Self { id, key, state, span, since, site, flags })
    }

    /// One more reference.
    pub(crate) fn retain(&self) {
        self.state.references.fetch_add(1, Ordering::Relaxed);
    }

    /// One reference less. `true` when it was the last: the caller must [`remove`](Self::remove) it.
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        // [G] Release and Acquire: pairs with itself; the last owner comes after all others.
        self.state.references.fetch_sub(1, order('G', Ordering::AcqRel)) == 1
    }

    /// Whether it is still there, and not another span of the same id.
    pub(crate) fn is_still(&self) -> bool {
        self.key.load(Ordering::Relaxed) == self.id
            && self.state.span.load(Ordering::Relaxed) == self.span
    }

    /// Takes the span out. Its id may be used again when this returns.
    pub(crate) fn remove(&self) {
        // [H] Release: pairs with [I]; all owners are before it by [G].
        self.key.store(FREE, order('H', Ordering::Release));
    }
}

impl State {
    fn write(&self, new: &New) {
        self.since.store(new.since, Ordering::Relaxed);
        self.site.store(ptr::from_ref(new.site).cast_mut(), Ordering::Relaxed);
        self.references.store(1, Ordering::Relaxed);
        self.flags.store(new.flags, Ordering::Relaxed);
        // [J] Release: pairs with [K]; the number is the last word to be written, the first to be read.
        self.span.store(new.span, order('J', Ordering::Release));
    }
}

const fn buckets_in(level: usize) -> usize {
    FIRST_BUCKETS << (GROWTH_BITS * level)
}

#[inline]
fn bucket_of(hash: u64, level: usize) -> usize {
    (hash >> 32) as usize & (buckets_in(level) - 1)
}

#[cfg(not(loom))]
fn layout(level: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::array::<Bucket>(buckets_in(level)).ok()
}

/// The buckets of a level, all free; `None` without memory.
#[cfg(not(loom))]
fn allocate(level: usize) -> Option<*mut Bucket> {
    // SAFETY: the layout is not of size zero. Zeroed memory is a valid array of buckets: free keys,
    // and states of integers and null pointers.
    let fresh = unsafe { std::alloc::alloc_zeroed(layout(level)?) }.cast::<Bucket>();
    (!fresh.is_null()).then_some(fresh)
}

/// # Safety
/// `start` is what [`allocate`] returned for that level, and nobody uses it any more.
#[cfg(not(loom))]
unsafe fn free(start: *mut Bucket, level: usize) {
    if let Some(layout) = layout(level) {
        // SAFETY: allocated with this layout, says the caller.
        unsafe { std::alloc::dealloc(start.cast(), layout) };
    }
}

/// Loom's atomics are more than their words.
#[cfg(loom)]
fn allocate(level: usize) -> Option<*mut Bucket> {
    let state = |_| State {
        span: AtomicU64::new(0),
        since: AtomicU64::new(0),
        site: AtomicPtr::new(ptr::null_mut()),
        references: AtomicU32::new(0),
        flags: AtomicU32::new(0),
    };
    let bucket = |_| Bucket {
        keys: Keys(core::array::from_fn(|_| AtomicU64::new(FREE))),
        states: core::array::from_fn(state),
    };
    let fresh: Box<[Bucket]> = (0..buckets_in(level)).map(bucket).collect();
    Some(Box::into_raw(fresh).cast())
}

/// # Safety
/// As above.
#[cfg(loom)]
unsafe fn free(start: *mut Bucket, level: usize) {
    // SAFETY: a box of as many buckets.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(start, buckets_in(level))) });
}
