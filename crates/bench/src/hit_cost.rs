//! `hit-cost`: a call of a traced function, off and with programs, beside kernel uprobes in the same run.
//!
//! | case | the function has |
//! |---|---|
//! | bare | no attribute: the floor |
//! | off | nothing |
//! | native-N | N programs at entry; 0: the site is on and finds none |
//! | native-filter, native-sleepable | one, with a filter on the argument; one of the sleepable flavour |
//! | exit, session, entry+exit | one at exit; one at both ends; one at either end |
//! | ebpf-ret0, ebpf-map, ebpf-map-atomic | one of eBPF, compiled: nothing; a count in an array, plain or atomic |
//! | ebpf-map-interpreted | the same count, interpreted |
//! | uprobe-int3, uprobe-nop5 | a kernel uprobe with a BPF program that returns 0 |
//!
//! Nanoseconds are CPU time net of `bare`, instructions too; the kernel's are not counted.

use crate::Options;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::{median, spread_percent};
use crate::harness::step::{self, Counts};
use crate::harness::worker::Worker;
use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    case: &'static str,
    ns: Option<f64>,
    instructions: Option<f64>,
    locked: Option<f64>,
    syscalls: Option<f64>,
}

const BARE: &str = "bare";
const CASES: [&str; 15] = [
    BARE,
    "off",
    "native-0",
    "native-1",
    "native-2",
    "native-8",
    "native-filter",
    "native-sleepable",
    "exit",
    "session",
    "entry+exit",
    "ebpf-ret0",
    "ebpf-map",
    "ebpf-map-atomic",
    "ebpf-map-interpreted",
];
const UPROBES: [&str; 2] = ["uprobe-int3", "uprobe-nop5"];
/// Calls with a uprobe in the time of one without.
const UPROBE_SHARE: u64 = 50;

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let calls = options.size(1_000_000, 20_000);
    report.parameter("calls", &format!("{calls} a run (with uprobes a {UPROBE_SHARE}th)"));
    let mut traced = Worker::start("traced", &[])?.map_err(|why| anyhow!("traced: {why}"))?;
    let uprobe = Worker::start("uprobe-hit", &[]).unwrap_or_else(|error| Err(format!("{error:#}")));
    let mut uprobe =
        uprobe.inspect_err(|why| report.say(&format!("peer absent  kernel uprobes: {why}"))).ok();
    let mut counts = BTreeMap::new();
    for case in CASES {
        let count = step::count(&mut traced, case, 10);
        counts.insert(case, count.with_context(|| format!("count instructions of {case}"))?);
    }
    let mut ns: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..options.reps() {
        for case in CASES {
            let run = traced.run(case, 1, calls)?;
            report.utilisation(run.utilisation());
            ns.entry(case).or_default().push(run.cpu_ns() / calls as f64);
        }
        let Some(uprobe) = &mut uprobe else { continue };
        let calls = (calls / UPROBE_SHARE).max(1);
        for case in UPROBES {
            let run = uprobe.run(case, 1, calls)?;
            ns.entry(case).or_default().push(run.cpu_ns() / calls as f64);
        }
    }
    let figures = Figures { counts, ns };
    figures.tell(report)?;
    figures.judge(report);
    Ok(())
}

struct Figures {
    counts: BTreeMap<&'static str, Counts>,
    ns: BTreeMap<&'static str, Vec<f64>>,
}

impl Figures {
    /// Net of a bare call; of the bare call itself, all of it.
    fn net_ns(&self, case: &str) -> f64 {
        let of = |case| self.ns.get(case).map_or(f64::NAN, |runs| median(runs));
        of(case) - if case == BARE { 0.0 } else { of(BARE) }
    }

    fn net_counts(&self, case: &str) -> Option<Counts> {
        let of = *self.counts.get(case)?;
        Some(if case == BARE { of } else { of - *self.counts.get(BARE)? })
    }

    fn tell(&self, report: &mut Report) -> Result<()> {
        let head = ["case", "ns", "+-%", "instructions", "locked", "syscalls"];
        let mut table = Table::new(&head);
        for case in CASES.into_iter().chain(UPROBES) {
            let Some(runs) = self.ns.get(case) else { continue };
            let (ns, counts) = (self.net_ns(case), self.net_counts(case));
            let of = |f: fn(Counts) -> f64| counts.map_or(f64::NAN, f);
            let (instructions, locked) = (of(|c| c.instructions), of(|c| c.locked));
            let syscalls = of(|c| c.syscalls);
            table.row(vec![
                case.to_owned(),
                number(ns, 2),
                number(spread_percent(runs), 1),
                number(instructions, 1),
                number(locked, 1),
                number(syscalls, 1),
            ]);
            report.line(&Line {
                bench: "hit-cost",
                case,
                ns: rounded(ns),
                instructions: rounded(instructions),
                locked: rounded(locked),
                syscalls: rounded(syscalls),
            })?;
        }
        report.say(&format!("\n{}", table.text()));
        Ok(())
    }

    fn judge(&self, report: &mut Report) {
        if let Some(counts) = self.net_counts("off") {
            let most = if owlet_attach::site::KIND == "toggle" { 2.0 } else { 4.0 };
            report.gate("off: instructions", counts.instructions, most);
        }
        for case in CASES.into_iter().filter(|case| !case.contains("atomic") && *case != BARE) {
            let Some(counts) = self.net_counts(case) else { continue };
            report.gate_locked(&format!("{case}: locked instructions"), counts.locked);
            report.gate(&format!("{case}: system calls"), counts.syscalls, 0.0);
        }
        let most = [
            ("off", 0.3),
            ("native-1", 5.0),
            ("session", 10.0),
            ("entry+exit", 10.0),
            ("ebpf-map", 15.0),
        ];
        for (case, most) in most {
            report.judge(&format!("{case}: ns"), self.net_ns(case), Bound::Most(most), Kind::Cpu);
        }
        for uprobe in UPROBES {
            let ratio = self.net_ns(uprobe) / self.net_ns("native-1");
            let what = format!("{uprobe} / native-1");
            report.judge(&what, ratio, Bound::Least(100.0), Kind::Cpu);
        }
    }
}
