//! Whose turn is it, and which grace period is this?
//!
//! There is no grace-period thread: whoever waits first becomes the *leader* and runs one grace
//! period; the others sleep at the gate. A wait is over when a grace period that *began* after it
//! was asked for has ended, so any number of threads that wait at once share two: the one in
//! progress, which does not count for them, and the next.
//!
//! | `seq` | `leader` | state | next |
//! |---|---|---|---|
//! | even | 0 | idle | a waiter takes `leader` |
//! | even | a thread | about to begin, or just ended | begins; or leaves |
//! | odd | a thread | running | ends: `seq` + 1, then `leader` = 0, then the gate opens |
//! | odd | 0 | never (a forked child makes it even) | |
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[L]` | [`Turns::snapshot`] | full: the caller's unpublishing before the load of `seq` |
//! | `[M]` | [`Turns::end`] | release of `seq` at the end of a grace period |
//! | `[N]` | [`Turns::poll`] | acquire of `seq`: the grace period before what follows |
//! | `[O]` | [`Turns::resign`], [`Turns::try_lead`] | release and acquire of `leader`: the last leader's run before the next one's |
//!
//! # Invariants
//! 1. Only the leader writes `seq`.
//! 2. A snapshot that finds `seq` not begun comes, by `[L]` and `[E]`, before the scans of the grace
//!    period that is about to begin; one that finds it begun is not counted for by it.
//!
//! A poll needs no fence after its load: what must be ordered is the caller's earlier accesses before
//! its later ones, and `[L]`, in the snapshot, does that for whoever took it or was handed it.
//!
//! Proved by `tests/loom.rs` (the models `engine_..`).

use owlet_percpu::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::gate::{Gate, Kernel};
use crate::seq::{Cookie, START, cookie_at, passed};

/// The sequence number, the leader, and the gate where the others wait.
#[derive(Debug)]
pub struct Turns {
    seq: AtomicU64,
    leader: AtomicUsize,
    gate: Gate,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

impl Turns {
    /// Idle, at [`START`].
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { seq: AtomicU64::new(START), leader: AtomicUsize::new(0), gate: Gate::new() }
    }

    /// Idle, at [`START`]. (Loom's atomics are no constants.)
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { seq: AtomicU64::new(START), leader: AtomicUsize::new(0), gate: Gate::new() }
    }

    /// The moment at which every section running now will have ended. `fence` is a `SeqCst` fence.
    #[inline]
    pub fn snapshot(&self, fence: impl FnOnce()) -> Cookie {
        // [L] pairs with [E] in the leader's grace period: what was unpublished before is so before
        // a grace period that this load finds not begun. Without it: that grace period scans before
        // the unpublishing is out, and a reader it does not wait for still finds the object.
        fence();
        cookie_at(self.seq.load(Ordering::Acquire))
    }

    /// True once the moment has passed.
    #[inline(always)]
    #[must_use]
    pub fn poll(&self, cookie: Cookie) -> bool {
        // Mutant M5: the poll orders nothing.
        let order =
            if owlet_percpu::planted!("M5") { Ordering::Relaxed } else { Ordering::Acquire };
        // [N] Acquire: pairs with [M] in end(); the readers' last uses, which the leader has seen
        // the end of, come before what the caller does next. Without it: a free before a use.
        passed(self.seq.load(order), cookie)
    }

    /// The sequence number as it is.
    #[inline]
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Where the sequence number is, for the restartable sequences of `free`. Only to be read.
    #[cfg(not(loom))]
    pub(crate) fn seq_at(&self) -> *const u64 {
        self.seq.as_ptr().cast_const()
    }

    /// Becomes the leader, if there is none. `me` names the caller and is not 0.
    ///
    /// A caller that leads already, further up its stack (the worker, when a callback waits), abandons
    /// that grace period for a new one: it must ask [`Turns::is_led`] when it comes back to it.
    pub fn try_lead(&self, me: usize) -> bool {
        if self.leader.load(Ordering::Relaxed) == me {
            self.abandon();
        }
        // [O] Acquire: pairs with the release in resign().
        self.leader.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The leader, or 0.
    #[must_use]
    pub fn leader(&self) -> usize {
        self.leader.load(Ordering::Relaxed)
    }

    /// The leader begins a grace period. [`crate::protocol::Stepper`] has `[E]` next.
    pub fn begin(&self) {
        self.seq.store(self.seq.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    }

    /// The leader gives up the grace period it began, and being the leader. Cookies wait longer for it,
    /// never shorter; the next grace period finds the flavour's state as any leader leaves it.
    pub fn abandon(&self) {
        self.seq.store(self.seq.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
        // [O] Release: as in resign().
        self.leader.store(0, Ordering::Release);
    }

    /// True if `me` still leads the grace period that it found numbered `begun` once begun.
    #[must_use]
    pub fn is_led(&self, me: usize, begun: u64) -> bool {
        self.leader.load(Ordering::Relaxed) == me && self.seq.load(Ordering::Relaxed) == begun
    }

    /// The leader ends the grace period it began.
    pub fn end(&self) {
        let ended = (self.seq.load(Ordering::Relaxed) | 1).wrapping_add(1);
        // [M] Release: pairs with [N] in poll(): the grace period before its end is seen.
        self.seq.store(ended, Ordering::Release);
    }

    /// The leader stops being it, and everybody at the gate looks again.
    pub fn resign(&self, kernel: &impl Kernel) {
        // [O] Release: pairs with the acquire in try_lead().
        self.leader.store(0, Ordering::Release);
        self.gate.open(kernel);
    }

    /// Sleeps until the leader has resigned or the moment has passed; may return early.
    pub fn follow(&self, kernel: &impl Kernel, cookie: Cookie) {
        let done = || self.poll(cookie) || self.leader.load(Ordering::Acquire) == 0;
        self.gate.sleep_unless(kernel, done);
    }

    /// Waits for the moment: follows, or leads. `lead` begins, runs and ends one grace period, and says
    /// whether it did (it is no longer the leader if not).
    pub fn wait(
        &self,
        kernel: &impl Kernel,
        me: usize,
        cookie: Cookie,
        mut lead: impl FnMut() -> bool,
    ) {
        while !self.poll(cookie) {
            if self.try_lead(me) {
                // The last leader may have finished ours just before.
                if self.poll(cookie) || lead() {
                    self.resign(kernel);
                }
            } else {
                self.follow(kernel, cookie);
            }
        }
    }

    /// In a forked child: the leader that stayed behind is deposed and the grace period it ran is
    /// forgotten, so cookies wait longer, never shorter. The surviving thread goes on if it led.
    pub fn depose(&self, survivor: usize) {
        if self.leader.load(Ordering::Relaxed) != survivor {
            let seq = self.seq.load(Ordering::Relaxed);
            self.seq.store(seq & !1, Ordering::Relaxed);
            self.leader.store(0, Ordering::Release);
        }
    }

    /// For tests: as if grace periods had passed, or one were running.
    #[doc(hidden)]
    pub fn set_seq(&self, seq: u64) {
        self.seq.store(seq, Ordering::Relaxed);
    }
}
