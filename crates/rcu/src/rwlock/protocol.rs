//! Readers that are counted and a writer that waits for them: the barriers, over a trait, so that the
//! loom models run the very code that ships.
//!
//! Readers count themselves in and out in two sums. A *fast* reader does so in one restartable
//! sequence with its look at the `rcu_sync`; nobody does any more once a writer has entered that. What is
//! here is the slow way: count, then look whether a writer is there; who finds one counts out again
//! and waits.
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[A]` | [`enter_slow`] | full: the reader's count before its look at `block` |
//! | `[B]` | [`leave_slow`] | release: the reader's section before its count of the exit |
//! | `[C]` | [`is_drained`] | acquire: the exits' sum before that of the entries, and before the writer's section |
//! | `[D]` | [`block`] | full: `block` before the sums |
//! | `[X]` | [`unblock`], [`enter_slow`] | release and acquire of `block`: the writer's section before that of a reader that finds it open |
//! | `[Y]` | [`leave_slow`], [`want`] | full on both sides: a count before the look at `wanted`; `wanted` before the last look at the sums |
//!
//! The letters `[A]` to `[D]` are those of kernel/locking/percpu-rwsem.c.
//!
//! # Invariants
//! 1. A reader that found `block` open, by `[A]` and `[D]`, is in the sums of every writer that closed it
//!    before or after; one that found it closed has counted itself out again.
//! 2. Exits are summed before entries, so equal sums mean that nobody is inside: while `block` is closed
//!    and the fast way is too, nobody is counted in for good but by whoever holds the seat.
//! 3. Of the last reader to leave and a writer that is about to sleep, by `[Y]`, one sees the other.

use owlet_percpu::atomic::{AtomicU32, Ordering};

/// What the algorithm needs of a lock's counters.
pub trait Counters {
    /// One more entry. Relaxed; the fence `[A]` follows.
    fn count_entry(&self);
    /// One more exit. Relaxed; between two fences.
    fn count_exit(&self);
    /// The sum of the entries, modulo 2^64.
    fn entries(&self) -> u64;
    /// The sum of the exits, modulo 2^64.
    fn exits(&self) -> u64;
    /// At least the fence that the letter stands for. (A counting instruction that is a full barrier by
    /// itself needs no other.)
    fn fence(&self, letter: Letter);
}

/// The fences of the table in the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// `[A]`, after a count.
    A,
    /// `[B]`, before a count.
    B,
    /// `[C]`, between the sums.
    C,
    /// `[D]`, after an exchange.
    D,
    /// `[Y]`, the reader's, after a count.
    Y,
    /// `[Y]`, the writer's, after an exchange.
    Z,
}

/// Words that slow readers and the writer share.
#[derive(Debug)]
pub struct Words {
    /// 1 while readers have to wait.
    pub block: AtomicU32,
    /// [`BY_THREAD`] or [`BY_TASK`] while a writer waits until the sums are equal.
    pub wanted: AtomicU32,
}

impl Default for Words {
    fn default() -> Self {
        Self::new()
    }
}

impl Words {
    /// Open, nobody waits.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { block: AtomicU32::new(0), wanted: AtomicU32::new(0) }
    }

    /// Open, nobody waits. (Loom's atomics are no constants.)
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { block: AtomicU32::new(0), wanted: AtomicU32::new(0) }
    }

    /// True if readers need not wait, at the moment.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.block.load(Ordering::Relaxed) == 0
    }
}

/// A slow reader: counted and inside; or not, because a writer is there, whom it may have held up: the
/// caller prods it ([`is_to_prod`]).
#[must_use]
pub fn enter_slow(counters: &impl Counters, words: &Words) -> bool {
    counters.count_entry();
    // [A] pairs with [D] in block(): either the writer sums our count, or we see it there. Without it
    // (mutant M13A): neither.
    if !owlet_percpu::planted!("M13A") {
        counters.fence(Letter::A);
    }
    // [X] Acquire: pairs with the release in unblock(): what the writer wrote.
    if words.block.load(Ordering::Acquire) == 0 {
        return true;
    }
    // As one that came and went: the sums mean the same.
    counters.count_exit();
    false
}

/// A slow reader leaves. True if a writer waits for the last.
#[must_use]
pub fn leave_slow(counters: &impl Counters, words: &Words) -> bool {
    // [B] pairs with [C] in is_drained(): a writer that sums our exit sees our section. Without it
    // (mutant M13B): it writes while we still read.
    if !owlet_percpu::planted!("M13B") {
        counters.fence(Letter::B);
    }
    counters.count_exit();
    is_to_prod(counters, words)
}

/// After a change of a count: true if a writer waits and may have to look again.
#[must_use]
pub fn is_to_prod(counters: &impl Counters, words: &Words) -> bool {
    // [Y] pairs with the one in want(): the count is out before we look for the writer.
    counters.fence(Letter::Y);
    words.wanted.load(Ordering::Relaxed) != 0
}

/// The writer makes readers wait. It holds the seat and has entered the `rcu_sync`.
pub fn block(counters: &impl Counters, words: &Words) {
    words.block.swap(1, Ordering::Relaxed);
    // [D] pairs with [A] in enter_slow(). Without it (mutant M13D): as there.
    if !owlet_percpu::planted!("M13D") {
        counters.fence(Letter::D);
    }
}

/// True if no reader is inside. After [`block`], it stays true; before, it is a guess.
#[must_use]
pub fn is_drained(counters: &impl Counters) -> bool {
    let exits = counters.exits();
    // [C] pairs with [B] in leave_slow(): an exit that was summed has its entry summed below, and what
    // that reader did comes before what we do. Without it (mutant M13C): our section is ahead of the
    // reader's last use.
    if !owlet_percpu::planted!("M13C") {
        counters.fence(Letter::C);
    }
    exits == counters.entries()
}

/// A thread waits.
pub const BY_THREAD: u32 = 1;
/// A task waits.
pub const BY_TASK: u32 = 2;

/// The writer is going to sleep until [`is_drained`]; it looks once more after this.
pub fn want(counters: &impl Counters, words: &Words, by: u32) {
    words.wanted.swap(by, Ordering::Relaxed);
    // [Y] pairs with the one in is_to_prod(): without it, the last reader sees nobody waiting and we
    // its exit not.
    counters.fence(Letter::Z);
}

/// The writer sleeps no longer.
pub fn unwant(words: &Words) {
    words.wanted.store(0, Ordering::Relaxed);
}

/// The writer lets readers in.
pub fn unblock(words: &Words) {
    // [X] Release: pairs with the acquire in enter_slow(). Without it: a reader misses what was written.
    words.block.store(0, Ordering::Release);
}
