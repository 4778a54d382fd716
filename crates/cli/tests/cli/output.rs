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
        "demo", "attach", "detach", "hist",
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
fn the_help_says_what_a_name_looks_like_and_how_a_page_is_read() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["list", "record", "enable", "disable"] {
        let help = run(dir.path(), &[name, "--help"]).stdout;
        for line in [
            "span          app::db:query ",
            "event         app::db:store.rs:42 ",
            "trace point   cache:lookup ",
        ] {
            let found = help.lines().find(|text| text.trim_start().starts_with(line));
            assert!(found.is_some(), "{name}: {help}");
        }
    }
    let help = run(dir.path(), &["man", "--help"]).stdout;
    assert!(help.contains("owlet man record | man -l -"), "{help}");
}

#[test]
fn help_fits_a_hundred_columns_and_shows_both_forms() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["list", "record", "report", "recover", "doctor", "man", "export", "enable"] {
        let help = run(dir.path(), &[name, "--help"]).stdout;
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        // A line that was broken by the width leaves a word or two alone.
        let filter = help.split_once("An expression is").map_or("", |(_, filter)| filter);
        let said = format!("An expression is{filter}");
        let want = owlet_wire::filter::HELP.trim_end();
        assert!(filter.is_empty() || said.starts_with(want), "{said}");
    }
    let help = run(dir.path(), &["record", "--help"]).stdout;
    let usage =
        "Usage: owlet record [OPTIONS] --pid <PID>...\n       owlet record [OPTIONS] -- <CMD>...\n";
    assert!(help.contains(usage), "{help}");
}

#[test]
fn every_page_that_a_man_page_cites_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run(dir.path(), &["man", "--dir", "pages"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
    let pages = dir.path().join("pages");
    let mut cited = 0;
    for entry in std::fs::read_dir(&pages).unwrap() {
        let path = entry.unwrap().path();
        let page = std::fs::read_to_string(&path).unwrap().replace('\\', "");
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(page.contains(&format!(".TH {name} 1")), "{page}");
        for word in page.split(|c: char| !c.is_ascii_alphanumeric() && !"-()".contains(c)) {
            if let Some(name) = word.strip_suffix("(1)").filter(|name| name.starts_with("owlet")) {
                cited += 1;
                assert!(pages.join(format!("{name}.1")).exists(), "{name} in {path:?}");
            }
        }
    }
    assert!(cited >= 12, "{cited}");
    let one = run(dir.path(), &["man", "record"]).stdout;
    assert_eq!(one, std::fs::read_to_string(pages.join("owlet-record.1")).unwrap());
    assert!(one.contains("Exit status"), "{one}");
    let ran = run(dir.path(), &["man", "nothing"]);
    assert!(ran.code == 2 && ran.stderr.starts_with("error: no command 'nothing'"), "{ran:?}");
}

#[test]
fn an_unknown_backend_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let output = owlet(dir.path(), &["doctor"]).env("OWLET_BACKEND", "bogus").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains(" backend ")).unwrap();
    assert!(line.contains("OWLET_BACKEND names no backend and is ignored"), "{line}");
    assert!(line.starts_with("note "), "{line}");
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
