//! `defer-free`: what it costs, in memory and time, to free what was unpublished.
//!
//! | setting | producers | objects | readers |
//! |---|---|---|---|
//! | `rcuscale` | 2 | 24 bytes, 500 loops of 8,000 each | one, in sections of 5 ms |
//! | `rcuscale-16` | 16 | likewise, as many in all | the same |
//! | `flood` | 2 | 64 bytes | none |
//! | `flood-readers` | 2 | 64 bytes | three, in sections of 10 ms that overlap; cap of 46 MB, kept by waiting |
//! | `stuck` | 2 | 64 bytes | one that stays for a second; cap of 64 MB, kept by waiting |
//!
//! The source of the first is the kernel's rcuscale with `kfree_rcu_test` (10,000 loops, 16 threads, 64
//! CPUs, all callbacks offloaded): 2.7 to 5.1 GB before, 72 to 91 MB after. Variants: `peers::defer_free`.
//! Each run is a process of its own.
//!
//! `residency` is the mean time from unpublishing an object to freeing it, of one object in 256, and in
//! grace periods: by the mean time between the ends of two. `footprint` is rcuscale's formula: a running
//! mean of the memory in use at each quarter of the run.

use crate::Options;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::median;
use crate::harness::worker::Worker;
use crate::peers::urcu;
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Line<'a> {
    bench: &'static str,
    setting: &'a str,
    variant: &'a str,
    seconds: Option<f64>,
    frees_per_s: Option<f64>,
    cpu_ns: Option<f64>,
    grace_periods: Option<f64>,
    peak_rss_mb: Option<f64>,
    mean_rss_mb: Option<f64>,
    footprint_rcuscale_mb: Option<f64>,
    residency_ms: Option<f64>,
    residency_gps: Option<f64>,
    residency_peak_gps: Option<f64>,
}

/// A row of the table in the module's header.
struct Setting {
    name: &'static str,
    bytes: u64,
    producers: u64,
    /// Objects in all: large, small.
    objects: [u64; 2],
    readers: u64,
    hold_ns: u64,
    stuck_ns: u64,
    cap: u64,
    variants: &'static [&'static str],
}

const BEFORE: &str = "call-offloaded";
const AFTER: [&str; 3] = ["domain", "pool", "recycled"];
const ALL: &[&str] = &[
    BEFORE,
    "two-batches",
    "call",
    "domain",
    "pool",
    "recycled",
    "crossbeam-epoch",
    "seize",
    "call-rcu",
    "malloc",
    "floor",
];
const STUCK: &[&str] = &["domain", "pool", "recycled", "crossbeam-epoch", "seize", "call-rcu"];
/// The cap of `stuck`.
const CAP: u64 = 64_000_000;
/// What may be in blocks that are being filled: on two CPUs, of one kind.
const OPEN: u64 = 2 * (256 << 10);

const SETTINGS: &[Setting] = &[
    Setting {
        name: "rcuscale",
        bytes: 24,
        producers: 2,
        objects: [8_000_000, 800_000],
        readers: 1,
        hold_ns: 5_000_000,
        stuck_ns: 0,
        cap: 0,
        variants: ALL,
    },
    Setting {
        name: "rcuscale-16",
        bytes: 24,
        producers: 16,
        objects: [8_000_000, 800_000],
        readers: 1,
        hold_ns: 5_000_000,
        stuck_ns: 0,
        cap: 0,
        variants: &[BEFORE, "two-batches", "domain", "pool", "recycled"],
    },
    Setting {
        name: "flood",
        bytes: 64,
        producers: 2,
        objects: [20_000_000, 1_000_000],
        readers: 0,
        hold_ns: 0,
        stuck_ns: 0,
        cap: 0,
        variants: ALL,
    },
    Setting {
        name: "flood-readers",
        bytes: 64,
        producers: 2,
        objects: [20_000_000, 1_000_000],
        readers: 3,
        hold_ns: 10_000_000,
        stuck_ns: 0,
        cap: 46_000_000,
        variants: ALL,
    },
    Setting {
        name: "stuck",
        bytes: 64,
        producers: 2,
        objects: [8_000_000, 2_000_000],
        readers: 0,
        hold_ns: 0,
        stuck_ns: 1_000_000_000,
        cap: CAP,
        variants: STUCK,
    },
];

/// What a run answers.
struct Answer {
    seconds: f64,
    frees: f64,
    cpu_ns: f64,
    periods: f64,
    peak_mb: f64,
    mean_mb: f64,
    footprint_mb: f64,
    age_ms: f64,
    oldest_ms: f64,
    held: f64,
}

impl Answer {
    fn new(objects: u64, numbers: &[u64]) -> Result<Self> {
        let &[took, cpu, periods, peak, mean, footprint, age, oldest, held] = numbers else {
            bail!("a run answers {numbers:?}")
        };
        let (ms, mb) = (|ns: u64| ns as f64 / 1e6, |kib: u64| kib as f64 * 1024.0 / 1e6);
        let seconds = took as f64 / 1e9;
        Ok(Self {
            seconds,
            frees: objects as f64 / seconds,
            cpu_ns: cpu as f64 / objects as f64,
            periods: periods as f64,
            peak_mb: mb(peak),
            mean_mb: mb(mean),
            footprint_mb: mb(footprint),
            age_ms: ms(age),
            oldest_ms: ms(oldest),
            held: held as f64,
        })
    }

    /// So many ms in grace periods.
    fn in_periods(&self, ms: f64) -> f64 {
        if self.periods == 0.0 { f64::NAN } else { ms * self.periods / (self.seconds * 1000.0) }
    }
}

type Key = (&'static str, &'static str);

struct Bench {
    answers: BTreeMap<Key, Vec<Answer>>,
}

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let mut bench = Bench { answers: BTreeMap::new() };
    report.parameter("offload", "one thread, nice +10, CPU 0, 10 ms between batches");
    let large = options.size(100, 100) as f64 / 100.0;
    let reps = options.reps().min(if options.small { 1 } else { 5 });
    for setting in SETTINGS {
        let [full, small] = setting.objects;
        let objects = if options.small { small } else { full };
        let each = ((objects as f64 * large) as u64 / setting.producers).max(1);
        let what = format!("{} x {each} objects of {} bytes", setting.producers, setting.bytes);
        report.parameter(setting.name, &what);
    }
    for _ in 0..reps {
        for setting in SETTINGS {
            for variant in setting.variants {
                bench.once(setting, variant, options, large)?;
            }
        }
    }
    bench.tell(report)?;
    bench.judge(report);
    Ok(())
}

impl Bench {
    /// One run in a process of its own.
    fn once(
        &mut self,
        setting: &Setting,
        variant: &'static str,
        options: &Options,
        scale: f64,
    ) -> Result<()> {
        let worker = if variant == "call-rcu" {
            match urcu::start() {
                Ok(Ok(worker)) => worker,
                // Not installed.
                _ => return Ok(()),
            }
        } else {
            Worker::start("defer-free", &[])?.map_err(|why| anyhow!("defer-free: {why}"))?
        };
        let mut worker = worker;
        let [full, small] = setting.objects;
        let objects = if options.small { small } else { full };
        let each = ((objects as f64 * scale) as u64 / setting.producers).max(1);
        let case = format!("{variant}-{}", setting.bytes);
        let numbers = [
            setting.producers,
            each,
            setting.readers,
            setting.hold_ns,
            setting.stuck_ns,
            setting.cap,
            10_000_000,
        ];
        let answer = worker.call(&case, &numbers).with_context(|| setting.name.to_owned())?;
        let answer = Answer::new(each * setting.producers, &answer)?;
        self.answers.entry((setting.name, variant)).or_default().push(answer);
        Ok(())
    }

    fn of(&self, key: Key, what: impl Fn(&Answer) -> f64) -> f64 {
        let answers = self.answers.get(&key).map(Vec::as_slice).unwrap_or_default();
        median(&answers.iter().map(what).collect::<Vec<_>>())
    }

    fn tell(&self, report: &mut Report) -> Result<()> {
        let head = [
            "setting",
            "variant",
            "s",
            "M frees/s",
            "CPU ns",
            "GPs",
            "peak MB",
            "mean MB",
            "footprint MB",
            "residency ms",
            "GPs",
            "peak GPs",
        ];
        let mut table = Table::new(&head);
        for setting in SETTINGS {
            for variant in setting.variants {
                let key = (setting.name, *variant);
                if !self.answers.contains_key(&key) {
                    continue;
                }
                let of = |what: fn(&Answer) -> f64| self.of(key, what);
                let residency = of(|a| a.in_periods(a.age_ms));
                let oldest = of(|a| a.in_periods(a.oldest_ms));
                table.row(vec![
                    setting.name.to_owned(),
                    (*variant).to_owned(),
                    number(of(|a| a.seconds), 3),
                    number(of(|a| a.frees) / 1e6, 1),
                    number(of(|a| a.cpu_ns), 1),
                    number(of(|a| a.periods), 0),
                    number(of(|a| a.peak_mb), 1),
                    number(of(|a| a.mean_mb), 1),
                    number(of(|a| a.footprint_mb), 1),
                    number(of(|a| a.age_ms), 3),
                    number(residency, 2),
                    number(oldest, 2),
                ]);
                report.line(&Line {
                    bench: "defer-free",
                    setting: setting.name,
                    variant,
                    seconds: rounded(of(|a| a.seconds)),
                    frees_per_s: rounded(of(|a| a.frees)),
                    cpu_ns: rounded(of(|a| a.cpu_ns)),
                    grace_periods: rounded(of(|a| a.periods)),
                    peak_rss_mb: rounded(of(|a| a.peak_mb)),
                    mean_rss_mb: rounded(of(|a| a.mean_mb)),
                    footprint_rcuscale_mb: rounded(of(|a| a.footprint_mb)),
                    residency_ms: rounded(of(|a| a.age_ms)),
                    residency_gps: rounded(residency),
                    residency_peak_gps: rounded(oldest),
                })?;
            }
        }
        report.say(&format!("\n{}", table.text()));
        Ok(())
    }

    fn judge(&self, report: &mut Report) {
        for variant in AFTER {
            for setting in SETTINGS {
                let key = (setting.name, variant);
                // Sixteen full blocks of a CPU ask for one, or a tick of the worker's (KF-09): with some
                // 250 objects to a block, one for four thousand, and four times that for ticks and the cap.
                let objects = self.of(key, |a| a.frees * a.seconds);
                let periods = self.of(key, |a| a.periods);
                report.gate(
                    &format!("{}, {variant}: grace periods for 1000 objects", setting.name),
                    periods * 1000.0 / objects.max(1.0),
                    1.0,
                );
            }
            let held = self.of(("stuck", variant), |a| a.held);
            report.gate(
                &format!("stuck, {variant}: bytes held beyond the cap"),
                (held - CAP as f64).max(0.0),
                OPEN as f64,
            );
        }
        for variant in AFTER {
            let key = ("rcuscale", variant);
            let [mean, peak] = [
                self.of(key, |a| a.in_periods(a.age_ms)),
                self.of(key, |a| a.in_periods(a.oldest_ms)),
            ];
            report.judge(
                &format!("rcuscale, {variant}: residency in grace periods"),
                mean,
                Bound::Most(4.0),
                Kind::Wall,
            );
            report.judge(
                &format!("rcuscale, {variant}: the longest"),
                peak,
                Bound::Most(6.0),
                Kind::Wall,
            );
            let memory = self.of(("rcuscale", BEFORE), |a| a.footprint_mb)
                / self.of(key, |a| a.footprint_mb);
            report.judge(
                &format!("rcuscale: footprint of {BEFORE} / {variant}"),
                memory,
                Bound::Least(10.0),
                Kind::Wall,
            );
            let time = self.of(key, |a| a.seconds) / self.of(("rcuscale", BEFORE), |a| a.seconds);
            report.judge(
                &format!("rcuscale: time of {variant} / {BEFORE}"),
                time,
                Bound::Most(1.05),
                Kind::Wall,
            );
            let [flood, inside] = [("flood", variant), ("flood-readers", variant)];
            report.judge(
                &format!("flood, {variant}: M frees/s"),
                self.of(flood, |a| a.frees) / 1e6,
                Bound::Least(40.0),
                Kind::Wall,
            );
            report.judge(
                &format!("flood, {variant}: MB"),
                self.of(flood, |a| a.peak_mb),
                Bound::Most(4.0),
                Kind::Wall,
            );
            report.judge(
                &format!("flood-readers, {variant}: M frees/s"),
                self.of(inside, |a| a.frees) / 1e6,
                Bound::Least(30.0),
                Kind::Wall,
            );
            report.judge(
                &format!("flood-readers, {variant}: MB"),
                self.of(inside, |a| a.peak_mb),
                Bound::Most(48.0),
                Kind::Wall,
            );
            report.judge(
                &format!("stuck, {variant}: MB"),
                self.of(("stuck", variant), |a| a.peak_mb),
                Bound::Most(64.0),
                Kind::Wall,
            );
        }
    }
}
