//! How a recording starts: what is counted, what is called how, and what is said when nothing would
//! come of it.

use crate::common::{Target, finish, owlet, run, sockets};
use crate::record::record_command;
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;

/// Names in a directory.
fn names(dir: &Path) -> BTreeSet<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    std::fs::read_dir(dir).unwrap().map(|e| name(e).into_string().unwrap()).collect()
}

#[test]
fn a_process_named_twice_is_one() {
    let target = Target::start("paced:1000");
    let dir = tempfile::tempdir().unwrap();
    let pid = target.pid();
    let both = format!("{pid},{pid}");
    let ran = run(dir.path(), &["record", "-p", &pid, "-p", &both, "--duration", "300ms"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let first = format!("recording 2 trace points of process {pid} (");
    assert!(ran.stderr.starts_with(&first), "{ran:?}");
    let names = names(dir.path());
    let name = names.first().unwrap();
    assert!(name.starts_with(&format!("owlet-trace-{pid}-2")), "{names:?}");
}

#[test]
fn two_recordings_of_one_second_have_two_names() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = owlet(dir.path(), &["record", "--", "true"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = (0..4).map(|_| start()).collect();
    for child in running {
        let ran = finish(child);
        assert_eq!(ran.code, 4, "{ran:?}");
    }
    assert_eq!(names(dir.path()).len(), 4, "{:?}", names(dir.path()));
}

#[test]
fn an_empty_directory_of_the_users_own_stays() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    std::fs::write(&program, b"\0\0\0\0").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    std::fs::create_dir(dir.path().join("t")).unwrap();
    for output in ["t", "new"] {
        let ran = run(dir.path(), &["record", "-o", output, "--", "./program"]);
        assert_eq!(ran.code, 1, "{ran:?}");
    }
    assert_eq!(names(dir.path()), BTreeSet::from(["program".into(), "t".into()]));
    assert!(names(&dir.path().join("t")).is_empty());
}

#[test]
fn u1_patterns_that_wait_say_what_is_near() {
    let target = Target::start("paced:100");
    let dir = tempfile::tempdir().unwrap();
    let pid = target.pid();
    let args = ["record", "-o", "t", "-p", &pid, "-e", "probe:tik", "--wait"];
    let ran = run(dir.path(), &[&args[..], &["--duration", "300ms"]].concat());
    assert_eq!(ran.code, 4, "{ran:?}");
    let at = |text: &str| ran.stderr.find(text).unwrap_or_else(|| panic!("{text}: {ran:?}"));
    let waits = at("no trace point matches 'probe:tik' yet");
    let begun = at("recording 0 trace points of process");
    assert!(waits < begun);
    let rest = &ran.stderr[begun..];
    let want = format!("warning: no event was recorded: no trace point of process {pid} (");
    assert!(rest.contains(&want) && rest.contains(" matches 'probe:tik'\n"), "{ran:?}");
    assert_eq!(ran.stderr.matches("hint: the closest names: probe:tick").count(), 2, "{ran:?}");
}

/// Of several patterns, the one that matches nothing.
#[test]
fn u1_one_pattern_of_two_that_matches_nothing_says_what_is_near() {
    let target = Target::start("paced:1000");
    for (pattern, hints) in [
        ("prob:*", "hint: the closest names: probe:never, probe:tick\n"),
        (
            "probe::*",
            "hint: between target and name stands one `:`; try 'probe*'\nhint: the closest",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let args = ["record", "-o", "t", "-p", &target.pid(), "--duration", "300ms"];
        let ran = run(dir.path(), &[&args[..], &["-e", "probe:tick", "-e", pattern]].concat());
        let want = format!(
            "warning: no trace point matches '{pattern}' yet; one that appears later will\n{hints}"
        );
        assert!(ran.code == 0 && ran.stderr.starts_with(&want), "{ran:?}");
    }
}

/// A command that has ended can be asked no more; what it had when it joined is known.
#[test]
fn u1_a_command_that_left_nothing_is_explained_by_its_trace_points() {
    let why = "warning: no event was recorded: ";
    let name = Target::words()[0].rsplit('/').next().unwrap().to_owned();
    for (args, said) in [
        (
            &["-e", "prob:*"][..],
            format!("no trace point of {name} matches 'prob:*'\nhint: the closest names: probe:never, probe:tick\n"),
        ),
        (
            &["-e", "probe::tick"],
            format!("no trace point of {name} matches 'probe::tick'\nhint: between target and name stands one `:`; try 'probe:tick'\n"),
        ),
        (
            &["--level", "error"],
            format!("2 trace points of {name} would match, but none is of level error or more severe\nhint: the most severe of them is of level info: use --level info\n"),
        ),
        (
            &["--where", "sqe > 5"],
            "--where can hold for no event of the 2 trace points that would be recorded\nhint: no event has a field `sqe`; closest: `seq`\nhint: their fields are: a, note, seq\n".into(),
        ),
        (
            &["--where", "seq > 999 or sqe > 5"],
            "1 trace point on in 1 process, hits unknown\nhint: --where let nothing pass, or the code at these trace points did not run; without --where every hit is recorded\nhint: --where: no event has a field `sqe`; closest: `seq`\n".into(),
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ran = record_command(dir.path(), "idle:3", args);
        assert!(ran.code == 4 && ran.stderr.contains(&format!("{why}{said}")), "{said}: {ran:?}");
    }
}

/// One that was too short to be asked: the options that chose are named, and only those.
#[test]
fn u1_options_that_were_not_given_are_not_named() {
    for (args, named) in [
        (&["-e", "no:such"][..], "`-e`"),
        (&["--level", "error"], "`--level error`"),
        (&["--where", "no_such > 5"], "`--where`"),
        (
            &["-e", "no:such", "--level", "info", "--where", "seq > 1"],
            "`-e`, `--level info` and `--where`",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ran = record_command(dir.path(), "burst:10", args);
        assert_eq!(ran.code, 4, "{ran:?}");
        let why = format!(
            "warning: no event was recorded: no trace point was switched on in 1 process\n\
             hint: {named} chose none of its trace points"
        );
        // Or it was asked in time after all.
        let asked = ["no trace point of ", "2 trace points of ", "--where can hold for no event"];
        let asked = asked.map(|text| format!("warning: no event was recorded: {text}"));
        let told = |text: &String| ran.stderr.contains(text);
        assert!(told(&why) || asked.iter().any(told), "{ran:?}");
    }
}

#[test]
fn u1_a_pattern_that_leaves_out_is_named_as_it_was_given() {
    let target = Target::start("paced:1000");
    let dir = tempfile::tempdir().unwrap();
    let args = ["record", "-o", "t", "-p", &target.pid(), "--wait", "-e", "!probe:tik"];
    let ran = run(dir.path(), &[&args[..], &["--duration", "300ms"]].concat());
    let want =
        "warning: no trace point matches '!probe:tik' yet; one that appears later is left out\n";
    assert!(ran.code == 0 && ran.stderr.starts_with(want), "{ran:?}");
}

/// Hits are counted for all sessions together: another one's are none of ours.
#[test]
fn u1_another_recorders_events_are_not_taken_for_ours() {
    let target = Target::start("paced:1000");
    let pid = target.pid();
    let other = tempfile::tempdir().unwrap();
    let recording = crate::record::start(other.path(), &["-p", &pid]);
    let said = |args: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let args = [&["record", "-o", "t", "-p", &pid, "--duration", "300ms"], args].concat();
        let ran = run(dir.path(), &args);
        assert_eq!(ran.code, 4, "{ran:?}");
        ran.stderr
    };
    for args in [&["-e", "probe:never"][..], &["-e", "probe:never", "--where", "a > 5"]] {
        let said = said(args);
        let want = "1 trace point on in 1 process, hits 0\nhint: the code at these trace points did not run";
        assert!(said.contains(want), "{args:?}: {said}");
    }
    let said = said(&["--where", "seq > 999999999"]);
    assert!(
        said.contains("hint: the trace points were hit, but --where let nothing pass"),
        "{said}"
    );
    crate::common::kill(&recording.child, rustix::process::Signal::INT);
    assert_eq!(recording.finish().code, 0);
}

#[test]
fn u1_options_behind_the_dashes_are_the_commands() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run(dir.path(), &["record", "--", "--level", "info", "true"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let want = "error: cannot start --level: no such command\n\
                hint: options of `owlet record` stand before `--`, the command and its own after it";
    assert!(ran.stderr.starts_with(want), "{ran:?}");
    let args = ["record", "-o", "t", "--", "sh", "-c", "exit 0", "sh", "--level=info", "-e", "x"];
    let ran = run(dir.path(), &args);
    let want = "hint: `--level` and `-e` stand after `--`: sh got them, not `owlet record`";
    assert!(ran.code == 4 && ran.stderr.contains(want), "{ran:?}");
    // Without the dashes.
    let ran = run(dir.path(), &["record", "true"]);
    let want = "tip: to record a command, put `--` in front of it: owlet record -- true";
    assert!(ran.code == 2 && ran.stderr.contains(want), "{ran:?}");
}

#[test]
fn a_process_with_another_runtime_directory_is_found() {
    let other = tempfile::tempdir().unwrap();
    let target = Target::start_in("paced:1000", other.path());
    let dir = tempfile::tempdir().unwrap();
    let ran = run(dir.path(), &["list", &target.pid()]);
    assert!(ran.code == 0 && ran.stdout.contains("probe:tick"), "{ran:?}");
    let args = ["record", "-o", "t", "-p", &target.pid(), "--duration", "300ms"];
    assert_eq!(run(dir.path(), &args).code, 0);
    assert_ne!(other.path(), sockets());
}

#[test]
fn a_socket_directory_that_cannot_be_used_is_told_by_both_sides() {
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("owlet"), "in the way").unwrap();
    let target = Target::start_in("paced:1000", other.path());
    let dir = tempfile::tempdir().unwrap();
    let ran = run(dir.path(), &["record", "-p", &target.pid()]);
    let place = other.path().join("owlet").display().to_string();
    let want = format!("has no agent: its socket directory {place} cannot be used: not a dir");
    assert!(ran.code == 3 && ran.stderr.contains(&want), "{ran:?}");
    assert!(ran.stderr.contains("\nhint: "), "{ran:?}");
    // The recorder's own.
    let mut command = owlet(dir.path(), &["record", "--", "true"]);
    let child = command.env("XDG_RUNTIME_DIR", other.path());
    let ran = finish(child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let want = format!("error: cannot use the socket directory {place}: not a directory\nhint: ");
    assert!(ran.code == 1 && ran.stderr.starts_with(&want), "{ran:?}");
    assert_eq!(names(dir.path()), BTreeSet::new());
}

#[test]
fn too_few_descriptors_are_told_with_the_way_to_more() {
    let dir = tempfile::tempdir().unwrap();
    for limit in 4..40 {
        let mut command = owlet(dir.path(), &["record", "-o", "t", "--", "true"]);
        let limit = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
        let set = move || rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(move || set().map_err(Into::into)) };
        let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        if ran.code == 4 {
            break;
        }
        assert_eq!(ran.code, 1, "{limit:?}: {ran:?}");
        assert!(ran.stderr.to_lowercase().contains("too many open files"), "{limit:?}: {ran:?}");
        assert!(ran.stderr.contains("hint: raise the limit of open files"), "{limit:?}: {ran:?}");
        if ran.stderr.contains("recording ended early") {
            // The command ran; its trace is whole up to there.
            std::fs::remove_dir_all(dir.path().join("t")).unwrap();
        }
        assert_eq!(names(dir.path()), BTreeSet::new(), "{limit:?}");
    }
    assert!(dir.path().join("t").exists());
}

#[test]
fn lost_to_full_rings_names_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let ran = record_command(dir.path(), "burst:400000", &["--size", "4K"]);
    let want = "hint: the rings were full: choose larger rings: --size 16K\nrecorded ";
    assert!(ran.stderr.contains(want), "{ran:?}");
    for command in ["stat", "report"] {
        let ran = run(dir.path(), &[command, "t"]);
        let want = "hint: the rings were full: choose larger rings: owlet record --size";
        assert!(ran.code == 0 && ran.stderr.contains(want), "{}", ran.stderr);
    }
}
