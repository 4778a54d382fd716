//! Measures what Owlet costs, beside a floor and its peers, in one run.
//!
//! `owlet-bench NAME [--small] [--json] [--save]`. Every benchmark is a test with two sizes: `--small`
//! takes seconds and is for CI, the large one is for people. What can be counted (system calls,
//! locked instructions, wakeups, lost wakeups, instructions) is gated in both: the exit status is 1
//! when a count is out of bounds. What can only be timed is judged in words, and not judged at all
//! while more threads want to run than there are CPUs.
//!
//! | module | owns |
//! |---|---|
//! | [`harness`] | the machine, workers, pinning, counting, statistics, the report |
//! | [`peers`] | what the product is compared with, one module each |
//! | [`counting`] | a check of the counting itself |
//! | [`event_cost`] | one event: switched off, on, in every peer |
//! | [`getuid_trace`] | what waking a reader costs the traced program |
//! | [`request_cost`] | a request to a real server |
//!
//! Exit status: 0 all counts within bounds; 1 a count out of bounds; 2 could not run.

mod counting;
mod event_cost;
mod getuid_trace;
mod harness;
mod peers;
mod request_cost;

use clap::{Args, Parser, Subcommand};
use harness::{inner, report::Report, serve};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "owlet-bench", about = "Measure Owlet beside a floor and its peers")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What waking the reader costs: two events around getuid(2), 1 to 5 processes and threads
    GetuidTrace(Options),
    /// One event: nanoseconds of CPU and instructions, off and on, beside the peers
    EventCost(Options),
    /// A request to mini-redis: CPU time untraced, recorded, and with text logging
    RequestCost(Options),
    /// Checks the counting itself, on loops whose counts are known
    Counting(Options),
    /// Serves one peer's cases to a benchmark that started this process
    #[command(hide = true)]
    Worker {
        /// Name in the table of peers
        peer: String,
    },
}

/// How to run a benchmark.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// A few seconds, for CI: counts still gate, timings mean little
    #[arg(long)]
    pub(crate) small: bool,
    /// Print one JSON object a line on standard output and the text on standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write both to bench/results/NAME-DATE.txt and .jsonl
    #[arg(long)]
    pub(crate) save: bool,
    /// Runs of each case [default: 9, with --small 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    reps: Option<u32>,
    /// Scales the length of every run
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) scale: f64,
}

impl Options {
    /// Runs of each case.
    pub(crate) fn reps(&self) -> u32 {
        self.reps.unwrap_or(if self.small { 3 } else { 9 })
    }

    /// `large` or `small` as asked for, scaled, at least 1.
    pub(crate) fn size(&self, large: u64, small: u64) -> u64 {
        let n = if self.small { small } else { large };
        ((n as f64 * self.scale) as u64).max(1)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("owlet-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let (name, options, bench): (_, _, fn(&Options, &mut Report) -> anyhow::Result<()>) =
        match Cli::parse().command {
            Command::Worker { peer } => return serve::serve(&peer),
            Command::GetuidTrace(options) => ("getuid-trace", options, getuid_trace::run),
            Command::EventCost(options) => ("event-cost", options, event_cost::run),
            Command::RequestCost(options) => ("request-cost", options, request_cost::run),
            Command::Counting(options) => ("counting", options, counting::run),
        };
    if let Some(code) = inner::rerun_with_cpus_to_ourselves(options.small)? {
        return Ok(code);
    }
    let mut report = Report::new(name, &options);
    bench(&options, &mut report)?;
    report.finish()
}
