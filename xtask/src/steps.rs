//! The steps of `cargo xtask test`, in order: the one table of what a change must pass.

use crate::run::{Workspace, must_fail, pass};
use anyhow::Result;

/// One step.
pub(crate) struct Step {
    /// What `cargo xtask test NAME` takes.
    pub(crate) name: &'static str,
    /// One line.
    pub(crate) about: &'static str,
    /// Does it.
    pub(crate) run: fn(&Workspace) -> Result<()>,
}

/// All steps, cheap ones first.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "fmt", about: "every file is formatted", run: fmt },
    Step { name: "clippy", about: "no lint fires", run: clippy },
    Step { name: "tests", about: "unit, integration and rule tests", run: tests },
    Step { name: "doc", about: "doc tests, and docs without a broken link", run: doc },
    Step { name: "loom", about: "every model, and every twin that must fail", run: loom },
    Step { name: "mutants", about: "every planted fault is caught", run: mutants },
];

fn fmt(w: &Workspace) -> Result<()> {
    pass(w.cargo("fmt --all --check"))
}

fn clippy(w: &Workspace) -> Result<()> {
    pass(w.cargo("clippy --quiet --workspace --all-targets --all-features -- -D warnings"))
}

fn tests(w: &Workspace) -> Result<()> {
    let nextest = w.cargo("nextest --version").output().is_ok_and(|o| o.status.success());
    if nextest {
        pass(w.cargo("nextest run --release --workspace --all-features"))
    } else {
        pass(w.cargo("test --release --workspace --all-features --lib --bins --tests --examples"))
    }
}

fn doc(w: &Workspace) -> Result<()> {
    pass(w.cargo("test --release --workspace --all-features --doc"))?;
    let mut docs = w.cargo("doc --quiet --workspace --no-deps --all-features");
    docs.env("RUSTDOCFLAGS", "-D warnings");
    pass(docs)
}

/// Packages with models in `tests/loom.rs`.
const LOOM: &[&str] = &["owlet-rcu", "owlet-ring"];

fn loom(w: &Workspace) -> Result<()> {
    for package in LOOM {
        pass(w.cargo_with_cfg("loom", &format!("test --release -p {package} --test loom"))?)?;
    }
    Ok(())
}

/// A planted fault and the check that must find it.
struct Mutant {
    /// Value of `cfg(owlet_mutant = "..")`.
    id: &'static str,
    /// The fault, as told in the torture requirements.
    fault: &'static str,
    /// `cargo` arguments that must exit with failure.
    check: &'static str,
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        id: "M8",
        fault: "the waiter looks without a barrier on either side",
        check: "run --release -p owlet-ring --example ring_torture -- single-event --rounds 500000",
    },
    Mutant {
        id: "M9",
        fault: "the waiter's fence does not reach the writer",
        check: "run --release -p owlet-ring --example ring_torture -- single-event --rounds 500000",
    },
    Mutant {
        id: "M10",
        fault: "the notifier clears the mark after the wakeup",
        check: "run --release -p owlet-ring --example ring_torture -- single-event --rounds 500000 \
                --notifier 50",
    },
];

fn mutants(w: &Workspace) -> Result<()> {
    for Mutant { id, fault, check } in MUTANTS {
        let cfg = format!("owlet_mutant=\"{id}\"");
        let (build, _) = check.split_once(" -- ").unwrap_or((check, ""));
        let build = build.replacen("run ", "build ", 1);
        pass(w.cargo_with_cfg(&cfg, &build)?)?;
        must_fail(w.cargo_with_cfg(&cfg, check)?, &format!("{id}: {fault}"))?;
    }
    Ok(())
}
