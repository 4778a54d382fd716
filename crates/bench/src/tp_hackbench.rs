//! `tp-hackbench`: what it costs a busy program that its tracepoints may be hit where RCU does not
//! look.
//!
//! The source is the kernel's move of its irq tracepoints to SRCU: events fired from idle CPUs had
//! to notify RCU around each (`rcu_irq_enter`, `rcu_irq_exit`), and hackbench took 3.451 s for 3.048 s
//! without tracepoints (x 1.132), with SRCU 3.020 s (x 0.991, noise). `hackbench -g 4 -f 2 -l 3000`,
//! 30 runs, one CPU.
//!
//! Here: the same hackbench, in threads and in processes, on one CPU; around each message events of
//! locks that are taken and given back. Their consumer, a stand-in for lockdep, is called in every
//! variant, so that they differ only in how it is reached:
//!
//! | variant | the consumer is |
//! |---|---|
//! | none | called |
//! | disabled | called, beside a tracepoint of the product that is switched off |
//! | rcu-notify | a probe; the thread is offline in QSBR, and online for the event |
//! | srcu-classic | a probe, under SRCU with full barriers in its readers |
//! | srcu-fast | a probe, under SRCU |
//! | memb | a probe, under the reader of liburcu's default flavour |
//! | owlet | a probe of the product's own tracepoint |
//!
//! How many events a message has decides every ratio. Unless it is given, it is chosen such that
//! rcu-notify costs what it cost in the source; the other variants' ratios are then comparable.

use crate::Options;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::{deviation, mean, median};
use crate::harness::step::{self, Counts};
use crate::harness::worker::Worker;
use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;

/// hackbench's options and ours.
#[derive(Args, Clone, Debug)]
pub(crate) struct Hackbench {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Groups
    #[arg(short, long, default_value_t = 4)]
    groups: u32,
    /// Senders in a group, and as many receivers
    #[arg(short, long, default_value_t = 2)]
    fds: u32,
    /// Messages from each sender to each receiver of its group [default: 3000, with --small 50]
    #[arg(short, long)]
    loops: Option<u32>,
    /// Events a message, an even number [default: what makes rcu-notify / none that of the source;
    /// with --small 20]
    #[arg(short, long)]
    events: Option<u32>,
    /// Rounds of the consumer's hash: what a probe costs
    #[arg(long, default_value_t = 4)]
    probe: u32,
    /// Use all CPUs instead of one
    #[arg(long)]
    unpinned: bool,
}

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    mode: &'static str,
    variant: &'static str,
    events_per_message: u64,
    cpu_s_mean: Option<f64>,
    cpu_s_median: Option<f64>,
    cpu_s_sd: Option<f64>,
    wall_s_median: Option<f64>,
    ratio_to_none: Option<f64>,
    event_ns: Option<f64>,
    event_instructions: Option<f64>,
}

const NONE: &str = "none";
const NOTIFY: &str = "rcu-notify";
const FAST: &str = "srcu-fast";
const VARIANTS: [&str; 7] = [NONE, "disabled", NOTIFY, "srcu-classic", FAST, "memb", "owlet"];
const MODES: [&str; 2] = ["threads", "processes"];
/// rcu-notify over none in the source: 3.451 s for 3.048 s.
const SOURCE: f64 = 1.132;
/// Events a message where they are not calibrated.
const EVENTS: u64 = 20;
/// Events of the loops.
const LOOP: u64 = 200_000;

/// Runs it.
pub(crate) fn run(hackbench: &Hackbench, report: &mut Report) -> Result<()> {
    let options = &hackbench.options;
    let loops = u64::from(hackbench.loops.unwrap_or(if options.small { 50 } else { 3000 }));
    let messages = u64::from(hackbench.groups) * u64::from(hackbench.fds).pow(2) * loops;
    let (groups, fds) = (hackbench.groups, hackbench.fds);
    report.parameter("hackbench", &format!("-g {groups} -f {fds} -l {loops}: {messages} messages"));
    report.parameter("CPUs used", if hackbench.unpinned { "all" } else { "one" });
    report.parameter("probe", &format!("{} rounds of a hash", hackbench.probe));
    let worker = Worker::start("hackbench", &[])?.map_err(|why| anyhow!(why))?;
    let mut bench = Bench {
        worker,
        hackbench,
        loops,
        messages,
        runs: BTreeMap::new(),
        event_ns: BTreeMap::new(),
        counts: BTreeMap::new(),
        wrong: 0,
    };
    bench.count()?;
    let mut events = BTreeMap::new();
    for mode in MODES {
        let chosen = match hackbench.events {
            Some(events) => u64::from(events),
            None if options.small => EVENTS,
            None => bench.calibrate(mode)?,
        };
        ensure!(chosen % 2 == 0, "{chosen} events a message: not an even number");
        report.parameter("events", &format!("{chosen} a message in {mode}"));
        events.insert(mode, chosen);
    }
    for _ in 0..options.reps() {
        for variant in VARIANTS {
            let run = bench.worker.run(&format!("{variant}-event"), 1, options.size(LOOP, 1000))?;
            let ns = run.cpu_ns() / options.size(LOOP, 1000) as f64;
            bench.event_ns.entry(variant).or_default().push(ns);
        }
        for mode in MODES {
            let events = events.get(mode).copied().unwrap_or(EVENTS);
            for variant in VARIANTS {
                let run = bench.once(mode, variant, events)?;
                bench.runs.entry((mode, variant)).or_default().push(run);
            }
        }
    }
    bench.tell(&events, report)?;
    bench.judge(report);
    Ok(())
}

/// CPU and wall seconds.
type Seconds = [f64; 2];

struct Bench<'a> {
    worker: Worker,
    hackbench: &'a Hackbench,
    loops: u64,
    messages: u64,
    runs: BTreeMap<(&'static str, &'static str), Vec<Seconds>>,
    event_ns: BTreeMap<&'static str, Vec<f64>>,
    counts: BTreeMap<&'static str, Counts>,
    /// Messages and events missing, and violations.
    wrong: u64,
}

impl Bench<'_> {
    /// Instructions of an event, before anything is timed.
    fn count(&mut self) -> Result<()> {
        for variant in VARIANTS {
            let counts = step::count(&mut self.worker, &format!("{variant}-event"), 16)?;
            self.counts.insert(variant, counts);
        }
        Ok(())
    }

    fn once(&mut self, mode: &str, variant: &str, events: u64) -> Result<Seconds> {
        let processes = u64::from(mode == "processes");
        let (groups, fds) = (u64::from(self.hackbench.groups), u64::from(self.hackbench.fds));
        let (probe, pinned) =
            (u64::from(self.hackbench.probe), u64::from(!self.hackbench.unpinned));
        let numbers = [processes, groups, fds, self.loops, events, probe, pinned];
        let answer = self.worker.call(variant, &numbers)?;
        let &[cpu, wall, messages, seen, violations] = answer.as_slice() else {
            bail!("it says {answer:?}")
        };
        self.wrong +=
            self.messages.abs_diff(messages) + (self.messages * events).abs_diff(seen) + violations;
        Ok([cpu as f64 / 1e9, wall as f64 / 1e9])
    }

    /// The number of events a message at which rcu-notify over none is that of the source: with b the
    /// time of a message without events, c that of an event of none, d that which rcu-notify adds,
    /// (b + E (c + d)) / (b + E c) = [`SOURCE`].
    fn calibrate(&mut self, mode: &'static str) -> Result<u64> {
        let events = 10 * EVENTS;
        let mut seconds = [const { Vec::new() }; 3];
        for _ in 0..self.hackbench.options.reps().min(5) {
            let each = [(NONE, 0), (NONE, events), (NOTIFY, events)];
            for (seconds, (variant, events)) in seconds.iter_mut().zip(each) {
                seconds.push(self.once(mode, variant, events)?[0]);
            }
        }
        let [bare, none, notify] = seconds.map(|seconds| median(&seconds));
        let (c, d) = ((none - bare) / events as f64, (notify - none) / events as f64);
        let best = (SOURCE - 1.0) * bare / (d - (SOURCE - 1.0) * c);
        ensure!(best.is_finite() && best > 0.0, "rcu-notify costs nothing here: give --events");
        Ok(2 * (best / 2.0).round().clamp(1.0, 500.0) as u64)
    }

    fn cpu(&self, mode: &'static str, variant: &'static str) -> Vec<f64> {
        let runs = self.runs.get(&(mode, variant));
        runs.into_iter().flatten().map(|seconds| seconds[0]).collect()
    }

    /// Of means, as in the source.
    fn ratio(&self, mode: &'static str, variant: &'static str) -> f64 {
        mean(&self.cpu(mode, variant)) / mean(&self.cpu(mode, NONE))
    }

    /// An event's nanoseconds more than the checker's.
    fn event(&self, variant: &'static str) -> f64 {
        let of = |variant| self.event_ns.get(variant).map_or(f64::NAN, |ns| median(ns));
        of(variant) - of(NONE)
    }

    fn tell(&self, events: &BTreeMap<&str, u64>, report: &mut Report) -> Result<()> {
        let mut table = Table::new(&[
            "mode", "variant", "mean s", "median s", "sd", "/ none", "wall s", "event ns", "instr.",
        ]);
        for mode in MODES {
            for variant in VARIANTS {
                let cpu = self.cpu(mode, variant);
                let runs = self.runs.get(&(mode, variant)).into_iter().flatten();
                let wall = median(&runs.map(|seconds| seconds[1]).collect::<Vec<_>>());
                let (ratio, event) = (self.ratio(mode, variant), self.event(variant));
                let instructions = self.instructions(variant);
                table.row(vec![
                    mode.to_owned(),
                    variant.to_owned(),
                    number(mean(&cpu), 4),
                    number(median(&cpu), 4),
                    number(deviation(&cpu), 4),
                    number(ratio, 3),
                    number(wall, 4),
                    number(event, 2),
                    number(instructions, 1),
                ]);
                report.line(&Line {
                    bench: "tp-hackbench",
                    mode,
                    variant,
                    events_per_message: events.get(mode).copied().unwrap_or(0),
                    cpu_s_mean: rounded(mean(&cpu)),
                    cpu_s_median: rounded(median(&cpu)),
                    cpu_s_sd: rounded(deviation(&cpu)),
                    wall_s_median: rounded(wall),
                    ratio_to_none: rounded(ratio),
                    event_ns: rounded(event),
                    event_instructions: rounded(instructions),
                })?;
            }
        }
        report.say(
            "\nCPU seconds of all senders and receivers; event: a loop of nothing else, less none",
        );
        report.say(&table.text());
        Ok(())
    }

    /// An event's instructions more than the checker's.
    fn instructions(&self, variant: &'static str) -> f64 {
        let of = |variant| self.counts.get(variant).map_or(f64::NAN, |c: &Counts| c.instructions);
        of(variant) - of(NONE)
    }

    fn judge(&self, report: &mut Report) {
        report.gate("messages and events missing, violations", self.wrong as f64, 0.0);
        report.gate("disabled: instructions an event", self.instructions("disabled"), 3.0);
        for variant in ["disabled", FAST, "owlet"] {
            let locked = self.counts.get(variant).map_or(f64::NAN, |counts| counts.locked);
            report.gate_locked(&format!("{variant}: locked instructions an event"), locked);
        }
        for mode in MODES {
            let notify = self.ratio(mode, NOTIFY);
            let what = format!("{mode}: rcu-notify / none");
            report.judge(&what, notify, Bound::Least(1.10), Kind::Cpu);
            report.judge(&what, notify, Bound::Most(1.15), Kind::Cpu);
            for (variant, most) in [(FAST, 1.01), ("disabled", 1.002)] {
                let what = format!("{mode}: {variant} / none");
                report.judge(&what, self.ratio(mode, variant), Bound::Most(most), Kind::Cpu);
            }
        }
        let gain = self.event(NOTIFY) - self.event(FAST);
        report.judge("an event: rcu-notify - srcu-fast, ns", gain, Bound::Least(8.0), Kind::Cpu);
    }
}
