//! The `owlet` command: lists, switches and records trace points of running programs, and reads the
//! recorded traces.
//!
//! | module | owns |
//! |---|---|
//! | `args` | the tree of subcommands and flags |
//! | `exit`, `error` | exit statuses; failures and how they are told |
//! | `commands` | one module a subcommand |
//! | `recorder` | recording: session, rings to directory, progress, signals |
//! | `agents`, `client`, `sockets`, `procfs` | finding processes and talking to them |
//! | `out`, `text`, `names`, `units` | what is printed, and how |
//! | `target` | what an export is written into |
//!
//! stdout carries data only; everything said about the data goes to stderr.

mod agents;
mod args;
mod client;
mod commands;
mod error;
mod exit;
mod names;
mod out;
mod procfs;
mod recorder;
mod sockets;
mod target;
mod text;
mod units;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    quiet_verifier();
    let ran = match args::Cli::try_parse() {
        Ok(cli) => commands::run(cli.command),
        Err(error) => args::answer(args::told(error)),
    };
    match ran {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.report();
            failure.exit.into()
        }
    }
}

/// What panics while an eBPF object is verified is a refusal, which is told as one.
fn quiet_verifier() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(owlet_ebpf::load::VERIFIER) {
            told(panic);
        }
    }));
}
