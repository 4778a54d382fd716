//! `toggle-1000`: what a writer that comes again and again costs, beside readers: the workload that
//! `rcu_sync` was made for (a probe enabled and disabled a thousand times; each change takes a per-CPU
//! reader-writer lock for writing).
//!
//! (i) A lock, taken for writing twice an iteration, with so much work in one of the two. Grace periods are
//! as long as `--gp-us` says, because the ratios depend on that: the source's were as long as an iteration.
//!
//! | variant | a writer waits for |
//! |---|---|
//! | normal | a grace period before, and one after |
//! | hurried | the same, expedited: as long, since readers decide |
//! | expedited | a membarrier before, and one after: the source's `synchronize_sched_expedited` |
//! | rcu_sync | a grace period, if there was no writer for a while |
//! | membarrier | a membarrier, if there was no writer for a while: the lock as it comes |
//! | hold_slow | nothing |
//! | std, parking_lot | readers |
//!
//! (ii) A tracepoint of the worker, with readers that hit it, switched on and off by a probe that is
//! registered and unregistered. (iii) The kernel's, a uprobe in this program through tracefs, where that can
//! be used.
//!
//! And `pairs`: lock and unlock, nobody else, CPU time of one.

use crate::Options;
use crate::harness::contenders::Contenders;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::median;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

/// How to run it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Toggle {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Length of a grace period (the source's: 13500) [default: 2000, with --small 500]
    #[arg(long, value_name = "US")]
    gp_us: Option<u64>,
    /// Work of an iteration [default: as long as a grace period]
    #[arg(long, value_name = "US")]
    work_us: Option<u64>,
    /// Iterations, of two write sections each [default: 1000, with --small 20]
    #[arg(long, value_name = "N")]
    iterations: Option<u64>,
    /// Reader threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    readers: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    bench: &'static str,
    part: &'static str,
    variant: &'a str,
    iterations: u64,
    gp_us: u64,
    work_us: u64,
    readers: u64,
    blocking_gps: Option<f64>,
    membarriers: Option<f64>,
    seconds: Option<f64>,
    reader_ns: Option<f64>,
    reader_p99_ns: Option<f64>,
    writer_p99_us: Option<f64>,
}

const VARIANTS: [&str; 8] =
    ["normal", "hurried", "expedited", "rcu_sync", "membarrier", "hold_slow", "std", "parking_lot"];
const PAIRS: [&str; 4] = ["expedited", "rcu_sync", "std", "parking_lot"];
const TRACEPOINT: &str = "tracepoint";

/// One variant's figures.
#[derive(Clone, Copy, Default)]
struct Figures {
    blocking: f64,
    membarriers: f64,
    seconds: f64,
    reader_ns: f64,
    reader_p99_ns: f64,
    writer_p99_us: f64,
}

impl Figures {
    fn of(numbers: &[u64]) -> Result<Self> {
        let &[blocking, membarriers, wall, reader_ps, reader_p99, writer_p99, ..] = numbers else {
            bail!("{numbers:?}");
        };
        Ok(Self {
            blocking: blocking as f64,
            membarriers: membarriers as f64,
            seconds: wall as f64 / 1e9,
            reader_ns: reader_ps as f64 / 1e3,
            reader_p99_ns: reader_p99 as f64,
            writer_p99_us: writer_p99 as f64 / 1e3,
        })
    }
}

/// Runs it.
pub(crate) fn run(toggle: &Toggle, report: &mut Report) -> Result<()> {
    let small = toggle.options.small;
    let gp_us = toggle.gp_us.unwrap_or(if small { 500 } else { 2000 });
    let work_us = toggle.work_us.unwrap_or(gp_us);
    let n = toggle.iterations.unwrap_or(toggle.options.size(1000, 20));
    let readers = toggle.readers;
    report.parameter("iterations", &format!("{n}, once for each variant; pairs as often as runs"));
    report.parameter("grace period", &format!("{gp_us} us (in the source's: 13500)"));
    report.parameter("work", &format!("{work_us} us an iteration: the floor"));
    report.parameter("readers", &readers.to_string());
    let mut contenders = Contenders::start(&["toggle"], report)?;
    let mut all = BTreeMap::new();
    for variant in VARIANTS {
        let numbers = [n, gp_us, work_us, readers];
        let answer = contenders.call(&format!("toggle-{variant}"), &numbers)?;
        all.insert(variant, Figures::of(&answer)?);
    }
    let answer = contenders.call("toggle-tracepoint", &[n, readers])?;
    all.insert(TRACEPOINT, Figures::of(&answer)?);
    let seen = answer.last().copied().unwrap_or(0);
    report.parameter("tracepoint", &format!("hit {seen} times while it was on"));
    tell([n, gp_us, work_us, readers], &all, report)?;
    kernel(small, n.min(20), report)?;
    let pairs = pairs(&toggle.options, &mut contenders, report)?;
    judge(n, gp_us, &all, &pairs, report);
    Ok(())
}

fn tell(
    [iterations, gp_us, work_us, readers]: [u64; 4],
    all: &BTreeMap<&'static str, Figures>,
    report: &mut Report,
) -> Result<()> {
    let head = [
        "variant",
        "blocking_gps",
        "membarriers",
        "seconds",
        "reader_ns",
        "reader_p99_ns",
        "writer_p99_us",
    ];
    let mut table = Table::new(&head);
    for variant in VARIANTS.into_iter().chain([TRACEPOINT]) {
        let of = all[variant];
        table.row(vec![
            variant.to_owned(),
            number(of.blocking, 0),
            number(of.membarriers, 0),
            number(of.seconds, 3),
            number(of.reader_ns, 2),
            number(of.reader_p99_ns, 0),
            number(of.writer_p99_us, 1),
        ]);
        report.line(&Line {
            bench: "toggle-1000",
            part: if variant == TRACEPOINT { "tracepoint" } else { "lock" },
            variant,
            iterations,
            gp_us,
            work_us,
            readers,
            blocking_gps: rounded(of.blocking),
            membarriers: rounded(of.membarriers),
            seconds: rounded(of.seconds),
            reader_ns: rounded(of.reader_ns),
            reader_p99_ns: rounded(of.reader_p99_ns),
            writer_p99_us: rounded(of.writer_p99_us),
        })?;
    }
    report.say(&format!("\n{}", table.text()));
    Ok(())
}

/// CPU nanoseconds of a pair of lock and unlock, alone.
fn pairs(
    options: &Options,
    contenders: &mut Contenders,
    report: &mut Report,
) -> Result<BTreeMap<&'static str, f64>> {
    let n = options.size(1_000_000, 10_000);
    let mut ns: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..options.reps() {
        for variant in PAIRS {
            let n = if variant == "expedited" { n / 10 } else { n };
            let run = contenders.run(&format!("pairs-{variant}"), 1, n)?;
            ns.entry(variant).or_default().push(run.cpu_ns() / n as f64);
        }
    }
    let ns: BTreeMap<_, _> = ns.into_iter().map(|(k, v)| (k, median(&v))).collect();
    let mut table = Table::new(&["pairs", "ns"]);
    PAIRS.iter().for_each(|v| table.row(vec![(*v).to_owned(), number(ns[v], 1)]));
    report.say(&table.text());
    Ok(ns)
}

/// (iii): a uprobe in this program, switched on and off.
fn kernel(small: bool, n: u64, report: &mut Report) -> Result<()> {
    const EVENT: &str = "owlet_bench/toggle";
    if small {
        report.say("kernel       not in the small size");
        return Ok(());
    }
    let folder = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .into_iter()
        .find(|folder| fs::metadata(format!("{folder}/uprobe_events")).is_ok());
    let Some(folder) = folder else {
        report.say(
            "kernel       absent: no uprobe_events in /sys/kernel/tracing (tracefs not mounted)",
        );
        return Ok(());
    };
    let program = fs::read_link("/proc/self/exe").context("this program's path")?;
    let events = format!("{folder}/uprobe_events");
    let add = format!("p:{EVENT} {}:0x1000\n", program.display());
    if let Err(error) = append(&events, &add) {
        report.say(&format!("kernel       absent: {events}: {error}"));
        return Ok(());
    }
    let enable = format!("{folder}/events/{EVENT}/enable");
    let begun = Instant::now();
    let switched = (0..n).try_for_each(|_| {
        fs::write(&enable, "1")?;
        fs::write(&enable, "0")
    });
    let seconds = begun.elapsed().as_secs_f64();
    let removed = append(&events, &format!("-:{EVENT}\n"));
    match switched.and(removed) {
        Ok(()) => report.say(&format!(
            "kernel       {n} times on and off: {seconds:.3} s, which is {:.1} s a thousand",
            seconds / n as f64 * 1000.0
        )),
        Err(error) => report.say(&format!("kernel       {enable}: {error}")),
    }
    Ok(())
}

fn append(path: &str, line: &str) -> std::io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().append(true).open(path)?.write_all(line.as_bytes())
}

fn judge(
    n: u64,
    gp_us: u64,
    all: &BTreeMap<&'static str, Figures>,
    pairs: &BTreeMap<&'static str, f64>,
    report: &mut Report,
) {
    let before = all["normal"].blocking;
    report.say(&format!(
        "count        normal: blocking grace periods: {before} ({} expected)",
        4 * n
    ));
    for variant in ["rcu_sync", "hold_slow"] {
        let most = if variant == "hold_slow" { 0.0 } else { 3.0 };
        let what = format!("{variant}: blocking grace periods");
        report.gate(&what, all[variant].blocking, most);
    }
    let seconds = |variant| all[variant].seconds;
    let ratio = seconds("normal") / seconds("rcu_sync");
    let what = format!("normal / rcu_sync, grace period {gp_us} us");
    report.judge(&what, ratio, Bound::Least(4.0), Kind::Wall);
    let ratio = seconds("rcu_sync") / seconds("expedited");
    report.judge("rcu_sync / expedited", ratio, Bound::Most(1.0), Kind::Wall);
    let ratio = pairs["expedited"] / pairs["rcu_sync"];
    report.judge("pairs: expedited / rcu_sync", ratio, Bound::Least(1.5), Kind::Cpu);
    let each = seconds(TRACEPOINT) / n as f64 * 1e3;
    report.judge("a tracepoint on and off, ms", each, Bound::Most(1.0), Kind::Wall);
}
