//! What a benchmark says: parameters, machine, tables, JSON lines, verdicts, a hash.
//!
//! Text goes to standard output, or with `--json` to standard error, and standard output then
//! carries one JSON object a line and nothing else. `--save` writes both to files.

use super::inner;
use super::machine::{self, Machine};
use crate::Options;
use anyhow::{Context, Result};
use owlet_percpu::Backend;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

/// Collects what one benchmark has to say and prints it as it comes.
pub(crate) struct Report {
    name: &'static str,
    json: bool,
    save: bool,
    machine: Machine,
    text: String,
    lines: String,
    failed: u32,
    passed: u32,
    load: f64,
    utilisation: f64,
    hash: Hash,
}

impl Report {
    /// Starts with the head: what, how, on what.
    pub(crate) fn new(name: &'static str, options: &Options) -> Self {
        let priority = inner::raise_priority(options.small);
        let mut report = Self {
            name,
            json: options.json,
            save: options.save,
            machine: Machine::here(),
            text: String::new(),
            lines: String::new(),
            failed: 0,
            passed: 0,
            load: machine::load(),
            utilisation: 1.0,
            hash: Hash::new(),
        };
        let m = &report.machine;
        let size = if options.small { "small" } else { "large" };
        let head = format!(
            "{name} ({size}), {} {} UTC\nmachine      {}, {} CPUs, {}, {}, clock source {}\n\
             priority     {priority}\nload         {:.2} at the start",
            m.date, m.time, m.cpu, m.cpus, m.kernel, m.libc, m.clock, report.load
        );
        report.say(&head);
        report.parameter("runs", &format!("{} of each case, interleaved", options.reps()));
        if options.scale != 1.0 {
            report.parameter("scale", &format!("{} of the usual length", options.scale));
        }
        let backend = format!("{:?} ({})", owlet_percpu::backend(), owlet_percpu::backend_why());
        report.parameter("backend", &backend);
        report.hash.add(name);
        report
    }

    /// CPUs of the machine.
    pub(crate) fn cpus(&self) -> usize {
        self.machine.cpus
    }

    /// One parameter of the benchmark.
    pub(crate) fn parameter(&mut self, name: &str, value: &str) {
        self.say(&format!("{name:<12} {value}"));
    }

    /// Prints text.
    pub(crate) fn say(&mut self, text: &str) {
        if self.json {
            eprintln!("{text}");
        } else {
            println!("{text}");
        }
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// What is going on, for whoever looks on: on a line of its own of a terminal, until the next.
    pub(crate) fn progress(&mut self, text: &str) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{text}\r");
        }
    }

    /// One result line for programs.
    pub(crate) fn line(&mut self, line: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(line)?;
        if self.json {
            println!("{line}");
        }
        self.lines.push_str(&line);
        self.lines.push('\n');
        Ok(())
    }

    /// The smallest share of a CPU that a thread got in a run without more threads than CPUs.
    pub(crate) fn utilisation(&mut self, share: f64) {
        self.utilisation = self.utilisation.min(share);
    }

    /// A count with a bound. Out of bounds, the benchmark fails.
    pub(crate) fn gate(&mut self, what: &str, value: f64, most: f64) {
        let within = value <= most;
        *(if within { &mut self.passed } else { &mut self.failed }) += 1;
        self.hash.add(&format!("{what} {within}"));
        let verdict = if within { "ok" } else { "FAILED" };
        self.say(&format!("count        {what}: {value} (at most {most}) {verdict}"));
    }

    /// Locked instructions an event: none where per-CPU words are changed by restartable sequences;
    /// the portable backend cannot do without, and is not judged.
    pub(crate) fn gate_locked(&mut self, what: &str, value: f64) {
        match owlet_percpu::backend() {
            Backend::Rseq => self.gate(what, value, 0.0),
            Backend::Portable => {
                self.say(&format!("count        {what}: {value} (not gated: portable backend)"));
            }
        }
    }

    /// A time with a bound; said, never gating. `most` may be an upper bound of a cost or, given
    /// as a lower bound with `at_least`, of a ratio.
    pub(crate) fn judge(&mut self, what: &str, value: f64, bound: Bound, kind: Kind) {
        let now = self.load.max(machine::load());
        let verdict = if value.is_nan() {
            "not measured".to_owned()
        } else if kind == Kind::Wall && now > self.cpus() as f64 {
            format!("not judged (load {now:.1} on {} CPUs)", self.cpus())
        } else {
            bound.verdict(value)
        };
        self.say(&format!("time         {what}: {value:.2} ({}) {verdict}", bound.text()));
    }

    /// Prints the verdict, saves, and says how to exit.
    pub(crate) fn finish(mut self) -> Result<ExitCode> {
        let (start, end) = (self.load, machine::load());
        self.say(&format!("load         {start:.2} at the start, {end:.2} at the end"));
        let used = self.utilisation;
        let note = if used < 0.9 { " (below 0.9: threads waited for a CPU)" } else { "" };
        self.say(&format!("utilisation  {used:.2} of a CPU for the worst pinned thread{note}"));
        let hash = self.hash.0;
        self.say(&format!("result hash  {hash:016x} (cases and count verdicts)"));
        let (passed, failed) = (self.passed, self.failed);
        self.say(&format!("counts: {passed} passed, {failed} failed"));
        if self.save {
            self.write_files()?;
        }
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }

    fn write_files(&self) -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
        std::fs::create_dir_all(&folder).context("create bench/results")?;
        for (ending, content) in [("txt", &self.text), ("jsonl", &self.lines)] {
            let name = format!("{}-{}.{ending}", self.name, self.machine.date);
            std::fs::write(folder.join(&name), content)
                .with_context(|| format!("write bench/results/{name}"))?;
        }
        Ok(())
    }
}

/// What a timed figure is made of: decides when it can be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// CPU time, or a ratio of CPU times: holds on a loaded machine.
    Cpu,
    /// Time on the wall.
    Wall,
}

/// How a timed figure is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// At most so much.
    Most(f64),
    /// At least so much.
    Least(f64),
}

impl Bound {
    fn text(self) -> String {
        match self {
            Self::Most(bound) => format!("at most {bound}"),
            Self::Least(bound) => format!("at least {bound}"),
        }
    }

    fn verdict(self, value: f64) -> String {
        let (reached, by) = match self {
            Self::Most(bound) => (value <= bound, value - bound),
            Self::Least(bound) => (value >= bound, bound - value),
        };
        if reached { "reached".to_owned() } else { format!("missed by {by:.2}") }
    }
}

/// A table for people: the first column to the left, numbers to the right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&s| s.to_owned()).collect()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, columns two spaces apart.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(String::len).max();
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        let mut out = String::new();
        for row in &self.rows {
            for (c, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let _ = if cell.parse::<f64>().is_ok() || (c > 0 && cell == "-") {
                    write!(out, "{cell:>width$}  ")
                } else {
                    write!(out, "{cell:<width$}  ")
                };
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
        out
    }
}

/// A number with so many decimals, `-` when it was not measured.
pub(crate) fn number(value: f64, decimals: usize) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.decimals$}") }
}

/// As JSON: rounded to a thousandth, so that lines can be compared by eye; null when not measured.
pub(crate) fn rounded(value: f64) -> Option<f64> {
    value.is_finite().then(|| (value * 1000.0).round() / 1000.0)
}

/// To two decimals, for gates on ratios and means.
pub(crate) fn round2(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// FNV-1a, so that equal runs have equal hashes on every machine and version.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_say_by_how_much() {
        assert_eq!(Bound::Most(35.0).verdict(34.0), "reached");
        assert_eq!(Bound::Most(35.0).verdict(36.5), "missed by 1.50");
        assert_eq!(Bound::Least(2.5).verdict(2.5), "reached");
        assert_eq!(Bound::Least(2.5).verdict(2.0), "missed by 0.50");
    }

    #[test]
    fn numbers_stand_to_the_right() {
        let mut table = Table::new(&["peer", "ns"]);
        table.row(vec!["owlet".into(), "7.1".into()]);
        table.row(vec!["x".into(), "123.4".into()]);
        assert_eq!(table.text(), "peer   ns\nowlet    7.1\nx      123.4\n");
    }

    #[test]
    fn hashes_depend_on_order_and_boundaries() {
        let hash = |texts: &[&str]| {
            let mut hash = Hash::new();
            texts.iter().for_each(|text| hash.add(text));
            hash.0
        };
        assert_ne!(hash(&["a", "b"]), hash(&["b", "a"]));
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
    }
}
