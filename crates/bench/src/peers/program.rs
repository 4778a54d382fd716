//! Peers written in C: compiled at run time against what is installed, so that a peer that is not
//! there is no error, and is measured as a C program would have it.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The protocol, which every such program includes.
const WORKER: &str = include_str!("worker.h");

/// Compiles the first of `files` (name, text) in `folder`, beside the others, into `bench`.
pub(crate) fn build(folder: &Path, files: &[(&str, &str)], libraries: &[&str]) -> Result<()> {
    for (name, text) in files.iter().chain(&[("worker.h", WORKER)]) {
        fs::write(folder.join(name), text).with_context(|| format!("write {name}"))?;
    }
    let source = files.first().map_or("bench.c", |(name, _)| name);
    let cc = Command::new("cc")
        .current_dir(folder)
        .args(["-O2", "-I.", "-o", "bench", source])
        .args(libraries)
        .arg("-lpthread")
        .output()
        .context("no C compiler")?;
    if !cc.status.success() {
        let errors = String::from_utf8_lossy(&cc.stderr);
        let first = errors.lines().find(|l| l.contains("error")).unwrap_or("cc failed").to_owned();
        bail!("its program does not compile (headers not installed?): {first}");
    }
    Ok(())
}
