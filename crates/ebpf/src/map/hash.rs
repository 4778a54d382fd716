//! A hash of a fixed number of elements, for programs that may be interrupted anywhere.
//!
//! Elements lie in an array and are named by index. A free element is on the free list; a taken one is
//! in the chain of its key's bucket. Elements are used again at once, so a reader may find itself carried
//! off into another chain; the end of a chain therefore names its bucket (the kernel's `hlist_nulls`,
//! `include/linux/list_nulls.h`), and who arrives at another one's end starts again.
//!
//! # Protocol
//! 1. *Lookup*: from the bucket's head along the links. At each element: generation, key, generation again;
//!    odd or changed, or a foreign end of chain: start again, [`RETRIES`] times at most. Takes no lock.
//! 2. *Update of a key that is there*: lock the bucket, find it, overwrite the value by words.
//! 3. *Update of a new key*: lock the bucket, look that it is not there, take a free element, make its
//!    generation odd, write key and value, make it even, put it at the head of the chain.
//! 4. *Delete*: lock the bucket, link past the element, put it on the free list.
//! 5. *Lock*: a try-lock, tried [`SPINS`] times. Its holder may be this very thread, interrupted by a
//!    signal handler that we are in; so nobody waits longer, and what did not happen is counted as busy.
//!    The lock holds the process's generation: what a forked child inherits locked is nobody's.
//!
//! | link | meaning |
//! |---|---|
//! | below 2^31 | index of the next element |
//! | 2^31 + b | end of the chain of bucket b |
//! | 2^32 - 1 | end of the free list |
//!
//! | word | written by |
//! |---|---|
//! | head, links of a chain | who holds the bucket |
//! | link, generation, key, value of a free element | who took it off the free list, until it is linked |
//! | value of a linked element | programs, and who holds the bucket |
//! | top of the free list | anybody, by compare-exchange with a tag against reuse |
//!
//! | barrier | what it does |
//! |---|---|
//! | `[A]` | Release, head or link to an element: pairs with [B]; the element's own link is there before |
//! | `[B]` | Acquire, head or link. Without [A] and the fence [C] that comes before it: a reader goes on from a link of the element's last life and misses keys that are there; without [A] alone it meets the free list's end and starts again |
//! | `[C]` | Release fence after the odd generation: pairs with [D]; whoever sees a word of the new key sees the odd generation |
//! | `[D]` | Acquire fence before the second look at the generation. Without it: half an old key and half a new one are found |
//! | `[E]` | Release, the even generation: pairs with [F]; key and value are there before |
//! | `[F]` | Acquire, first look at the generation. Without it: an element is found without its value |
//! | `[G]` | Release, unlock and push to the free list: pairs with [H] |
//! | `[H]` | Acquire, lock and pop. Without it: two writers of a bucket work on different chains |
//!
//! # Invariants
//! 5. An element is in at most one chain, or free, or in the hands of one writer.
//! 6. Two elements in chains never have the same key: equal keys have one bucket, and its lock is held from
//!    the look to the insertion.
//!
//! Proved: models `hash_lookup_during_reuse`, `hash_chain_is_whole`, `hash_one_element_per_key` (`tests/loom.rs`), with twins
//! without [C], [D], [E], [A] and [C] together, and the lock. Shown by `tests/core/maps.rs`: threads, forks and signal
//! handlers at the same buckets.

use core::ptr::null_mut;

use owlet_percpu::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::{Key, MapError, Update, order};
use crate::memory::{self, Values};

/// Times a lookup starts again before it is given up as busy.
const RETRIES: usize = if cfg!(loom) { 1 } else { 64 };
/// Times a lock is tried.
const SPINS: usize = if cfg!(loom) { 1 } else { 256 };

const ENDS: u32 = 1 << 31;
const FREE_END: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Bucket {
    head: AtomicU32,
    /// 0 = free; otherwise the generation of the process that holds it.
    lock: AtomicU32,
}

#[derive(Debug)]
struct Element {
    next: AtomicU32,
    /// Odd while key and value are being written.
    generation: AtomicU32,
}

/// The hash.
#[derive(Debug)]
pub(crate) struct Hash {
    buckets: Box<[Bucket]>,
    elements: Box<[Element]>,
    /// Keys by element, `words` each.
    keys: Box<[AtomicU64]>,
    words: usize,
    key_size: usize,
    values: Values,
    /// Index of the first free element in the lower half, tag in the upper.
    free: AtomicU64,
}

/// What one walk along a chain came to.
enum Walk {
    Found { element: u32, before: Option<u32> },
    Missing,
    Again,
}

impl Hash {
    pub(crate) fn new(entries: usize, key_size: usize, values: Values) -> Self {
        let words = key_size.div_ceil(8);
        let buckets = (0..entries.next_power_of_two())
            .map(|index| Bucket { head: AtomicU32::new(end_of(index)), lock: AtomicU32::new(0) });
        let elements = (0..entries).map(|index| Element {
            next: AtomicU32::new(if index + 1 < entries { narrow(index + 1) } else { FREE_END }),
            generation: AtomicU32::new(0),
        });
        Self {
            buckets: buckets.collect(),
            elements: elements.collect(),
            keys: (0..entries * words).map(|_| AtomicU64::new(0)).collect(),
            words,
            key_size,
            values,
            free: AtomicU64::new(0),
        }
    }

    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// Address of the key's value, or null.
    pub(crate) fn lookup(&self, key: &Key) -> Result<*mut u8, MapError> {
        let (index, bucket) = self.bucket(key).ok_or(MapError::Missing)?;
        for _ in 0..RETRIES {
            match self.walk(bucket, index, key) {
                Walk::Found { element, .. } => return Ok(self.value(element)),
                Walk::Missing => return Ok(null_mut()),
                Walk::Again => core::hint::spin_loop(),
            }
        }
        Err(MapError::Busy)
    }

    /// Copies the key's value.
    pub(crate) fn read(&self, key: &Key, value: &mut [u8]) -> Result<(), MapError> {
        let at = self.lookup(key)?;
        if at.is_null() {
            return Err(MapError::Missing);
        }
        // SAFETY: a value of ours; the caller compared the length with the map's.
        unsafe { memory::copy_out(at, value) };
        Ok(())
    }

    /// Sets the key's value.
    ///
    /// # Safety
    /// `value` is valid for reads of the map's value size.
    pub(crate) unsafe fn update(
        &self,
        key: &Key,
        value: *const u8,
        flag: Update,
    ) -> Result<(), MapError> {
        let (index, bucket) = self.bucket(key).ok_or(MapError::Missing)?;
        let _held = Held::take(bucket)?;
        match self.walk(bucket, index, key) {
            Walk::Found { .. } if flag == Update::NoExist => Err(MapError::Exists),
            Walk::Found { element, .. } => {
                // SAFETY: the caller's value; ours has the same size.
                unsafe { memory::copy(value, self.value(element), self.values.size) };
                Ok(())
            }
            Walk::Missing if flag == Update::Exist => Err(MapError::Missing),
            Walk::Missing => {
                let element = self.take_free().ok_or(MapError::Full)?;
                // SAFETY: the caller's value.
                unsafe { self.fill(element, key, value) };
                if let Some(new) = self.element(element) {
                    new.next.store(bucket.head.load(Relaxed), Release);
                    // [A] Release: pairs with [B]; the link is there first.
                    bucket.head.store(element, order::LINK);
                }
                Ok(())
            }
            // With the bucket held, only a walk that was carried off: a chain of ours cannot.
            Walk::Again => Err(MapError::Busy),
        }
    }

    /// Takes the key out.
    pub(crate) fn delete(&self, key: &Key) -> Result<(), MapError> {
        let (index, bucket) = self.bucket(key).ok_or(MapError::Missing)?;
        let _held = Held::take(bucket)?;
        match self.walk(bucket, index, key) {
            Walk::Found { element, before } => {
                let Some(gone) = self.element(element) else { return Err(MapError::Missing) };
                let link = match before.and_then(|before| self.element(before)) {
                    Some(before) => &before.next,
                    None => &bucket.head,
                };
                // [A] Release: pairs with [B]; a reader may go on from here to any element behind.
                link.store(gone.next.load(Relaxed), order::LINK);
                self.give_free(element);
                Ok(())
            }
            Walk::Missing => Err(MapError::Missing),
            Walk::Again => Err(MapError::Busy),
        }
    }

    /// Keys that are there, by chains.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for (index, bucket) in self.buckets.iter().enumerate() {
            for _ in 0..RETRIES {
                let known = keys.len();
                if self.keys_of(bucket, index, &mut keys) {
                    break;
                }
                keys.truncate(known);
            }
        }
        keys
    }

    /// False if the walk has to start again.
    fn keys_of(&self, bucket: &Bucket, index: usize, keys: &mut Vec<Vec<u8>>) -> bool {
        // [B] Acquire: pairs with [A].
        let mut at = bucket.head.load(Acquire);
        for _ in 0..=self.elements.len() {
            let Some(element) = self.element(at) else { return at == end_of(index) };
            // [F] Acquire: pairs with [E].
            let before = element.generation.load(Acquire);
            let words = self.key(at).iter().map(|word| word.load(Relaxed));
            let mut key: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            key.truncate(self.key_size);
            // [B] Acquire: pairs with [A].
            let next = element.next.load(Acquire);
            // [D] Acquire fence: pairs with [C].
            order::before_second_look();
            if before & 1 != 0 || element.generation.load(Relaxed) != before {
                return false;
            }
            keys.push(key);
            at = next;
        }
        false
    }

    /// Looks for `key` along the chain of bucket `index`.
    fn walk(&self, bucket: &Bucket, index: usize, key: &Key) -> Walk {
        let mut before = None;
        // [B] Acquire: pairs with [A].
        let mut at = bucket.head.load(Acquire);
        for _ in 0..=self.elements.len() {
            let Some(element) = self.element(at) else {
                return if at == end_of(index) { Walk::Missing } else { Walk::Again };
            };
            // [F] Acquire: pairs with [E]; what follows reads this generation's key or a later one.
            let generation = element.generation.load(Acquire);
            let stored = self.key(at).iter().map(|word| word.load(Relaxed));
            let equal = stored.eq(key.words().iter().copied());
            // [B] Acquire: pairs with [A].
            let next = element.next.load(Acquire);
            if generation & 1 != 0 {
                return Walk::Again;
            }
            if equal {
                // [D] Acquire fence: pairs with [C].
                order::before_second_look();
                if element.generation.load(Relaxed) != generation {
                    return Walk::Again;
                }
                return Walk::Found { element: at, before };
            }
            before = Some(at);
            at = next;
        }
        Walk::Again
    }

    /// Makes a free element the key's.
    ///
    /// # Safety
    /// `value` is valid for reads of the map's value size.
    unsafe fn fill(&self, at: u32, key: &Key, value: *const u8) {
        let Some(element) = self.element(at) else { return };
        // Invariant 5: the element is ours alone, but late readers may still look at it.
        let generation = element.generation.load(Relaxed);
        element.generation.store(generation.wrapping_add(1), Relaxed);
        // [C] Release fence: pairs with [D].
        order::after_odd();
        for (word, new) in self.key(at).iter().zip(key.words()) {
            word.store(*new, Relaxed);
        }
        // SAFETY: the caller's value; ours has the same size.
        unsafe { memory::copy(value, self.value(at), self.values.size) };
        // [E] Release: pairs with [F].
        element.generation.store(generation.wrapping_add(2), order::EVEN);
    }

    fn take_free(&self) -> Option<u32> {
        // [H] Acquire: pairs with [G].
        let mut top = self.free.load(Acquire);
        loop {
            let (index, tag) = halves(top);
            let next = self.element(index)?.next.load(Relaxed);
            let new = u64::from(tag.wrapping_add(1)) << 32 | u64::from(next);
            // [H] Acquire: pairs with [G].
            match self.free.compare_exchange_weak(top, new, Acquire, Acquire) {
                Ok(_) => return Some(index),
                Err(seen) => top = seen,
            }
        }
    }

    fn give_free(&self, at: u32) {
        let Some(element) = self.element(at) else { return };
        let mut top = self.free.load(Relaxed);
        loop {
            let (index, tag) = halves(top);
            // Late readers follow this link to the free list's end, which is no bucket's.
            element.next.store(index, Release);
            let new = u64::from(tag.wrapping_add(1)) << 32 | u64::from(at);
            // [G] Release: pairs with [H].
            match self.free.compare_exchange_weak(top, new, Release, Relaxed) {
                Ok(_) => return,
                Err(seen) => top = seen,
            }
        }
    }

    fn element(&self, at: u32) -> Option<&Element> {
        self.elements.get(usize::try_from(at).ok()?)
    }

    fn key(&self, at: u32) -> &[AtomicU64] {
        let first = usize::try_from(at).unwrap_or(0) * self.words;
        self.keys.get(first..first + self.words).unwrap_or(&[])
    }

    fn value(&self, at: u32) -> *mut u8 {
        usize::try_from(at).ok().and_then(|at| self.values.at(at)).unwrap_or(null_mut())
    }

    pub(crate) fn bucket(&self, key: &Key) -> Option<(usize, &Bucket)> {
        let mut hash = 0x9e37_79b9_7f4a_7c15_u64;
        for word in key.words() {
            hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
            hash ^= hash >> 32;
        }
        let hash = usize::try_from(hash & 0xffff_ffff).unwrap_or(0);
        let index = hash & self.buckets.len().saturating_sub(1);
        self.buckets.get(index).map(|bucket| (index, bucket))
    }
}

/// A bucket that is ours.
struct Held<'a>(&'a Bucket);

impl<'a> Held<'a> {
    fn take(bucket: &'a Bucket) -> Result<Self, MapError> {
        let mine = order::process();
        for _ in 0..SPINS {
            let seen = bucket.lock.load(Relaxed);
            // [H] Acquire: pairs with [G].
            if seen != mine && bucket.lock.compare_exchange(seen, mine, Acquire, Relaxed).is_ok() {
                return Ok(Self(bucket));
            }
            core::hint::spin_loop();
        }
        Err(MapError::Busy)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // [G] Release: pairs with [H].
        self.0.lock.store(0, Release);
    }
}

/// Lower and upper half.
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(FREE_END)
}

fn end_of(bucket: usize) -> u32 {
    ENDS | narrow(bucket)
}
