//! Counting lost wakeups, and the reader's side of every way of waking.
//!
//! A round: the writer emits one event and does nothing more until the reader has noticed. A reader
//! that is woken notices within the deferral; one whose wakeup was lost sleeps until its own
//! time-out, and then finds an event that has been there for most of it. The product's waiter looks
//! again after a long sleep and counts what it finds then ("rescued"): that is a lost wakeup, too.

use super::doorbell::{Doorbell, Page};
use super::variants::{VARIANTS, Variant, worker};
use crate::Options;
use crate::harness::inner::pin;
use crate::harness::report::Report;
use crate::harness::serve::{clock, warm_up};
use crate::harness::session::{Seen, Session, Waits};
use anyhow::{Result, anyhow};
use owlet_ring::{RingSet, WaitOutcome, Waiter, Watermark};
use std::arch::x86_64::_rdtsc;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of one variant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    /// Rounds played.
    played: u64,
    /// Wakeups that never came.
    pub(super) lost: u64,
    /// The longest any event waited for the reader.
    longest_ns: u64,
}

/// By variant; none for the untraced.
pub(super) type All = BTreeMap<Variant, Rounds>;

/// A wakeup that has not come after so long will not come.
const GIVE_UP: Duration = Duration::from_millis(50);
/// Short, since a round takes at least this: the argument does not depend on it.
const DEFERRAL: Duration = Duration::from_micros(20);

/// Plays rounds in every variant.
pub(super) fn all(options: &Options, report: &mut Report) -> Result<All> {
    let product = options.size(1_000_000, 5_000);
    let others = options.size(20_000, 600);
    report.parameter("rounds", &format!("{product} deferred (20 us), {others} in other variants"));
    let mut all = All::new();
    for variant in VARIANTS {
        let Some(name) = variant.rounds() else { continue };
        let n = if variant == Variant::Deferred { product } else { others };
        let rounds = play(variant, name, n)?;
        let Rounds { played, lost, longest_ns } = rounds;
        let longest = longest_ns as f64 / 1e6;
        report.say(&format!(
            "rounds       {}: {played} rounds, {lost} lost wakeups, longest wait {longest:.1} ms",
            variant.name()
        ));
        all.insert(variant, rounds);
    }
    let seen = all.get(&Variant::Unsynchronised).is_some_and(|rounds| rounds.lost > 0);
    let seen = if seen { "yes" } else { "not this time (too few rounds, or CPUs too busy?)" };
    report.say(&format!("rounds       can they see a lost wakeup, where one must happen: {seen}"));
    Ok(all)
}

fn play(variant: Variant, name: &str, n: u64) -> Result<Rounds> {
    let mut session = Session::new(1 << 16, DEFERRAL)?;
    let doorbell = Doorbell::new()?;
    let mut writer = worker(&session, &doorbell)?;
    let (page, stop) = (doorbell.page(), AtomicBool::new(false));
    let rounds = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            pin(1);
            read_rounds(&mut session, page, variant, &stop)
        });
        let run = writer.run(name, 1, n);
        stop.store(true, Ordering::Relaxed);
        let rounds = reader.join().map_err(|_| anyhow!("the reader thread panicked"));
        run.and(rounds)
    })?;
    debug_assert_eq!(rounds.played, n + warm_up(n));
    Ok(rounds)
}

fn read_rounds(session: &mut Session, page: &Page, variant: Variant, stop: &AtomicBool) -> Rounds {
    let (mut rounds, mut seen) = (Rounds::default(), Seen::default());
    let mut waiter = session.waiter();
    let mut pauses = Pauses::new(2);
    while !stop.load(Ordering::Relaxed) {
        let rescued = waiter.rescued();
        let woken = if variant == Variant::Deferred {
            wait(&mut waiter) && waiter.rescued() == rescued
        } else {
            page.sleep(variant, || page.unnoticed().is_some(), GIVE_UP)
        };
        let events = session.drain(&mut seen);
        if variant == Variant::Deferred && events > 0 {
            // The event is the data; the writer says so a moment later.
            while page.unnoticed().is_none() {
                std::thread::yield_now();
            }
        }
        let Some(waited_ns) = page.unnoticed() else { continue };
        if variant == Variant::Deferred && events == 0 {
            continue; // said, but not emitted yet
        }
        rounds.played += 1;
        rounds.longest_ns = rounds.longest_ns.max(waited_ns);
        // A time-out that strikes just after the event says nothing about its wakeup.
        rounds.lost += u64::from(!woken && waited_ns > GIVE_UP.as_nanos() as u64 / 2);
        page.notice();
        pauses.pause();
    }
    rounds
}

/// Pauses of random length, up to 4096 ticks of the clock. Writer and reader both make one between
/// rounds, so that the next event meets the reader at every point of its way to sleep.
pub(super) struct Pauses(u64);

impl Pauses {
    /// Always the same sequence for the same `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next pause.
    pub(super) fn pause(&mut self) {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // SAFETY: every x86-64 has a time stamp counter.
        let now = || unsafe { _rdtsc() };
        let start = now();
        while now().wrapping_sub(start) < self.0 >> 52 {}
    }
}

fn wait(waiter: &mut Waiter) -> bool {
    // Longer than the waiter takes to look again by itself.
    let deadline = Instant::now() + 10 * GIVE_UP;
    waiter.wait(RingSet::All, Watermark::ANY, Some(deadline)) == WaitOutcome::Ready
}

/// A reader that sleeps on the doorbell and reads what is in the rings.
pub(super) struct Rung {
    page: &'static Page,
    variant: Variant,
}

impl Rung {
    /// For the variants that are not the product's.
    pub(super) fn new(page: &'static Page, variant: Variant) -> Self {
        Self { page, variant }
    }
}

impl Waits for Rung {
    fn wait(&mut self, session: &mut Session, seen: &mut Seen) -> bool {
        self.page.sleep(self.variant, || session.drain(seen) > 0, GIVE_UP)
    }
}

impl Page {
    /// The reader's part of `variant`; whether it was woken.
    fn sleep(&self, variant: Variant, look: impl FnOnce() -> bool, most: Duration) -> bool {
        match variant {
            Variant::Before => self.sleep_under_lock(look, most),
            _ => self.sleep_announced(look, most),
        }
    }

    /// The writer's next round; notes the time.
    pub(super) fn begin_round(&self) -> u64 {
        self.since.0.store(clock(libc::CLOCK_MONOTONIC), Ordering::Relaxed);
        self.done.0.load(Ordering::Relaxed) + 1
    }

    /// Waits, without a sound, until the reader has noticed `round`.
    pub(super) fn await_noticed(&self, round: u64) {
        let mut spins = 0_u32;
        while self.noticed.0.load(Ordering::Acquire) < round {
            spins += 1;
            // With one CPU, or a busy one, the reader needs ours.
            if spins.is_multiple_of(1024) {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
        }
    }

    /// Nanoseconds the reader has not noticed the writer's round, if there is one.
    fn unnoticed(&self) -> Option<u64> {
        let done = self.done.0.load(Ordering::Acquire);
        let since = self.since.0.load(Ordering::Relaxed);
        (done > self.noticed.0.load(Ordering::Relaxed))
            .then(|| clock(libc::CLOCK_MONOTONIC).saturating_sub(since))
    }

    fn notice(&self) {
        self.noticed.0.store(self.done.0.load(Ordering::Acquire), Ordering::Release);
    }
}
