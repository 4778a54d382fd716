//! Who runs a domain's grace periods, and who waits how.
//!
//! There is no worker thread: whoever waits first becomes the *leader* and runs one grace period;
//! the others sleep at the gate. A wait is over when a grace period that *began* after it was asked
//! for has ended, so any number of threads that wait at once share two: the one in progress, which
//! does not count for them, and the next.
//!
//! # The sequence number
//! `seq` is twice the number of completed grace periods, plus 1 while one runs (the kernel's
//! `rcu_seq`, kernel/rcu/rcu.h). A cookie is the value at which a full grace period has passed:
//! `(seq + 3) & !1`, i.e. the next end if none runs, the end after it if one does.
//!
//! | `seq` | `leader` | state | next |
//! |---|---|---|---|
//! | even | 0 | idle | a waiter takes `leader` |
//! | even | a thread | about to begin, or just ended | begins; or leaves |
//! | odd | a thread | running | ends: `seq` + 1, then `leader` = 0, then the gate opens |
//!
//! # Pace
//! The leader looks, spins for about a microsecond, and then sleeps 50 us, 100 us, ... 10 ms between
//! looks, on `nudge`, which a thread in a hurry changes. While somebody is in a hurry it spins and
//! yields for about 100 us instead and sleeps at most 500 us. Unlocking readers wake nobody: that
//! would cost each of them a load and a branch.
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[L]` | `Srcu::snapshot` | full: the caller's unpublishing before the load of `seq` |
//! | `[M]` | `lead` | release of `seq` at the end of a grace period |
//! | `[N]` | `Srcu::poll` | acquire of `seq` and a full fence: the grace period before what follows |

use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::time::Duration;

use owlet_percpu::{Backend, backend};
use owlet_sys::futex::{self, Reach};

use super::block::{self, BlockRef};
use super::{Cookie, Srcu, SrcuStats, fork, held};
use crate::gate::Kernel;
use crate::protocol::{self, Letter, Machine};

/// A grace period that takes longer is counted as a stall.
const STALL_NS: u64 = 10_000_000_000;

impl Srcu {
    /// Waits until every section of this domain that was running at the call has ended.
    ///
    /// Full barrier. Sleeps; shares grace periods with others that wait. Do not call inside a section
    /// of the same domain: it would wait for itself (debug builds panic).
    pub fn synchronize(&self) {
        self.wait_for(self.snapshot(), false);
    }

    /// [`Srcu::synchronize`] for the impatient: runs in the caller, spins before it sleeps, and
    /// hurries a grace period that another thread is running.
    pub fn synchronize_expedited(&self) {
        self.wait_for(self.snapshot(), true);
    }

    /// The moment at which every section running now will have ended. Starts nothing.
    #[must_use]
    pub fn snapshot(&self) -> Cookie {
        let block = self.block_slow();
        fork::check();
        // [L] pairs with [E] in the leader's grace period: what was unpublished before is so before
        // a grace period that this load finds not begun.
        fence(Ordering::SeqCst);
        Cookie(block.gp.seq.load(Ordering::Acquire).wrapping_add(3) & !1)
    }

    /// True once the moment has passed; from then on for ever. Starts nothing, so somebody must
    /// [`Srcu::synchronize`] for it to become true. Async-signal-safe.
    ///
    /// When true, it orders like a [`Srcu::synchronize`] that ended here.
    #[must_use]
    pub fn poll(&self, cookie: Cookie) -> bool {
        let Some(block) = self.block() else { return false };
        // [N] Acquire and full: pairs with [M].
        let seq = block.gp.seq.load(Ordering::Acquire);
        let passed = seq.wrapping_sub(cookie.0) <= u64::MAX / 2;
        if passed {
            fence(Ordering::SeqCst);
        }
        passed
    }

    /// Waits until the moment has passed; returns at once if it has.
    pub fn wait(&self, cookie: Cookie) {
        self.wait_for(cookie, false);
    }

    /// What the domain's grace periods have cost so far.
    #[must_use]
    pub fn stats(&self) -> SrcuStats {
        let Some(block) = self.block() else { return SrcuStats::default() };
        let gp = &block.gp;
        SrcuStats {
            grace_periods: gp.seq.load(Ordering::Relaxed) / 2,
            expedited: gp.expedited.load(Ordering::Relaxed),
            membarriers: gp.membarriers.load(Ordering::Relaxed),
            sleeps: gp.sleeps.load(Ordering::Relaxed),
            calls: gp.calls.load(Ordering::Relaxed),
            stalls: gp.stalls.load(Ordering::Relaxed),
        }
    }

    fn wait_for(&self, cookie: Cookie, hurry: bool) {
        let block = self.block_slow();
        fork::check();
        refuse_own_section(block);
        block.gp.calls.fetch_add(1, Ordering::Relaxed);
        if hurry {
            block.gp.hurry.fetch_add(1, Ordering::Relaxed);
            nudge(block);
        }
        let me = held::identity();
        let leader = &block.gp.leader;
        while !self.poll(cookie) {
            if leader.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // The last leader may have finished ours just before.
                if !self.poll(cookie) {
                    lead(block);
                }
                leader.store(0, Ordering::Release);
                block.gp.gate.open(&Futex);
            } else {
                let done = || self.poll(cookie) || leader.load(Ordering::Acquire) == 0;
                block.gp.gate.sleep_unless(&Futex, done);
            }
        }
        if hurry {
            block.gp.hurry.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Runs one grace period as the leader.
fn lead(block: BlockRef) {
    let gp = &block.gp;
    let begun = gp.seq.load(Ordering::Relaxed) | 1;
    gp.seq.store(begun, Ordering::Relaxed);
    let run = Run { block, since: owlet_sys::clock::monotonic_ns(), stalled: AtomicU32::new(0) };
    protocol::grace_period(&run);
    if gp.hurry.load(Ordering::Relaxed) != 0 {
        gp.expedited.fetch_add(1, Ordering::Relaxed);
    }
    // [M] Release: pairs with [N] in poll(): the grace period before its end is seen.
    gp.seq.store(begun.wrapping_add(1), Ordering::Release);
}

/// One grace period being run.
struct Run {
    block: BlockRef,
    since: u64,
    stalled: AtomicU32,
}

impl Machine for Run {
    fn index(&self) -> u32 {
        self.block.index.load(Ordering::Relaxed) & 1
    }

    fn set_index(&self, rank: u32) {
        let rest = self.block.index.load(Ordering::Relaxed) & !1;
        self.block.index.store(rest | rank, Ordering::Relaxed);
    }

    fn entries(&self, rank: u32) -> u64 {
        self.sum(block::entries(rank))
    }

    fn exits(&self, rank: u32) -> u64 {
        self.sum(block::exits(rank))
    }

    fn fence(&self, _: Letter) {
        fence(Ordering::SeqCst);
    }

    fn heavy(&self) {
        if backend() == Backend::Rseq {
            self.block.gp.membarriers.fetch_add(1, Ordering::Relaxed);
            owlet_percpu::fence::heavy_rseq();
        } else {
            // Without sequences every reader is an atomic one, whose entry is a full barrier.
            fence(Ordering::SeqCst);
        }
    }

    fn pause(&self, attempt: u32) {
        let gp = &self.block.gp;
        let nudged = gp.nudge.load(Ordering::Relaxed);
        let hurry = gp.hurry.load(Ordering::Relaxed) != 0;
        match pace(attempt, hurry) {
            Pace::Spin => (0..32).for_each(|_| core::hint::spin_loop()),
            Pace::Yield => std::thread::yield_now(),
            Pace::Sleep(time) => {
                gp.sleeps.fetch_add(1, Ordering::Relaxed);
                // A wake that is too early means one more look; one that is missed, a late look.
                let how = futex::wait(&gp.nudge, nudged, Some(time), Reach::Private);
                if how == futex::Woken::Unavailable {
                    std::thread::sleep(time);
                }
                self.note_stall();
            }
        }
    }
}

impl Run {
    fn sum(&self, word: usize) -> u64 {
        let sum = self.block.slots().sum(word);
        // Acquire for all the loads of the sum: what its exits or entries released is visible.
        fence(Ordering::Acquire);
        sum
    }

    fn note_stall(&self) {
        let now = owlet_sys::clock::monotonic_ns();
        if now.saturating_sub(self.since) > STALL_NS && self.stalled.swap(1, Ordering::Relaxed) == 0
        {
            self.block.gp.stalls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What to do between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Spin,
    Yield,
    Sleep(Duration),
}

/// The pace of the module's header, as a function.
fn pace(attempt: u32, hurry: bool) -> Pace {
    const SPINS: u32 = 3;
    const HURRIED_SPINS: u32 = 50;
    const HURRIED_YIELDS: u32 = 100;
    if hurry {
        return match attempt {
            0..HURRIED_SPINS => Pace::Spin,
            HURRIED_SPINS..HURRIED_YIELDS => Pace::Yield,
            _ => {
                let doubled = 20_u64 << (attempt - HURRIED_YIELDS).min(10);
                Pace::Sleep(Duration::from_micros(doubled.min(500)))
            }
        };
    }
    match attempt {
        0..SPINS => Pace::Spin,
        _ => {
            let doubled = 50_u64 << (attempt - SPINS).min(10);
            Pace::Sleep(Duration::from_micros(doubled.min(10_000)))
        }
    }
}

/// Ends the leader's present sleep.
fn nudge(block: BlockRef) {
    block.gp.nudge.fetch_add(1, Ordering::Relaxed);
    if block.gp.leader.load(Ordering::Relaxed) != 0 {
        futex::wake_all(&block.gp.nudge, Reach::Private);
    }
}

/// Debug builds: a thread must not wait for itself.
fn refuse_own_section(block: BlockRef) {
    if !cfg!(debug_assertions) || block::count() > held::BUCKETS || !held::exact() {
        return;
    }
    let index = block.index.load(Ordering::Relaxed);
    let own = held::count(index) + held::count(index ^ 1);
    assert!(own == 0, "waiting for a grace period of a domain inside a section of the same domain");
}

/// The kernel's part of the gate.
struct Futex;

impl Kernel for Futex {
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn wait(&self, word: &AtomicU32, expected: u32) {
        // The time is belt and braces: where futexes are filtered, waiting degrades to polling.
        let time = Some(Duration::from_secs(1));
        if futex::wait(word, expected, time, Reach::Private) == futex::Woken::Unavailable {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wake_all(&self, word: &AtomicU32) {
        futex::wake_all(word, Reach::Private);
    }
}

#[cfg(test)]
#[path = "grace_tests.rs"]
mod tests;
