//! Reader-writer locks behind one trait, and what is done with them: the cases of `rwlock-read` and
//! `rwlock-write`. `toggle`: those of `toggle-1000`.

pub(super) mod toggle;

use crate::harness::inner::pin;
use crate::harness::serve::{Case, clock, keep};
use anyhow::{Result, bail};
use crossbeam_utils::sync::ShardedLock;
use owlet_rcu::PerCpuRwLock;
use owlet_rcu::rwlock::{HoldSlow, Options, Policy};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// Readers beside a writer that comes a thousand times a second.
const CROWD: usize = 8;

/// A lock of a number.
pub(super) trait Lock: Sync {
    /// What reads it.
    fn read<R>(&self, f: impl FnOnce(&u64) -> R) -> R;
    /// What writes it.
    fn write<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R;
}

impl Lock for RwLock<u64> {
    #[inline(always)]
    fn read<R>(&self, f: impl FnOnce(&u64) -> R) -> R {
        f(&RwLock::read(self).unwrap_or_else(PoisonError::into_inner))
    }

    #[inline(always)]
    fn write<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R {
        f(&mut RwLock::write(self).unwrap_or_else(PoisonError::into_inner))
    }
}

impl Lock for parking_lot::RwLock<u64> {
    #[inline(always)]
    fn read<R>(&self, f: impl FnOnce(&u64) -> R) -> R {
        f(&parking_lot::RwLock::read(self))
    }

    #[inline(always)]
    fn write<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R {
        f(&mut parking_lot::RwLock::write(self))
    }
}

impl Lock for ShardedLock<u64> {
    #[inline(always)]
    fn read<R>(&self, f: impl FnOnce(&u64) -> R) -> R {
        f(&ShardedLock::read(self).unwrap_or_else(PoisonError::into_inner))
    }

    #[inline(always)]
    fn write<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R {
        f(&mut ShardedLock::write(self).unwrap_or_else(PoisonError::into_inner))
    }
}

impl Lock for PerCpuRwLock<u64> {
    #[inline(always)]
    fn read<R>(&self, f: impl FnOnce(&u64) -> R) -> R {
        f(&PerCpuRwLock::read(self))
    }

    #[inline(always)]
    fn write<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R {
        f(&mut PerCpuRwLock::write(self))
    }
}

static OWLET: PerCpuRwLock<u64> = PerCpuRwLock::new(7);
static FAIR: PerCpuRwLock<u64> = Options::new().policy(Policy::PhaseFair).build(7);
static READERS: PerCpuRwLock<u64> = Options::new().policy(Policy::ReaderPreferring).build(7);
static SLOW: PerCpuRwLock<u64> = PerCpuRwLock::new(7);
static STD: RwLock<u64> = RwLock::new(7);
static PARKING_LOT: parking_lot::RwLock<u64> = parking_lot::RwLock::new(7);

fn sharded() -> &'static ShardedLock<u64> {
    static SHARDED: OnceLock<ShardedLock<u64>> = OnceLock::new();
    SHARDED.get_or_init(|| ShardedLock::new(7))
}

/// [`SLOW`], held slow from the first use on.
fn slow() -> &'static PerCpuRwLock<u64> {
    static HELD: OnceLock<HoldSlow<'static>> = OnceLock::new();
    HELD.get_or_init(|| SLOW.hold_slow());
    &SLOW
}

/// The cases of both benchmarks.
pub(super) fn cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    of(&mut cases, ["std-read", "std-write", "std-both", "std-khz"], || &STD);
    of(
        &mut cases,
        ["parking_lot-read", "parking_lot-write", "parking_lot-both", "parking_lot-khz"],
        || &PARKING_LOT,
    );
    of(&mut cases, ["sharded-read", "sharded-write", "sharded-both", "sharded-khz"], sharded);
    of(&mut cases, ["owlet-read", "owlet-write", "owlet-both", "owlet-khz"], || &OWLET);
    of(
        &mut cases,
        ["owlet-fair-read", "owlet-fair-write", "owlet-fair-both", "owlet-fair-khz"],
        || &FAIR,
    );
    of(
        &mut cases,
        ["owlet-readers-read", "owlet-readers-write", "owlet-readers-both", "owlet-readers-khz"],
        || &READERS,
    );
    of(
        &mut cases,
        ["owlet-slow-read", "owlet-slow-write", "owlet-slow-both", "owlet-slow-khz"],
        slow,
    );
    cases.push(Case::new("owlet-raw-read", |n| {
        let raw = OWLET.raw();
        for _ in 0..n {
            let hold = raw.read();
            // SAFETY: where the lock's value is, held shared.
            keep(unsafe { *OWLET.data_ptr() });
            // SAFETY: taken above.
            unsafe { raw.unlock_read(hold) };
        }
    }));
    // Blocking grace periods and membarriers of all locks that have some.
    cases.push(Case::call("owlet-stats", |_| {
        let stats = OWLET.stats();
        Ok(vec![stats.blocking, stats.membarriers])
    }));
    Ok(cases)
}

fn of<L: Lock + 'static>(
    cases: &mut Vec<Case>,
    names: [&'static str; 4],
    lock: fn() -> &'static L,
) {
    let [read, write, both, khz] = names;
    cases.extend([
        Case::new(read, move |n| {
            let lock = lock();
            for _ in 0..n {
                lock.read(|value| keep(*value));
            }
        }),
        Case::new(write, move |n| {
            let lock = lock();
            for _ in 0..n {
                lock.write(|value| *value = keep(*value));
            }
        }),
        Case::call(both, move |numbers| flat_out(lock(), numbers)),
        Case::call(khz, move |numbers| beside_a_crowd(lock(), numbers)),
    ]);
}

/// `MILLISECONDS` -> reads and writes of one reader and one writer, each on a CPU of its own.
fn flat_out<L: Lock>(lock: &'static L, numbers: &[u64]) -> Result<Vec<u64>> {
    let &[millis] = numbers else { bail!("takes MILLISECONDS") };
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(3));
    let go_on = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            pin(1);
            ready.wait();
            let mut reads = 0;
            while go_on() {
                lock.read(|value| keep(*value));
                reads += 1;
            }
            reads
        });
        let writer = scope.spawn(|| {
            pin(0);
            ready.wait();
            let mut writes = 0;
            while go_on() {
                lock.write(|value| *value = keep(*value));
                writes += 1;
            }
            writes
        });
        ready.wait();
        std::thread::sleep(Duration::from_millis(millis));
        stop.store(true, Ordering::Relaxed);
        let join = |thread: std::thread::ScopedJoinHandle<'_, u64>| {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))
        };
        Ok(vec![join(reader)?, join(writer)?])
    })
}

/// `WRITES` -> nanoseconds of each, a thousand a second beside [`CROWD`] busy readers; first the reads.
fn beside_a_crowd<L: Lock>(lock: &'static L, numbers: &[u64]) -> Result<Vec<u64>> {
    let &[writes] = numbers else { bail!("takes WRITES") };
    let (stop, ready, reads) = (AtomicBool::new(false), Barrier::new(CROWD + 1), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for cpu in 0..CROWD {
            let (stop, ready, reads) = (&stop, &ready, &reads);
            scope.spawn(move || {
                pin(cpu);
                ready.wait();
                let mut mine = 0;
                while !stop.load(Ordering::Relaxed) {
                    lock.read(|value| keep(*value));
                    mine += 1;
                }
                reads.fetch_add(mine, Ordering::Relaxed);
            });
        }
        ready.wait();
        let mut out = vec![0];
        for _ in 0..writes {
            std::thread::sleep(Duration::from_millis(1));
            let begun = clock(libc::CLOCK_MONOTONIC);
            lock.write(|value| *value = keep(*value));
            out.push(clock(libc::CLOCK_MONOTONIC) - begun);
        }
        stop.store(true, Ordering::Relaxed);
        Ok(out)
    })
    .map(|mut out: Vec<u64>| {
        out[0] = reads.load(Ordering::Relaxed);
        out
    })
}
