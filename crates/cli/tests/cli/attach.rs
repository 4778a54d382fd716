//! `owlet attach`: what it says of what cannot be, and what matches. Nothing here needs rights; what needs
//! them is in the end-to-end tests.

use crate::common::{Ran, Target, run};

#[track_caller]
fn check(args: &[&str], code: i32, stderr: &str) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let ran = run(dir.path(), &[&["attach"], args].concat());
    assert_eq!(ran.code, code, "{args:?}: {ran:?}");
    let matches = owlet_wire::config::glob(stderr, ran.stderr.trim_end());
    assert!(matches, "{args:?} says\n{}\ninstead of\n{stderr}", ran.stderr);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{args:?} left {left:?}");
    ran
}

#[test]
fn the_command_line_is_checked_first() {
    check(&[], 2, "error: the following required arguments were not provided:*<PATTERN>...*");
    check(&["f"], 2, "error: which process? give its --pid\nhint: *");
    check(&["-p", "999999999", "f"], 3, "error: no process 999999999*");
    check(&["--kernel", "-p", "0", "f"], 2, "error: invalid value '0' for '--pid <PID>'*");
    let both = "error: the argument*cannot be used with*";
    check(&["--kernel", "-p", "1", "--latency", "--exit", "f"], 2, both);
    check(&["--kernel", "-p", "1", "--for", "3", "f"], 2, "error: invalid value '3'*a unit*");
    for pattern in ["", ":", "a:", "usdt:a", "a\nb"] {
        check(&["--kernel", "-p", "1", pattern], 2, "error: '*': *");
    }
    check(&["--kernel", "--list", "f*"], 2, "error: 'f*' names no file by its path\nhint: *-p*");
}

#[test]
fn processes_that_are_none() {
    check(&["--kernel", "-p", "999999999", "f"], 3, "error: no process 999999999");
    let target = Target::start("idle:60");
    let thread = std::fs::read_dir(format!("/proc/{}/task", target.pid()))
        .unwrap()
        .map(|task| task.unwrap().file_name().into_string().unwrap())
        .find(|tid| *tid != target.pid())
        .unwrap();
    check(&["--kernel", "-p", &thread, "f"], 3, "error: * is a thread of process *\nhint: *-p *");
}

#[test]
fn files_that_are_none() {
    let list = ["--kernel", "--list"];
    let of = |pattern: &'static str| [&list[..], &[pattern]].concat();
    check(&of("/nowhere/at/all:f"), 1, "error: cannot open /nowhere/at/all: no such file*");
    check(&of("/etc/passwd:f"), 1, "error: /etc/passwd: no whole 64-bit ELF file: *");
    check(&of("/etc:f"), 1, "error: /etc: is no file with something in it");
    check(&of("/dev/zero:f"), 1, "error: /dev/zero: is no file with something in it");
    let whole = std::fs::read(env!("CARGO_BIN_EXE_owlet")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for part in [10, 63, 64, 1000, whole.len() / 2, whole.len() - 1] {
        let path = dir.path().join("part");
        std::fs::write(&path, &whole[..part]).unwrap();
        let pattern = format!("{}:f", path.display());
        check(&[&list[..], &[&pattern]].concat(), 1, "error: *");
    }
}

#[test]
fn what_matches_is_listed_and_what_does_not_has_neighbours() {
    let target = Target::start("idle:60");
    let pid = target.pid().to_string();
    let list = |pattern: &str, more: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), &[&["attach", "--kernel", "--list", "-p", &pid, pattern], more].concat())
    };
    let ran = list("*::target_main*", &[]);
    assert_eq!((ran.code, ran.stderr.contains(" in 1 file\n")), (0, true), "{ran:?}");
    assert!(ran.stdout.contains("::common::target_main"), "{ran:?}");
    let ran = list("*::target_main*", &["--json"]);
    let first: serde_json::Value =
        serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
    assert!(first["kind"] == "function" && first["offset"].as_u64() > Some(0), "{first}");
    // A library by the pattern of its name.
    let ran = list("libc.so*:malloc", &[]);
    assert!(ran.code == 0 && ran.stdout.starts_with("libc.so.6:malloc  /"), "{ran:?}");
    for (pattern, code, stderr) in [
        (
            "libc.so*:mallok",
            3,
            "error: no function of */libc.so.6 matches 'libc.so*:mallok'\nhint: *",
        ),
        ("libc.so*:mallok", 3, "*the closest names: malloc*"),
        (
            "libk.so*:malloc",
            3,
            "error: no file that the process runs is meant by 'libk.so*:malloc'*",
        ),
        ("usdt:nobody:*", 3, "error: no USDT probe *"),
    ] {
        let ran = list(pattern, &[]);
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(owlet_wire::config::glob(stderr, ran.stderr.trim_end()), "{pattern}: {ran:?}");
    }
}
