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
//! | [`batch_attach`] | programs on a thousand functions at once |
//! | [`hit_cost`] | a call of a traced function, with programs |
//! | [`counting`] | a check of the counting itself |
//! | [`event_cost`] | one event: switched off, on, in every peer |
//! | [`getuid_trace`] | what waking a reader costs the traced program |
//! | [`request_cost`] | a request to a real server |
//! | [`rcu_read`] | what it costs to protect a read |
//! | [`rcu_sync`] | how long one waits for a grace period |
//! | [`rcu_poll`] | asking whether one has passed |
//! | [`defer_free`] | freeing what was unpublished: memory, time, grace periods |
//! | [`rwlock_read`], [`rwlock_write`] | reader-writer locks |
//! | [`toggle`] | a writer that comes a thousand times, beside readers: the source of `rcu_sync` |
//! | [`tp_hackbench`] | tracepoints that are hit where RCU does not look, in a busy program |
//!
//! Exit status: 0 all counts within bounds; 1 a count out of bounds; 2 could not run.

mod batch_attach;
mod counting;
mod defer_free;
mod event_cost;
mod getuid_trace;
mod harness;
mod hit_cost;
mod peers;
mod rcu_poll;
mod rcu_read;
mod rcu_sync;
mod request_cost;
mod rwlock_read;
mod rwlock_write;
mod toggle;
mod tp_hackbench;

use batch_attach::BatchAttach;
use clap::{Args, Parser, Subcommand};
use defer_free::DeferFree;
use harness::{inner, report::Report, serve};
use std::process::ExitCode;
use toggle::Toggle;
use tp_hackbench::Hackbench;

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
    /// Protecting a read: every flavour of RCU, floors, crates and liburcu
    RcuRead(Options),
    /// Waiting for grace periods: idle, beside readers, after them, several domains at once
    RcuSync(Options),
    /// Asking whether a grace period has passed
    RcuPoll(Options),
    /// Freeing what was unpublished: a callback each, batches, blocks with cookies, peers
    DeferFree(DeferFree),
    /// Taking a reader-writer lock shared: 1, 2 and 8 threads, beside the peers
    RwlockRead(Options),
    /// Taking it exclusively: alone, against a reader, beside a crowd of readers; by policy
    RwlockWrite(Options),
    /// Two write sections an iteration, 1,000 times, beside readers; a tracepoint; a kernel uprobe
    #[command(name = "toggle-1000")]
    Toggle(Toggle),
    /// hackbench with tracepoints that are hit by offline threads
    TpHackbench(Hackbench),
    /// Programs on 1 to 10,000 functions: one by one, at once, beside kernel uprobes
    BatchAttach(BatchAttach),
    /// A call of a traced function, with programs: native, eBPF, beside kernel uprobes
    HitCost(Options),
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

/// What runs one benchmark.
type Bench = Box<dyn FnOnce(&Options, &mut Report) -> anyhow::Result<()>>;

fn run() -> anyhow::Result<ExitCode> {
    let (name, options, bench): (_, _, Bench) = match Cli::parse().command {
        Command::Worker { peer } => return serve::serve(&peer),
        Command::GetuidTrace(options) => ("getuid-trace", options, Box::new(getuid_trace::run)),
        Command::EventCost(options) => ("event-cost", options, Box::new(event_cost::run)),
        Command::RequestCost(options) => ("request-cost", options, Box::new(request_cost::run)),
        Command::RcuRead(options) => ("rcu-read", options, Box::new(rcu_read::run)),
        Command::RcuSync(options) => ("rcu-sync", options, Box::new(rcu_sync::run)),
        Command::RcuPoll(options) => ("rcu-poll", options, Box::new(rcu_poll::run)),
        Command::DeferFree(what) => {
            let options = what.options.clone();
            ("defer-free", options, Box::new(move |_, report| defer_free::run(&what, report)))
        }
        Command::RwlockRead(options) => ("rwlock-read", options, Box::new(rwlock_read::run)),
        Command::RwlockWrite(options) => ("rwlock-write", options, Box::new(rwlock_write::run)),
        Command::Toggle(toggle) => {
            let options = toggle.options.clone();
            ("toggle-1000", options, Box::new(move |_, report| toggle::run(&toggle, report)))
        }
        Command::TpHackbench(mut hackbench) => {
            // As many runs as the source has.
            let reps = if hackbench.options.small { 3 } else { 30 };
            hackbench.options.reps.get_or_insert(reps);
            let options = hackbench.options.clone();
            (
                "tp-hackbench",
                options,
                Box::new(move |_, report| tp_hackbench::run(&hackbench, report)),
            )
        }
        Command::BatchAttach(batch) => {
            let options = batch.options.clone();
            ("batch-attach", options, Box::new(move |_, report| batch_attach::run(&batch, report)))
        }
        Command::HitCost(options) => ("hit-cost", options, Box::new(hit_cost::run)),
        Command::Counting(options) => ("counting", options, Box::new(counting::run)),
    };
    if let Some(code) = inner::rerun_with_cpus_to_ourselves(options.small)? {
        return Ok(code);
    }
    let mut report = Report::new(name, &options);
    bench(&options, &mut report)?;
    report.finish()
}
