//! What goes to stdout, and that a reader that leaves is no failure.

use crate::common::{owlet, run};
use std::process::Stdio;

#[test]
fn doctor_names_backend_clock_and_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let text = run(dir.path(), &["doctor"]);
    assert_eq!(text.code, 0, "{text:?}");
    for word in ["backend", "clock", "kernel", "membarrier", "limits", "sockets"] {
        assert!(text.stdout.lines().any(|line| line[5..].starts_with(word)), "{word}: {text:?}");
    }
    let json = run(dir.path(), &["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let backend = json["backend"].as_str().unwrap();
    assert!(backend.starts_with("rseq: ") || backend.starts_with("portable: "), "{backend}");
}

#[test]
fn a_forced_portable_backend_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let output = owlet(dir.path(), &["doctor"]).env("OWLET_BACKEND", "portable").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line.contains("backend      portable: ")), "{text}");
}

#[test]
fn every_subcommand_has_help_man_and_completion() {
    let dir = tempfile::tempdir().unwrap();
    let man = run(dir.path(), &["man"]).stdout;
    let bash = run(dir.path(), &["completions", "bash"]).stdout;
    for name in [
        "list", "record", "enable", "disable", "report", "stat", "export", "recover", "doctor",
        "demo",
    ] {
        let help = run(dir.path(), &[name, "--help"]);
        assert_eq!((help.code, help.stderr.as_str()), (0, ""));
        assert!(man.contains(&format!("OWLET {}", name.to_uppercase())), "{name}");
        assert!(
            bash.contains(&format!("owlet__subcmd__{name}"))
                || bash.contains(&format!("owlet__{name}")),
            "{name}"
        );
    }
    // What is hidden is not offered.
    let offers = |script: &str| {
        script
            .lines()
            .filter(|line| line.contains("opts="))
            .any(|line| line.contains("demo-server"))
    };
    assert!(!man.contains("demo-server") && !offers(&bash));
    assert!(man.contains("Exit status"), "the table of exit statuses is missing");
}

#[test]
fn the_filter_language_is_in_the_help() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["record", "report"] {
        let help = run(dir.path(), &[name, "--help"]).stdout;
        assert!(help.contains("duration") && help.contains("level >= warn"), "{help}");
    }
}

#[test]
fn a_broken_pipe_is_success() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["man"][..], &["doctor"], &["completions", "zsh"]] {
        let mut child =
            owlet(dir.path(), args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), output.stderr.as_slice()),
            (Some(0), &b""[..]),
            "{args:?}"
        );
    }
}
