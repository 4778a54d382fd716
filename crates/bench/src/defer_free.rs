//! `defer-free`: what it costs, in memory and time, to free what was unpublished.
//!
//! | setting | producers | objects | readers |
//! |---|---|---|---|
//! | `rcuscale` | 2 | 24 bytes, 1,000 loops of 8,000 each | one, in sections of 5 ms |
//! | `rcuscale-16` | 16 | likewise, as many in all | the same |
//! | `steady` | 16 | 24 bytes, 2 million a second in all | two, likewise |
//! | `flood` | 2 | 64 bytes | none |
//! | `flood-readers` | 2 | 64 bytes | three, in sections of 10 ms that overlap; cap of 44 MB, kept by waiting |
//! | `stuck` | 2 | 64 bytes | one that stays for a second; cap of 64 MB, kept by waiting |
//!
//! The source of the first is the kernel's rcuscale with `kfree_rcu_test` (10,000 loops, 16 threads, 64
//! CPUs, all callbacks offloaded): 2.7 to 5.1 GB before, 72 to 91 MB after. What came before piles up as long as
//! the run lasts, what came after does not: their ratio grows with `--loops`. Variants: `peers::defer_free`.
//! Each run is a process of its own. Any knob that is set replaces that of the chosen settings (`rcuscale` if
//! none is), and then figures are printed and nothing is judged. rcuscale's `kfree_by_call_rcu` is
//! `--variant call`, its `kfree_mult` `--mult`.
//!
//! `residency` is the time from unpublishing an object to freeing it, of one object in 256, on average: in ms,
//! by the mean time between the ends of two grace periods (the source's), and `counted`: how many grace
//! periods ended meanwhile. The last is what is gated: time counts what the scheduler does to sixteen threads
//! on two CPUs, and most objects are retired during the longest grace periods. (Of two grace periods back to
//! back an object sees two ends, though it waits for one and a half.) `footprint` is rcuscale's formula: a
//! running mean of the memory in use at each quarter of the run.

mod settings;

use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::median;
use crate::harness::worker::Worker;
use crate::peers::urcu;
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
pub(crate) use settings::DeferFree;
use settings::{AFTER, BEFORE, CAP, OPEN, Setting};
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
    counted_gps: Option<f64>,
    counted_peak_gps: Option<f64>,
}

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
    counted: f64,
    most_counted: f64,
}

impl Answer {
    fn new(objects: u64, numbers: &[u64]) -> Result<Self> {
        let &[
            took,
            cpu,
            periods,
            peak,
            mean,
            footprint,
            age,
            oldest,
            held,
            counted,
            most_counted,
            sampled,
        ] = numbers
        else {
            bail!("a run answers {numbers:?}")
        };
        let (ms, mb) = (|ns: u64| ns as f64 / 1e6, |kib: u64| kib as f64 * 1024.0 / 1e6);
        let seconds = took as f64 / 1e9;
        let none = if periods == 0 { f64::NAN } else { 0.0 };
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
            counted: counted as f64 / sampled.max(1) as f64 + none,
            most_counted: most_counted as f64 + none,
        })
    }

    /// So many ms in grace periods.
    fn in_periods(&self, ms: f64) -> f64 {
        if self.periods == 0.0 { f64::NAN } else { ms * self.periods / (self.seconds * 1000.0) }
    }
}

type Key = (&'static str, &'static str);

struct Bench {
    settings: Vec<Setting>,
    answers: BTreeMap<Key, Vec<Answer>>,
}

/// Runs it.
pub(crate) fn run(what: &DeferFree, report: &mut Report) -> Result<()> {
    let options = &what.options;
    let settings = what.settings()?;
    report.parameter("offload", what.offload());
    let reps = options.reps().min(if options.small { 1 } else { 3 });
    for setting in &settings {
        report.parameter(setting.name, &setting.text(options));
    }
    let runs = reps as usize * settings.iter().map(|s| s.variants.len()).sum::<usize>();
    let mut bench = Bench { settings: Vec::new(), answers: BTreeMap::new() };
    let mut done = 0;
    for _ in 0..reps {
        for setting in &settings {
            for variant in &setting.variants {
                done += 1;
                report.progress(&format!("{done}/{runs} {} {variant}", setting.name));
                bench.once(setting, variant, what)?;
            }
        }
    }
    report.progress("");
    bench.settings = settings;
    bench.tell(report)?;
    if what.is_plain() {
        bench.gate(report);
        bench.judge(report);
    }
    Ok(())
}

impl Bench {
    /// One run in a process of its own.
    fn once(&mut self, setting: &Setting, variant: &'static str, what: &DeferFree) -> Result<()> {
        let mut worker = if variant == "call-rcu" {
            match urcu::start() {
                Ok(Ok(worker)) => worker,
                // Not installed.
                _ => return Ok(()),
            }
        } else {
            Worker::start("defer-free", &[])?.map_err(|why| anyhow!("defer-free: {why}"))?
        };
        let case = format!("{variant}-{}", setting.bytes);
        if !worker.has(&case) {
            // liburcu's program has two sizes.
            return Ok(());
        }
        let numbers = setting.numbers(&what.options);
        let answer = worker.call(&case, &numbers).with_context(|| setting.name.to_owned())?;
        let objects = setting.each(&what.options) * setting.producers;
        let answer = Answer::new(objects, &answer)?;
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
            "counted",
            "peak",
        ];
        let mut table = Table::new(&head);
        for setting in &self.settings {
            for variant in &setting.variants {
                let key = (setting.name, *variant);
                if self.answers.contains_key(&key) {
                    self.tell_one(key, &mut table, report)?;
                }
            }
        }
        report.say(&format!("\n{}", table.text()));
        Ok(())
    }

    fn tell_one(&self, key: Key, table: &mut Table, report: &mut Report) -> Result<()> {
        let of = |what: fn(&Answer) -> f64| self.of(key, what);
        let residency = of(|a| a.in_periods(a.age_ms));
        let oldest = of(|a| a.in_periods(a.oldest_ms));
        let (setting, variant) = key;
        table.row(vec![
            setting.to_owned(),
            variant.to_owned(),
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
            number(of(|a| a.counted), 2),
            number(of(|a| a.most_counted), 0),
        ]);
        report.line(&Line {
            bench: "defer-free",
            setting,
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
            counted_gps: rounded(of(|a| a.counted)),
            counted_peak_gps: rounded(of(|a| a.most_counted)),
        })
    }

    /// What is counted.
    fn gate(&self, report: &mut Report) {
        for (&(setting, variant), answers) in &self.answers {
            if !AFTER.contains(&variant) || answers.is_empty() {
                continue;
            }
            let key = (setting, variant);
            // Sixteen full blocks of a CPU ask for one, or a tick of the worker's (KF-09): with some 250
            // objects to a block, one for four thousand, and four times that for ticks and the cap.
            let objects = self.of(key, |a| a.frees * a.seconds);
            let periods = self.of(key, |a| a.periods);
            report.gate(
                &format!("{setting}, {variant}: grace periods for 1000 objects"),
                periods * 1000.0 / objects.max(1.0),
                1.0,
            );
            if setting == "stuck" {
                let held = self.of(key, |a| a.held);
                report.gate(
                    &format!("stuck, {variant}: bytes held beyond the cap"),
                    (held - CAP as f64).max(0.0),
                    OPEN as f64,
                );
            }
            if matches!(setting, "rcuscale" | "steady") {
                // KF-13. (Sixteen that never pause on two CPUs measure the scheduler: judged only.)
                report.gate(
                    &format!("{setting}, {variant}: grace periods that an object waits"),
                    self.of(key, |a| a.counted),
                    4.0,
                );
            }
        }
    }

    /// What is timed.
    fn judge(&self, report: &mut Report) {
        let mut judge = |setting: &'static str, what: &str, value: f64, bound: Bound| {
            // Only what was run.
            if !value.is_nan() {
                report.judge(&format!("{setting}, {what}"), value, bound, Kind::Wall);
            }
        };
        for variant in AFTER {
            for setting in ["rcuscale", "rcuscale-16", "steady"] {
                let key = (setting, variant);
                let of = |what: fn(&Answer) -> f64| self.of(key, what);
                let mean = of(|a| a.in_periods(a.age_ms));
                judge(
                    setting,
                    &format!("{variant}: residency in grace periods"),
                    mean,
                    Bound::Most(4.0),
                );
                let most = of(|a| a.most_counted);
                judge(setting, &format!("{variant}: the longest, counted"), most, Bound::Most(6.0));
            }
            let key = ("rcuscale", variant);
            let before = ("rcuscale", BEFORE);
            let memory = self.of(before, |a| a.footprint_mb) / self.of(key, |a| a.footprint_mb);
            let what = format!("footprint of {BEFORE} / {variant}");
            judge("rcuscale", &what, memory, Bound::Least(10.0));
            let time = self.of(key, |a| a.seconds) / self.of(before, |a| a.seconds);
            judge("rcuscale", &format!("time of {variant} / {BEFORE}"), time, Bound::Most(1.05));
            for (setting, frees, mb) in [("flood", 40.0, 4.0), ("flood-readers", 30.0, 48.0)] {
                let key = (setting, variant);
                let of = |what: fn(&Answer) -> f64| self.of(key, what);
                let [rate, memory] = [of(|a| a.frees) / 1e6, of(|a| a.peak_mb)];
                judge(setting, &format!("{variant}: M frees/s"), rate, Bound::Least(frees));
                judge(setting, &format!("{variant}: MB"), memory, Bound::Most(mb));
            }
            let memory = self.of(("stuck", variant), |a| a.peak_mb);
            judge("stuck", &format!("{variant}: MB"), memory, Bound::Most(64.0));
        }
    }
}
