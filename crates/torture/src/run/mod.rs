//! Grace periods under fire.
//!
//! Updaters unpublish elements, wait for a grace period in one way or another, and then either raise the
//! element's age or poison and free it. Readers look at the age and the poison at the end of their
//! sections, which they hold in every way the flavour allows: raw, nested, across a yield or a sleep,
//! ended by another thread, from a signal handler, on threads that have lost their rseq registration, on
//! threads that live for one section. Meanwhile threads are moved between CPUs and stopped from outside,
//! forked children check that they neither stall nor lose their own section, and a hook holds
//! threads up at the library's named dangerous instants.
//!
//! Each flavour runs in a process of its own (`supervise`), so that a crash is a verdict too.

mod callbacks;
mod delays;
mod forker;
mod readers;
mod report;
mod retire;
mod shaker;
mod supervise;
mod world;
mod writers;

use std::sync::atomic::Ordering;
use std::thread::Scope;
use std::time::{Duration, Instant};

use clap::Args;

use crate::flavour::{Flavour, Gp, Name, Waits, broken, quiescent, srcu};
use crate::rng::Rng;
use crate::seccomp::{self, Answer};
use report::Report;
pub(crate) use retire::free_retired;
pub(crate) use supervise::wait;
use world::{Count, Fault};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// What to torture, separated by commas; all that must hold, if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    flavours: Vec<Name>,
    /// How long to go on with each.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Backend to torture.
    #[arg(long, value_enum, default_value = "auto")]
    backend: crate::Backend,
    /// Ways to wait, separated by commas; all that the flavour has, if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    gp: Vec<Gp>,
    /// Long-lived reader threads.
    #[arg(long, default_value_t = 4)]
    readers: u64,
    /// Reader threads that give their rseq registration up.
    #[arg(long, default_value_t = 2)]
    no_rseq_readers: u64,
    /// Threads that retire elements.
    #[arg(long, default_value_t = 2)]
    retirers: u64,
    /// Updater threads.
    #[arg(long, default_value_t = 3)]
    updaters: u64,
    /// Seconds after which a forked child counts as stalled. It needs milliseconds; on a machine with
    /// dozens of runnable threads per CPU, seconds.
    #[arg(long, default_value_t = 8)]
    fork_limit: u32,
    /// Do not fork.
    #[arg(long)]
    no_fork: bool,
    /// No barriers and no floods of callbacks.
    #[arg(long)]
    no_callbacks: bool,
    /// No deferred free.
    #[arg(long)]
    no_retire: bool,
    /// Do not send signals.
    #[arg(long)]
    no_signals: bool,
    /// Do not stop threads from outside (which takes ptrace).
    #[arg(long)]
    no_stops: bool,
    /// Do not hold threads up at the library's dangerous instants.
    #[arg(long)]
    no_delays: bool,
    /// Dangerous instants at which threads are held up thirty times as often, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    hot: Vec<delays::Hot>,
    /// Nothing but short sections and expedited grace periods, with the readers' store buffers
    /// kept full: the run for the barrier between the flip and the sums.
    #[arg(long)]
    sprint: bool,
    /// How many freed elements each thread keeps poisoned before it gives them back to the heap. (A tool
    /// that watches the heap wants 0.)
    #[arg(long, default_value_t = 32)]
    quarantine: usize,
    /// Judge nothing: leave it to a tool that watches the heap.
    #[arg(long)]
    blind: bool,
    /// Half-way, install a filter that refuses membarrier from then on.
    #[arg(long)]
    late_filter: Option<Answer>,
    /// One JSON object on standard output instead of lines of text.
    #[arg(long)]
    json: bool,
    /// This process is the one to be tortured.
    #[arg(long, value_enum, hide = true)]
    child: Option<Name>,
}

/// Runs the torture and prints the verdict.
pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    let Some(flavour) = options.child else { return supervise::run(options) };
    options.backend.apply();
    // Decided by a thread that has rseq, if any has.
    let _ = owlet_percpu::backend();
    let report = match flavour {
        Name::Srcu => torture::<srcu::Fast>(options)?,
        Name::SrcuClassic => torture::<srcu::Classic>(options)?,
        Name::SrcuFenced => torture::<srcu::Fenced>(options)?,
        Name::Qsbr => torture::<quiescent::Quiescent>(options)?,
        Name::Tasks => torture::<quiescent::Voluntary>(options)?,
        Name::TasksTrace => torture::<srcu::Trace>(options)?,
        Name::Busted => torture::<broken::Busted>(options)?,
        Name::Trivial => torture::<broken::Trivial>(options)?,
    };
    say!("{}", serde_json::to_string(&report)?);
    Ok(report.held)
}

/// Looks of 20 ms without a grace period (more on a busy machine) that mean one never ends.
const STALL_LOOKS: u32 = 200;

fn torture<F: Flavour>(options: &Options) -> anyhow::Result<Report> {
    world::publish_first();
    world::BLIND.store(options.blind, Ordering::Relaxed);
    world::QUARANTINE.store(options.quarantine, Ordering::Relaxed);
    if !options.sprint && !options.no_delays {
        delays::install(options.seed, &options.hot);
    }
    std::thread::scope(|s| {
        if options.sprint {
            spawn_sprint::<F>(s, options);
        } else {
            spawn_all::<F>(s, options);
        }
        let stalled = watch(options, F::waits())?;
        if stalled || world::faulty() {
            // Stalled threads cannot be joined, and after a fault others may be in any state.
            let report = report::<F>(options, stalled);
            say!("{}", serde_json::to_string(&report)?);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(1) };
        }
        world::STOP.store(true, Ordering::Relaxed);
        expect_end::<F>(options);
        anyhow::Ok(())
    })?;
    F::waits().pass(Gp::Sync, &mut || Duration::ZERO);
    F::waits().barrier();
    callbacks::check_all_called();
    retire::check_all_freed(F::waits());
    Ok(report::<F>(options, false))
}

/// Gives everybody some seconds to come to an end.
fn expect_end<F: Flavour>(options: &Options) {
    let forks = if options.no_fork { 0 } else { options.fork_limit };
    let options = options.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(6 + u64::from(forks)));
        if let Ok(text) = serde_json::to_string(&report::<F>(&options, true)) {
            say!("{text}");
        }
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(1) };
    });
}

fn spawn_sprint<'scope, F: Flavour>(s: &'scope Scope<'scope, '_>, options: &Options) {
    for cpu in 0..owlet_percpu::cpus().max(2) {
        let rng = Rng::new(options.seed, cpu as u64);
        if cpu == 0 {
            s.spawn(move || writers::sprint_until_stop(F::waits(), rng));
        } else {
            s.spawn(move || readers::sprint_until_stop::<F>(rng, cpu));
        }
    }
}

fn spawn_all<'scope, F: Flavour>(s: &'scope Scope<'scope, '_>, options: &Options) {
    let closer = readers::spawn_closer(s);
    let mut stream = 0;
    let mut rng = || {
        stream += 1;
        Rng::new(options.seed, stream)
    };
    for i in 0..options.readers + options.no_rseq_readers {
        let reader = readers::Reader {
            seat: i as usize,
            rng: rng(),
            closer: closer.clone(),
            no_rseq: i >= options.readers,
        };
        s.spawn(move || reader.read_until_stop::<F>());
    }
    drop(closer);
    let mut kinds = F::waits().kinds().to_vec();
    if !options.gp.is_empty() {
        kinds.retain(|kind| options.gp.contains(kind));
    }
    for _ in 0..options.updaters {
        let cookies = F::ABILITIES.cookies;
        let writer =
            writers::Writer { waits: F::waits(), kinds: kinds.clone(), cookies, rng: rng() };
        s.spawn(move || writer.update_until_stop());
    }
    if F::waits().calls() && !options.no_callbacks {
        for _ in 0..2 {
            let rng = rng();
            s.spawn(move || callbacks::barrier_until_stop(F::waits(), rng));
        }
        let rng = rng();
        s.spawn(move || callbacks::flood_until_stop(F::waits(), rng));
    }
    if F::waits().calls() && !options.no_retire {
        for _ in 0..options.retirers {
            let rng = rng();
            s.spawn(move || retire::retire_until_stop(F::waits(), rng));
        }
    }
    let (churn_rng, move_rng, kill_rng, fork_rng) = (rng(), rng(), rng(), rng());
    s.spawn(move || readers::churn_until_stop::<F>(churn_rng));
    s.spawn(move || shaker::migrate_until_stop(move_rng));
    if !options.no_signals && F::ABILITIES.anywhere {
        shaker::install_handler::<F>();
        s.spawn(move || shaker::signal_until_stop(kill_rng));
    }
    if !options.no_fork && F::ABILITIES.fork {
        let limit = options.fork_limit;
        s.spawn(move || forker::fork_until_stop::<F>(fork_rng, limit));
    }
}

/// Watches over the run; true if it stalled.
fn watch(options: &Options, waits: &dyn Waits) -> anyhow::Result<bool> {
    let mut filter = options.late_filter;
    let begun = Instant::now();
    let length = Duration::from_secs(options.seconds.max(1));
    // Everybody's own progress: grace periods, and barriers if there are any.
    let progress = || {
        let all = [waits.cost().grace_periods, Count::Barriers.get(), Count::Floods.get()];
        if options.sprint || options.no_callbacks || !waits.calls() { [all[0]; 3] } else { all }
    };
    let (mut last, mut looks) = (progress(), [0; 3]);
    let mut phase = 0;
    while begun.elapsed() < length || looks.iter().any(|n| *n > 50) {
        std::thread::sleep(Duration::from_millis(20));
        if begun.elapsed() >= length / 2
            && let Some(answer) = filter.take()
        {
            seccomp::install(answer, seccomp::Scope::AllThreadsLate)?;
        }
        // Stutter: about a twentieth of the time everybody pauses.
        phase += 1;
        let pause = !options.sprint && phase % 80 < 4;
        if pause && phase % 80 == 0 {
            Count::Pauses.note();
        }
        world::PAUSE.store(pause, Ordering::Relaxed);
        let now = progress();
        looks = std::array::from_fn(|i| match () {
            () if now[i] != last[i] => 0,
            // A pause proves nothing either way.
            () if pause => looks[i],
            () => looks[i] + 1,
        });
        last = now;
        if looks.iter().any(|n| *n > STALL_LOOKS) {
            return Ok(true);
        }
        if world::faulty() {
            break;
        }
    }
    world::PAUSE.store(false, Ordering::Relaxed);
    Ok(false)
}

fn report<F: Flavour>(options: &Options, stalled: bool) -> Report {
    let owned = |list: Vec<(&str, u64)>| list.into_iter().map(|(k, n)| (k.to_owned(), n)).collect();
    let cost = F::waits().cost();
    Report {
        flavour: options.child.map(Name::text).unwrap_or_default(),
        held: !stalled && !world::faulty() && Count::Updates.get() > 0,
        backend: format!("{:?}", owlet_percpu::backend()),
        seconds: options.seconds,
        seed: options.seed,
        died: None,
        stalled,
        idle: Count::Updates.get() == 0,
        ages: std::array::from_fn(|age| world::HISTOGRAM[age].load(Ordering::Relaxed)),
        faults: owned(Fault::list()),
        counts: owned(Count::list()),
        delays: owned(delays::list()),
        grace_periods: cost.grace_periods,
        membarriers: cost.membarriers,
        sleeps: cost.sleeps,
        stops: 0,
    }
}
