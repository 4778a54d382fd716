//! `rwlock-write`: taking a reader-writer lock exclusively.
//!
//! | setting | what |
//! |---|---|
//! | alone | pairs of lock and unlock one after the other; CPU time of one |
//! | both | one reader and one writer, each without pause on a CPU of its own: reads and writes a second |
//! | crowd | a writer that comes a thousand times a second, beside eight busy readers: how long it takes |
//!
//! The product once for each of its policies, and once with readers held slow. `both` is the objection in
//! the thread that introduced `rcu_sync`: while writers follow each other, readers are all serialised. The
//! bars show how many reads a second each policy leaves them.

use crate::Options;
use crate::harness::contenders::Contenders;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::{median, quantile, spread_percent};
use anyhow::{Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    variant: &'static str,
    writer_ns: Option<f64>,
    reads_per_s: Option<f64>,
    writes_per_s: Option<f64>,
    writer_p50_us: Option<f64>,
    writer_p99_us: Option<f64>,
    crowd_reads_per_write: Option<f64>,
}

/// The variants; the names of their cases, after which comes the setting.
const VARIANTS: [&str; 7] =
    ["owlet", "owlet-fair", "owlet-readers", "owlet-slow", "std", "parking_lot", "sharded"];
const PLAIN: &str = "owlet";
const FAIR: &str = "owlet-fair";

/// What one variant came to.
#[derive(Default)]
struct Figures {
    alone_ns: Vec<f64>,
    reads: Vec<f64>,
    writes: Vec<f64>,
    crowd_us: Vec<f64>,
    crowd_reads: Vec<f64>,
}

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let pairs = options.size(1_000_000, 20_000);
    let (millis, writes) = (options.size(200, 20), options.size(100, 5));
    report.parameter("pairs", &format!("{pairs} a run alone"));
    report.parameter("both", &format!("{millis} ms a run"));
    report.parameter("crowd", &format!("{writes} writes a run, 1 ms apart, 8 readers"));
    let mut contenders = Contenders::start(&["rwlock"], report)?;
    let mut all: BTreeMap<&str, Figures> = BTreeMap::new();
    // The first writer after a while waits for a grace period; those after it do not.
    let before = contenders.call("owlet-stats", &[])?;
    contenders.run("owlet-write", 1, pairs)?;
    let after = contenders.call("owlet-stats", &[])?;
    for _ in 0..options.reps() {
        for variant in VARIANTS {
            let of = all.entry(variant).or_default();
            let run = contenders.run(&format!("{variant}-write"), 1, pairs)?;
            of.alone_ns.push(run.cpu_ns() / pairs as f64);
            let both = contenders.call(&format!("{variant}-both"), &[millis])?;
            let [reads, wrote] = both[..] else { bail!("{variant}-both: {both:?}") };
            let per_s = |n: u64| n as f64 * 1000.0 / millis as f64;
            of.reads.push(per_s(reads));
            of.writes.push(per_s(wrote));
            let crowd = contenders.call(&format!("{variant}-khz"), &[writes])?;
            let [reads, each @ ..] = crowd.as_slice() else { bail!("{variant}-khz: nothing") };
            of.crowd_reads.push(*reads as f64 / each.len().max(1) as f64);
            of.crowd_us.extend(each.iter().map(|&ns| ns as f64 / 1000.0));
        }
    }
    tell(&all, report)?;
    bars(&all, report);
    let blocking = (after[0] - before[0]) as f64;
    report.gate("owlet: blocking grace periods of a burst of writers", blocking, 1.0);
    let membarriers = (after[1] - before[1]) as f64;
    report.gate("owlet: membarriers of a burst of writers", membarriers, 2.0);
    judge(&all, report);
    Ok(())
}

fn tell(all: &BTreeMap<&str, Figures>, report: &mut Report) -> Result<()> {
    let head = ["variant", "alone ns", "+-%", "reads M/s", "writes k/s", "crowd p50 us", "p99 us"];
    let mut table = Table::new(&head);
    for variant in VARIANTS {
        let of = &all[variant];
        let (p50, p99) = (quantile(&of.crowd_us, 0.5), quantile(&of.crowd_us, 0.99));
        table.row(vec![
            variant.to_owned(),
            number(median(&of.alone_ns), 1),
            number(spread_percent(&of.alone_ns), 1),
            number(median(&of.reads) / 1e6, 2),
            number(median(&of.writes) / 1e3, 1),
            number(p50, 1),
            number(p99, 1),
        ]);
        report.line(&Line {
            bench: "rwlock-write",
            variant,
            writer_ns: rounded(median(&of.alone_ns)),
            reads_per_s: rounded(median(&of.reads)),
            writes_per_s: rounded(median(&of.writes)),
            writer_p50_us: rounded(p50),
            writer_p99_us: rounded(p99),
            crowd_reads_per_write: rounded(median(&of.crowd_reads)),
        })?;
    }
    report.say(&format!("\n{}", table.text()));
    Ok(())
}

/// Reads and writes a second under `both`, as bars.
fn bars(all: &BTreeMap<&str, Figures>, report: &mut Report) {
    const WIDTH: f64 = 50.0;
    let most = |of: fn(&Figures) -> &Vec<f64>| {
        VARIANTS.iter().map(|v| median(of(&all[v]))).fold(f64::MIN_POSITIVE, f64::max)
    };
    type What = (&'static str, fn(&Figures) -> &Vec<f64>);
    let both: [What; 2] =
        [("reads/s beside a writer without pause", |f| &f.reads), ("writes/s", |f| &f.writes)];
    for (what, of) in both {
        let most = most(of);
        let mut text = format!("{what}\n");
        for variant in VARIANTS {
            let value = median(of(&all[variant]));
            let bar = "#".repeat((value / most * WIDTH).round() as usize);
            text.push_str(&format!("  {variant:<14} {bar} {:.2} M\n", value / 1e6));
        }
        report.say(&text);
    }
}

fn judge(all: &BTreeMap<&str, Figures>, report: &mut Report) {
    let alone = median(&all[PLAIN].alone_ns);
    report.judge("owlet: 1 M write pairs alone, ms", alone, Bound::Most(40.0), Kind::Cpu);
    let p99 = |variant: &str| quantile(&all[variant].crowd_us, 0.99);
    for variant in [PLAIN, FAIR] {
        let what = format!("{variant}: p99 beside 8 readers / std's");
        report.judge(&what, p99(variant) / p99("std"), Bound::Most(1.0), Kind::Wall);
    }
    let reads = |variant: &str| median(&all[variant].reads);
    // The plain policy's, as the prototype of this design had it: 1.8 M reads/s.
    let what = "phase-fair: M reads/s beside a writer without pause";
    report.judge(what, reads(FAIR) / 1e6, Bound::Least(9.0), Kind::Wall);
    let what = "phase-fair / writer-burst: reads beside a writer without pause";
    report.judge(what, reads(FAIR) / reads(PLAIN), Bound::Least(5.0), Kind::Wall);
}
