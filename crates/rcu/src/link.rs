//! How work gets to the worker, and how the worker sleeps without missing any.
//!
//! Whoever has put something down for an engine *offers* it: the link says whether it has to be put
//! on the worker's stack. Then the worker is poked. The worker takes what is on its stack, serves it,
//! and lets go of an engine that needs nothing: it says so first and asks once more afterwards.
//!
//! | state | the engine is | next |
//! |---|---|---|
//! | `IDLE` | unknown to the worker | [`Link::offer`]: `QUEUED`, and the caller puts it on the stack |
//! | `QUEUED` | on the stack | the worker takes it off: `ACTIVE` |
//! | `ACTIVE` | in the worker's hands | [`Link::let_go`]: `IDLE`, or stays |
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[S]` | [`Link::offer`] | full: what was put down before the look at the state |
//! | `[T]` | [`Link::let_go`] | full: `IDLE` before the last question |
//! | `[U]` | [`Pokes::poke`], [`Pokes::seen`] | release and acquire of the count: what was put down before the poke |
//! | `[V]` | [`Pokes::poke`] | full: the poke before the look for the worker |
//! | `[W]` | [`Pokes::arrive`] | full: the worker's name before its first look at the pokes |
//!
//! # Invariants
//! 1. What was put down before an offer is seen by the worker: the offer finds `IDLE` and the engine
//!    goes on the stack, or the worker's last question, by `[S]` and `[T]`, comes after it.
//! 2. A poke ends the worker's sleep or prevents it: it rings the gate it sleeps at (`gate`), or, by
//!    `[V]` and `[W]`, comes before a worker that has only just arrived looks for the first time.
//!
//! Proved by `tests/loom.rs` (the models `worker_..`).

use owlet_percpu::atomic::{AtomicU32, AtomicUsize, Ordering};
use owlet_percpu::testpoint::{Point, reached};

use crate::gate::{Gate, Kernel};

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const ACTIVE: u32 = 2;

/// An engine's standing with the worker.
#[derive(Debug)]
pub struct Link(AtomicU32);

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// Unknown to the worker.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(IDLE))
    }

    /// Unknown to the worker. (Loom's atomics are no constants.)
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU32::new(IDLE))
    }

    /// True if the worker has nothing to do with the engine.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) == IDLE
    }

    /// Something has been put down. True if the caller has to put the engine on the stack.
    #[must_use]
    pub fn offer(&self, kernel: &impl Kernel) -> bool {
        // [S] pairs with [T] in let_go(): what was put down is out before we look. Without it: we
        // find ACTIVE, and the worker, on the point of letting go, finds nothing.
        kernel.fence();
        self.0.compare_exchange(IDLE, QUEUED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The worker has taken the engine off the stack.
    pub fn take(&self) {
        self.0.store(ACTIVE, Ordering::Relaxed);
    }

    /// In a forked child whose worker stayed behind: back on the stack, if it was the worker's.
    #[must_use]
    pub fn requeue(&self) -> bool {
        let idle = self.is_idle();
        if !idle {
            self.0.store(QUEUED, Ordering::Relaxed);
        }
        !idle
    }

    /// The worker lets go of the engine, unless `ask`, asked once more, finds something.
    pub fn let_go<T>(&self, kernel: &impl Kernel, ask: impl FnOnce() -> Option<T>) -> Option<T> {
        self.0.store(IDLE, Ordering::Release);
        // [T] pairs with [S] in offer(). Without it: as there.
        kernel.fence();
        reached(Point::BeforeLastLook);
        // Mutant M20: no second look.
        if owlet_percpu::planted!("M20") {
            return None;
        }
        let found = ask()?;
        // Whoever offers meanwhile puts it on the stack.
        self.0.compare_exchange(IDLE, ACTIVE, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(found)
    }
}

/// Reasons for the worker to look, counted, and where it is.
#[derive(Debug)]
pub struct Pokes {
    count: AtomicU32,
    worker: AtomicUsize,
}

impl Default for Pokes {
    fn default() -> Self {
        Self::new()
    }
}

impl Pokes {
    /// None; no worker.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { count: AtomicU32::new(0), worker: AtomicUsize::new(0) }
    }

    /// None; no worker. (Loom's atomics are no constants.)
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { count: AtomicU32::new(0), worker: AtomicUsize::new(0) }
    }

    /// Makes the worker look; `gate` is the one where the worker of that name sleeps.
    pub fn poke<'a>(&self, kernel: &impl Kernel, gate: impl FnOnce(usize) -> &'a Gate) {
        // [U] Release: pairs with the acquire in seen().
        self.count.fetch_add(1, Ordering::Release);
        // [V] pairs with [W] in arrive(): without it, we see no worker and it no poke.
        kernel.fence();
        match self.worker() {
            0 => {}
            worker => gate(worker).open(kernel),
        }
    }

    /// A worker called `me` begins.
    pub fn arrive(&self, kernel: &impl Kernel, me: usize) {
        self.worker.store(me, Ordering::Relaxed);
        // [W] pairs with [V] in poke(). Without it: as there.
        kernel.fence();
    }

    /// In a forked child: the worker stayed behind.
    pub fn depart(&self) {
        self.worker.store(0, Ordering::Relaxed);
    }

    /// The worker's name, or 0.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.worker.load(Ordering::Relaxed)
    }

    /// The count, for [`Pokes::sleep`], before the worker looks at anything.
    #[must_use]
    pub fn seen(&self) -> u32 {
        // [U] Acquire: pairs with the release in poke(): what was put down before is seen by the
        // looks that follow.
        self.count.load(Ordering::Acquire)
    }

    /// Sleeps at `gate`, unless there has been a poke since `seen` or `changed`.
    pub fn sleep(&self, kernel: &impl Kernel, gate: &Gate, seen: u32, changed: impl Fn() -> bool) {
        // Mutant M20: no second look before the sleep.
        let poked = || self.count.load(Ordering::Relaxed) != seen && !owlet_percpu::planted!("M20");
        reached(Point::BeforeSleep);
        gate.sleep_unless(kernel, || poked() || changed());
    }
}
