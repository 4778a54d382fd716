//! The hook at the library's dangerous instants.
//!
//! Each point has a habit: how often, of a thousand times, it sleeps, and how often it yields. The seed
//! picks a few points that get worse habits for the whole run, so that different seeds are different runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use owlet_percpu::testpoint::{self, Point};
use owlet_sys::topology;

use super::world::Count;
use crate::rng::Rng;

static STATE: AtomicU64 = AtomicU64::new(1);
/// Bit n: point n has a worse habit.
static WORSE: AtomicU64 = AtomicU64::new(0);

/// Bit n: point n is what the run is about.
static HOT: AtomicU64 = AtomicU64::new(0);

/// A point that can be named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hot {
    /// A reader without rseq on its way into a section.
    BeforeAtomicEntry,
    /// Between the two sums of a scan.
    BetweenSums,
    /// After the flip.
    AfterFlip,
}

impl Hot {
    fn point(self) -> Point {
        match self {
            Self::BeforeAtomicEntry => Point::BeforeAtomicEntry,
            Self::BetweenSums => Point::BetweenSums,
            Self::AfterFlip => Point::AfterFlip,
        }
    }
}

/// Installs the hook; `seed` starts its choices.
pub(super) fn install(seed: u64, hot: &[Hot]) {
    let bits = hot.iter().fold(0, |bits, hot| bits | 1 << (hot.point() as u64 % 64));
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
