//! The wakeup protocol: both ends and the notifier between them.
//!
//! Source: "deferred reader wakeups" (the kernel's trace ring, 2010; today
//! `kernel/trace/ring_buffer.c`, `rb_wakeups`). There the writer's check of "is somebody waiting"
//! has no barrier on the writer's side, so that an event can be missed until the next one comes.
//! Here the reader pays for a barrier in the writer (`membarrier`), and none is missed.
//!
//! # Protocol
//! Each ring has one word `wake_at`, a position: the smallest at which some waiter wants to be
//! woken, or [`NOBODY`]. It is armed flag and watermark in one.
//!
//! Writer, after each commit (fast path: one plain load, one compare, one predicted branch):
//! 1. light fence (a compiler barrier in registered processes);
//! 2. if the new head has reached `wake_at`:
//!    a. exchange `wake_at` with [`NOBODY`]; if it was that already, somebody else does the rest;
//!    b. with a notifier: `pending = 1`, a plain store. Without: `seq += 1`, futex wake.
//!
//! Waiter:
//! 1. `token = seq`;
//! 2. for each ring of its set: `wake_at = min(wake_at, threshold)`;
//! 3. heavy fence (`membarrier` over all registered processes);
//! 4. if a ring has reached its threshold: done;
//! 5. futex wait while `seq == token`; then again from 1.
//!
//! Notifier, every deferral while there are waiters: if `pending`, then `pending = 0` first,
//! `seq += 1`, futex wake of all. Each waiter looks for itself; one that is not satisfied arms
//! again. So waking one strands no other, and thresholds need no list.
//!
//! # States of `wake_at`
//! | value | meaning | next |
//! |---|---|---|
//! | NOBODY | nobody waits, or a wakeup is under way | a position (fetch-min by a waiter) |
//! | position | a writer that reaches it wakes all | smaller (fetch-min); NOBODY (exchange by a writer) |
//!
//! # Invariants
//! 1. Whoever takes a position out of `wake_at` causes a change of `seq` afterwards (through
//!    `pending` or at once). Hence: a waiter whose arming is gone finds `seq` different from the
//!    token it took before arming, and does not sleep or is woken.
//! 2. A waiter sleeps only after it saw, behind the heavy fence, every ring below its threshold,
//!    with `wake_at` at or below its threshold since before the fence.
//! 3. `pending` is cleared before `seq` changes, never after: a mark set in between belongs to
//!    the next round. (The mutant M10 does it the other way round.)
//!
//! What this does not cover is bounded by time: a writer killed or stopped between its commit and
//! 2b. Waiters look again every `RESCUE` without being woken, and whoever learns of the end of a
//! process calls `Segment::kick`.
//!
//! # Barriers
//! | letter | what | pairs with | without it |
//! |---|---|---|---|
//! | [A] | light fence of the writer between the store of head and the load of `wake_at` | [B] | both sides miss each other and the waiter sleeps on data: 0.4 to 1 % of rounds that coincide (mutants M8, M9) |
//! | [B] | heavy fence of the waiter between arming and looking | [A] | the same |
//! | [C] | full fence after the exchange, before the load of `notifier` | [D] | a mark left to a notifier that has gone, unseen by its last sweep |
//! | [D] | full fence of the leaving notifier between `notifier = 0` and its last wakeup | [C] | the same |
//! | [E] | Release of `pending` | [F] | a waiter is woken and does not yet see the data |
//! | [F] | Acquire of `pending` by the notifier | [E] | the same |
//! | [G] | Release of `seq` | [H] | a waiter that saw the change looks at old data |
//! | [H] | Acquire of `seq` by the waiter, before it arms | [G] | the same; taken after arming, it could hide a wakeup |
//!
//! # Proof
//! `tests/loom.rs`: one writer and one waiter; with a notifier; two waiters with different
//! thresholds; a notifier that leaves. Each has twins with a fence or an order removed that must
//! fail. `examples/ring_torture.rs`: a million rounds of a single event.

#[cfg(not(loom))]
use owlet_sys::futex::{self, Reach};

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// `wake_at` of a ring nobody waits for. No head ever gets there.
pub(crate) const NOBODY: u64 = u64::MAX;

/// The words shared by all rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    /// Changes with every wakeup; waiters sleep on it.
    pub(crate) seq: &'a AtomicU32,
    /// Work for the notifier.
    pub(crate) pending: &'a AtomicU32,
    /// 0 = no notifier; else the time of its last look.
    pub(crate) notifier: &'a AtomicU64,
    /// Threads inside a wait.
    pub(crate) waiters: &'a AtomicU32,
    /// Wakeups by the notifier.
    pub(crate) wakes: &'a AtomicU64,
    /// Wakeups by writers.
    pub(crate) direct_wakes: &'a AtomicU64,
}

/// Writer: has the commit that moved head to `head` reached somebody's threshold?
///
/// `fenced`: this process is not reached by the waiters' heavy fence and pays for its own.
#[inline(always)]
pub(crate) fn reached(wake_at: &AtomicU64, head: u64, fenced: bool) -> bool {
    light(fenced);
    head >= wake_at.load(Ordering::Relaxed)
}

/// Writer: takes the arming out and sees to it that the waiters are woken.
///
/// At most one exchange per arming. A system call only without a notifier. Async-signal-safe.
#[cold]
#[inline(never)]
pub(crate) fn fire_slow(words: &Words<'_>, wake_at: &AtomicU64) {
    if wake_at.swap(NOBODY, Ordering::AcqRel) == NOBODY {
        return;
    }
    // [C] SeqCst: pairs with [D] in `leave`; orders this writer's commit and exchange before the
    // question who wakes.
    fence(Ordering::SeqCst);
    if words.notifier.load(Ordering::Relaxed) == 0 {
        words.direct_wakes.fetch_add(1, Ordering::Relaxed);
        words.wake_everybody();
    } else {
        // [E] Release: pairs with [F] in `sweep`; the data come with the mark.
        words.pending.store(1, Ordering::Release);
    }
}

impl Words<'_> {
    /// Changes `seq` and wakes all sleepers. Async-signal-safe; one system call.
    pub(crate) fn wake_everybody(&self) {
        // [G] Release: pairs with [H] in `token`; what the waker knew, the woken see.
        self.seq.fetch_add(1, Ordering::Release);
        #[cfg(not(loom))]
        let _ = futex::wake_all(self.seq, Reach::Shared);
    }

    /// Waiter: the state of `seq` to sleep on. Take it before [`arm`].
    pub(crate) fn token(&self) -> u32 {
        // [H] Acquire: pairs with [G] in `wake_everybody`.
        self.seq.load(Ordering::Acquire)
    }

    /// Notifier: wakes all if a writer has asked for it.
    pub(crate) fn sweep(&self) -> bool {
        if self.pending.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.wakes.fetch_add(1, Ordering::Relaxed);
        if owlet_percpu::planted!("M10") {
            self.wake_everybody();
            self.pending.store(0, Ordering::Relaxed);
            return true;
        }
        // [F] Acquire: pairs with [E] in `fire_slow`. Before the wakeup: Invariant 3.
        self.pending.swap(0, Ordering::Acquire);
        self.wake_everybody();
        true
    }

    /// Notifier: from now on writers wake by themselves; those that did not know are made good.
    pub(crate) fn leave(&self) {
        self.notifier.store(0, Ordering::Relaxed);
        // [D] SeqCst (and membarrier): pairs with [C] in `fire_slow`; a writer either sees the 0,
        // or its commit is seen by whoever the next line wakes.
        let _ = heavy();
        self.wake_everybody();
    }
}

/// Waiter: asks to be woken at `threshold`. Then [`heavy`], then look, then sleep.
pub(crate) fn arm(wake_at: &AtomicU64, threshold: u64) {
    // Release and Acquire are not what makes this work; [B] is.
    wake_at.fetch_min(threshold, Ordering::AcqRel);
}

/// The writer's half of the fence.
#[inline(always)]
fn light(fenced: bool) {
    if fenced {
        // [A] SeqCst: pairs with [B] for a process that the membarrier does not reach.
        fence(Ordering::SeqCst);
    } else {
        // [A] pairs with [B] in `heavy`: program order here, the barrier is executed there.
        light_registered();
    }
}

#[cfg(not(loom))]
#[inline(always)]
fn light_registered() {
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
}

/// In a model a membarrier is a pair of fences.
#[cfg(loom)]
fn light_registered() {
    fence(Ordering::SeqCst);
}

/// The waiter's half of the fence; false if the kernel refuses it, and a waiter must then not rely
/// on being woken.
#[cfg(not(loom))]
#[must_use]
pub(crate) fn heavy() -> bool {
    if owlet_percpu::planted!("M8") {
        return true;
    }
    if owlet_percpu::planted!("M9") {
        fence(Ordering::SeqCst);
        return true;
    }
    // [B] pairs with [A] in `light`: a full barrier here and on every CPU that runs a writer.
    owlet_percpu::fence::heavy_global()
}

/// As above, in a model.
#[cfg(loom)]
#[must_use]
pub(crate) fn heavy() -> bool {
    fence(Ordering::SeqCst);
    true
}
