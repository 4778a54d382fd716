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
    Step {
        name: "tests",
        about: "unit, integration and rule tests, and the benchmarks' counts",
        run: tests,
    },
    Step { name: "flags", about: "the same with sites that are a flag and a branch", run: flags },
    Step { name: "musl", about: "the foundations as a static program without glibc", run: musl },
    Step { name: "doc", about: "doc tests, and docs without a broken link", run: doc },
    Step { name: "loom", about: "every model, and every twin that must fail", run: loom },
    Step { name: "spin", about: "models with store buffers and restarts", run: crate::spin::run },
    Step { name: "torture", about: "seconds of what models cannot carry", run: torture },
    Step {
        name: "asan",
        about: "torture under AddressSanitizer, if there is a nightly",
        run: asan,
    },
    Step { name: "mutants", about: "every planted fault is caught", run: mutants },
];

fn fmt(w: &Workspace) -> Result<()> {
    pass(w.cargo("fmt --all --check"))
}

/// What the tests run with: everything but the features that take something away (`flag-sites`
/// removes the one-byte sites) or act by themselves (`auto`).
const FEATURES: &str = "--features owlet/tracing,owlet/layer,owlet/log,owlet-ebpf/load";

fn clippy(w: &Workspace) -> Result<()> {
    pass(w.cargo(&format!("clippy --workspace --all-targets {FEATURES} -- -D warnings")))?;
    pass(w.cargo("clippy -p owlet --all-targets --all-features -- -D warnings"))
}

/// `cargo nextest run`, or `cargo test` where nextest is absent.
fn test(w: &Workspace, what: &str) -> Result<()> {
    let nextest = w.cargo("nextest --version").output().is_ok_and(|o| o.status.success());
    let runner = if nextest {
        "nextest run --no-fail-fast"
    } else {
        "test --no-fail-fast --lib --bins --tests --examples"
    };
    pass(w.cargo(&format!("{runner} --release {what}")))
}

fn tests(w: &Workspace) -> Result<()> {
    test(w, &format!("--workspace {FEATURES}"))?;
    // What debug builds check, and where sections began.
    test(w, "-p owlet-rcu --features checks,stacks --test checks --test engine")
}

fn flags(w: &Workspace) -> Result<()> {
    test(w, "-p owlet -p owlet-attach --features flag-sites,owlet/tracing,owlet/layer,owlet/log")?;
    test(w, "-p owlet --features auto --test auto")
}

fn musl(w: &Workspace) -> Result<()> {
    let target = "x86_64-unknown-linux-musl";
    let installed = w.command("rustup").args(["target", "list", "--installed"]).output();
    let installed = installed.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains(target));
    if !installed && !w.command("rustup").args(["target", "add", target]).status()?.success() {
        println!("    skipped: the Rust target {target} cannot be added here");
        return Ok(());
    }
    pass(w.cargo(&format!(
        "test --release --target {target} -p owlet-sys -p owlet-percpu -p owlet-rcu --lib --tests"
    )))
}

fn doc(w: &Workspace) -> Result<()> {
    pass(w.cargo(&format!("test --release --workspace {FEATURES} --doc")))?;
    let mut docs = w.cargo(&format!("doc --workspace --no-deps {FEATURES}"));
    docs.env("RUSTDOCFLAGS", "-D warnings");
    pass(docs)
}

fn torture(w: &Workspace) -> Result<()> {
    let torture = "run --release -p owlet-torture --";
    pass(w.cargo(&format!("{torture} run --seconds 4")))?;
    pass(w.cargo(&format!("{torture} run --seconds 3 --seed 2 --backend portable")))?;
    pass(w.cargo(&format!("{torture} run --seconds 3 --sprint --flavours srcu")))?;
    pass(w.cargo(&format!("{torture} rwlock --seconds 2")))?;
    pass(w.cargo(&format!("{torture} rwlock --seconds 1 --seed 2 --backend portable")))?;
    pass(w.cargo(&format!("{torture} rwlock --seconds 2 --sprint")))?;
    pass(w.cargo(&format!("{torture} flips --millions 1 --seconds 2 --offsets 63")))?;
    let torn = "flips --ways mem-five --seconds 60 --offsets 63 --threads 2";
    must_fail(w.cargo(&format!("{torture} {torn}")), "five bytes at once")?;
    pass(w.cargo(&format!("{torture} attach --seconds 4")))?;
    pass(w.cargo(&format!("{torture} attach --seconds 2 --seed 2 --backend portable")))?;
    pass(w.cargo(&format!("{torture} litmus --rounds 4000 --millis 500")))?;
    pass(w.cargo(&format!("{torture} litmus --rounds 2000 --millis 300 --backend portable")))?;
    pass(w.cargo(
        "run --release -p owlet-ring --example ring_torture -- single-event --rounds 1000000",
    ))
}

/// Torture under AddressSanitizer, which needs the nightly compiler; skipped without.
fn asan(w: &Workspace) -> Result<()> {
    let nightly = w.command("rustup").args(["run", "nightly", "rustc", "--version"]).output();
    if !nightly.is_ok_and(|output| output.status.success()) {
        println!("    skipped: no nightly toolchain (rustup toolchain install nightly)");
        return Ok(());
    }
    let torture = |args: &str| {
        let target = "--release --target x86_64-unknown-linux-gnu -p owlet-torture";
        let mut command = w.command("rustup");
        command.args("run nightly cargo run".split(' ')).args(target.split(' ')).arg("--");
        command.args(args.split(' '));
        command.env("RUSTFLAGS", "-Zsanitizer=address").env("CARGO_TARGET_DIR", w.target("asan"));
        // The worker never ends, and a run that ends at a fault leaves all it has.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        command
    };
    pass(torture("run --seconds 4 --quarantine 0"))?;
    // Without the torture's own eyes: the sanitizer must see it.
    let blind = "run --seconds 10 --quarantine 0 --blind --flavours busted";
    must_fail(torture(blind), "a flavour without grace periods")
}

/// Packages with models in `tests/loom.rs`.
const LOOM: &[&str] = &["owlet-attach", "owlet-rcu", "owlet-ring", "owlet", "owlet-ebpf"];

fn loom(w: &Workspace) -> Result<()> {
    for package in LOOM {
        // For all crates: cargo itself must see the flag to bring loom in.
        let mut models = w.cargo(&format!("test --release -p {package} --test loom"));
        models.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", w.target("loom"));
        pass(models)?;
    }
    Ok(())
}

/// A planted fault and the check that must find it.
struct Mutant {
    /// Its name, which `OWLET_MUTANT` takes.
    id: &'static str,
    /// The fault, as told in the torture requirements.
    fault: &'static str,
    /// What must fail.
    check: Check,
}

/// Finds a planted fault.
enum Check {
    /// Arguments of `owlet-torture`.
    Torture(&'static str),
    /// Arguments of the ring's torture.
    Ring(&'static str),
    /// Tests of `owlet-rcu`.
    Test(&'static str),
    /// A model of `owlet-rcu`: for what x86-64 hides.
    Loom(&'static str),
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        id: "M1",
        fault: "a grace period drains one rank only",
        check: Check::Torture(
            "run --flavours srcu --seconds 10 --backend portable --no-fork --no-callbacks \
             --no-stops --no-signals --hot before-atomic-entry --gp exp --readers 2 \
             --no-rseq-readers 0 --updaters 2",
        ),
    },
    Mutant {
        id: "M2",
        fault: "locks are summed before unlocks",
        check: Check::Torture(
            "run --flavours srcu --seconds 10 --backend portable --no-fork --hot between-sums",
        ),
    },
    Mutant {
        id: "M3",
        fault: "no barrier between the sums",
        check: Check::Loom("sr_04_exits_first"),
    },
    Mutant {
        id: "M4",
        fault: "a cookie counts the grace period in progress",
        check: Check::Torture("run --flavours srcu --seconds 10"),
    },
    Mutant {
        id: "M5",
        fault: "a poll that is true orders nothing",
        check: Check::Loom("engine_poll"),
    },
    Mutant {
        id: "M11",
        fault: "readers are fast as soon as the last writer leaves",
        check: Check::Loom("sync_fast_readers"),
    },
    Mutant {
        id: "M12",
        fault: "a writer that came while a grace period was due is forgotten",
        check: Check::Test("--lib rs_05"),
    },
    Mutant {
        id: "M13A",
        fault: "a slow reader looks for a writer before its count is out",
        check: Check::Loom("rwlock_exclusion"),
    },
    Mutant {
        id: "M13B",
        fault: "a slow reader's exit is out before its section",
        check: Check::Loom("rwlock_exclusion"),
    },
    Mutant {
        id: "M13C",
        fault: "a writer's section is ahead of the sums",
        check: Check::Loom("rwlock_exclusion"),
    },
    Mutant {
        id: "M13D",
        fault: "a writer sums before readers are made to wait",
        check: Check::Loom("rwlock_exclusion"),
    },
    Mutant {
        id: "M19",
        fault: "a forked child keeps the counts of the parent's other threads",
        check: Check::Torture("run --flavours srcu --seconds 2 --fork-limit 3"),
    },
    Mutant {
        id: "M20",
        fault: "the worker falls asleep without a second look",
        check: Check::Torture(
            "run --flavours srcu --seconds 40 --fork-limit 3 --updaters 2 --gp poll,async \
             --readers 0 --no-rseq-readers 0 --no-callbacks --no-signals --no-stops",
        ),
    },
    Mutant {
        id: "M21",
        fault: "plain and atomic increments share a word",
        check: Check::Torture("run --flavours srcu --seconds 10 --no-fork"),
    },
    Mutant {
        id: "M22",
        fault: "a barrier skips a queue whose last callback is being called",
        check: Check::Torture("run --flavours srcu --seconds 10"),
    },
    Mutant {
        id: "M23",
        fault: "a domain named twice is waited for twice",
        check: Check::Test("--test engine mu_02"),
    },
    Mutant {
        id: "M24",
        fault: "a thread that registers while the others are looked at is missed",
        check: Check::Torture("run --flavours qsbr --seconds 10"),
    },
    Mutant {
        id: "L1",
        fault: "the rank that readers are in is not scanned",
        check: Check::Torture("run --flavours srcu --seconds 10"),
    },
    Mutant {
        id: "L2",
        fault: "no heavy fence at the start of a grace period",
        check: Check::Torture("run --flavours srcu --seconds 10 --sprint"),
    },
    Mutant {
        id: "L3",
        fault: "cookies are one grace period short",
        check: Check::Torture("run --flavours srcu --seconds 10"),
    },
    Mutant {
        id: "L4",
        fault: "a scan errs once in 100,000",
        check: Check::Torture("run --flavours srcu --seconds 10 --sprint --backend portable"),
    },
    Mutant {
        id: "M6",
        fault: "a batch in flight gains objects",
        check: Check::Torture("run --flavours srcu --seconds 10"),
    },
    Mutant {
        id: "M7",
        fault: "the snapshot of a block comes before its last object",
        check: Check::Torture("run --flavours srcu --seconds 10"),
    },
    Mutant {
        id: "L5",
        fault: "the first writer after a while does not wait for fast readers",
        check: Check::Torture("rwlock --sprint --seconds 10 --policies burst"),
    },
    Mutant {
        id: "M14",
        fault: "a batch waits first, and frees at once what it replaces",
        check: Check::Torture("attach --seconds 10 --no-forks"),
    },
    Mutant {
        id: "M15",
        fault: "a call uses the list of its entry when it ends",
        check: Check::Torture("attach --seconds 10 --no-forks"),
    },
    Mutant {
        id: "M16",
        fault: "a batch that is rolled back frees what is still active",
        check: Check::Torture("attach --seconds 10 --no-forks"),
    },
    Mutant {
        id: "L6",
        fault: "a door left closed for a writer who has given up stays closed",
        check: Check::Loom("rwlock_gives_up_waiting"),
    },
    Mutant {
        id: "M8",
        fault: "the waiter looks without a barrier on either side",
        check: Check::Ring("single-event --rounds 500000"),
    },
    Mutant {
        id: "M9",
        fault: "the waiter's fence does not reach the writer",
        check: Check::Ring("single-event --rounds 500000"),
    },
    Mutant {
        id: "M10",
        fault: "the notifier clears the mark after the wakeup",
        check: Check::Ring("single-event --rounds 500000 --notifier 50"),
    },
];

/// The one mutant that is a constant of the build; `OWLET_MUTANT` says which of the others acts.
const CONSTANT: &str = "M21";

fn mutants(w: &Workspace) -> Result<()> {
    const TORTURE: &str = "--release -p owlet-torture";
    const RING: &str = "--release -p owlet-ring --example ring_torture";
    let build = |args: &str| w.cargo_with_cfg("owlet_mutants", args);
    let looms = |args: &str| -> Result<_> {
        let mut models = build(args)?;
        models.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", w.target("loom"));
        Ok(models)
    };
    // Whatever does not compile would pass for a fault that was found.
    pass(build(&format!("build {TORTURE}"))?)?;
    pass(build(&format!("build {RING}"))?)?;
    // And what is found without a fault is no find.
    pass(build(&format!("run {TORTURE} -- run --flavours srcu,qsbr --seconds 2"))?)?;
    for Mutant { id, fault, check } in MUTANTS {
        let what = format!("{id}: {fault}");
        let mut run = match check {
            Check::Torture(args) if *id == CONSTANT => {
                let cfg = format!("owlet_mutant=\"{id}\"");
                pass(w.cargo_with_cfg(&cfg, &format!("build {TORTURE}"))?)?;
                w.cargo_with_cfg(&cfg, &format!("run {TORTURE} -- {args}"))?
            }
            Check::Torture(args) => build(&format!("run {TORTURE} -- {args}"))?,
            Check::Ring(args) => build(&format!("run {RING} -- {args}"))?,
            Check::Test(args) => {
                let test = format!("test --release -p owlet-rcu {args}");
                pass(build(&test)?)?;
                build(&test)?
            }
            Check::Loom(args) => {
                let model = format!("test --release -p owlet-rcu --test loom -- {args}");
                pass(looms(&model)?)?;
                looms(&model)?
            }
        };
        must_fail(run.env("OWLET_MUTANT", id), &what)?;
    }
    Ok(())
}
