//! `rcu-read`: what it costs to protect a read, in every flavour and beside the peers, in one run.
//!
//! One iteration: enter a section, load a pointer (acquire), load the word behind it, leave. The
//! figure is CPU time of the thread, the loop and the two loads included; `net` is without them (the
//! case `none`). Instructions and locked instructions are counted by single-stepping.
//!
//! | case | what |
//! |---|---|
//! | none | the two loads, unprotected |
//! | plain-inc, lock-inc | an increment and a decrement of a line of the thread's own |
//! | srcu, srcu-raw | [`owlet_rcu::Srcu`] by guard, and by `read_lock` and `read_unlock` |
//! | srcu-classic, srcu-fenced | with full barriers in the reader; counting by atomics |
//! | qsbr, qsbr-64 | [`owlet_rcu::Qsbr`], a quiescent state after each section, after each 64 |
//! | qsbr-notify | online and offline around each section |
//! | tasks-trace | [`owlet_rcu::TasksTrace`] |
//! | memb-imitated | liburcu's reader of that name, in Rust |
//! | urcu-.. | liburcu, in C, inlined, when it is installed |
//! | crossbeam-epoch, seize, haphazard, arc-swap | the crates; `haphazard-new` takes a hazard pointer for each section, `arc-swap-cache` looks whether its copy is the latest |

use crate::Options;
use crate::harness::contenders::Contenders;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::{median, spread_percent};
use crate::harness::step::Counts;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    case: &'static str,
    threads: usize,
    ns: Option<f64>,
    net_ns: Option<f64>,
    instructions: Option<f64>,
    locked: Option<f64>,
    ratio_to_srcu: Option<f64>,
}

const PEERS: [&str; 6] =
    ["protection-floor", "rcu-read", "crossbeam-epoch", "seize", "haphazard", "arc-swap"];

const NONE: &str = "none";
const SRCU: &str = "srcu";
const CROSSBEAM: &str = "crossbeam-epoch";

/// In the order of the report, and how many fit the time of one of ours.
const CASES: [(&str, f64); 23] = [
    (NONE, 4.0),
    ("plain-inc", 1.0),
    ("lock-inc", 0.5),
    (SRCU, 1.0),
    ("srcu-raw", 1.0),
    ("srcu-classic", 0.2),
    ("srcu-fenced", 0.2),
    ("qsbr", 2.0),
    ("qsbr-64", 4.0),
    ("qsbr-notify", 0.2),
    ("tasks-trace", 1.0),
    ("memb-imitated", 1.0),
    ("urcu-memb", 1.0),
    ("urcu-bp", 1.0),
    ("urcu-qsbr", 2.0),
    ("urcu-qsbr-64", 4.0),
    ("urcu-qsbr-notify", 0.1),
    (CROSSBEAM, 0.5),
    ("seize", 0.5),
    ("haphazard", 0.5),
    ("haphazard-new", 0.2),
    ("arc-swap", 0.5),
    ("arc-swap-cache", 4.0),
];
const THREADS: [usize; 3] = [1, 2, 8];
/// Readers of the product that have neither a locked instruction nor a fence of their own.
const LIGHT: [&str; 5] = [SRCU, "srcu-raw", "qsbr", "qsbr-64", "tasks-trace"];

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let sections = options.size(4_000_000, 40_000);
    report.parameter("sections", &format!("{sections} a thread and run, scaled by case"));
    report.parameter("threads", "1, 2 and 8, pinned to the CPUs in turn");
    let mut bench = Bench {
        contenders: Contenders::start(&PEERS, report)?,
        ns: BTreeMap::new(),
        counts: BTreeMap::new(),
    };
    bench.count(options.size(64, 16))?;
    for _ in 0..options.reps() {
        for threads in THREADS {
            for (case, share) in CASES {
                bench.once(case, threads, (sections as f64 * share) as u64, report)?;
            }
        }
    }
    bench.tell(report)?;
    bench.judge(report);
    Ok(())
}

struct Bench {
    contenders: Contenders,
    ns: BTreeMap<(&'static str, usize), Vec<f64>>,
    counts: BTreeMap<&'static str, Counts>,
}

impl Bench {
    /// Before anything is timed.
    fn count(&mut self, n: u64) -> Result<()> {
        for (case, _) in CASES {
            if self.contenders.has(case) {
                // A whole number of quiescent states.
                let n = if case.ends_with("-64") { 64 } else { n };
                self.counts.insert(case, self.contenders.count(case, n)?);
            }
        }
        Ok(())
    }

    fn once(
        &mut self,
        case: &'static str,
        threads: usize,
        n: u64,
        report: &mut Report,
    ) -> Result<()> {
        if !self.contenders.has(case) {
            return Ok(());
        }
        let run = self.contenders.run(case, threads, n)?;
        if threads <= report.cpus() {
            report.utilisation(run.utilisation());
        }
        self.ns.entry((case, threads)).or_default().push(run.cpu_ns() / n as f64);
        Ok(())
    }

    fn of(&self, case: &'static str, threads: usize) -> f64 {
        self.ns.get(&(case, threads)).map_or(f64::NAN, |runs| median(runs))
    }

    fn tell(&self, report: &mut Report) -> Result<()> {
        let head = ["case", "threads", "ns", "+-%", "net", "instructions", "locked", "/ srcu"];
        let mut table = Table::new(&head);
        for (case, _) in CASES {
            for threads in THREADS {
                let Some(runs) = self.ns.get(&(case, threads)) else { continue };
                let ns = median(runs);
                let net = ns - self.of(NONE, threads);
                let counts = self.counts.get(case);
                let instructions = counts.map_or(f64::NAN, |c| c.instructions);
                let locked = counts.map_or(f64::NAN, |c| c.locked);
                let ratio = ns / self.of(SRCU, threads);
                table.row(vec![
                    case.to_owned(),
                    threads.to_string(),
                    number(ns, 2),
                    number(spread_percent(runs), 1),
                    number(net, 2),
                    number(instructions, 1),
                    number(locked, 1),
                    number(ratio, 2),
                ]);
                report.line(&Line {
                    bench: "rcu-read",
                    case,
                    threads,
                    ns: rounded(ns),
                    net_ns: rounded(net),
                    instructions: rounded(instructions),
                    locked: rounded(locked),
                    ratio_to_srcu: rounded(ratio),
                })?;
            }
        }
        report.say(&format!("\n{}", table.text()));
        Ok(())
    }

    fn judge(&self, report: &mut Report) {
        for case in LIGHT {
            let Some(counts) = self.counts.get(case) else { continue };
            report.gate_locked(&format!("{case}: locked instructions"), counts.locked);
            report.gate(&format!("{case}: system calls"), counts.syscalls, 0.0);
        }
        // f64::max and min would forget that one of them was not measured.
        let worst = |of: &dyn Fn(usize) -> f64, is_worse: fn(f64, f64) -> bool| {
            let all = THREADS.into_iter().map(of);
            all.reduce(|a, b| if is_worse(b, a) || b.is_nan() { b } else { a }).unwrap_or(f64::NAN)
        };
        for (case, most) in [(SRCU, 2.0), ("qsbr-64", 0.6)] {
            let value = worst(&|threads| self.of(case, threads), |a, b| a > b);
            let what = format!("{case}: ns, worst of 1, 2 and 8 threads");
            report.judge(&what, value, Bound::Most(most), Kind::Cpu);
        }
        let ratio = |threads| self.of(CROSSBEAM, threads) / self.of(SRCU, threads);
        let what = "crossbeam-epoch / srcu, least of 1, 2 and 8 threads";
        report.judge(what, worst(&ratio, |a, b| a < b), Bound::Least(1.6), Kind::Cpu);
    }
}
