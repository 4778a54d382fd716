//! Project rules and the test command.
//!
//! `cargo xtask test` runs everything a change must pass, step by step; `cargo xtask test NAME...`
//! runs the named steps only. The rules of the code base itself (which crate may use which, every
//! barrier letter paired, every model with a twin that fails) are the tests of this package.

mod run;
mod spin;
mod steps;

#[cfg(test)]
mod rules;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Project rules and the test command")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the test suite: all steps in order, or only the named ones
    Test {
        /// Steps to run (see `cargo xtask steps`)
        steps: Vec<String>,
        /// Stop at the first step that fails
        #[arg(long)]
        fail_fast: bool,
        /// Fail when a Debian package that a test drives is absent, instead of skipping that test
        /// (also: OWLET_REQUIRE_TOOLS=1)
        #[arg(long)]
        require_tools: bool,
    },
    /// List the steps of `test`
    Steps,
}

fn main() -> Result<ExitCode> {
    match Args::parse().command {
        Command::Test { steps, fail_fast, require_tools } => run::test(
            &steps,
            &run::Options {
                fail_fast,
                require_tools: require_tools
                    || std::env::var_os("OWLET_REQUIRE_TOOLS").is_some_and(|v| v == "1"),
            },
        ),
        Command::Steps => {
            for step in steps::STEPS {
                println!("{:<12} {}", step.name, step.about);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
