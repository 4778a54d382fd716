//! One module a subcommand.

mod attach;
mod calls;
mod completions;
mod demo;
mod detach;
mod directory;
mod doctor;
mod doubts;
mod export;
mod functions;
mod hist;
mod list;
mod patterns;
mod prog;
mod record;
mod recover;
mod report;
mod stat;
mod summary;
mod toggle;
mod verdict;

use crate::args::Command;
use crate::error::Result;
use crate::exit::Exit;

/// Runs one subcommand to its exit status.
pub(crate) fn run(command: Command) -> Result<Exit> {
    match command {
        Command::List(args) => list::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Hist(args) => hist::run(&args),
        Command::Enable(args) => toggle::run(&args, true),
        Command::Disable(args) => toggle::run(&args, false),
        Command::Report(args) => report::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => completions::man(&args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoServer(args) => demo::serve(&args),
    }
}
