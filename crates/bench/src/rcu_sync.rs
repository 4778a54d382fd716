//! `rcu-sync`: how long one waits for a grace period, and what it does meanwhile.
//!
//! | setting | what |
//! |---|---|
//! | alone | no other thread in the process |
//! | parked | eight threads of the flavour, asleep, in no section; CPU time |
//! | busy | one thread on another CPU that has sections without pause; wall time |
//! | leave | a reader was inside for [`HOLD`] and leaves: wall time from its exit to the return |
//!
//! `membarrier` is the floor of all that wait for readers without barriers: the system call, for
//! nobody.
//!
//! Then `wait_all` of k domains of all flavours: beside the slowest of them alone, and beside all of
//! them one after the other. `idle`: nothing to wait for; `busy`: a thread on another CPU has
//! sections in all of them without pause; `held`: a sleeping reader in each, the last of whom leaves
//! after 1 ms + 0.2 ms a domain.
//!
//! Membarriers are counted by the domain, system calls by single-stepping.

use crate::Options;
use crate::harness::contenders::Contenders;
use crate::harness::report::{Bound, Kind, Report, Table, number, round2, rounded};
use crate::harness::stats::{median, quantile, spread_percent};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Line<'a> {
    bench: &'static str,
    case: &'a str,
    setting: &'a str,
    domains: usize,
    us: Option<f64>,
    p99_us: Option<f64>,
    slowest_us: Option<f64>,
    in_turn_us: Option<f64>,
    membarriers: Option<f64>,
    syscalls: Option<f64>,
}

/// The membarrier of a grace period, and nothing else.
const FLOOR: &str = "membarrier";
/// In the order of the report.
const CASES: [&str; 11] = [
    FLOOR,
    "srcu",
    "expedited",
    "classic",
    "fenced",
    "qsbr",
    "tasks",
    "trace",
    "urcu-memb",
    "urcu-qsbr",
    "urcu-bp",
];
const SETTINGS: [&str; 4] = ["alone", "parked", "busy", "leave"];
/// How long the reader of `leave` is inside, in nanoseconds.
const HOLD: u64 = 1_000_000;
/// Grace periods timed together where nothing else happens.
const BATCH: u64 = 32;
const DOMAINS: [usize; 4] = [1, 2, 4, 8];
const WAIT_ALL: [&str; 3] = ["idle", "busy", "held"];

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let mut bench = Bench {
        contenders: Contenders::start(&["rcu-sync"], report)?,
        us: BTreeMap::new(),
        wait_all: BTreeMap::new(),
        syscalls: BTreeMap::new(),
        membarriers: BTreeMap::new(),
    };
    let n = options.size(200, 5);
    report.parameter("grace periods", &format!("{n} a run (parked: {n} times {BATCH})"));
    bench.count()?;
    for _ in 0..options.reps() {
        for case in CASES {
            bench.once(case, n)?;
        }
        for setting in WAIT_ALL {
            for k in DOMAINS {
                let rounds = if setting == "held" { n.div_ceil(20) } else { n };
                bench.wait_all(setting, k, rounds)?;
            }
        }
    }
    bench.tell(report)?;
    bench.judge(report);
    Ok(())
}

/// What `wait_all` and its rivals took, of each round.
#[derive(Default)]
struct Rounds {
    all: Vec<f64>,
    alone: Vec<Vec<f64>>,
    in_turn: Vec<f64>,
}

impl Rounds {
    /// The domain that takes longest.
    fn slowest(&self) -> f64 {
        self.alone.iter().map(|of| median(of)).fold(0.0, f64::max)
    }
}

type Key = (&'static str, &'static str);

struct Bench {
    contenders: Contenders,
    us: BTreeMap<Key, Vec<f64>>,
    wait_all: BTreeMap<(&'static str, usize), Rounds>,
    syscalls: BTreeMap<&'static str, f64>,
    /// A grace period's.
    membarriers: BTreeMap<Key, f64>,
}

impl Bench {
    /// System calls of one grace period, before anything is timed.
    fn count(&mut self) -> Result<()> {
        for case in CASES.into_iter().chain(["wait-all"]) {
            let sync = format!("{case}-sync");
            if self.contenders.has(&sync) {
                let counts = self.contenders.count(&sync, 4)?;
                self.syscalls.insert(case, counts.syscalls);
            }
        }
        Ok(())
    }

    fn once(&mut self, case: &'static str, n: u64) -> Result<()> {
        if !self.contenders.has(&format!("{case}-sync")) {
            return Ok(());
        }
        for setting in SETTINGS {
            if case == FLOOR && setting == "leave" {
                continue;
            }
            let before = self.stats(case)?;
            let us = self.setting(case, setting, n)?;
            let after = self.stats(case)?;
            let [periods, membarriers] = [after[0] - before[0], after[1] - before[1]];
            if periods > 0.0 {
                self.membarriers.insert((case, setting), membarriers / periods);
            }
            self.us.entry((case, setting)).or_default().extend(us);
        }
        Ok(())
    }

    /// Grace periods and membarriers of the domain so far; zeros for a peer.
    fn stats(&mut self, case: &str) -> Result<[f64; 2]> {
        let stats = format!("{case}-stats");
        if !self.contenders.has(&stats) {
            return Ok([0.0; 2]);
        }
        let numbers = self.contenders.call(&stats, &[])?;
        let [periods, membarriers] = numbers[..] else { anyhow::bail!("{stats}: {numbers:?}") };
        Ok([periods as f64, membarriers as f64])
    }

    /// Microseconds of each grace period, or batch of them, in a setting.
    fn setting(&mut self, case: &str, setting: &str, n: u64) -> Result<Vec<f64>> {
        let us = |ns: u64, of: u64| ns as f64 / of as f64 / 1000.0;
        if setting == "alone" {
            let run = self.contenders.run(&format!("{case}-sync"), 1, n * BATCH)?;
            return Ok(vec![run.cpu_ns() / (n * BATCH) as f64 / 1000.0]);
        }
        let name = format!("{case}-{setting}");
        let (numbers, batch, use_wall) = match setting {
            "parked" => ([n.div_ceil(8), BATCH], BATCH, false),
            "busy" => ([n, 1], 1, true),
            // A round takes more than HOLD.
            _ => ([n.div_ceil(10), HOLD], 1, true),
        };
        let answer = self.contenders.call(&name, &numbers)?;
        if setting == "leave" {
            return Ok(answer.iter().map(|&ns| us(ns, 1)).collect());
        }
        let pairs = answer.as_chunks::<2>().0.iter();
        Ok(pairs.map(|&[cpu, wall]| us(if use_wall { wall } else { cpu }, batch)).collect())
    }

    fn wait_all(&mut self, setting: &'static str, k: usize, rounds: u64) -> Result<()> {
        let name = format!("wait-all-{setting}");
        let answer = self.contenders.call(&name, &[k as u64, rounds])?;
        let of = self.wait_all.entry((setting, k)).or_default();
        of.alone.resize(k, Vec::new());
        for round in answer.chunks_exact(k + 2) {
            let us: Vec<f64> = round.iter().map(|&ns| ns as f64 / 1000.0).collect();
            let ([all, alone @ .., in_turn], true) = (us.as_slice(), us.len() == k + 2) else {
                continue;
            };
            of.all.push(*all);
            of.in_turn.push(*in_turn);
            of.alone.iter_mut().zip(alone).for_each(|(of, us)| of.push(*us));
        }
        of.all.last().map(|_| ()).with_context(|| format!("{name}: no round"))
    }

    fn of(&self, case: &'static str, setting: &'static str) -> f64 {
        self.us.get(&(case, setting)).map_or(f64::NAN, |us| median(us))
    }

    fn tell(&self, report: &mut Report) -> Result<()> {
        let head = ["case", "setting", "us", "+-%", "p99", "membarriers", "syscalls"];
        let mut table = Table::new(&head);
        for case in CASES {
            for setting in SETTINGS {
                let Some(us) = self.us.get(&(case, setting)) else { continue };
                let membarriers = self.membarriers.get(&(case, setting)).copied();
                let syscalls = self.syscalls.get(case).copied().filter(|_| setting == "alone");
                let p99 = quantile(us, 0.99);
                table.row(vec![
                    case.to_owned(),
                    setting.to_owned(),
                    number(median(us), 2),
                    number(spread_percent(us), 1),
                    number(p99, 2),
                    number(membarriers.unwrap_or(f64::NAN), 2),
                    number(syscalls.unwrap_or(f64::NAN), 2),
                ]);
                report.line(&Line {
                    bench: "rcu-sync",
                    case,
                    setting,
                    domains: 1,
                    us: rounded(median(us)),
                    p99_us: rounded(p99),
                    slowest_us: None,
                    in_turn_us: None,
                    membarriers: membarriers.and_then(rounded),
                    syscalls: syscalls.and_then(rounded),
                })?;
            }
        }
        report.say(&format!("\n{}", table.text()));
        self.tell_wait_all(report)
    }

    fn tell_wait_all(&self, report: &mut Report) -> Result<()> {
        let head = ["wait_all", "domains", "us", "+-%", "slowest", "ratio", "in turn"];
        let mut table = Table::new(&head);
        for (&(setting, domains), rounds) in &self.wait_all {
            let (us, slowest) = (median(&rounds.all), rounds.slowest());
            let in_turn = median(&rounds.in_turn);
            table.row(vec![
                setting.to_owned(),
                domains.to_string(),
                number(us, 2),
                number(spread_percent(&rounds.all), 1),
                number(slowest, 2),
                number(us / slowest, 2),
                number(in_turn, 2),
            ]);
            report.line(&Line {
                bench: "rcu-sync",
                case: "wait_all",
                setting,
                domains,
                us: rounded(us),
                p99_us: rounded(quantile(&rounds.all, 0.99)),
                slowest_us: rounded(slowest),
                in_turn_us: rounded(in_turn),
                membarriers: None,
                syscalls: None,
            })?;
        }
        report.say(&table.text());
        Ok(())
    }

    fn judge(&self, report: &mut Report) {
        for case in ["srcu", "expedited", "trace"] {
            let of_case = self.membarriers.iter().filter(|((of, _), _)| *of == case);
            let most = of_case.map(|(_, &each)| each).fold(0.0, f64::max);
            report.gate(&format!("{case}: membarriers a grace period"), round2(most), 1.0);
        }
        for (case, most) in [("fenced", 0.0), ("qsbr", 0.0)] {
            let each = self.membarriers.get(&(case, "alone")).copied().unwrap_or(0.0);
            report.gate(&format!("{case}: membarriers a grace period"), round2(each), most);
        }
        for (case, what) in [("srcu", "a synchronize alone"), ("wait-all", "all 8 domains")] {
            let calls = self.syscalls.get(case).copied().unwrap_or(f64::NAN);
            report.gate(&format!("{case}: system calls, {what}"), round2(calls), 1.0);
        }
        let srcu = |setting| self.of("srcu", setting);
        let most = Bound::Most(0.6);
        report.judge("srcu: idle, eight threads parked, us", srcu("parked"), most, Kind::Cpu);
        let most = Bound::Most(0.5);
        let ratio = srcu("busy") / self.of("urcu-memb", "busy");
        report.judge("srcu / urcu-memb, with a parallel reader", ratio, most, Kind::Wall);
        for case in ["srcu", "expedited"] {
            let what = format!("{case}: return after the last reader left, us");
            report.judge(&what, self.of(case, "leave"), Bound::Most(12.0), Kind::Wall);
        }
        for setting in ["busy", "held"] {
            let ratios = self.wait_all.iter().filter(|((of, _), _)| *of == setting);
            let ratios = ratios.map(|(_, rounds)| median(&rounds.all) / rounds.slowest());
            let worst = ratios.fold(f64::NAN, f64::max);
            let what = format!("wait_all, {setting}: / the slowest alone, worst of 1, 2, 4 and 8");
            report.judge(&what, worst, Bound::Most(1.2), Kind::Wall);
        }
    }
}
