//! SRCU under fire.
//!
//! Updaters unpublish elements, wait for a grace period one way or another, and then either raise the
//! element's age or poison and free it. Readers look at the age and the poison at the end of their
//! sections, which they hold in every way the library allows: raw, nested, as a guard across a yield
//! or a sleep, ended by another thread, from a signal handler, on threads that have lost their rseq
//! registration, on threads that live for one section. Meanwhile threads are moved between CPUs,
//! forked children check that they neither stall nor lose their own section, and a hook holds
//! threads up at the library's named dangerous instants.
//!
//! | age | meaning |
//! |---|---|
//! | 0 | published |
//! | 1 | unpublished, no grace period yet |
//! | 2 and up | a grace period has passed: no reader may see it |

mod forker;
mod readers;
mod shaker;
mod updaters;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use clap::Args;
use owlet_rcu::Srcu;

use crate::rng::Rng;
use crate::seccomp::{self, Answer};

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// How long to go on.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Backend to torture.
    #[arg(long, value_enum, default_value = "auto")]
    backend: crate::Backend,
    /// Long-lived reader threads.
    #[arg(long, default_value_t = 4)]
    readers: u64,
    /// Reader threads that give their rseq registration up.
    #[arg(long, default_value_t = 2)]
    no_rseq_readers: u64,
    /// Updater threads.
    #[arg(long, default_value_t = 3)]
    updaters: u64,
    /// Do not fork.
    #[arg(long)]
    no_fork: bool,
    /// Do not send signals.
    #[arg(long)]
    no_signals: bool,
    /// Nothing but short sections and expedited grace periods, with the readers' store buffers
    /// kept full: the run for the barrier between the flip and the sums.
    #[arg(long)]
    sprint: bool,
    /// Half-way, install a filter that refuses membarrier from then on.
    #[arg(long)]
    late_filter: Option<Answer>,
}

/// No grace period for this long means that readers' counts were lost.
const STALL: Duration = Duration::from_secs(4);
const CELLS: usize = 4;
const AGES: usize = 8;
const GOOD: u32 = 0x600d_600d;
const POISON: u32 = 0xdead_dead;

/// What readers look at.
pub(crate) struct Element {
    magic: AtomicU32,
    age: AtomicU32,
}

static DOMAIN: Srcu = Srcu::new();
static SHARED: [AtomicPtr<Element>; CELLS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; CELLS];
static STOP: AtomicBool = AtomicBool::new(false);

static HISTOGRAM: [AtomicU64; AGES] = [const { AtomicU64::new(0) }; AGES];
static POISONED: AtomicU64 = AtomicU64::new(0);
static UPDATES: AtomicU64 = AtomicU64::new(0);
static COOKIE_ERRORS: AtomicU64 = AtomicU64::new(0);
static FORKS: AtomicU64 = AtomicU64::new(0);
static FORK_ERRORS: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static THREADS: AtomicU64 = AtomicU64::new(0);

fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

impl Element {
    fn publishable() -> *mut Self {
        Box::into_raw(Box::new(Self { magic: AtomicU32::new(GOOD), age: AtomicU32::new(0) }))
    }
}

/// The element a section sees in a cell.
fn look_up(cell: u64) -> *const Element {
    SHARED[cell as usize % CELLS].load(Ordering::Acquire)
}

/// Counts what the element looks like at the end of a section. Async-signal-safe.
fn judge(element: *const Element) {
    // SAFETY: protected by the caller's section, if the library is right; if it is not, the memory
    // is still the heap's, and what is there is what this program is about.
    let element = unsafe { &*element };
    let magic = element.magic.load(Ordering::Relaxed);
    let age = element.age.load(Ordering::Relaxed);
    if magic != GOOD {
        POISONED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    HISTOGRAM[(age as usize).min(AGES - 1)].fetch_add(1, Ordering::Relaxed);
}

/// Runs the torture and prints the verdict.
pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    options.backend.apply();
    for cell in &SHARED {
        cell.store(Element::publishable(), Ordering::Release);
    }
    if !options.sprint {
        shaker::install_hook(options.seed);
    }
    let begun = Instant::now();
    let end = begun + Duration::from_secs(options.seconds.max(1));
    let stalled = std::thread::scope(|s| -> anyhow::Result<bool> {
        if options.sprint {
            spawn_sprint(s, options);
        } else {
            spawn_all(s, options);
        }
        let stalled = supervise(options, begun, end)?;
        if stalled {
            verdict(options, true);
            // The stalled threads cannot be joined.
            std::process::exit(1);
        }
        STOP.store(true, Ordering::Relaxed);
        Ok(stalled)
    })?;
    DOMAIN.synchronize();
    Ok(verdict(options, stalled))
}

fn spawn_sprint<'scope>(s: &'scope Scope<'scope, '_>, options: &Options) {
    for cpu in 0..owlet_percpu::cpus() {
        let rng = Rng::new(options.seed, cpu as u64);
        if cpu == 0 {
            s.spawn(move || updaters::sprint_until_stop(rng));
        } else {
            s.spawn(move || readers::sprint_until_stop(rng, cpu));
        }
    }
}

fn spawn_all<'scope>(s: &'scope Scope<'scope, '_>, options: &Options) {
    let closer = readers::spawn_closer(s);
    let mut stream = 0;
    let mut rng = || {
        stream += 1;
        Rng::new(options.seed, stream)
    };
    for i in 0..options.readers + options.no_rseq_readers {
        let (rng, closer) = (rng(), closer.clone());
        let no_rseq = i >= options.readers;
        s.spawn(move || readers::read_until_stop(rng, closer, no_rseq));
    }
    drop(closer);
    for _ in 0..options.updaters {
        let rng = rng();
        s.spawn(move || updaters::update_until_stop(rng));
    }
    let (churn_rng, move_rng, kill_rng, fork_rng) = (rng(), rng(), rng(), rng());
    s.spawn(move || readers::churn_until_stop(churn_rng));
    s.spawn(move || shaker::migrate_until_stop(move_rng));
    if !options.no_signals {
        shaker::install_handler();
        s.spawn(move || shaker::signal_until_stop(kill_rng));
    }
    if !options.no_fork {
        s.spawn(move || forker::fork_until_stop(fork_rng));
    }
}

/// Watches over the run; true if it stalled.
fn supervise(options: &Options, begun: Instant, end: Instant) -> anyhow::Result<bool> {
    let mut filter = options.late_filter;
    let half = begun + (end - begun) / 2;
    let mut last = (UPDATES.load(Ordering::Relaxed), Instant::now());
    while Instant::now() < end || last.1.elapsed() > Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(20));
        if Instant::now() >= half
            && let Some(answer) = filter.take()
        {
            seccomp::install(answer, seccomp::Scope::AllThreadsLate)?;
        }
        let updates = UPDATES.load(Ordering::Relaxed);
        if updates != last.0 {
            last = (updates, Instant::now());
        }
        if last.1.elapsed() > STALL {
            return Ok(true);
        }
        if errors() > 0 {
            break;
        }
    }
    Ok(false)
}

fn errors() -> u64 {
    let old: u64 = HISTOGRAM.iter().skip(2).map(|n| n.load(Ordering::Relaxed)).sum();
    let others = [&POISONED, &COOKIE_ERRORS, &FORK_ERRORS];
    old + others.iter().map(|n| n.load(Ordering::Relaxed)).sum::<u64>()
}

fn verdict(options: &Options, stalled: bool) -> bool {
    let held = !stalled && errors() == 0;
    let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let ages: Vec<u64> = HISTOGRAM.iter().map(load).collect();
    let stats = DOMAIN.stats();
    println!(
        "srcu: {} backend={:?} seconds={} seed={} ages={ages:?} poisoned={} stalled={stalled} \
         cookie_errors={} fork_errors={} updates={} grace_periods={} membarriers={} sleeps={} \
         forks={} signals={} threads={}",
        if held { "PASS" } else { "FAIL" },
        owlet_percpu::backend(),
        options.seconds,
        options.seed,
        load(&POISONED),
        load(&COOKIE_ERRORS),
        load(&FORK_ERRORS),
        load(&UPDATES),
        stats.grace_periods,
        stats.membarriers,
        stats.sleeps,
        load(&FORKS),
        load(&SIGNALS),
        load(&THREADS),
    );
    held
}
