//! The process that watches: starts the one that is tortured, and gives the verdict also when that one has died.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::{Options, Outcome};
use crate::run::wait;

/// More than a run may take in excess of its seconds: threads that do not end are given up after a minute.
const GRACE: Duration = Duration::from_secs(120);

/// What came out of the tortured process.
pub(super) fn run(options: &Options) -> anyhow::Result<Outcome> {
    let own = std::env::current_exe().context("where am I?")?;
    let mut child = Command::new(own)
        .args(std::env::args_os().skip(1))
        .arg("--child")
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process to be tortured")?;
    let (text, status) = wait(&mut child, Duration::from_secs(options.seconds) + GRACE)?;
    // It has said why.
    if status.code() == Some(2) {
        bail!("the process to be tortured could not run");
    }
    let parsed = text.lines().last().and_then(|line| serde_json::from_str::<Outcome>(line).ok());
    // One whose end does not fit what it said is broken as well.
    let fits = parsed.as_ref().is_some_and(|outcome| outcome.held == status.success());
    let mut outcome = parsed.unwrap_or_else(|| Outcome {
        seconds: options.seconds,
        seed: options.seed,
        ..Outcome::default()
    });
    if !fits || status.code().is_none() {
        outcome.held = false;
        outcome.died = Some(status.to_string());
        eprintln!("owlet-torture: the tortured process has died: {status}");
    }
    Ok(outcome)
}
