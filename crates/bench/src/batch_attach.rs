//! `batch-attach`: programs on many functions at once, or on one after the other.
//!
//! | variant | attach | detach |
//! |---|---|---|
//! | before | for each program and function: a wait for Tasks and Tasks-Trace, a list, a write, a barrier | the same |
//! | source | one wait, then all lists, one pass of writes, one barrier | the same |
//! | singly | ours, one by one: no wait | a wait each, for the flavour of the program |
//! | ours | one batch: no wait | one wait |
//! | ours-mem | the same, where text may never be writable (`PR_SET_MDWE`) | the same |
//! | uprobe-singly, uprobe-multi | the kernel's: a link each; one link | closing them |
//!
//! Part `short`: programs that only count. Part `sleeping`: sleepable programs that sleep 2 ms, called by eight
//! threads. `--gp-ms` is how long the Tasks-like grace period of `before` and `source` is; 100 is the
//! kernel's. Rows that would take minutes are left out and said so.
//!
//! Counts are of one run and gate. `cycles` are those of the thread that attaches and detaches, by
//! `perf_event_open`; null, and said so, where the machine counts none, as here. `cpu_us` is its CPU time.

use crate::Options;
use crate::harness::cycles::Cycles;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::median;
use crate::harness::worker::Worker;
use crate::peers::batch::{Answer, Took, UNCOUNTED};
use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;

/// How to run it.
#[derive(Args, Clone, Debug)]
pub(crate) struct BatchAttach {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Length of the Tasks-like grace period (the kernel's: 100) [default: 10, with --small 1]
    #[arg(long, value_name = "MS")]
    gp_ms: Option<f64>,
    /// Threads that call the functions meanwhile, in the part `short`
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: u64,
}

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    part: &'static str,
    variant: &'static str,
    n: u64,
    programs: u64,
    gp_ms: f64,
    attach_ms: Option<f64>,
    detach_ms: Option<f64>,
    first_hit_us: Option<f64>,
    grace_periods: Option<u64>,
    detach_grace_periods: Option<u64>,
    membarriers: Option<u64>,
    detach_membarriers: Option<u64>,
    mprotects: Option<u64>,
    writes: Option<u64>,
    cpu_us: Option<f64>,
    detach_cpu_us: Option<f64>,
    cycles: Option<f64>,
    detach_cycles: Option<f64>,
}

const SIZES: [u64; 5] = [1, 16, 128, 1024, 10_000];
const PROGRAMS: [u64; 2] = [1, 2];
/// Of the verdicts: what the targets call a thousand.
const K: u64 = 1024;
const SHORT: &str = "short";
const SLEEPING: &str = "sleeping";
/// Threads of the part `sleeping`, and microseconds that its programs sleep.
const SLEEPERS: u64 = 8;
const SLEEP_US: u64 = 2000;
/// Links that the kernel is given one by one.
const UPROBES_SINGLY: u64 = 16;

/// What a row is about: part, variant, functions, programs.
type Key = (&'static str, &'static str, u64, u64);

struct Bench<'a> {
    workers: BTreeMap<&'static str, Worker>,
    rows: BTreeMap<Key, Vec<Answer>>,
    order: Vec<Key>,
    gp_us: u64,
    ask: &'a BatchAttach,
}

/// Runs it.
pub(crate) fn run(ask: &BatchAttach, report: &mut Report) -> Result<()> {
    let small = ask.options.small;
    let gp_us = (ask.gp_ms.unwrap_or(if small { 1.0 } else { 10.0 }) * 1000.0) as u64;
    report.parameter("grace period", &format!("{gp_us} us, Tasks-like (the kernel's: 100000)"));
    report.parameter(
        "callers",
        &format!("{} threads; sleeping: {SLEEPERS}, {SLEEP_US} us a call", ask.threads),
    );
    match Cycles::open() {
        Ok(counted) => report.parameter("cycles", &counted.to_string()),
        Err(error) => report.parameter("cycles", &format!("not counted: {error}")),
    }
    let mut workers = BTreeMap::new();
    for peer in ["batch", "batch-mdwe", "uprobe-batch"] {
        match Worker::start(peer, &[]).unwrap_or_else(|error| Err(format!("{error:#}"))) {
            Ok(worker) => _ = workers.insert(peer, worker),
            Err(why) if peer == "batch" => return Err(anyhow!("{peer}: {why}")),
            Err(why) => report.say(&format!("peer absent  {peer}: {why}")),
        }
    }
    let (rows, order) = (BTreeMap::new(), Vec::new());
    let mut bench = Bench { workers, rows, order, gp_us, ask };
    for n in SIZES {
        for programs in if small { &PROGRAMS[..1] } else { &PROGRAMS } {
            for variant in ["before", "source", "singly", "ours", "ours-mem"] {
                bench.row((SHORT, variant, n, *programs), report)?;
            }
        }
        bench.kernel(n, report)?;
    }
    for n in if small { &[128][..] } else { &[128, K] } {
        for variant in ["singly", "ours"] {
            bench.row((SLEEPING, variant, *n, 1), report)?;
        }
    }
    bench.tell(report)?;
    bench.gate(report);
    bench.judge(report);
    Ok(())
}

impl Bench<'_> {
    /// About how long one run takes, from the grace periods it waits for.
    fn seconds(&self, (part, variant, n, programs): Key) -> f64 {
        let each = match (part, variant) {
            // The last sleeper leaves late, on few CPUs.
            (SLEEPING, "singly") => 2 * SLEEP_US,
            (SHORT, "before") => 2 * self.gp_us,
            (SHORT, "singly") => 100,
            _ => return 0.0,
        };
        (each * n * programs) as f64 / 1e6
    }

    fn row(&mut self, key: Key, report: &mut Report) -> Result<()> {
        let (part, variant, n, programs) = key;
        let peer = if variant == "ours-mem" { "batch-mdwe" } else { "batch" };
        let (seconds, small) = (self.seconds(key), self.ask.options.small);
        let (most, few) = if small { (0.5, 0.1) } else { (60.0, 1.0) };
        if seconds > most {
            report.say(&format!("left out     {part} {variant}, {n} functions: {seconds:.0} s"));
            return Ok(());
        }
        let Some(worker) = self.workers.get_mut(peer) else { return Ok(()) };
        let sleeping = u64::from(part == SLEEPING);
        let threads = if sleeping == 1 { SLEEPERS } else { self.ask.threads };
        let reps = if seconds > few { 1 } else { self.ask.options.reps() };
        for _ in 0..reps {
            let answer = worker.call(variant, &[n, programs, sleeping, self.gp_us, threads])?;
            self.rows.entry(key).or_default().push(Answer::of(&answer)?);
        }
        self.order.push(key);
        Ok(())
    }

    fn kernel(&mut self, n: u64, report: &mut Report) -> Result<()> {
        let small = self.ask.options.small;
        let Some(worker) = self.workers.get_mut("uprobe-batch") else { return Ok(()) };
        for (variant, most) in [("uprobe-singly", UPROBES_SINGLY), ("uprobe-multi", u64::MAX)] {
            // A detach takes the kernel a twentieth of a second.
            if n > most || (small && n != 1 && n != K) {
                continue;
            }
            let reps = if small { 1 } else { self.ask.options.reps().min(3) };
            for _ in 0..reps {
                let answer = worker.call(variant, &[n]);
                let Ok(&[attach, detach]) = answer.as_deref() else {
                    report.say(&format!("left out     {variant}, {n} functions: {answer:?}"));
                    self.workers.remove("uprobe-batch");
                    return Ok(());
                };
                let took = |wall_ns| Took { wall_ns, ..Took::default() };
                let answer =
                    Answer { attach: took(attach), detach: took(detach), ..Answer::default() };
                self.rows.entry((SHORT, variant, n, 1)).or_default().push(answer);
            }
            self.order.push((SHORT, variant, n, 1));
        }
        Ok(())
    }

    /// The median of a row.
    fn of(&self, key: Key, f: impl Fn(&Answer) -> u64) -> f64 {
        let rows = self.rows.get(&key).map_or(&[][..], Vec::as_slice);
        median(&rows.iter().map(|answer| f(answer) as f64).collect::<Vec<_>>())
    }

    /// The median of a row's cycles, if they were counted.
    fn cycles(&self, key: Key, f: fn(&Answer) -> u64) -> f64 {
        let counted =
            self.rows.get(&key).is_some_and(|rows| rows.iter().all(|a| f(a) != UNCOUNTED));
        if counted { self.of(key, f) } else { f64::NAN }
    }

    /// The largest of a row.
    fn most(&self, key: Key, f: impl Fn(&Answer) -> u64) -> Option<u64> {
        self.rows.get(&key)?.iter().map(f).max()
    }

    fn tell(&self, report: &mut Report) -> Result<()> {
        let head = [
            "part",
            "variant",
            "n",
            "programs",
            "attach_ms",
            "detach_ms",
            "first_hit_us",
            "gps",
            "gps_detach",
            "membarriers",
            "mb_detach",
            "mprotects",
            "writes",
            "cpu_us",
            "cpu_us_detach",
        ];
        let mut table = Table::new(&head);
        for &key in &self.order {
            let (part, variant, n, programs) = key;
            let kernel = variant.starts_with("uprobe");
            let ours = |value: f64| if kernel { f64::NAN } else { value };
            let count = |f: fn(&Answer) -> u64| self.most(key, f).filter(|_| !kernel);
            let shown = |count: Option<u64>| count.map_or("-".to_owned(), |n| n.to_string());
            let line = Line {
                bench: "batch-attach",
                part,
                variant,
                n,
                programs,
                gp_ms: self.gp_us as f64 / 1000.0,
                attach_ms: rounded(self.of(key, |a| a.attach.wall_ns) / 1e6),
                detach_ms: rounded(self.of(key, |a| a.detach.wall_ns) / 1e6),
                first_hit_us: rounded(ours(self.of(key, |a| a.first_hit_ns) / 1e3)),
                grace_periods: count(|a| a.attach.grace_periods),
                detach_grace_periods: count(|a| a.detach.grace_periods),
                membarriers: count(|a| a.attach.membarriers),
                detach_membarriers: count(|a| a.detach.membarriers),
                mprotects: count(|a| a.attach.mprotects),
                writes: count(|a| a.attach.writes),
                cpu_us: rounded(ours(self.of(key, |a| a.attach.cpu_ns) / 1e3)),
                detach_cpu_us: rounded(ours(self.of(key, |a| a.detach.cpu_ns) / 1e3)),
                cycles: rounded(ours(self.cycles(key, |a| a.attach.cycles))),
                detach_cycles: rounded(ours(self.cycles(key, |a| a.detach.cycles))),
            };
            let float = |value: Option<f64>, n| number(value.unwrap_or(f64::NAN), n);
            table.row(vec![
                part.to_owned(),
                variant.to_owned(),
                n.to_string(),
                programs.to_string(),
                float(line.attach_ms, 3),
                float(line.detach_ms, 3),
                float(line.first_hit_us, 1),
                shown(line.grace_periods),
                shown(line.detach_grace_periods),
                shown(line.membarriers),
                shown(line.detach_membarriers),
                shown(line.mprotects),
                shown(line.writes),
                float(line.cpu_us, 1),
                float(line.detach_cpu_us, 1),
            ]);
            report.line(&line)?;
        }
        report.say(&format!("\n{}", table.text()));
        Ok(())
    }

    /// The worst of the rows of `variant`.
    fn worst(&self, variant: &str, f: fn(&Answer) -> u64) -> f64 {
        let rows = self.rows.iter().filter(|(key, _)| key.1 == variant);
        rows.flat_map(|(_, answers)| answers.iter().map(f)).max().map_or(f64::NAN, |n| n as f64)
    }

    fn gate(&self, report: &mut Report) {
        for variant in ["ours", "ours-mem"] {
            if self.worst(variant, |_| 0).is_nan() {
                continue;
            }
            let mut gate = |what: &str, f, most| {
                report.gate(&format!("{variant}: {what}"), self.worst(variant, f), most);
            };
            gate("grace periods of an attach", |a| a.attach.grace_periods, 0.0);
            gate("membarriers of an attach", |a| a.attach.membarriers, 1.0);
            gate("grace periods of a detach", |a| a.detach.grace_periods, 1.0);
            // The barrier of the sites, and the grace period's.
            gate("membarriers of a detach", |a| a.detach.membarriers, 2.0);
            gate("wrong results", |a| a.wrong, 0.0);
        }
        // The functions lie together: one window, whatever their number.
        report.gate("ours: mprotect calls", self.worst("ours", |a| a.attach.mprotects), 2.0);
        let unbatched = self.most((SHORT, "before", 16, 1), |a| a.attach.grace_periods);
        let short = 16 - unbatched.unwrap_or(0).min(16);
        report.gate("before, 16 functions: grace periods short of 16", short as f64, 0.0);
        let source = self.worst("source", |a| a.attach.grace_periods);
        report.gate("source: grace periods of an attach", source, 1.0);
    }

    fn judge(&self, report: &mut Report) {
        let ms = |key, f: fn(&Answer) -> u64| self.of(key, f) / 1e6;
        let attach = |part, variant, n| ms((part, variant, n, 1), |a| a.attach.wall_ns);
        let detach = |part, variant, n| ms((part, variant, n, 1), |a| a.detach.wall_ns);
        let both = |variant, n| attach(SHORT, variant, n) + detach(SHORT, variant, n);
        let cpu = |variant, n| {
            let key = (SHORT, variant, n, 1);
            self.of(key, |a| a.attach.cpu_ns) + self.of(key, |a| a.detach.cpu_ns)
        };
        let most = [
            ("attach 1,024 in a window, ms", attach(SHORT, "ours", K), 0.2),
            ("attach 1,024 through /proc/self/mem, ms", attach(SHORT, "ours-mem", K), 2.0),
            ("detach 1,024 with sleeping programs, ms", detach(SLEEPING, "ours", K), 40.0),
        ];
        for (what, value, bound) in most {
            report.judge(what, value, Bound::Most(bound), Kind::Wall);
        }
        let gp = self.gp_us as f64 / 1000.0;
        let ratios = [
            ("one by one / batch, 1,024", both("singly", K) / both("ours", K), 50.0),
            (
                "the same, detach with sleeping programs",
                detach(SLEEPING, "singly", K) / detach(SLEEPING, "ours", K),
                50.0,
            ),
            (
                &*format!("before / ours, 128, grace period {gp} ms"),
                both("before", 128) / both("ours", 128),
                10.0,
            ),
        ];
        for (what, value, bound) in ratios {
            report.judge(what, value, Bound::Least(bound), Kind::Wall);
        }
        let n = if self.rows.contains_key(&(SHORT, "before", K, 1)) { K } else { 128 };
        let what = format!("CPU of one by one without waits / before, {n}");
        report.judge(&what, cpu("singly", n) / cpu("before", n), Bound::Most(1.02), Kind::Cpu);
    }
}
