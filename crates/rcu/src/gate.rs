//! Sleeping until another thread has finished something.
//!
//! # The protocol
//! Sleeper: announce (`sleepers` up), `[I]`, read `turn`, look once more whether the thing is done,
//! sleep on `turn`. Finisher: make it done, advance `turn` `[K]`, `[J]`, and wake if anybody is
//! announced. One system call per finished thing, none if nobody sleeps.
//!
//! | letter | where | what |
//! |---|---|---|
//! | `[I]` | [`Gate::sleep_unless`] | full: the announcement before the second look |
//! | `[J]` | [`Gate::open`] | full: "done" before the look at the announcements |
//! | `[K]` | `turn` | release by the finisher, acquire by the sleeper: a sleeper that has the new turn sees "done" |
//!
//! # Invariant
//! 1. If a sleeper's second look misses "done", the finisher sees the announcement (`[I]`, `[J]`); and
//!    then either the sleeper's `turn` is old and the kernel refuses the sleep or is told to end it.
//!
//! A forked child may inherit announcements of threads it does not have: they cost it a needless
//! wake per opening and nothing else, so they are left alone.
//!
//! Proved by `tests/loom.rs`, with the futex as a mutex and a condition variable.

use owlet_percpu::atomic::{AtomicU32, Ordering};

/// The kernel's part.
pub trait Kernel {
    /// A `SeqCst` fence.
    fn fence(&self);
    /// Sleeps while `word` holds `expected`; may return early.
    fn wait(&self, word: &AtomicU32, expected: u32);
    /// Wakes whoever sleeps on `word`.
    fn wake_all(&self, word: &AtomicU32);
}

/// Where threads wait for a thing to be done.
#[derive(Debug)]
pub struct Gate {
    turn: AtomicU32,
    sleepers: AtomicU32,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// Nobody sleeps.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { turn: AtomicU32::new(0), sleepers: AtomicU32::new(0) }
    }

    /// Nobody sleeps. (Loom's atomics are no constants.)
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { turn: AtomicU32::new(0), sleepers: AtomicU32::new(0) }
    }

    /// Sleeps until the next [`Gate::open`], unless `done` answers true once announced. May return
    /// early; callers loop.
    pub fn sleep_unless(&self, kernel: &impl Kernel, done: impl FnOnce() -> bool) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // [I] pairs with [J] in open(): the announcement is out before `done` looks. Without it:
        // the finisher sees no sleeper, and the sleeper sees nothing done.
        kernel.fence();
        // [K] Acquire: pairs with the release in open(): the new turn implies "done".
        let turn = self.turn.load(Ordering::Acquire);
        if !done() {
            kernel.wait(&self.turn, turn);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes the sleepers, after the caller has made the thing done.
    pub fn open(&self, kernel: &impl Kernel) {
        // [K] Release: pairs with the acquire in sleep_unless().
        self.turn.fetch_add(1, Ordering::Release);
        // [J] pairs with [I] in sleep_unless(): "done" is out before we look for sleepers.
        // Without it: as at [I].
        kernel.fence();
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            kernel.wake_all(&self.turn);
        }
    }
}
