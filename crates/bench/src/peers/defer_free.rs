//! The cases of `defer-free`: the same producers and readers around every way of freeing what was
//! unpublished. One call is one run; the process ends after it, so that its memory is its own.
//!
//! | variant | how |
//! |---|---|
//! | `call-offloaded` | before, A: a callback for each object, called by one thread with nice +10 on CPU 0 that sleeps 10 ms between batches (the stand-in for offloaded callbacks) |
//! | `call` | a callback for each object, by the library's worker |
//! | `two-batches` | before, B: two batches for each producer, queued as work that waits for a grace period |
//! | `pool`, `domain` | after: blocks with cookies |
//! | `recycled` | the same pool, which new objects also come from |
//! | `crossbeam-epoch`, `seize` | peers; `call_rcu` of liburcu is in `urcu/bench.c` |
//! | `malloc` | freed in batches and late, without protection: the allocator's share. As many wait as of `domain` where nobody reads, or as the cap lets wait |
//! | `floor` | freed at once: no protection |

mod after;
mod before;
mod object;
mod others;

use crate::harness::inner::pin;
use crate::harness::serve::{Case, clock};
use after::{ByDomain, ByPool, HEADS, Pooled, Recycled};
use anyhow::{Context, Result, bail};
use before::{ByCall, Offloaded, PACE_NS, TwoBatches};
use object::{Object, fill, most, sum};
use others::{Epoch, Floor, Later, Seize};
use owlet_rcu::Srcu;
use owlet_rcu::free::{Backpressure, Limits, Pool};
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

static DOMAIN: Srcu = Srcu::named("defer-free");

/// A way of freeing what was unpublished.
trait Way<const N: usize>: 'static {
    /// What a producer keeps.
    type Thread;

    /// Before the run.
    fn prepare() {}
    fn thread() -> Self::Thread;
    /// A new object.
    #[inline(always)]
    fn make(_: &mut Self::Thread, i: u64) -> *mut Object<N> {
        fill(Box::new_uninit(), i)
    }
    /// A section of a reader around `body`.
    fn section(body: impl FnOnce()) {
        let _section = DOMAIN.read();
        body();
    }
    /// Frees the object once no section needs it.
    ///
    /// # Safety
    /// From [`Way::make`], unpublished, once.
    unsafe fn retire(thread: &mut Self::Thread, object: NonNull<Object<N>>);
    /// Has everything freed.
    fn finish(_: Self::Thread) {}
    /// Once the producers are done: what has to be done again and again until everything is freed.
    fn nudge() {}
    /// Grace periods so far, where they are counted.
    fn grace_periods() -> u64 {
        DOMAIN.stats().grace_periods
    }
}

/// Objects of each producer that wait in `malloc`.
static LATE: AtomicU64 = AtomicU64::new(0);
/// Those that do in `domain` where nobody reads: sixteen blocks of each of two kinds of waiting.
const FEW: u64 = 2 * 16 * 251;
/// What the allocator and a block add to an object.
const ADDED: u64 = 16 + 16;

/// The knobs of a run, in the order of the call's numbers.
struct Knobs {
    producers: u64,
    /// Objects of each producer.
    objects: u64,
    readers: u64,
    hold: Duration,
    /// A reader is inside for so long from the beginning.
    stuck: Duration,
    /// Objects that all producers together retire in a second; 0: as fast as they can.
    rate: u64,
}

impl Knobs {
    fn new(numbers: &[u64], bytes: u64) -> Result<Self> {
        let &[producers, objects, readers, hold_ns, stuck_ns, cap, pace_ns, rate, heads] = numbers
        else {
            bail!("takes PRODUCERS OBJECTS READERS HOLD_NS STUCK_NS CAP PACE_NS RATE HEADS")
        };
        if cap != 0 {
            let limits = Limits::DEFAULT.cap(cap).backpressure(Backpressure::Wait);
            DOMAIN.set_retire_limits(limits);
        }
        let late = if cap == 0 { FEW } else { cap / (bytes + ADDED) / producers.max(1) };
        LATE.store(late, Ordering::Relaxed);
        PACE_NS.store(pace_ns, Ordering::Relaxed);
        HEADS.store(heads, Ordering::Relaxed);
        let [hold, stuck] = [hold_ns, stuck_ns].map(Duration::from_nanos);
        Ok(Self { producers, objects, readers, hold, stuck, rate })
    }
}

/// Resident memory in KiB, now and at most.
fn resident() -> Result<[u64; 2]> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let of = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
    };
    Ok([of("VmRSS:").context("no VmRSS")?, of("VmHWM:").context("no VmHWM")?])
}

/// Knobs -> ns on the wall, CPU ns, grace periods, KiB at most, on average and by rcuscale's formula,
/// mean and greatest age in ns, bytes that the domain held at most, grace periods that ended while the
/// sampled objects waited, in all and at most, and how many those are.
fn run<const N: usize, W: Way<N>>(numbers: &[u64]) -> Result<Vec<u64>> {
    let knobs = Knobs::new(numbers, 8 * N as u64)?;
    W::prepare();
    let done = AtomicU64::new(0);
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(knobs.producers as usize + 1));
    let [before, _] = resident()?;
    let mut samples = Vec::with_capacity(1 << 16);
    let (mut periods, mut took, mut cpu) = (W::grace_periods(), 0, 0);
    thread::scope(|scope| -> Result<()> {
        read_until::<N, W>(scope, &knobs, &stop);
        for producer in 0..knobs.producers {
            let (ready, knobs, done) = (&ready, &knobs, &done);
            scope.spawn(move || {
                pin(producer as usize);
                let mut thread = W::thread();
                ready.wait();
                produce::<N, W>(&mut thread, knobs);
                W::finish(thread);
                DOMAIN.retire_flush();
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        ready.wait();
        let (begun, begun_cpu) =
            (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_PROCESS_CPUTIME_ID));
        let all = knobs.producers * knobs.objects;
        while sum(|shard| &shard.freed) < all {
            samples.push(resident()?[0].saturating_sub(before));
            thread::sleep(Duration::from_millis(1));
            if clock(libc::CLOCK_MONOTONIC) - begun > 120_000_000_000 {
                bail!("not all is freed after two minutes");
            }
            if done.load(Ordering::Relaxed) == knobs.producers {
                W::nudge();
            }
        }
        took = clock(libc::CLOCK_MONOTONIC) - begun;
        cpu = clock(libc::CLOCK_PROCESS_CPUTIME_ID) - begun_cpu;
        periods = W::grace_periods() - periods;
        stop.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let peak = resident()?[1].saturating_sub(before);
    let mean = samples.iter().sum::<u64>() / samples.len().max(1) as u64;
    let sampled = sum(|shard| &shard.sampled);
    Ok(vec![
        took,
        cpu,
        periods,
        peak,
        mean,
        rcuscale(&samples),
        sum(|shard| &shard.age) / sampled.max(1),
        most(|shard| &shard.oldest),
        DOMAIN.retire_stats().peak_bytes,
        sum(|shard| &shard.periods),
        most(|shard| &shard.most_periods),
        sampled,
    ])
}

/// Starts the readers, and waits until the one that is stuck is inside.
fn read_until<'s, const N: usize, W: Way<N>>(
    scope: &'s Scope<'s, '_>,
    knobs: &'s Knobs,
    stop: &'s AtomicBool,
) {
    for reader in 0..knobs.readers {
        scope.spawn(move || {
            // Overlapping, so that somebody is always inside.
            thread::sleep(knobs.hold * reader as u32 / knobs.readers.max(1) as u32);
            while !stop.load(Ordering::Relaxed) {
                W::section(|| thread::sleep(knobs.hold));
            }
        });
    }
    if !knobs.stuck.is_zero() {
        scope.spawn(|| W::section(|| thread::sleep(knobs.stuck)));
        thread::sleep(Duration::from_millis(2));
    }
}

/// rcuscale's footprint: a running mean, (mean + now) / 2, at each quarter of the run.
fn rcuscale(samples: &[u64]) -> u64 {
    let at = |quarter: usize| samples.get(samples.len() * quarter / 4).copied().unwrap_or(0);
    (1..4).fold(at(0), |mean, quarter| (mean + at(quarter)) / 2)
}

/// Unpublishes object after object, and retires what was there.
fn produce<const N: usize, W: Way<N>>(thread: &mut W::Thread, knobs: &Knobs) {
    const TICKS: u64 = 1000;
    let cell = AtomicPtr::new(std::ptr::null_mut::<Object<N>>());
    let some = match knobs.rate {
        0 => knobs.objects,
        rate => (rate / knobs.producers / TICKS).max(1),
    };
    let begun = clock(libc::CLOCK_MONOTONIC);
    for tick in 0..knobs.objects.div_ceil(some) {
        for i in tick * some..((tick + 1) * some).min(knobs.objects) {
            let next = W::make(thread, i);
            if let Some(old) = NonNull::new(cell.swap(next, Ordering::AcqRel)) {
                // SAFETY: made so, just unpublished, by this thread, which is the only one to do so.
                unsafe { W::retire(thread, old) };
            }
        }
        if knobs.rate != 0 {
            let due = begun + (tick + 1) * 1_000_000_000 / TICKS;
            let early = due.saturating_sub(clock(libc::CLOCK_MONOTONIC));
            thread::sleep(Duration::from_nanos(early));
        }
    }
    if let Some(last) = NonNull::new(cell.swap(std::ptr::null_mut(), Ordering::AcqRel)) {
        // SAFETY: as above.
        unsafe { W::retire(thread, last) };
    }
}

/// The cases, of each size in words and in bytes.
macro_rules! cases {
    ($($words:literal $bytes:literal),*) => {
        $(impl Pooled<$words> for ByPool {
            #[inline(always)]
            fn pool() -> &'static Pool<'static, Object<$words>> {
                static POOL: Pool<Object<$words>> = Pool::new(&DOMAIN);
                &POOL
            }
        })*

        /// The cases of `defer-free`.
        pub(crate) fn cases() -> Result<Vec<Case>> {
            Ok(vec![$(
                Case::call(concat!("floor-", $bytes), run::<$words, Floor>),
                Case::call(concat!("malloc-", $bytes), run::<$words, Later>),
                Case::call(concat!("pool-", $bytes), run::<$words, ByPool>),
                Case::call(concat!("recycled-", $bytes), run::<$words, Recycled>),
                Case::call(concat!("domain-", $bytes), run::<$words, ByDomain>),
                Case::call(concat!("call-", $bytes), run::<$words, ByCall>),
                Case::call(concat!("call-offloaded-", $bytes), run::<$words, Offloaded>),
                Case::call(concat!("two-batches-", $bytes), run::<$words, TwoBatches>),
                Case::call(concat!("crossbeam-epoch-", $bytes), run::<$words, Epoch>),
                Case::call(concat!("seize-", $bytes), run::<$words, Seize>),
            )*])
        }

        /// Bytes of the objects that there are cases for: rcuscale's 24 and multiples, and 64.
        pub(crate) const SIZES: &[u64] = &[$($bytes),*];
    };
}

cases!(3 24, 6 48, 8 64, 12 96, 24 192);
