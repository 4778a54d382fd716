//! `getuid-trace`: what it costs a traced program that somebody waits for its events.
//!
//! The source is the kernel's `getuid_microbench` with both system call events on, in 1 to 5
//! processes. Waking the reader from every commit made them contend for one lock, even while nobody
//! read: 721 ns a call in one process, 6501 in five. Deferring the wakeup made it 729 and 1031.
//!
//! Here: N processes, or N threads of one process, call getuid(2) and record one event before and
//! one after. All variants emit through the same two tracepoints of the product;
//! they differ in what they do afterwards to wake the reader:
//!
//! | variant | after each event |
//! |---|---|
//! | untraced | (no event) |
//! | before | a lock shared by all, and a look whether anybody waits |
//! | wake-per-event | a wakeup: one system call |
//! | unsynchronised | a look without lock or barrier: loses wakeups |
//! | deferred | nothing: the product's own check is in the commit, the wakeup comes from a timer |
//!
//! The reader is a thread of the benchmark. `sleeping`: it sleeps until woken, then reads. `looking`:
//! it looks every millisecond and is never woken.
//!
//! Lost wakeups are counted in rounds of one event each: nothing else happens until the reader has
//! noticed, so a lost wakeup is not healed by the next event.

mod counts;
pub(crate) mod doorbell;
mod rounds;
mod variants;

use crate::Options;
use crate::harness::report::{Bound, Kind, Report, Table, number, round2, rounded};
use crate::harness::session::{Armed, Drain, Looks, Session, Waits};
use crate::harness::stats::{median, spread_percent};
use crate::harness::worker::{Run, Worker};
use anyhow::{Context, Result, anyhow};
use doorbell::Doorbell;
use owlet_ring::Watermark;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
pub(crate) use variants::start as variants;
use variants::{VARIANTS, Variant, rings};

/// The kernel's, and the product's default: at most 500 wakeups a second.
const DEFERRAL: Duration = Duration::from_millis(2);
/// Most processes and threads.
const MOST: usize = 5;

#[derive(Serialize)]
struct Line<'a> {
    bench: &'static str,
    case: &'a str,
    procs: usize,
    variant: &'static str,
    cpu_ns_per_call: Option<f64>,
    wall_ns_per_call: Option<f64>,
    wakeups_per_s: Option<f64>,
    syscalls_per_event: Option<f64>,
    locks_per_event: Option<f64>,
    lost_wakeups: Option<u64>,
}

/// What is run: how the load is spread and how the reader learns of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    name: &'static str,
    threads: bool,
    sleeps: bool,
}

const CASES: [Case; 4] = [
    Case { name: "processes, reader sleeping", threads: false, sleeps: true },
    Case { name: "processes, reader looking", threads: false, sleeps: false },
    Case { name: "threads, reader sleeping", threads: true, sleeps: true },
    Case { name: "threads, reader looking", threads: true, sleeps: false },
];

impl Case {
    /// The source's table.
    fn is_main(self) -> bool {
        self.sleeps && !self.threads
    }
}

/// Every run of one case, number and variant.
#[derive(Default)]
struct Runs {
    cpu: Vec<f64>,
    wall: Vec<f64>,
    seconds: f64,
    wakeups: u64,
}

type Key = (Case, usize, Variant);

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let calls = options.size(1_000_000, 20_000);
    report.parameter("calls", &format!("{calls} of getuid(2) a process or thread, 2 events each"));
    report.parameter("deferral", "2 ms");
    let counts = counts::all(options, report)?;
    let lost = rounds::all(options, report)?;
    let mut bench = Bench::new(options, calls)?;
    bench.warm(rings(options), report)?;
    for _ in 0..options.reps() {
        for case in CASES {
            for procs in 1..=MOST {
                // The ends of the curve are enough where nothing is gated.
                if options.small && !case.is_main() && procs != 1 && procs != MOST {
                    continue;
                }
                for variant in VARIANTS {
                    bench.once((case, procs, variant), report)?;
                }
            }
        }
    }
    bench.check_events(report);
    bench.tell(&counts, &lost, report)?;
    bench.judge(&counts, &lost, report);
    Ok(())
}

struct Bench {
    session: Option<Session>,
    doorbell: Doorbell,
    workers: Vec<Worker>,
    calls: u64,
    events: u64,
    read: u64,
    lost: u64,
    corrupt: u64,
    runs: BTreeMap<Key, Runs>,
}

impl Bench {
    fn new(options: &Options, calls: u64) -> Result<Self> {
        let session = Session::new(rings(options), DEFERRAL)?;
        let doorbell = Doorbell::new()?;
        let workers = (0..MOST).map(|_| variants::worker(&session, &doorbell));
        let workers = workers.collect::<Result<Vec<_>>>()?;
        Ok(Self {
            session: Some(session),
            doorbell,
            workers,
            calls,
            events: 0,
            read: 0,
            lost: 0,
            corrupt: 0,
            runs: BTreeMap::new(),
        })
    }

    /// Writes each ring full once from each process, so that they have every page of it.
    fn warm(&mut self, ring: usize, report: &Report) -> Result<()> {
        let session = self.session.take().context("no session")?;
        let drain = Drain::start(session, Box::new(Looks));
        let calls = (ring / 64 / 4) as u64;
        for worker in &mut self.workers {
            for _ in 0..5 {
                worker.run(Variant::Deferred.name(), report.cpus(), calls)?;
                self.events += Variant::Deferred.events_of(calls) * report.cpus() as u64;
            }
        }
        let (session, seen) = drain.stop()?;
        self.read += seen.events;
        self.session = Some(session);
        Ok(())
    }

    /// One run, with a reader thread beside it.
    fn once(&mut self, key: Key, report: &mut Report) -> Result<()> {
        let (case, procs, variant) = key;
        let session = self.session.take().context("no session")?;
        let how: Box<dyn Waits> = match (case.sleeps, variant) {
            (false, _) | (_, Variant::Untraced) => Box::new(Looks),
            (true, Variant::Deferred) => Box::new(Armed::new(&session, Watermark::ANY)),
            (true, other) => Box::new(rounds::Rung::new(self.doorbell.page(), other)),
        };
        let start = Instant::now();
        let drain = Drain::start(session, how);
        let run = self.load(case, procs, variant);
        let seconds = start.elapsed().as_secs_f64();
        let (session, seen) = drain.stop()?;
        self.session = Some(session);
        let run = run?;
        if procs <= report.cpus() {
            report.utilisation(run.utilisation());
        }
        self.events += variant.events_of(self.calls) * procs as u64;
        self.read += seen.events;
        (self.lost, self.corrupt) = (seen.lost, seen.corrupt);
        let runs = self.runs.entry(key).or_default();
        runs.cpu.push(run.cpu_ns() / self.calls as f64);
        runs.wall.push(run.wall_ns() / self.calls as f64);
        runs.seconds += seconds;
        runs.wakeups += seen.wakeups;
        Ok(())
    }

    fn load(&mut self, case: Case, procs: usize, variant: Variant) -> Result<Run> {
        let name = variant.name();
        if case.threads {
            let worker = self.workers.first_mut().ok_or_else(|| anyhow!("no worker"))?;
            return worker.run(name, procs, self.calls);
        }
        let workers = &mut self.workers[..procs];
        for (cpu, worker) in workers.iter_mut().enumerate() {
            worker.ask_run(name, 1, cpu, self.calls)?;
        }
        let mut all = Run::default();
        for worker in workers {
            all.threads.extend(worker.end_run()?.threads);
        }
        Ok(all)
    }

    /// Nothing may be missing that was not counted as lost.
    fn check_events(&self, report: &mut Report) {
        let (events, read, lost) = (self.events, self.read, self.lost);
        report.say(&format!("events       {events} emitted, {read} read, {lost} counted as lost"));
        let missing = (events as f64 - read as f64 - lost as f64).abs();
        report.gate("events neither read nor counted as lost", missing, 0.0);
        report.gate("bytes in the rings that are no events", self.corrupt as f64, 0.0);
    }

    fn of(&self, case: Case, procs: usize, variant: Variant) -> f64 {
        self.runs.get(&(case, procs, variant)).map_or(f64::NAN, |runs| median(&runs.cpu))
    }

    fn tell(&self, counts: &counts::All, lost: &rounds::All, report: &mut Report) -> Result<()> {
        let mut table = Table::new(&[
            "case",
            "procs",
            "variant",
            "cpu ns/call",
            "+-%",
            "wall ns/call",
            "wakeups/s",
            "syscalls/event",
            "locks/event",
            "lost wakeups",
        ]);
        for (&(case, procs, variant), runs) in &self.runs {
            let wakeups = if case.sleeps { runs.wakeups as f64 / runs.seconds } else { f64::NAN };
            let count = counts.get(&variant);
            let (cpu, wall) = (median(&runs.cpu), median(&runs.wall));
            let lost = lost.get(&variant).map(|rounds| rounds.lost);
            table.row(vec![
                case.name.to_owned(),
                procs.to_string(),
                variant.name().to_owned(),
                number(cpu, 1),
                number(spread_percent(&runs.cpu), 1),
                number(wall, 1),
                number(wakeups, 0),
                number(count.map_or(f64::NAN, |c| c.syscalls), 3),
                number(count.map_or(f64::NAN, |c| c.locks), 3),
                lost.map_or("-".to_owned(), |n| n.to_string()),
            ]);
            report.line(&Line {
                bench: "getuid-trace",
                case: case.name,
                procs,
                variant: variant.name(),
                cpu_ns_per_call: rounded(cpu),
                wall_ns_per_call: rounded(wall),
                wakeups_per_s: rounded(wakeups),
                syscalls_per_event: count.and_then(|c| rounded(c.syscalls)),
                locks_per_event: count.and_then(|c| rounded(c.locks)),
                lost_wakeups: lost,
            })?;
        }
        report.say(&format!("\n{}", table.text()));
        Ok(())
    }

    fn judge(&self, counts: &counts::All, lost: &rounds::All, report: &mut Report) {
        if let Some(count) = counts.get(&Variant::Deferred) {
            report.gate("deferred: system calls in all events", count.all_syscalls as f64, 0.0);
            report.gate("deferred: locks an event", count.locks, 0.0);
            report.gate_locked("deferred: locked instructions an event", count.locked);
        }
        if let Some(rounds) = lost.get(&Variant::Deferred) {
            report.gate("deferred: lost wakeups", rounds.lost as f64, 0.0);
        }
        // At most one wakeup a deferral, and one more that each run may begin with.
        let deferred = |(key, _): &(&Key, &Runs)| key.0.sleeps && key.2 == Variant::Deferred;
        let excess = self.runs.iter().filter(deferred).map(|(_, runs)| {
            let most = runs.seconds / DEFERRAL.as_secs_f64() + runs.cpu.len() as f64;
            runs.wakeups as f64 / most
        });
        let excess = excess.fold(0.0, f64::max);
        report.gate("deferred: wakeups, as a share of one every 2 ms", round2(excess), 1.0);
        for case in CASES.into_iter().filter(|case| case.sleeps) {
            let ratio = |a: Variant, b: Variant, n| self.of(case, n, a) / self.of(case, n, b);
            let flat = self.of(case, MOST, Variant::Deferred) / self.of(case, 1, Variant::Deferred);
            let what = format!("{}: deferred, 5 against 1, CPU", case.name);
            report.judge(&what, flat, Bound::Most(1.1), Kind::Cpu);
            let what = format!("{}: before / deferred at 5, CPU", case.name);
            let gain = ratio(Variant::Before, Variant::Deferred, MOST);
            report.judge(&what, gain, Bound::Least(1.0), Kind::Cpu);
            let wall = |v| self.runs.get(&(case, MOST, v)).map_or(f64::NAN, |r| median(&r.wall));
            let gain = wall(Variant::Before) / wall(Variant::Deferred);
            let what = format!("{}: before / deferred at 5, wall (on 4 CPUs or more)", case.name);
            if report.cpus() >= 4 {
                report.judge(&what, gain, Bound::Least(4.0), Kind::Wall);
            } else {
                report.say(&format!("time         {what}: {gain:.2} not judged (fewer CPUs)"));
            }
        }
    }
}
