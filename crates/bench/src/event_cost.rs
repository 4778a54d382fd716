//! `event-cost`: one event, switched off and on, in the product and its peers, in one run.
//!
//! | peer | what |
//! |---|---|
//! | floor | read the time stamp counter, copy the record; nothing else |
//! | owlet | the product, its rings drained by a reader that sleeps until woken |
//! | tracing-fmt | `tracing` with the text formatter, to /dev/null |
//! | lttng-ust | a C program, when LTTng is installed; rings big enough for all, drained to disk |
//!
//! The rings are warm: a first round through them, untimed, has touched every page, and between runs
//! the reader catches up.
//!
//! Every figure but the ratios is net: the empty loop, measured in the same run, is subtracted. Nanoseconds are
//! CPU time of the emitting thread; instructions are counted by single-stepping one thread.

use crate::Options;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::serve::warm_up;
use crate::harness::session::{Armed, Drain, Seen, Session};
use crate::harness::stats::{median, spread_percent};
use crate::harness::step::{self, Counts};
use crate::harness::worker::Worker;
use crate::peers::cases::{DISABLED, ONE, THREE, TRACING, TRACING_OFF};
use crate::peers::lttng::Lttng;
use anyhow::{Context, Result, anyhow};
use owlet_ring::Watermark;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    case: &'static str,
    peer: &'static str,
    threads: usize,
    ns: Option<f64>,
    instructions: Option<f64>,
    ratio_to_owlet: Option<f64>,
}

const CASES: [&str; 5] = [DISABLED, ONE, THREE, TRACING_OFF, TRACING];
/// Record nothing.
const OFF: [&str; 2] = [DISABLED, TRACING_OFF];
const THREADS: [usize; 3] = [1, 2, 8];
/// Peers in the order of the report, and how many events fit the time of one of ours.
const PEERS: [(&str, f64); 5] =
    [("loop", 1.0), ("floor", 1.0), (OWLET, 1.0), ("tracing-fmt", 0.05), ("lttng-ust", 0.4)];
const OWLET: &str = "owlet";
const EMPTY: (&str, &str) = ("loop", DISABLED);

/// Peer, case, threads.
type Key = (&'static str, &'static str, usize);

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    // Eight threads' worth of the longest event must fit the rings of a single CPU.
    let events = options.size(200_000, 20_000);
    let ring = if options.small { 16 << 20 } else { 128 << 20 };
    report.parameter("events", &format!("{events} a thread and run (slow peers fewer)"));
    report.parameter("threads", "1, 2 and 8, pinned to the CPUs in turn");
    let mut bench = Bench::start(ring, report)?;
    bench.count(report)?;
    bench.warm(ring, report.cpus())?;
    for _ in 0..options.reps() {
        for threads in THREADS {
            for (peer, share) in PEERS {
                let n = ((events as f64 * share) as u64).max(1);
                bench.once(peer, threads, n, report)?;
            }
        }
    }
    bench.end(report)?;
    bench.tell(report)?;
    bench.judge(report);
    Ok(())
}

struct Bench {
    workers: BTreeMap<&'static str, Worker>,
    lttng: Option<Lttng>,
    drain: Option<Drain>,
    emitted: u64,
    ns: BTreeMap<Key, Vec<f64>>,
    counts: BTreeMap<(&'static str, &'static str), Counts>,
}

impl Bench {
    fn start(ring: usize, report: &mut Report) -> Result<Self> {
        let mebibytes = ring >> 20;
        report.parameter("rings", &format!("{mebibytes} MiB a CPU, read when a quarter full"));
        let session = Session::new(ring, Duration::from_millis(2))?;
        let mut workers = BTreeMap::new();
        for peer in ["loop", "floor", OWLET, "tracing-fmt"] {
            let worker = Worker::start(peer, &[session.env()])?;
            // These are this program: there is no reason for one to be absent.
            workers.insert(peer, worker.map_err(|why| anyhow!("{peer}: {why}"))?);
        }
        let lttng = match Lttng::start().unwrap_or_else(|error| Err(format!("{error:#}"))) {
            Ok(lttng) => Some(lttng),
            Err(why) => {
                report.say(&format!("peer absent  lttng-ust: {why}"));
                None
            }
        };
        // As the recorder of the `owlet` command does.
        let how = Armed::new(&session, Watermark::percent(25));
        let drain = Some(Drain::start(session, Box::new(how)));
        let (ns, counts) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { workers, lttng, drain, emitted: 0, ns, counts })
    }

    fn worker(&mut self, peer: &str) -> Option<&mut Worker> {
        if peer == "lttng-ust" {
            return self.lttng.as_mut()?.worker();
        }
        self.workers.get_mut(peer)
    }

    /// Instructions, before anything is timed. A failure to count is said and leaves a gap.
    fn count(&mut self, report: &mut Report) -> Result<()> {
        for (peer, share) in PEERS {
            // The loops do the same every time; few iterations are enough.
            let n = if share < 0.1 { 2 } else { 10 };
            for case in CASES {
                let Some(worker) = self.worker(peer).filter(|w| w.has(case)) else { continue };
                let counts = step::count(worker, case, n);
                let counts = counts.with_context(|| format!("count instructions of {peer}"))?;
                self.counts.insert((peer, case), counts);
                if peer == OWLET && !OFF.contains(&case) {
                    self.emitted += step::iterations(n);
                }
            }
        }
        report.say("counted      instructions by single-stepping, rseq sections included");
        Ok(())
    }

    /// Writes each ring full once, so that the worker has every page of it.
    fn warm(&mut self, ring: usize, cpus: usize) -> Result<()> {
        let n = (ring / 32) as u64 / 4;
        for _ in 0..5 {
            let Some(worker) = self.worker(OWLET) else { return Ok(()) };
            worker.run(ONE, cpus, n)?;
            self.account(cpus as u64 * (n + warm_up(n)));
        }
        Ok(())
    }

    /// Lets the reader catch up with `events` more.
    fn account(&mut self, events: u64) {
        self.emitted += events;
        if let Some(drain) = &self.drain {
            drain.catch_up(self.emitted);
        }
    }

    fn once(
        &mut self,
        peer: &'static str,
        threads: usize,
        n: u64,
        report: &mut Report,
    ) -> Result<()> {
        for case in CASES {
            let Some(worker) = self.worker(peer).filter(|w| w.has(case)) else { continue };
            // A switched-off site is a fraction of a nanosecond.
            let n = if OFF.contains(&case) { 10 * n } else { n };
            let run = worker.run(case, threads, n)?;
            if peer == OWLET && !OFF.contains(&case) {
                self.account(threads as u64 * (n + warm_up(n)));
            }
            if threads <= report.cpus() {
                report.utilisation(run.utilisation());
            }
            let ns = run.cpu_ns() / n as f64;
            self.ns.entry((peer, case, threads)).or_default().push(ns);
        }
        Ok(())
    }

    /// Lets the readers finish and says what they read and lost.
    fn end(&mut self, report: &mut Report) -> Result<()> {
        let drain = self.drain.take().context("no reader")?;
        let (_, Seen { events, lost, corrupt, wakeups }) = drain.stop()?;
        report.say(&format!(
            "owlet        {} events emitted, {events} read, {lost} lost, {wakeups} wakeups",
            self.emitted
        ));
        let missing = (self.emitted as f64 - events as f64 - lost as f64).abs();
        report.gate("owlet: events neither read nor counted as lost", missing, 0.0);
        report.gate("owlet: bytes in the rings that are no events", corrupt as f64, 0.0);
        if let Some(lttng) = &mut self.lttng {
            let lost = lttng.lost();
            report.say(&format!("lttng-ust    8 x 8 MiB a CPU, drained: {lost} lost"));
        }
        Ok(())
    }

    /// The empty loop included, so that the quotient of two switched-off sites means something.
    fn ratio(&self, peer: &'static str, case: &'static str, threads: usize) -> f64 {
        let of = |peer| self.ns.get(&(peer, case, threads)).map_or(f64::NAN, |runs| median(runs));
        of(peer) / of(OWLET)
    }

    /// Net of the empty loop.
    fn net_ns(&self, peer: &'static str, case: &'static str, threads: usize) -> f64 {
        let of = |key| self.ns.get(&key).map_or(f64::NAN, |runs| median(runs));
        of((peer, case, threads)) - of((EMPTY.0, EMPTY.1, threads))
    }

    /// Net of the empty loop.
    fn net_counts(&self, peer: &'static str, case: &'static str) -> Option<Counts> {
        Some(*self.counts.get(&(peer, case))? - *self.counts.get(&EMPTY)?)
    }

    fn tell(&self, report: &mut Report) -> Result<()> {
        let head = ["case", "peer", "threads", "ns", "+-%", "instructions", "locked", "ratio"];
        let mut table = Table::new(&head);
        for case in CASES {
            for threads in THREADS {
                for (peer, _) in PEERS {
                    let Some(runs) = self.ns.get(&(peer, case, threads)) else { continue };
                    let ns = self.net_ns(peer, case, threads);
                    let counts = self.net_counts(peer, case);
                    let instructions = counts.map_or(f64::NAN, |c| c.instructions);
                    let ratio = self.ratio(peer, case, threads);
                    table.row(vec![
                        case.to_owned(),
                        peer.to_owned(),
                        threads.to_string(),
                        number(ns, 2),
                        number(spread_percent(runs), 1),
                        number(instructions, 1),
                        number(counts.map_or(f64::NAN, |c| c.locked), 1),
                        number(ratio, 2),
                    ]);
                    report.line(&Line {
                        bench: "event-cost",
                        case,
                        peer,
                        threads,
                        ns: rounded(ns),
                        instructions: rounded(instructions),
                        ratio_to_owlet: rounded(ratio),
                    })?;
                }
            }
        }
        report.say(&format!("\n{}", table.text()));
        Ok(())
    }

    fn judge(&self, report: &mut Report) {
        if let Some(counts) = self.net_counts(OWLET, DISABLED) {
            report.gate("disabled: instructions", counts.instructions, 3.0);
        }
        for case in [ONE, THREE, TRACING] {
            let Some(counts) = self.net_counts(OWLET, case) else { continue };
            report.gate_locked(&format!("{case}: locked instructions"), counts.locked);
            report.gate(&format!("{case}: system calls"), counts.syscalls, 0.0);
        }
        let targets = [(DISABLED, 0.3), (ONE, 35.0), (THREE, 45.0), (TRACING, 150.0)];
        for (case, most) in targets {
            let of = |threads: &usize| self.net_ns(OWLET, case, *threads);
            // f64::max would forget that one of them was not measured.
            let worst =
                THREADS.iter().map(of).reduce(|a, b| if b > a || b.is_nan() { b } else { a });
            let worst = worst.unwrap_or(f64::NAN);
            let what = format!("{case}: ns, worst of 1, 2 and 8 threads");
            report.judge(&what, worst, Bound::Most(most), Kind::Cpu);
        }
        for (peer, least) in [("lttng-ust", 2.5), ("tracing-fmt", 20.0)] {
            for case in [ONE, THREE] {
                let ratio = self.ratio(peer, case, 1);
                let what = format!("{case}: {peer} / owlet, 1 thread");
                report.judge(&what, ratio, Bound::Least(least), Kind::Cpu);
            }
        }
    }
}
