//! Runs the spin models: without faults each must hold, with each of its faults it must not.

use crate::run::{Workspace, pass};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;

/// A model and the names that plant a fault in it.
struct Model {
    path: &'static str,
    faults: &'static [&'static str],
}

const MODELS: &[Model] = &[Model {
    path: "crates/torture/models/one_flip.pml",
    faults: &["NO_MEMBARRIER", "NO_RESTART", "ONE_RANK", "ENTRIES_FIRST", "NO_FENCE_AT_START"],
}];

/// The step.
pub(crate) fn run(w: &Workspace) -> Result<()> {
    if !w.tool("spin")? {
        return Ok(());
    }
    for model in MODELS {
        let held = check(w, model.path, None)?;
        ensure!(held, "{}: does not hold", model.path);
        for fault in model.faults {
            let held = check(w, model.path, Some(fault))?;
            ensure!(!held, "{} holds with {fault}: it proves nothing", model.path);
        }
    }
    Ok(())
}

/// True if the model holds.
fn check(w: &Workspace, path: &str, fault: Option<&str>) -> Result<bool> {
    let name = Path::new(path).file_stem().context("a model's name")?;
    let dir = w.target("spin").join(name).join(fault.unwrap_or("whole"));
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let model = w.path(path);
    let mut spin = w.command("spin");
    spin.current_dir(&dir).arg("-a").args(fault.map(|f| format!("-D{f}"))).arg(model);
    pass(spin)?;
    // The whole state space is worth an optimiser; a fault is found long before its end.
    let effort = if fault.is_some() { "-O0" } else { "-O1" };
    let mut cc = w.command("cc");
    cc.current_dir(&dir).args([effort, "-w", "-DSAFETY", "-o", "pan", "pan.c"]);
    pass(cc)?;
    let mut pan = w.command(dir.join("pan"));
    let output = pan.current_dir(&dir).arg("-m100000").output().context("start pan")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let whole = !text.contains("Search not completed") && !text.contains("max search depth");
    let states = text.lines().find(|line| line.contains("states, stored")).unwrap_or("").trim();
    match (text.contains("errors: 0"), text.contains("errors: 1")) {
        (true, false) if whole => println!("    holds: {states}"),
        (false, true) if text.contains("assertion violated") => {
            println!("    fails, as it must: {}", fault.unwrap_or("UNEXPECTED"));
        }
        _ => bail!("spin could not decide:\n{text}"),
    }
    Ok(text.contains("errors: 0"))
}
