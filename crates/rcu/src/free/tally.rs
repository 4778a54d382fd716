//! How many blocks are out, in two generations, so that a barrier can wait for those of one.
//!
//! A block is counted when it is opened, in the generation of the moment, and counted out when the last
//! of its objects has been freed. A barrier turns the generation over and waits until none of the old one
//! is left: blocks that are opened meanwhile belong to the new one, so it ends however busy the others
//! are. Generation and both counts are one word: whoever opens a block reads and counts in one step, and
//! there are no stragglers. (Why `protocol` needs two scans where this needs one.)
//!
//! | bits | field |
//! |---|---|
//! | 0..31 | blocks of generation 0 |
//! | 31..62 | blocks of generation 1 |
//! | 62 | the generation |
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[F1]` | [`Tally::close`], [`Tally::left`] | release and acquire: objects freed before the barrier that waits for them returns |
//!
//! # Invariants
//! 1. A block is counted from before the first object is put into it until the last one is freed.
//! 2. Barriers exclude each other (`Store::barrier`), so that the generation that a turn begins is
//!    empty at that moment.

use owlet_percpu::atomic::{AtomicU64, Ordering};

const ONE: [u64; 2] = [1, 1 << 31];
const MASK: u64 = (1 << 31) - 1;
const TURN: u64 = 1 << 62;

/// See the module's header.
#[derive(Debug)]
pub struct Tally(AtomicU64);

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Tally {
    /// Nothing is out.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Nothing is out. (Loom's atomics are no constants.)
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts a block and says of which generation it is.
    #[must_use]
    pub fn open(&self) -> u32 {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let generation = generation(now);
            let more = now.wrapping_add(one(generation));
            match self.0.compare_exchange_weak(now, more, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return generation,
                Err(other) => now = other,
            }
        }
    }

    /// Counts a block of this generation out; true if it was the last one of it.
    pub fn close(&self, generation: u32) -> bool {
        // [F1] Release: pairs with the acquire in left(). Without it: a barrier returns, and what it
        // waited for is still being freed.
        let before = self.0.fetch_sub(one(generation), Ordering::Release);
        count(before, generation) == 1
    }

    /// Begins a new generation and returns the old one. The other one must be empty (invariant 2).
    #[must_use]
    pub fn turn(&self) -> u32 {
        generation(self.0.fetch_xor(TURN, Ordering::AcqRel))
    }

    /// Blocks of a generation that are out.
    #[must_use]
    pub fn left(&self, generation: u32) -> u64 {
        // [F1] Acquire: pairs with the release in close().
        count(self.0.load(Ordering::Acquire), generation)
    }

    /// Blocks that are out.
    #[must_use]
    pub fn all(&self) -> u64 {
        // [F1] as in left().
        let now = self.0.load(Ordering::Acquire);
        count(now, 0) + count(now, 1)
    }

    /// In a forked child: so many are out, all of the present generation.
    #[cfg(not(loom))]
    pub(crate) fn reset(&self, out: u64) -> u32 {
        let generation = generation(self.0.load(Ordering::Relaxed));
        let turn = if generation == 0 { 0 } else { TURN };
        self.0.store(turn | ((out & MASK) * one(generation)), Ordering::Relaxed);
        generation
    }
}

fn one(generation: u32) -> u64 {
    let [zero, one] = ONE;
    if generation == 0 { zero } else { one }
}

fn generation(word: u64) -> u32 {
    u32::from(word & TURN != 0)
}

fn count(word: u64, generation: u32) -> u64 {
    let shift = if generation == 0 { 0 } else { 31 };
    (word >> shift) & MASK
}
