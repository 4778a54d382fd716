//! The cases of `toggle-1000`: a lock taken for writing twice in each of many iterations, and a tracepoint
//! switched on and off, each beside readers.

use super::Lock;
use crate::harness::inner::pin;
use crate::harness::serve::{Case, clock, keep};
use anyhow::{Result, bail};
use owlet::Probe;
use owlet_rcu::rcu_sync::grace::{Expedited, GracePeriod, HeavyFence, Normal};
use owlet_rcu::rwlock::{LockStats, Options};
use owlet_rcu::{PerCpuRwLock, Srcu};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Whose grace periods are as long as the benchmark wants them.
static DOMAIN: Srcu = Srcu::named("toggle");
static NORMAL: Normal<'static> = Normal(&DOMAIN);
/// Threads whose overlapping sections make them so.
const HOLDERS: u64 = 3;
/// Every how many reads one is timed.
const SAMPLE: u64 = 64;
/// Samples a reader keeps.
const SAMPLES: usize = 200_000;

owlet::tracepoint! {
    /// What is switched.
    mod toggle {
        /// Hit by the readers.
        hit(n: u64);
    }
}

/// How a writer comes to write.
trait Variant: Sync {
    fn read(&self) -> u64;
    /// Takes it, works, gives it back. Grace periods that it waited for itself.
    fn write(&self, work: &dyn Fn()) -> u64;
    /// Grace periods and membarriers that the lock counts.
    fn stats(&self) -> LockStats {
        LockStats::default()
    }
}

/// What needs no grace period.
struct Plain<L>(L);

impl<L: Lock> Variant for Plain<L> {
    #[inline(always)]
    fn read(&self) -> u64 {
        self.0.read(|value| keep(*value))
    }

    fn write(&self, work: &dyn Fn()) -> u64 {
        self.0.write(|value| {
            *value += 1;
            work();
        });
        0
    }
}

/// The lock as it was: a grace period before each writer, and one after.
struct Both<G> {
    lock: PerCpuRwLock<u64>,
    gp: G,
}

impl<G: GracePeriod> Variant for Both<G> {
    #[inline(always)]
    fn read(&self) -> u64 {
        *self.lock.read()
    }

    fn write(&self, work: &dyn Fn()) -> u64 {
        self.gp.wait(self.gp.snapshot());
        {
            let mut value = self.lock.write();
            *value += 1;
            work();
        }
        self.gp.wait(self.gp.snapshot());
        2
    }

    fn stats(&self) -> LockStats {
        self.lock.stats()
    }
}

/// The product.
struct Product(PerCpuRwLock<u64>);

impl Variant for Product {
    #[inline(always)]
    fn read(&self) -> u64 {
        *self.0.read()
    }

    fn write(&self, work: &dyn Fn()) -> u64 {
        let mut value = self.0.write();
        *value += 1;
        work();
        0
    }

    fn stats(&self) -> LockStats {
        self.0.stats()
    }
}

/// The cases.
pub(in crate::peers) fn cases() -> Result<Vec<Case>> {
    Ok(vec![
        Case::call("toggle-normal", |n| {
            toggle(&Both { lock: PerCpuRwLock::new(0), gp: Normal(&DOMAIN) }, n)
        }),
        Case::call("toggle-hurried", |n| {
            toggle(&Both { lock: PerCpuRwLock::new(0), gp: Expedited(&DOMAIN) }, n)
        }),
        Case::call("toggle-expedited", |n| {
            toggle(&Both { lock: PerCpuRwLock::new(0), gp: HeavyFence }, n)
        }),
        Case::call("toggle-rcu_sync", |n| {
            toggle(&Product(Options::new().grace_periods(&NORMAL).build(0)), n)
        }),
        Case::call("toggle-membarrier", |n| toggle(&Product(PerCpuRwLock::new(0)), n)),
        Case::call("toggle-hold_slow", |n| {
            let product = Product(Options::new().grace_periods(&NORMAL).build(0));
            let _slow = product.0.hold_slow();
            toggle(&product, n)
        }),
        Case::call("toggle-std", |n| toggle(&Plain(RwLock::new(0)), n)),
        Case::call("toggle-parking_lot", |n| toggle(&Plain(parking_lot::RwLock::new(0)), n)),
        Case::call("toggle-tracepoint", tracepoint),
        Case::new("pairs-expedited", |n| {
            pairs(&Both { lock: PerCpuRwLock::new(0), gp: HeavyFence }, n)
        }),
        Case::new("pairs-rcu_sync", |n| pairs(&Product(PerCpuRwLock::new(0)), n)),
        Case::new("pairs-std", |n| pairs(&Plain(RwLock::new(0)), n)),
        Case::new("pairs-parking_lot", |n| pairs(&Plain(parking_lot::RwLock::new(0)), n)),
    ])
}

/// Writers one after the other, nobody else.
fn pairs(lock: &impl Variant, n: u64) {
    for _ in 0..n {
        lock.write(&|| ());
    }
}

/// What the readers of a run have done.
#[derive(Default)]
struct Reads {
    count: AtomicU64,
    cpu_ns: AtomicU64,
    samples: Mutex<Vec<u64>>,
}

impl Reads {
    /// Reads until told to stop, timing some.
    fn read(&self, cpu: usize, stop: &AtomicBool, read: impl Fn(u64)) {
        pin(cpu);
        let mut samples = Vec::with_capacity(SAMPLES);
        let (begun, mut count) = (clock(libc::CLOCK_THREAD_CPUTIME_ID), 0);
        while !stop.load(Ordering::Relaxed) {
            for _ in 1..SAMPLE {
                read(count);
            }
            let before = clock(libc::CLOCK_MONOTONIC);
            read(count);
            if samples.len() < SAMPLES {
                samples.push(clock(libc::CLOCK_MONOTONIC) - before);
            }
            count += SAMPLE;
        }
        self.count.fetch_add(count, Ordering::Relaxed);
        let spent = clock(libc::CLOCK_THREAD_CPUTIME_ID) - begun;
        self.cpu_ns.fetch_add(spent, Ordering::Relaxed);
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).extend(samples);
    }

    /// Picoseconds of CPU a read, and the 99th percentile of those timed in nanoseconds.
    fn figures(self) -> [u64; 2] {
        let count = self.count.into_inner().max(1);
        let samples = self.samples.into_inner().unwrap_or_else(PoisonError::into_inner);
        [self.cpu_ns.into_inner() * 1000 / count, p99(samples)]
    }
}

fn p99(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    let at = samples.len().saturating_sub(1) * 99 / 100;
    samples.get(at).copied().unwrap_or(0)
}

/// `ITERATIONS GP_US WORK_US READERS` -> blocking grace periods, membarriers, nanoseconds in all,
/// picoseconds a read, 99th percentiles of reads and of writers in nanoseconds.
fn toggle(lock: &impl Variant, numbers: &[u64]) -> Result<Vec<u64>> {
    let &[iterations, gp_us, work_us, readers] = numbers else {
        bail!("takes ITERATIONS GP_US WORK_US READERS")
    };
    let (stop, reads) = (AtomicBool::new(false), Reads::default());
    let work = || {
        if work_us != 0 {
            std::thread::sleep(Duration::from_micros(work_us));
        }
    };
    std::thread::scope(|scope| {
        let (stop, reads) = (&stop, &reads);
        for holder in (0..HOLDERS).filter(|_| gp_us != 0) {
            scope.spawn(move || hold(holder, gp_us, stop));
        }
        for reader in 0..readers as usize {
            scope.spawn(move || {
                reads.read(reader + 1, stop, |_| {
                    lock.read();
                });
            });
        }
        pin(0);
        std::thread::sleep(Duration::from_micros(2 * gp_us + 1000));
        let (before, heavy) = (lock.stats(), owlet_rcu::heavy_fences());
        let (mut blocking, mut each) = (0, Vec::new());
        let begun = clock(libc::CLOCK_MONOTONIC);
        for _ in 0..iterations {
            // Enable, disable; each with half of what there is to do.
            for half in [true, false] {
                let since = clock(libc::CLOCK_MONOTONIC);
                blocking += lock.write(if half { &work } else { &|| () });
                each.push(clock(libc::CLOCK_MONOTONIC) - since);
            }
        }
        let wall = clock(libc::CLOCK_MONOTONIC) - begun;
        blocking += lock.stats().blocking - before.blocking;
        let heavy = owlet_rcu::heavy_fences() - heavy;
        stop.store(true, Ordering::Relaxed);
        Ok((vec![blocking, heavy, wall], p99(each)))
    })
    .map(|(mut out, writer): (Vec<u64>, u64)| {
        out.extend(reads.figures());
        out.push(writer);
        out
    })
}

/// Sections of [`DOMAIN`], one after the other, such that a grace period that begins at any time takes
/// about `gp_us`: of [`HOLDERS`] sections, evenly shifted, the last to end.
fn hold(holder: u64, gp_us: u64, stop: &AtomicBool) {
    let section = gp_us * 2 * HOLDERS / (2 * HOLDERS - 1);
    std::thread::sleep(Duration::from_micros(section * holder / HOLDERS));
    while !stop.load(Ordering::Relaxed) {
        let _section = DOMAIN.read();
        std::thread::sleep(Duration::from_micros(section));
    }
}

/// `ITERATIONS READERS` -> the same of a tracepoint of this process that is switched on and off, with a
/// probe, by its registration; the events seen at the end.
fn tracepoint(numbers: &[u64]) -> Result<Vec<u64>> {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let &[iterations, readers] = numbers else { bail!("takes ITERATIONS READERS") };
    let probe: Probe<dyn Fn(u64) + Send + Sync> = Probe::new(Box::new(|_| {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }));
    let point = &toggle::hit::TRACEPOINT;
    let (stop, reads) = (AtomicBool::new(false), Reads::default());
    std::thread::scope(|scope| {
        let (stop, reads) = (&stop, &reads);
        for reader in 0..readers as usize {
            scope.spawn(move || {
                reads.read(reader + 1, stop, |n| owlet::trace!(toggle::hit, n));
            });
        }
        pin(0);
        std::thread::sleep(Duration::from_millis(1));
        let (before, heavy) = (owlet::grace_periods(), owlet_rcu::heavy_fences());
        let mut each = Vec::new();
        let begun = clock(libc::CLOCK_MONOTONIC);
        let mut switch = || {
            let since = clock(libc::CLOCK_MONOTONIC);
            point.register(&probe, 0).map_err(|error| anyhow::anyhow!("{error}"))?;
            each.push(clock(libc::CLOCK_MONOTONIC) - since);
            let since = clock(libc::CLOCK_MONOTONIC);
            point.unregister(&probe).map_err(|error| anyhow::anyhow!("{error}"))?;
            each.push(clock(libc::CLOCK_MONOTONIC) - since);
            anyhow::Ok(())
        };
        let switched = (0..iterations).try_for_each(|_| switch());
        let wall = clock(libc::CLOCK_MONOTONIC) - begun;
        stop.store(true, Ordering::Relaxed);
        let after = owlet::grace_periods();
        let heavy = owlet_rcu::heavy_fences() - heavy;
        switched.map(|()| (vec![after.calls - before.calls, heavy, wall], p99(each)))
    })
    .map(|(mut out, writer): (Vec<u64>, u64)| {
        out.extend(reads.figures());
        out.extend([writer, SEEN.load(Ordering::Relaxed)]);
        out
    })
}
