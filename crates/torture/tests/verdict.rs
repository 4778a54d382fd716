//! The torture judges: flavours that are wrong on purpose are caught, and what it says is what it found.

use std::process::{Command, Output};

fn torture(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_owlet-torture")).args(args).output().expect("runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One verdict line, the last; exit status 1.
#[test]
fn busted_and_trivial_are_caught() {
    let run = torture(&["run", "--flavours", "busted,trivial", "--seconds", "8"]);
    let text = text(&run);
    assert_eq!(run.status.code(), Some(1), "{text}");
    assert!(text.contains("busted: FAIL FAULT:"), "{text}");
    assert!(text.contains("trivial: FAIL FAULT:"), "{text}");
    let last = text.lines().last().expect("a verdict");
    assert!(last.starts_with("torture: FAIL "), "{text}");
    assert_eq!(text.matches("torture: ").count(), 1, "{text}");
}

#[test]
fn json_is_one_object() {
    let run = torture(&["run", "--flavours", "srcu", "--seconds", "1", "--seed", "7", "--json"]);
    let text = text(&run);
    assert!(run.status.success(), "{text}");
    let verdict: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(verdict["held"], true);
    assert_eq!(verdict["seed"], 7);
    assert_eq!(verdict["flavours"][0]["flavour"], "srcu");
    assert!(verdict["flavours"][0]["grace_periods"].as_u64() > Some(10), "{text}");
}

/// RW-01, RW-02, RW-05: the lock holds, whichever the policy and the backend.
#[test]
fn rw_05_the_lock_holds() {
    for backend in ["auto", "portable"] {
        let run = torture(&["rwlock", "--seconds", "1", "--backend", backend]);
        let text = text(&run);
        assert!(run.status.success(), "{text}");
        assert_eq!(text.matches("PASS reads=").count(), 3, "{text}");
        assert!(text.ends_with("rwlock: PASS seed=1\n"), "{text}");
    }
    let run = torture(&["rwlock", "--seconds", "1", "--sprint", "--json"]);
    let verdict: serde_json::Value = serde_json::from_str(&text(&run)).expect("one JSON value");
    assert_eq!(verdict[0]["held"], true, "{verdict}");
}

/// What puts nothing to the test does not pass.
#[test]
fn nothing_to_do_is_no_pass() {
    let usage: [&[&str]; 3] =
        [&["litmus", "--only", "nosuch"], &["litmus", "--rounds", "0"], &["run", "--seconds", "0"]];
    for args in usage {
        let run = torture(args);
        assert_eq!(run.status.code(), Some(2), "{args:?}: {}", text(&run));
        assert!(!text(&run).contains("PASS"));
    }
    let run = torture(&["run", "--flavours", "srcu", "--seconds", "1", "--updaters", "0"]);
    assert_eq!(run.status.code(), Some(1), "{}", text(&run));
    assert!(text(&run).contains("no updates: nothing was put to the test"), "{}", text(&run));
}
