//! Breaks owlet's concurrency on purpose and judges the result.
//!
//! ```text
//! owlet-torture run                                  every flavour, 5 s each
//! owlet-torture run --flavours qsbr --seconds 600 --seed 7 --json
//! owlet-torture run --backend portable --hot before-atomic-entry,between-sums
//! owlet-torture run --flavours busted,trivial        must fail
//! owlet-torture rwlock                               the reader-writer lock, by policy
//! owlet-torture flips                                code that changes while threads run it
//! owlet-torture attach                               programs on a thousand functions, 60 s
//! owlet-torture litmus                               outcomes that grace periods forbid
//! owlet-torture conditions -- owlet-torture run      with and without rseq, membarrier, seccomp
//! ```
//!
//! Each command ends with one verdict line (or one JSON value) on standard output and exits with 0
//! (held) or 1 (broken); 2 means it could not run. The seed fixes every random choice of ours, not the
//! scheduler's.

/// A line on standard output. A reader that has gone is no error.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod attach;
mod conditions;
mod cost;
mod flavour;
#[cfg(target_arch = "x86_64")]
mod flips;
mod litmus;
mod lock;
mod probe;
mod rng;
mod run;
mod seccomp;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Readers, updaters, forks, signals, stops and migrations on one flavour after the other.
    Run(run::Options),
    /// Outcomes that grace periods forbid, looked for on this hardware.
    Litmus(litmus::Options),
    /// Readers and writers of one lock, taken in every way, by policy.
    Rwlock(lock::Options),
    /// Code that changes while threads run it: 20 million flips of a byte, and controls that must crash.
    #[cfg(target_arch = "x86_64")]
    Flips(flips::Options),
    /// Programs that come and go on a thousand functions that are called, interrupted and forked.
    Attach(attach::Options),
    /// What a section and a grace period cost here: ns and membarriers, against floors.
    Cost(cost::Options),
    /// Print the backend, the reason and what membarrier can do, one `key value` a line.
    Probe,
    /// Run a command as it is, with the portable backend, without rseq, and under both filters.
    Conditions {
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Run a command under a filter that refuses membarrier and rseq.
    WithSeccomp {
        /// What the two calls answer.
        errno: seccomp::Answer,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}

/// A backend to force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// Whatever the machine allows.
    Auto,
    /// Atomics only.
    Portable,
}

impl Backend {
    /// Before anything asks for the backend, and before there is a second thread.
    fn apply(self) {
        if self == Self::Portable {
            // SAFETY: `main` calls this while it is the only thread.
            unsafe { std::env::set_var("OWLET_BACKEND", "portable") };
        }
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Litmus(options) => litmus::run(&options),
        Command::Rwlock(options) => lock::run(&options),
        #[cfg(target_arch = "x86_64")]
        Command::Flips(options) => flips::run(&options),
        Command::Attach(options) => attach::run(&options),
        Command::Cost(options) => cost::run(&options),
        Command::Probe => probe::run(),
        Command::Conditions { command } => conditions::run(&command),
        Command::WithSeccomp { errno, command } => seccomp::exec(errno, &command),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("owlet-torture: {error:#}");
            ExitCode::from(2)
        }
    }
}
