//! `rcu-poll`: cookies, which ask and answer whether a grace period has passed without waiting.
//!
//! | case | what |
//! |---|---|
//! | poll, poll-false | a cookie whose moment has passed; one whose moment has not |
//! | snapshot | takes one, starts nothing |
//! | start-poll | takes one, and the library's thread brings the moment about |
//! | comes-about | from `start_poll` until `poll` says yes, with nobody else asking |
//!
//! Counted: cookies that are true without a grace period, false after one of the same thread or of
//! another, or that take more than one.
//!
//! liburcu has polled grace periods from version 0.14 on.

use crate::Options;
use crate::harness::contenders::Contenders;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::{median, quantile, spread_percent};
use crate::harness::step::Counts;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Line<'a> {
    bench: &'static str,
    case: &'a str,
    ns: Option<f64>,
    p99_ns: Option<f64>,
    instructions: Option<f64>,
    locked: Option<f64>,
    syscalls: Option<f64>,
}

const URCU_POLL: &str = "urcu-memb-poll";
/// Case, and how many in a run beside a poll.
const CASES: [(&str, f64); 10] = [
    ("srcu-poll", 1.0),
    ("srcu-poll-false", 1.0),
    ("srcu-snapshot", 0.2),
    ("srcu-start-poll", 0.02),
    ("qsbr-poll", 1.0),
    ("qsbr-poll-false", 1.0),
    ("qsbr-snapshot", 0.2),
    ("qsbr-start-poll", 0.02),
    (URCU_POLL, 0.5),
    ("urcu-memb-start-poll", 0.1),
];
const FLAVOURS: [&str; 2] = ["srcu", "qsbr"];

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let polls = options.size(5_000_000, 50_000);
    report.parameter("polls", &format!("{polls} a run, scaled by case"));
    let mut bench = Bench {
        contenders: Contenders::start(&["rcu-poll"], report)?,
        ns: BTreeMap::new(),
        latency: BTreeMap::new(),
        counts: BTreeMap::new(),
    };
    if !bench.contenders.has(URCU_POLL) {
        report.say("peer absent  liburcu's polled grace periods");
    }
    bench.count()?;
    bench.cookies(options.size(20_000, 200), report)?;
    for _ in 0..options.reps() {
        for (case, share) in CASES {
            bench.once(case, ((polls as f64 * share) as u64).max(1), report)?;
        }
        for flavour in FLAVOURS {
            bench.comes_about(flavour, options.size(200, 10))?;
        }
    }
    bench.tell(report)?;
    bench.judge(report);
    Ok(())
}

struct Bench {
    contenders: Contenders,
    ns: BTreeMap<&'static str, Vec<f64>>,
    latency: BTreeMap<&'static str, Vec<f64>>,
    counts: BTreeMap<&'static str, Counts>,
}

impl Bench {
    fn count(&mut self) -> Result<()> {
        for (case, _) in CASES {
            if self.contenders.has(case) && !case.ends_with("start-poll") {
                self.counts.insert(case, self.contenders.count(case, 16)?);
            }
        }
        Ok(())
    }

    /// What cookies promise.
    fn cookies(&mut self, n: u64, report: &mut Report) -> Result<()> {
        for flavour in FLAVOURS {
            let answer = self.contenders.call(&format!("{flavour}-covered"), &[n])?;
            let &[early, late, more] = answer.as_slice() else { bail!("it says {answer:?}") };
            let answer = self.contenders.call(&format!("{flavour}-covered-elsewhere"), &[n])?;
            let elsewhere = *answer.first().context("no answer")?;
            for (what, count) in [
                ("true without a grace period", early),
                ("false after one", late),
                ("false after another thread's", elsewhere),
                ("that took more than one", more),
            ] {
                report.gate(&format!("{flavour}: of {n} cookies, {what}"), count as f64, 0.0);
            }
        }
        Ok(())
    }

    fn once(&mut self, case: &'static str, n: u64, report: &mut Report) -> Result<()> {
        if self.contenders.has(case) {
            let run = self.contenders.run(case, 1, n)?;
            if !case.ends_with("start-poll") {
                report.utilisation(run.utilisation());
            }
            self.ns.entry(case).or_default().push(run.cpu_ns() / n as f64);
        }
        Ok(())
    }

    fn comes_about(&mut self, flavour: &'static str, n: u64) -> Result<()> {
        let answer = self.contenders.call(&format!("{flavour}-comes-about"), &[n])?;
        let latency = self.latency.entry(flavour).or_default();
        latency.extend(answer.iter().map(|&ns| ns as f64));
        // Those that never came about.
        let missing = n.saturating_sub(answer.len() as u64);
        latency.extend((0..missing).map(|_| f64::INFINITY));
        Ok(())
    }

    fn tell(&self, report: &mut Report) -> Result<()> {
        let head = ["case", "ns", "+-%", "p99", "instructions", "locked", "syscalls"];
        let mut table = Table::new(&head);
        let latency: Vec<_> = FLAVOURS.iter().map(|f| (format!("{f}-comes-about"), *f)).collect();
        let latency = latency.iter().filter_map(|(n, f)| Some((n.as_str(), self.latency.get(f)?)));
        let loops = CASES.iter().filter_map(|(case, _)| Some((*case, self.ns.get(case)?)));
        for (case, runs) in loops.chain(latency) {
            let counts = self.counts.get(case);
            let of = |f: fn(&Counts) -> f64| counts.map_or(f64::NAN, f);
            let p99 = if counts.is_none() { quantile(runs, 0.99) } else { f64::NAN };
            table.row(vec![
                case.to_owned(),
                number(median(runs), 2),
                number(spread_percent(runs), 1),
                number(p99, 2),
                number(of(|c| c.instructions), 1),
                number(of(|c| c.locked), 1),
                number(of(|c| c.syscalls), 1),
            ]);
            report.line(&Line {
                bench: "rcu-poll",
                case,
                ns: rounded(median(runs)),
                p99_ns: rounded(p99),
                instructions: rounded(of(|c| c.instructions)),
                locked: rounded(of(|c| c.locked)),
                syscalls: rounded(of(|c| c.syscalls)),
            })?;
        }
        report.say(&format!("\n{}", table.text()));
        Ok(())
    }

    fn judge(&self, report: &mut Report) {
        for case in ["srcu-poll", "srcu-poll-false", "qsbr-poll", "qsbr-poll-false"] {
            let Some(counts) = self.counts.get(case) else { continue };
            report.gate(&format!("{case}: locked instructions"), counts.locked, 0.0);
            report.gate(&format!("{case}: system calls"), counts.syscalls, 0.0);
        }
        for flavour in FLAVOURS {
            let never = self
                .latency
                .get(flavour)
                .map_or(f64::NAN, |ns| ns.iter().filter(|ns| ns.is_infinite()).count() as f64);
            report.gate(&format!("{flavour}: started moments that never came"), never, 0.0);
        }
        for case in ["srcu-poll", "srcu-poll-false", "qsbr-poll"] {
            let ns = self.ns.get(case).map_or(f64::NAN, |ns| median(ns));
            report.judge(&format!("{case}: ns"), ns, Bound::Most(2.0), Kind::Cpu);
        }
    }
}
