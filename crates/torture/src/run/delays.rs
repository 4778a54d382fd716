//! The hook at the library's dangerous instants.
//!
//! Each point has a habit: how often, of a thousand times, it sleeps, and how often it yields. The seed
//! picks a few points that get worse habits for the whole run, so that different seeds are different runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use owlet_percpu::testpoint::{self, Point};
use owlet_sys::topology;

use super::world::Count;
use crate::rng::Rng;

static STATE: AtomicU64 = AtomicU64::new(1);
/// Bit n: point n has a worse habit.
static WORSE: AtomicU64 = AtomicU64::new(0);

/// Bit n: point n is what the run is about.
static HOT: AtomicU64 = AtomicU64::new(0);

/// How often threads were held up at each point.
static HELD: [AtomicU64; Point::ALL.len()] = [const { AtomicU64::new(0) }; Point::ALL.len()];

/// A point, as named on the command line and in the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hot(Point);

impl ValueEnum for Hot {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Hot; Point::ALL.len()] = {
            let mut all = [Hot(Point::AfterFlip); Point::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = Hot(Point::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = named(self.0);
        Some(PossibleValue::new(name).help(help))
    }
}

fn named(point: Point) -> (&'static str, &'static str) {
    match point {
        Point::BeforeAtomicEntry => {
            ("before-atomic-entry", "a reader without rseq on its way into a section")
        }
        Point::BeforeAtomicAdd => ("before-atomic-add", "a thread without rseq about to count"),
        Point::BetweenSums => ("between-sums", "between the two sums of a scan"),
        Point::AfterFlip => ("after-flip", "after the flip"),
        Point::BeforeSleep => ("before-sleep", "the worker about to sleep"),
        Point::BeforeLastLook => ("before-last-look", "the worker letting go of a domain"),
        Point::AfterLink => ("after-link", "a poster whose callback is queued"),
        Point::BeforeCollect => ("before-collect", "the worker about to collect callbacks"),
        Point::AfterClaim => ("after-claim", "a thread that has just registered"),
        Point::BeforeMark => ("before-mark", "a thread about to say that it is quiet or online"),
        Point::BetweenRecords => ("between-records", "a grace period going from thread to thread"),
    }
}

/// How often threads were held up, by point.
pub(super) fn list() -> Vec<(&'static str, u64)> {
    let held = |point: Point| HELD[point as usize].load(Ordering::Relaxed);
    Point::ALL.into_iter().map(|p| (named(p).0, held(p))).filter(|(_, n)| *n != 0).collect()
}

/// Installs the hook; `seed` starts its choices.
pub(super) fn install(seed: u64, hot: &[Hot]) {
    let bits = hot.iter().fold(0, |bits, hot| bits | 1 << (hot.0 as u64 % 64));
    HOT.store(bits, Ordering::Relaxed);
    let mut rng = Rng::new(seed, 77);
    rng.next();
    STATE.store(rng.next() | 1, Ordering::Relaxed);
    WORSE.store(rng.next() & rng.next(), Ordering::Relaxed);
    testpoint::install(hold_up);
}

thread_local! {
    static STRAGGLER: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread has been held up for long on its way into a section since the last call: it
/// may be in the old rank, and had better stay there for a while.
pub(super) fn is_straggler() -> bool {
    STRAGGLER.with(|s| s.replace(false))
}

/// Yields and naps of a thousand, and a nap's nanoseconds.
fn habit(point: Point) -> (u64, u64, i64) {
    match point {
        Point::BeforeAtomicEntry => (20, 1, 300_000),
        Point::BeforeAtomicAdd => (100, 1, 20_000),
        Point::BetweenSums => (100, 50, 50_000),
        Point::AfterFlip => (100, 10, 20_000),
        Point::BeforeSleep => (200, 20, 50_000),
        Point::BeforeLastLook => (200, 50, 50_000),
        Point::AfterLink => (50, 2, 50_000),
        Point::BeforeCollect => (200, 50, 50_000),
        Point::AfterClaim => (100, 20, 50_000),
        Point::BeforeMark => (20, 1, 300_000),
        Point::BetweenRecords => (100, 10, 50_000),
    }
}

/// Holds a thread up at a dangerous instant: mostly not, sometimes by a yield, rarely for longer or
/// by a move to another CPU. Async-signal-safe.
fn hold_up(point: Point) {
    let draw = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let draw = (draw ^ (draw >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    let (yields, mut naps, nap) = habit(point);
    if WORSE.load(Ordering::Relaxed) & (1 << (point as u64 % 64)) != 0 {
        naps *= 3;
    }
    if HOT.load(Ordering::Relaxed) & (1 << (point as u64 % 64)) != 0 {
        naps *= 30;
    }
    match draw % 1000 {
        n if n < naps => {
            Count::Delays.note();
            HELD[point as usize].fetch_add(1, Ordering::Relaxed);
            STRAGGLER.with(|s| s.set(point == Point::BeforeAtomicEntry));
            let time = libc::timespec { tv_sec: 0, tv_nsec: nap };
            // SAFETY: a valid time; the rest is not wanted.
            unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
        }
        n if n < naps + yields && point == Point::BeforeAtomicAdd => {
            // From now on the slot is another CPU's.
            let cpus = owlet_percpu::cpus();
            let _ = topology::set_affinity(Some(n as usize % cpus), cpus);
        }
        n if n < naps + yields => {
            // SAFETY: takes no arguments.
            unsafe { libc::sched_yield() };
        }
        _ => {}
    }
}
