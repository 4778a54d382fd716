//! When has every registered thread been quiet? The algorithm of `qsbr` and `tasks`.
//!
//! A domain has a [`Clock`], which its grace periods advance; each registered thread has a [`Mark`].
//! A thread's sections are the stretches between its *quiescent states*: nothing is done at their
//! beginnings and ends, the thread merely says now and then that it is between two of them.
//!
//! # The protocol
//! - Quiescent state: if the mark is the clock, nothing has happened since the last one: done. Else
//!   `[Q3]`, `[Q4]`, mark = clock.
//! - Offline: `[Q4]`, mark = 0. Online: mark = clock, `[Q1]`.
//! - Grace period: `[Q0]`, advance the clock to `target`, `[Q2]`, then go through the records once; at
//!   each, wait until the mark is 0 or at least `target`. `[Q5]`.
//!
//! One pass: the clock has 64 bits, so a mark that was read long before it was written (a thread that
//! was preempted there) is merely old, and waited for. A record that has been found quiet is not
//! looked at again; a thread that registers or comes online behind the walk has its `[Q1]` after
//! `[Q2]`.
//!
//! No membarrier, and no fence where readers are many: coming online is a fence, a quiescent state
//! is a load and a compare, and once per grace period a store.
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[Q0]` | [`Scan::begin`], before the clock | release: the unpublishing before the clock's new value |
//! | `[Q1]` | [`Mark::online`], after the mark | full: the mark (and the registration) before the section's accesses |
//! | `[Q2]` | [`Scan::begin`], after the clock | full: the unpublishing before the walk |
//! | `[Q3]` | [`Mark::quiescent`], after the clock | acquire: whoever announces the new clock sees the unpublishing |
//! | `[Q4]` | [`Mark::quiescent`], [`Mark::offline`], before the mark | release: the section's accesses before the announcement |
//! | `[Q5]` | [`Scan::step`], when done | acquire: the marks found before what the caller frees |
//!
//! # Invariants
//! 1. A thread whose mark is 0 is in no section; one whose mark is n has been in none that began
//!    before the clock was n.
//! 2. A mark a walk reads as 0 is either still so when its thread next comes online, which is then
//!    after `[Q2]` and sees the unpublishing (`[Q1]`), or was put there by `[Q4]`.
//! 3. The clock is never 0, and is advanced by one grace period at a time.
//!
//! # What is proved where
//! `tests/loom.rs` (`qsbr_..`) runs this code with each barrier left out in turn; the twins of the
//! registry run it with records that change hands. Torture runs the machine's own.

use owlet_percpu::atomic::{AtomicU64, Ordering};
use owlet_percpu::testpoint::{Point, reached};

use crate::registry::{List, Records};

/// The barriers, behind a trait so that a model can leave one out.
pub trait Fences {
    /// A `SeqCst` fence.
    fn full(&self, letter: Letter);
    /// A release fence.
    fn release(&self, letter: Letter);
    /// An acquire fence.
    fn acquire(&self, letter: Letter);
}

/// The letters of this module's table and of the registry's.
#[expect(missing_docs, reason = "the tables say what they are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    Q0,
    Q1,
    Q2,
    Q3,
    Q4,
    Q5,
    Q6,
    Q7,
}

/// The number of a domain's latest grace period, from 1.
#[repr(align(128))]
#[derive(Debug)]
pub struct Clock {
    now: AtomicU64,
}

/// What a thread has last said: 0 = offline, n = "quiet when the clock was n".
#[derive(Debug)]
pub struct Mark {
    seen: AtomicU64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// Before the first grace period.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { now: AtomicU64::new(1) }
    }

    /// Before the first grace period. (Loom's atomics are no constants.)
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { now: AtomicU64::new(1) }
    }

    /// The number.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
}

impl Mark {
    /// Offline.
    #[cfg(loom)]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for the models")]
    pub fn new() -> Self {
        Self { seen: AtomicU64::new(0) }
    }

    /// From here on grace periods wait for this thread. Owner only.
    #[inline]
    pub fn online(&self, clock: &Clock, f: &impl Fences) {
        let now = clock.now();
        reached(Point::BeforeMark);
        self.seen.store(now, Ordering::Relaxed);
        // [Q1] Full: pairs with [Q2] in begin(). A walk that finds us offline is before this, and
        // what it unpublished is seen below. Without it: the mark is in the store buffer while the
        // section reads the old pointer.
        f.full(Letter::Q1);
    }

    /// Grace periods no longer wait for this thread. Owner only.
    #[inline]
    pub fn offline(&self, f: &impl Fences) {
        // [Q4] Release: pairs with [Q5] in step(). Without it: the section's last accesses are
        // after the free.
        f.release(Letter::Q4);
        self.seen.store(0, Ordering::Relaxed);
    }

    /// A moment between two sections. True if something was said. Owner only, online only.
    #[inline(always)]
    pub fn quiescent(&self, clock: &Clock, f: &impl Fences) -> bool {
        let now = clock.now();
        let news = now != self.seen.load(Ordering::Relaxed);
        if news {
            self.quiescent_slow(now, f);
        }
        news
    }

    #[cold]
    #[inline(never)]
    fn quiescent_slow(&self, now: u64, f: &impl Fences) {
        // [Q3] Acquire: pairs with [Q0] in begin(). Without it: we announce the new clock, and our
        // next section still reads the old pointer.
        f.acquire(Letter::Q3);
        // [Q4] as in offline().
        f.release(Letter::Q4);
        reached(Point::BeforeMark);
        self.seen.store(now, Ordering::Relaxed);
    }

    /// True while grace periods wait for this thread's next word.
    #[inline]
    pub fn is_online(&self) -> bool {
        self.seen.load(Ordering::Relaxed) != 0
    }

    /// True if the grace period that advanced the clock to `target` need not wait for this thread.
    #[inline]
    pub fn is_quiet(&self, target: u64) -> bool {
        let seen = self.seen.load(Ordering::Relaxed);
        seen == 0 || seen >= target
    }

    /// Says "offline" for an owner that is gone.
    #[cfg(not(loom))]
    pub(crate) fn clear(&self) {
        self.seen.store(0, Ordering::Relaxed);
    }
}

/// A grace period under way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    target: u64,
    at: Records,
}

impl Scan {
    /// None under way.
    pub const NOTHING: Self = Self { target: 0, at: Records::NONE };

    /// Begins one. Callers exclude each other.
    #[must_use]
    pub fn begin(clock: &Clock, list: &List, f: &impl Fences) -> Self {
        let target = advance(clock, f);
        // After [Q2]: a thread that registers too late to be found sees the unpublishing. (A list
        // looked at before the clock moves is mutant M24.)
        Self { target, at: list.records(f) }
    }

    /// The same over records found earlier: what the models' mutant M24 does.
    #[cfg(loom)]
    #[must_use]
    pub fn over(clock: &Clock, at: Records, f: &impl Fences) -> Self {
        Self { target: advance(clock, f), at }
    }

    /// Goes on as far as it can without waiting; true when the grace period is over.
    pub fn step(&mut self, f: &impl Fences) -> bool {
        while let Some(record) = self.at.current() {
            // Mutant M24: threads that registered since the last grace period are not known yet.
            #[cfg(owlet_mutants)]
            let unknown = owlet_percpu::planted!("M24")
                && record.since().load(Ordering::Relaxed) + 1 >= self.target;
            #[cfg(not(owlet_mutants))]
            let unknown = false;
            if !unknown && !record.mark.is_quiet(self.target) {
                return false;
            }
            reached(Point::BetweenRecords);
            self.at.advance(f);
        }
        // [Q5] Acquire: pairs with [Q4]. Without it: the caller frees ahead of the last use.
        f.acquire(Letter::Q5);
        true
    }

    /// What the clock was advanced to.
    #[must_use]
    pub fn target(&self) -> u64 {
        self.target
    }

    /// The records not yet found quiet.
    #[must_use]
    pub fn rest(&self) -> Records {
        self.at
    }
}

fn advance(clock: &Clock, f: &impl Fences) -> u64 {
    let target = clock.now() + 1;
    // [Q0] Release: pairs with [Q3] in quiescent().
    f.release(Letter::Q0);
    clock.now.store(target, Ordering::Relaxed);
    // [Q2] Full: pairs with [Q1] in online(). Without it: the walk reads a mark from before the
    // unpublishing.
    f.full(Letter::Q2);
    target
}
