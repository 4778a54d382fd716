//! Runs a command under every condition in which the backend may differ.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Context;

/// A condition: its name, environment, and the answer of the filter, if there is one.
struct Condition {
    name: &'static str,
    environment: Option<(&'static str, &'static str)>,
    filter: Option<&'static str>,
}

const CONDITIONS: [Condition; 5] = [
    Condition { name: "as it is", environment: None, filter: None },
    Condition { name: "portable", environment: Some(("OWLET_BACKEND", "portable")), filter: None },
    Condition {
        name: "no rseq",
        environment: Some(("GLIBC_TUNABLES", "glibc.pthread.rseq=0")),
        filter: None,
    },
    Condition { name: "seccomp ENOSYS", environment: None, filter: Some("enosys") },
    Condition { name: "seccomp EPERM", environment: None, filter: Some("eperm") },
];

/// True if the command succeeds under each of them; says so for each on standard output.
pub(crate) fn run(command: &[OsString]) -> anyhow::Result<bool> {
    let own = std::env::current_exe().context("where am I?")?;
    let mut all = true;
    for condition in &CONDITIONS {
        let mut line: Vec<OsString> = Vec::new();
        if let Some(answer) = condition.filter {
            line.extend([own.clone().into(), "with-seccomp".into(), answer.into(), "--".into()]);
        }
        line.extend(command.iter().cloned());
        let (program, args) = line.split_first().context("no command")?;
        let mut child = Command::new(program);
        child.args(args).envs(condition.environment);
        let status = child.status().with_context(|| format!("cannot run {}", program.display()))?;
        all &= status.success();
        say!("{}: {} ({status})", if status.success() { "PASS" } else { "FAIL" }, condition.name);
    }
    Ok(all)
}
