//! GP-03 to GP-06 on this machine.

use std::process::Command;

fn litmus(args: &[&str]) -> (bool, serde_json::Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_owlet-torture"));
    let output = command.arg("litmus").args(args).arg("--json").output().expect("runs");
    let json = serde_json::from_slice(&output.stdout).expect("one JSON value");
    (output.status.success(), json)
}

/// The outcome that a test is about, by the test's name.
fn count(outcomes: &serde_json::Value, flavour: &str, test: &str) -> u64 {
    let mut all = outcomes.as_array().expect("a list").iter();
    let found = all.find(|outcome| outcome["flavour"] == flavour && outcome["test"] == test);
    found.expect("the test")["counted"].as_u64().expect("a number")
}

const FORBIDDEN: [&str; 8] = [
    "gp-03-message-late-read",
    "gp-03-message-early-read",
    "gp-03-message-polled",
    "gp-04-store-buffer",
    "gp-04-store-buffer-swapped",
    "gp-05-two-updaters",
    "gp-06-two-periods-two-sections",
    "gp-06-two-chained-updaters-two-sections",
];

/// Every outcome that grace periods forbid; the one that GP-06 allows is only counted.
#[test]
fn gp_03_04_05_06_forbidden_outcomes_do_not_occur() {
    for backend in ["auto", "portable"] {
        let (held, outcomes) =
            litmus(&["--rounds", "3000", "--millis", "150", "--backend", backend]);
        for test in FORBIDDEN {
            assert_eq!(count(&outcomes, "srcu", test), 0, "{test} {backend}: {outcomes}");
        }
        assert!(held);
        count(&outcomes, "srcu", "gp-06-one-period-two-sections");
    }
}

/// Without grace periods they do: the delays are long enough for the tests to mean something.
#[test]
fn gp_03_04_06_busted_flavour_shows_them() {
    let (held, outcomes) =
        litmus(&["--rounds", "20000", "--millis", "1500", "--flavours", "busted"]);
    assert!(!held);
    for test in ["gp-03-message-early-read", "gp-04-store-buffer-swapped"] {
        assert_ne!(count(&outcomes, "busted", test), 0, "{test}: {outcomes}");
    }
    let periods: u64 = FORBIDDEN[6..].iter().map(|test| count(&outcomes, "busted", test)).sum();
    assert_ne!(periods, 0, "{outcomes}");
}
