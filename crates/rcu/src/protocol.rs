//! When is an SRCU grace period over?
//!
//! Readers count their entries and exits in one of two *ranks*; the domain's index says which.
//! Entries and exits are counted apart, because a section may end on another CPU than it began on,
//! and because summing one after the other is what makes the sums mean something.
//!
//! # Two kinds of readers
//! - A *sequence* reader compares the index and counts itself in one restartable sequence. Once the
//!   index has changed and the fence of [`Step::Fence`] is done, nobody can enter the old rank this way.
//! - An *atomic* reader (no rseq) counts itself some time after it read the index: a *straggler* may
//!   enter the old rank arbitrarily late. Its counting is a full barrier.
//!
//! # The protocol
//! 1. `[E]`. Wait until the rank the index does *not* name is empty. Only stragglers can be in it.
//! 2. Flip the index: new sections go to the rank just found empty.
//! 3. `[G]` the heavy fence: sequences in flight commit or see the new index.
//! 4. Wait until the old rank is empty. `[H]`.
//!
//! Step 1 is what a straggler that entered before this grace period began is waited for by; with
//! sequence readers alone it succeeds at once. Steps 1 and 4 end even if new readers never stop
//! coming, since those enter the other rank.
//!
//! A grace period is not a loop that waits but a [`Stepper`]: its leader advances it as far as it will
//! go, and may meanwhile lead others.
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[E]` | [`Stepper::step`], first | full: the caller's unpublishing before the scan of step 1 |
//! | `[F]` | [`is_empty`], between the sums | load-load: exits before entries |
//! | `[G]` | [`Stepper::fenced`], after the flip | heavy: flip and unpublishing before the scan of step 4, on every CPU |
//! | `[H]` | [`Stepper::step`], last | full: the scans before whatever the caller frees |
//! | `[R0]` | sequence reader, its look at the index | acquire: one that sees the flip sees the unpublishing (`[E]`) |
//! | `[R1]` | reader, after its entry | sequence: compiler barrier (light half of `[G]`); atomic: full |
//! | `[R2]` | reader, before its exit | release; atomic: full |
//!
//! # Invariants
//! 1. A sequence reader in a section is counted in the entries of its rank, visibly so after `[G]`.
//! 2. An exit that was summed has its entry summed too: the entry is before the exit by `[R2]`, and
//!    exits are summed before entries by `[F]`. So equal sums mean: nobody who was counted is inside.
//! 3. An atomic reader that a scan did not count has its entry's full barrier after `[E]` or `[G]`,
//!    and therefore sees what was unpublished.
//!
//! # What is proved where
//! `tests/loom.rs` runs [`Stepper`] with atomic readers (all of it) and with sequence readers,
//! where a sequence is modelled as a critical section of a per-CPU mutex and the membarrier as
//! passing through each of those mutexes. That carries the restart (in flight before, or after) and
//! the barrier's effect on each CPU; it does not carry the store buffer of a CPU that the barrier
//! interrupts: `crates/torture/models/one_flip.pml` does. Torture (`owlet-torture run`) runs the
//! machine's own.

/// What the algorithm needs of a domain.
pub trait Machine {
    /// The index: the rank new sections enter, 0 or 1.
    fn index(&self) -> u32;
    /// Changes the index.
    fn set_index(&self, rank: u32);
    /// Sum of the entries of a rank, modulo 2^64. Loads are acquire.
    fn entries(&self, rank: u32) -> u64;
    /// Sum of the exits of a rank, modulo 2^64. Loads are acquire.
    fn exits(&self, rank: u32) -> u64;
    /// A `SeqCst` fence (a trait method so that a model can leave one out).
    fn fence(&self, letter: Letter);
}

/// The fences of the table in the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// `[E]`
    E,
    /// `[F]`
    F,
    /// `[H]`
    H,
}

/// How far a step came.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The grace period is over.
    Done,
    /// A heavy fence (`fence::heavy_rseq`: a full barrier on every CPU, and every sequence in flight
    /// restarts) has to come next. Whoever steps has it done, tells by `fenced`, and steps again.
    /// One fence serves all domains that are at this point when it begins.
    Fence,
    /// Readers are in the way: step again later.
    Blocked,
}

/// Where a grace period is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Begin,
    /// Step 1: the rank the index does not name.
    Stragglers,
    /// Step 3: flipped, waiting for the heavy fence.
    Flipped,
    /// Step 4: the rank the index named.
    Drain,
    Over,
}

/// A grace period in progress: goes as far as it can without waiting, whenever it is stepped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stepper {
    stage: Stage,
    old: u32,
}

impl Stepper {
    /// Goes on, as far as possible without waiting.
    pub fn step(&mut self, m: &impl Machine) -> Step {
        loop {
            match self.stage {
                Stage::Begin => {
                    // [E] pairs with [R1] of atomic readers: orders the caller's unpublishing before
                    // the scan. Without it: a straggler reads the old pointer and its entry is not
                    // seen here.
                    m.fence(Letter::E);
                    self.old = m.index() & 1;
                    self.stage = Stage::Stragglers;
                }
                Stage::Stragglers => {
                    // Mutant M1: one rank only. A straggler of the grace period before last is never
                    // waited for.
                    if !owlet_percpu::planted!("M1") && !is_empty(m, self.old ^ 1) {
                        return Step::Blocked;
                    }
                    m.set_index(self.old ^ 1);
                    owlet_percpu::testpoint::reached(owlet_percpu::testpoint::Point::AfterFlip);
                    self.stage = Stage::Flipped;
                }
                Stage::Flipped if owlet_percpu::planted!("L2") => self.stage = Stage::Drain,
                Stage::Flipped => return Step::Fence,
                Stage::Drain => {
                    // Mutant L1: the rank that readers are in is not looked at.
                    if !owlet_percpu::planted!("L1") && !is_empty(m, self.old) {
                        return Step::Blocked;
                    }
                    // [H] pairs with [R2]: orders the exits summed before what the caller does next.
                    // Without it: the caller's free is ahead of the reader's last use.
                    m.fence(Letter::H);
                    self.stage = Stage::Over;
                }
                Stage::Over => return Step::Done,
            }
        }
    }

    /// Says that the heavy fence has been done, begun after [`Step::Fence`] was returned.
    pub fn fenced(&mut self) {
        if self.stage == Stage::Flipped {
            // [G] pairs with [R1]: a sequence in flight commits before it and is counted below, or
            // starts again after it and sees the flip and the unpublishing. Without it (mutant L2):
            // an entry is in flight, or in a store buffer, while the sums below agree.
            self.stage = Stage::Drain;
        }
    }
}

/// Waits until every section that was running at the call has ended. Callers exclude each other.
///
/// `heavy` is the heavy fence; `pause` is called between two looks at a rank that is not empty.
pub fn grace_period(m: &impl Machine, heavy: impl Fn(), pause: impl Fn()) {
    let mut stepper = Stepper::default();
    loop {
        match stepper.step(m) {
            Step::Done => return,
            Step::Fence => {
                heavy();
                stepper.fenced();
            }
            Step::Blocked => pause(),
        }
    }
}

/// True if nobody who was counted in `rank` is still inside.
#[must_use]
pub fn is_empty(m: &impl Machine, rank: u32) -> bool {
    #[cfg(owlet_mutants)]
    if owlet_percpu::planted!("L4") && mutant::one_in_100_000() {
        return true;
    }
    // Mutant M2: entries first. A section that begins and ends between the sums then makes up for
    // one that is still running.
    let (first, second) = if owlet_percpu::planted!("M2") {
        let entries = m.entries(rank);
        owlet_percpu::testpoint::reached(owlet_percpu::testpoint::Point::BetweenSums);
        m.fence(Letter::F);
        (entries, m.exits(rank))
    } else {
        let exits = m.exits(rank);
        owlet_percpu::testpoint::reached(owlet_percpu::testpoint::Point::BetweenSums);
        // [F] pairs with [R2]: an exit that was summed has its entry summed below (invariant 2).
        // Without it (mutant M3): the sums of different instants agree by accident.
        if !owlet_percpu::planted!("M3") {
            m.fence(Letter::F);
        }
        (exits, m.entries(rank))
    };
    first == second
}

/// Mutant L4: a scan errs once in 100,000.
#[cfg(owlet_mutants)]
mod mutant {
    use core::sync::atomic::{AtomicU64, Ordering};

    static SCANS: AtomicU64 = AtomicU64::new(0);

    pub(super) fn one_in_100_000() -> bool {
        SCANS.fetch_add(1, Ordering::Relaxed) % 100_000 == 99_999
    }
}
