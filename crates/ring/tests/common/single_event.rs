//! WK-01: one event a round and nothing else. If its wakeup is lost, nothing heals it but the
//! waiter's own look after 100 ms, which is counted.
//!
//! Writer and waiter are pinned to a CPU each. The waiter says that it is about to wait; the
//! writer commits after a delay spread over the time the waiter needs to arm, so that commits fall
//! before, into and behind the arming. Without the barriers of `wake.rs` some 0.1 to 1 % of the
//! rounds are lost.

use super::{Numbers, segment};
use owlet_ring::{
    Clock, Notifier, NotifierOptions, Reader, RingSet, WaitOutcome, Waiter, Watermark, Writer,
};
use owlet_sys::clock::monotonic_ns;
use owlet_sys::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) rounds: u64,
    /// Deferral of a notifier in microseconds; `None` = writers wake.
    pub(crate) notifier: Option<u32>,
    /// Longest delay of the writer in most rounds, in turns of an empty loop.
    pub(crate) delay: u64,
    pub(crate) clock: Clock,
    pub(crate) seed: u64,
    /// Stop at the first lost wakeup.
    pub(crate) stop_early: bool,
}

impl Default for Options {
    fn default() -> Self {
        let clock = Clock::Tsc;
        Self { rounds: 10_000, notifier: None, delay: 1500, clock, seed: 1, stop_early: true }
    }
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) rounds: u64,
    pub(crate) lost_wakeups: u64,
    pub(crate) wrong_events: u64,
    pub(crate) wakeups: u64,
    /// From just before the push to the return of the wait, in microseconds: median, 99 %, most.
    pub(crate) latency_us: [u64; 3],
    pub(crate) elapsed: Duration,
}

impl Report {
    pub(crate) fn verdict(&self) -> Result<(), String> {
        match (self.lost_wakeups, self.wrong_events) {
            (0, 0) => Ok(()),
            (lost, 0) => Err(format!("{lost} lost wakeups in {} rounds", self.rounds)),
            (_, wrong) => Err(format!("{wrong} rounds without exactly one event")),
        }
    }
}

pub(crate) fn run(options: &Options) -> Report {
    let segment = segment(1 << 16, options.clock, options.notifier.unwrap_or(2000));
    let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
    let notifier = options.notifier.map(|_| {
        let anywhere = NotifierOptions::default();
        Notifier::start(&segment, &anywhere).expect("a thread")
    });
    let round = AtomicU64::new(0);
    let start = Instant::now();
    let mut report = Report::default();
    let mut latencies = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| write(&writer, &round, options));
        pin(1);
        let mut waiter = Waiter::new(Arc::clone(&segment));
        let reader = Reader::new(Arc::clone(&segment));
        let mut rings: Vec<_> = (0..reader.rings()).filter_map(|i| reader.ring(i)).collect();
        let mut out = Vec::new();
        while report.rounds < options.rounds {
            report.rounds += 1;
            round.store(report.rounds, Ordering::Release);
            let ready = waiter.wait(RingSet::All, Watermark::ANY, None) == WaitOutcome::Ready;
            let now = monotonic_ns();
            out.clear();
            let events: u64 = rings.iter_mut().map(|ring| ring.drain(&mut out).events).sum();
            let pushed = out.get(24..).and_then(|payload| payload.first_chunk::<8>());
            let pushed = pushed.map_or(now, |bytes| u64::from_le_bytes(*bytes));
            latencies.push(now.saturating_sub(pushed) / 1000);
            report.wrong_events += u64::from(!ready || events != 1);
            report.lost_wakeups = waiter.rescued();
            if options.stop_early && report.verdict().is_err() {
                break;
            }
        }
        round.store(u64::MAX, Ordering::Release);
    });
    report.wakeups = segment.wakeups();
    report.elapsed = start.elapsed();
    latencies.sort_unstable();
    let rank = |percent: usize| latencies.get(latencies.len().saturating_sub(1) * percent / 100);
    report.latency_us = [50, 99, 100].map(|percent| rank(percent).copied().unwrap_or(0));
    drop(notifier);
    report
}

fn write(writer: &Writer, round: &AtomicU64, options: &Options) {
    pin(0);
    let mut numbers = Numbers::new(options.seed);
    let (pid, tid) = (process::getpid(), process::gettid());
    let mut done = 0;
    loop {
        let now = round.load(Ordering::Acquire);
        if now == u64::MAX {
            return;
        }
        if now == done {
            std::hint::spin_loop();
            continue;
        }
        done = now;
        // Mostly short, around the arming; sometimes long, into the sleep.
        let longest = options.delay.max(1) * [1, 1, 1, 20][numbers.below(4) as usize];
        for _ in 0..numbers.below(longest) {
            std::hint::black_box(());
        }
        writer.push(1, pid, tid, &[&monotonic_ns().to_le_bytes()]).expect("the ring is empty");
    }
}

/// Pins the calling thread; on a machine without that CPU it stays where it is.
fn pin(cpu: usize) {
    let _ = process::set_affinity(&[cpu]);
}
