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
//! | rcu-notify | a probe; the thread notifies RCU around the event as the kernel did (imitated) |
//! | qsbr-notify | a probe; the thread is offline in Owlet's QSBR, and online for the event |
//! | urcu-notify | the same with liburcu's QSBR, when it is installed |
//! | srcu-classic | a probe, under SRCU with full barriers in its readers |
//! | srcu-fast | a probe, under SRCU |
//! | memb | a probe, under the reader of liburcu's default flavour |
//! | owlet | a probe of the product's own tracepoint |
//!
//! How many events a message has decides every ratio. Unless it is given, it is chosen such that
//! rcu-notify (or what `--reference` names) costs what it cost in the source; the other variants'
//! ratios are then comparable.

use crate::Options;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::{deviation, mean, median};
use crate::harness::step::{self, Counts};
use crate::harness::worker::Worker;
use anyhow::{Context, Result, anyhow, bail};
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
    /// Events a message [default: what makes the reference / none the source's ratio; with --small 20]
    #[arg(short, long)]
    events: Option<f64>,
    /// The variant that is to cost what notifying RCU cost in the source [default: urcu-notify, and
    /// rcu-notify where liburcu is not installed]
    #[arg(long, value_parser = NOTIFIERS)]
    reference: Option<String>,
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
    events_per_message: Option<f64>,
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
const URCU_NOTIFY: &str = "urcu-notify";
const FAST: &str = "srcu-fast";
const VARIANTS: [&str; 9] =
    [NONE, "disabled", NOTIFY, "qsbr-notify", URCU_NOTIFY, "srcu-classic", FAST, "memb", "owlet"];
const NOTIFIERS: [&str; 3] = [NOTIFY, "qsbr-notify", URCU_NOTIFY];
const MODES: [&str; 2] = ["threads", "processes"];
/// rcu-notify over none in the source: 3.451 s for 3.048 s.
const SOURCE: f64 = 1.132;
/// Events a message where they are not calibrated.
const EVENTS: f64 = 20.0;
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
    let variants: Vec<_> = VARIANTS.into_iter().filter(|name| worker.has(name)).collect();
    if !worker.has(URCU_NOTIFY) {
        report.say("peer absent  urcu-notify: liburcu is not installed");
    }
    let reference = match &hackbench.reference {
        Some(name) => variants.iter().find(|variant| *variant == name).copied(),
        None => [URCU_NOTIFY, NOTIFY].into_iter().find(|name| worker.has(name)),
    };
    let reference = reference.context("the reference is absent")?;
    let mut bench = Bench {
        worker,
        variants,
        reference,
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
            Some(events) => Events::each(events),
            None if options.small => Events::each(EVENTS),
            None => bench.calibrate(mode)?,
        };
        let each = chosen.a_message();
        report.parameter("events", &format!("{each} a message in {mode}"));
        events.insert(mode, chosen);
    }
    for _ in 0..options.reps() {
        for variant in bench.variants.clone() {
            let run = bench.worker.run(&format!("{variant}-event"), 1, options.size(LOOP, 1000))?;
            let ns = run.cpu_ns() / options.size(LOOP, 1000) as f64;
            bench.event_ns.entry(variant).or_default().push(ns);
        }
        for mode in MODES {
            let events = events.get(mode).copied().unwrap_or(Events::each(EVENTS));
            for variant in bench.variants.clone() {
                let run = bench.once(mode, variant, events)?;
                bench.runs.entry((mode, variant)).or_default().push(run);
            }
        }
    }
    bench.tell(&events, report)?;
    bench.judge(report);
    Ok(())
}

/// Events in a hundred messages; whole pairs for the sender and for the receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Events(u64);

impl Events {
    /// `each` a message, as near as can be.
    fn each(each: f64) -> Self {
        Self(2 * (each * 50.0).round().clamp(1.0, 25_000.0) as u64)
    }

    fn a_message(self) -> f64 {
        self.0 as f64 / 100.0
    }

    /// How many there are when each of `members` senders, and as many receivers, has so many
    /// messages.
    fn total(self, members: u64, messages: u64) -> u64 {
        let pairs = self.0 / 2;
        let of = |pairs: u64| messages * pairs / 100 * 2;
        members * (of(pairs / 2) + of(pairs - pairs / 2))
    }
}

/// CPU and wall seconds.
type Seconds = [f64; 2];

struct Bench<'a> {
    worker: Worker,
    /// Those that are there.
    variants: Vec<&'static str>,
    reference: &'static str,
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
        for &variant in &self.variants {
            let counts = step::count(&mut self.worker, &format!("{variant}-event"), 16)?;
            self.counts.insert(variant, counts);
        }
        Ok(())
    }

    fn once(&mut self, mode: &str, variant: &str, events: Events) -> Result<Seconds> {
        let processes = u64::from(mode == "processes");
        let (groups, fds) = (u64::from(self.hackbench.groups), u64::from(self.hackbench.fds));
        let (probe, pinned) =
            (u64::from(self.hackbench.probe), u64::from(!self.hackbench.unpinned));
        let numbers = [processes, groups, fds, self.loops, events.0, probe, pinned];
        let answer = self.worker.call(variant, &numbers)?;
        let &[cpu, wall, messages, seen, violations] = answer.as_slice() else {
            bail!("it says {answer:?}")
        };
        let expected = events.total(groups * fds, self.loops * fds);
        self.wrong += self.messages.abs_diff(messages) + expected.abs_diff(seen) + violations;
        Ok([cpu as f64 / 1e9, wall as f64 / 1e9])
    }

    /// The number of events a message at which rcu-notify over none is that of the source: with b the
    /// time of a message without events, c that of an event of none, d that which the reference adds,
    /// (b + E (c + d)) / (b + E c) = [`SOURCE`].
    fn calibrate(&mut self, mode: &'static str) -> Result<Events> {
        let events = 2.0 * EVENTS;
        let (few, many) = (Events(0), Events::each(events));
        let (mut bare, mut c, mut d) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.hackbench.options.reps().min(9) {
            let [empty, _] = self.once(mode, NONE, few)?;
            let [none, _] = self.once(mode, NONE, many)?;
            let [notify, _] = self.once(mode, self.reference, many)?;
            bare.push(empty);
            c.push((none - empty) / events);
            d.push((notify - none) / events);
        }
        let [bare, c, d] = [bare, c, d].map(|values| median(&values));
        let best = (SOURCE - 1.0) * bare / (d - (SOURCE - 1.0) * c);
        // Noise may leave it without a solution.
        Ok(Events::each(if best > 0.0 { best } else { EVENTS }))
    }

    fn cpu(&self, mode: &'static str, variant: &'static str) -> Vec<f64> {
        let runs = self.runs.get(&(mode, variant));
        runs.into_iter().flatten().map(|seconds| seconds[0]).collect()
    }

    /// The median of the ratios of neighbouring runs: what slows a stretch of time down slows both.
    fn ratio(&self, mode: &'static str, variant: &'static str) -> f64 {
        let (variant, none) = (self.cpu(mode, variant), self.cpu(mode, NONE));
        median(&variant.iter().zip(&none).map(|(a, b)| a / b).collect::<Vec<_>>())
    }

    /// An event's nanoseconds more than the checker's.
    fn event(&self, variant: &'static str) -> f64 {
        let of = |variant| self.event_ns.get(variant).map_or(f64::NAN, |ns| median(ns));
        of(variant) - of(NONE)
    }

    fn tell(&self, events: &BTreeMap<&str, Events>, report: &mut Report) -> Result<()> {
        let mut table = Table::new(&[
            "mode", "variant", "mean s", "median s", "sd", "/ none", "wall s", "event ns", "instr.",
        ]);
        for mode in MODES {
            for &variant in &self.variants {
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
                    events_per_message: events.get(mode).and_then(|e| rounded(e.a_message())),
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
            "\nCPU seconds of all senders and receivers; / none: median over neighbouring runs; event: in a \
             loop of nothing else, less none",
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
        let reference = self.reference;
        for mode in MODES {
            let notify = self.ratio(mode, reference);
            let what = format!("{mode}: {reference} / none");
            report.judge(&what, notify, Bound::Least(1.10), Kind::Cpu);
            report.judge(&what, notify, Bound::Most(1.15), Kind::Cpu);
            for (variant, most) in [(FAST, 1.01), ("disabled", 1.002)] {
                let what = format!("{mode}: {variant} / none");
                report.judge(&what, self.ratio(mode, variant), Bound::Most(most), Kind::Cpu);
            }
        }
        let gain = self.event(reference) - self.event(FAST);
        report.judge(
            &format!("an event: {reference} - srcu-fast, ns"),
            gain,
            Bound::Least(8.0),
            Kind::Cpu,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_whole_pairs() {
        assert_eq!(Events::each(20.0), Events(2000));
        assert_eq!(Events::each(0.0), Events(2));
        assert_eq!(Events::each(4.55).a_message(), 4.56);
        // 4.5 a message: 225 pairs in a hundred, of which the sender has 112.
        assert_eq!(Events(450).total(2, 100), 900);
        assert_eq!(Events(450).total(2, 50), 2 * (112 + 112));
    }
}
