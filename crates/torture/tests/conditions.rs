//! The backend is what it should be under each condition, and holds there.

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// One torture at a time: each wants the whole machine.
static ALONE: Mutex<()> = Mutex::new(());

const TORTURE: &str = env!("CARGO_BIN_EXE_owlet-torture");

fn torture(args: &[&str], environment: Option<(&str, &str)>) -> Output {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(TORTURE);
    command.args(args).env_remove("OWLET_BACKEND").env_remove("GLIBC_TUNABLES");
    command.envs(environment).output().expect("runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The probe under a condition, and then a second of torture.
fn check(wrapper: &[&str], environment: Option<(&str, &str)>, expected: &[&str]) {
    let with = |args: &[&str]| {
        let line: Vec<&str> = wrapper.iter().chain(args).copied().collect();
        torture(&line, environment)
    };
    let probe = with(&["probe"]);
    for line in expected {
        assert!(text(&probe).contains(line), "wanted {line:?} in:\n{}", text(&probe));
    }
    let run = with(&["run", "--seconds", "1"]);
    assert!(run.status.success(), "{}", text(&run));
    assert!(text(&run).contains("\ntorture: PASS "), "{}", text(&run));
}

fn seccomp(answer: &'static str) -> [&'static str; 4] {
    ["with-seccomp", answer, "--", TORTURE]
}

#[test]
fn forced_portable() {
    let environment = Some(("OWLET_BACKEND", "portable"));
    check(&[], environment, &["backend Portable", "OWLET_BACKEND=portable"]);
}

/// Case X4.
#[test]
fn x4_rseq_switched_off_by_tunable() {
    let environment = Some(("GLIBC_TUNABLES", "glibc.pthread.rseq=0"));
    check(&[], environment, &["backend Portable"]);
}

#[test]
fn seccomp_enosys() {
    check(&seccomp("enosys"), None, &["backend Portable", "membarrier none"]);
}

#[test]
fn seccomp_eperm() {
    check(&seccomp("eperm"), None, &["backend Portable", "membarrier none"]);
}

#[test]
fn as_it_is() {
    check(&[], None, &["backend "]);
}

/// A filter that comes long after the decision: heavy fences walk over the CPUs.
#[test]
fn filter_installed_later() {
    let run =
        torture(&["run", "--flavours", "srcu", "--seconds", "2", "--late-filter", "eperm"], None);
    assert!(run.status.success(), "{}", text(&run));
}

#[test]
fn conditions_reports_a_command_that_fails() {
    let good = torture(&["conditions", "--", "true"], None);
    assert!(good.status.success());
    assert_eq!(text(&good).matches("PASS").count(), 5);
    let bad = torture(&["conditions", "--", "false"], None);
    assert_eq!(bad.status.code(), Some(1));
    assert_eq!(text(&bad).matches("FAIL").count(), 5);
}
