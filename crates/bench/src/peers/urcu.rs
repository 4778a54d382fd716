//! liburcu, when Debian's liburcu-dev is installed: a C program with three of its flavours, each
//! with its readers inlined. It has the cases of `rcu-read`, `rcu-sync` and, from version 0.14 on,
//! `rcu-poll`.

use crate::harness::worker::{Started, Worker};
use crate::peers::program;
use anyhow::{Context, Result};
use std::process::Command;

/// Builds and starts it; the reason, where it is not installed.
pub(crate) fn start() -> Result<Started> {
    let folder = tempfile::tempdir()?;
    let libraries = ["-lurcu-memb", "-lurcu-qsbr", "-lurcu-bp", "-lurcu-common"];
    let files = [("bench.c", include_str!("urcu/bench.c"))];
    if let Err(why) = program::build(folder.path(), &files, &libraries) {
        return Ok(Err(format!("{why:#}")));
    }
    // The folder may go as soon as the program runs.
    Worker::start_program(Command::new(folder.path().join("bench")))
        .context("start the liburcu program")
}
