//! `rwlock-read`: taking a reader-writer lock shared and giving it back, with nobody writing.
//!
//! One iteration: take, load the value, give back. The figure is CPU time of the thread, the loop
//! included. Instructions, locked instructions and system calls are counted by single-stepping.
//!
//! | case | what |
//! |---|---|
//! | owlet, owlet-raw | [`owlet_rcu::PerCpuRwLock`] by guard, and by `read` and `unlock_read` |
//! | owlet-slow | the same with readers held slow, as they are during a burst of writers |
//! | std, parking_lot, sharded | the standard library's, `parking_lot`'s, crossbeam's `ShardedLock` |

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
    variant: &'static str,
    threads: usize,
    reader_ns: Option<f64>,
    instructions: Option<f64>,
    locked: Option<f64>,
    syscalls: Option<f64>,
}

/// Case, its name in the report, and how many fit the time of one of ours.
const CASES: [(&str, &str, f64); 6] = [
    ("owlet-read", "owlet", 1.0),
    ("owlet-raw-read", "owlet-raw", 1.0),
    ("owlet-slow-read", "owlet-slow", 0.2),
    ("std-read", "std", 0.3),
    ("parking_lot-read", "parking_lot", 0.3),
    ("sharded-read", "sharded", 0.3),
];
const THREADS: [usize; 3] = [1, 2, 8];

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let reads = options.size(8_000_000, 40_000);
    report.parameter("reads", &format!("{reads} a thread and run, scaled by case"));
    report.parameter("threads", "1, 2 and 8, pinned to the CPUs in turn");
    let mut contenders = Contenders::start(&["rwlock"], report)?;
    let mut counts: BTreeMap<&str, Counts> = BTreeMap::new();
    for (case, ..) in CASES {
        counts.insert(case, contenders.count(case, options.size(64, 16))?);
    }
    let mut ns: BTreeMap<(&str, usize), Vec<f64>> = BTreeMap::new();
    for _ in 0..options.reps() {
        for threads in THREADS {
            for (case, _, share) in CASES {
                let n = ((reads as f64 * share) as u64).max(1);
                let run = contenders.run(case, threads, n)?;
                if threads <= report.cpus() {
                    report.utilisation(run.utilisation());
                }
                ns.entry((case, threads)).or_default().push(run.cpu_ns() / n as f64);
            }
        }
    }
    let head = ["variant", "threads", "reader_ns", "+-%", "instructions", "locked", "syscalls"];
    let mut table = Table::new(&head);
    for (case, variant, _) in CASES {
        for threads in THREADS {
            let (runs, counts) = (&ns[&(case, threads)], &counts[case]);
            table.row(vec![
                variant.to_owned(),
                threads.to_string(),
                number(median(runs), 2),
                number(spread_percent(runs), 1),
                number(counts.instructions, 1),
                number(counts.locked, 1),
                number(counts.syscalls, 1),
            ]);
            report.line(&Line {
                bench: "rwlock-read",
                variant,
                threads,
                reader_ns: rounded(median(runs)),
                instructions: rounded(counts.instructions),
                locked: rounded(counts.locked),
                syscalls: rounded(counts.syscalls),
            })?;
        }
    }
    report.say(&format!("\n{}", table.text()));
    for case in ["owlet-read", "owlet-raw-read"] {
        report.gate_locked(&format!("{case}: locked instructions"), counts[case].locked);
        report.gate(&format!("{case}: system calls"), counts[case].syscalls, 0.0);
    }
    let worst = |case| THREADS.iter().map(|&n| median(&ns[&(case, n)])).fold(0.0, f64::max);
    let what = "owlet: ns, worst of 1, 2 and 8 threads";
    report.judge(what, worst("owlet-read"), Bound::Most(2.0), Kind::Cpu);
    for peer in ["parking_lot-read", "sharded-read"] {
        let ratio = worst(peer) / worst("owlet-read");
        report.judge(&format!("{peer} / owlet"), ratio, Bound::Least(1.0), Kind::Cpu);
    }
    Ok(())
}
