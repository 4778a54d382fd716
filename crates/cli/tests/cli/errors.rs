//! What the command says when it cannot do what is asked, and with which status it ends.

use crate::common::{Target, run};
use rustix::process::Signal;
use std::time::Duration;

/// Runs the command and compares status and both outputs; in `stderr`, `*` stands for anything.
#[track_caller]
fn check(args: &[&str], code: i32, stderr: &str) {
    let dir = tempfile::tempdir().unwrap();
    let ran = run(dir.path(), args);
    assert_eq!(ran.code, code, "{args:?}: {ran:?}");
    assert_eq!(ran.stdout, "", "{args:?}");
    let matches = owlet_wire::config::glob(stderr, ran.stderr.trim_end());
    assert!(matches, "{args:?} says\n{}\ninstead of\n{stderr}", ran.stderr);
    assert!(ran.took < Duration::from_secs(2), "{args:?} took {:?}", ran.took);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{args:?} left {left:?}");
}

#[test]
fn the_command_line_is_checked_first() {
    check(
        &["record"],
        2,
        "error: the following required arguments were not provided:*--pid <PID>*",
    );
    check(&["record", "-p", "0"], 2, "error: invalid value '0' for '--pid <PID>...'*");
    check(&["record", "-p", "1", "--", "true"], 2, "error: the argument*cannot be used with*");
    check(&["record", "-p", "1", "--size", "many"], 2, "error: invalid value 'many'*as in 4M*");
    check(
        &["record", "-p", "1", "--duration", "5"],
        2,
        "error: invalid value '5'*a number and a unit*",
    );
    check(
        &["record", "-p", "1", "--level", "loud"],
        2,
        "error: invalid value 'loud'*error, warn, info*",
    );
    check(
        &["record", "-p", "1", "-e", ""],
        2,
        "error: invalid value ''*a pattern cannot be empty*",
    );
    check(
        &["record", "-p", "1", "-e", "a\tb"],
        2,
        "error: invalid value 'a*no control characters*",
    );
    let nothing = "error: '!*' leaves out every trace point: nothing would be recorded\nhint: *";
    check(&["record", "-p", "1", "-e", "!*"], 2, nothing);
    check(
        &["record", "-e", "a:*", "-e", "!**", "-e", "!b", "--", "true"],
        2,
        &nothing.replace("!*", "!**"),
    );
    check(&["record", "-p", "1", "--size", "9G"], 2, "error: invalid value '9G'*at most 1G a CPU*");
    check(
        &["record", "-p", "1", "--size", "99999999999999999999G"],
        2,
        "error: invalid value '9*at most 1G a CPU*",
    );
    // Names may have spaces.
    check(&["record", "-p", "999999999", "-e", "a b"], 3, "error: no process 999999999\n*");
    check(
        &["enable", "!a"],
        2,
        "error: '!a': a pattern here cannot begin with '!'\nhint: use `owlet disable`*",
    );
    check(&["nonsense"], 2, "error: unrecognized subcommand 'nonsense'*");
    // The closest comes first.
    check(&["recor"], 2, "error: unrecognized subcommand 'recor'*exist: 'record', 're*");
}

#[test]
fn a_bad_filter_names_the_column() {
    let column = "error: invalid value 'seq >' for '--where <EXPR>': column 6: *";
    check(&["record", "-p", "1", "--where", "seq >"], 2, column);
    check(&["report", "x", "--where", "seq >"], 2, column);
    // Names of threads are known to readers only.
    check(
        &["record", "-p", "1", "--where", "comm == \"a\""],
        2,
        "error: invalid value*column 1: *",
    );
}

#[test]
fn u1_no_process_no_agent() {
    let dir = tempfile::tempdir().unwrap();
    let list = run(dir.path(), &["list"]);
    // Somebody else's process may be there, or be stopped.
    if list.code != 0 && list.code != 5 {
        let want = "error: no process of yours has an agent\nhint: call `owlet::init()`";
        assert!(list.code == 3 && list.stderr.starts_with(want), "{list:?}");
    }
    check(&["list", "999999999"], 3, "error: no process 999999999\nhint: *");
    check(&["record", "-p", "999999999"], 3, "error: no process 999999999\nhint: *");
    check(&["enable", "x", "-p", "999999999"], 3, "error: no process 999999999\nhint: *");
    // As the usage line has it: the pattern last.
    check(&["enable", "-p", "999999999", "x"], 3, "error: no process 999999999\nhint: *");
    let plain = Target::plain();
    let want =
        format!("error: process {} (sleep) has no agent\nhint: call `owlet::init()`*", plain.pid());
    check(&["record", "-p", &plain.pid()], 3, &want);
    let me = rustix::thread::gettid().as_raw_nonzero().to_string();
    let thread =
        format!("error: {me} is a thread of process {}\nhint: use `-p *", std::process::id());
    check(&["record", "-p", &me], 3, &thread);
}

#[test]
fn u1_patterns_that_match_nothing() {
    let target = Target::start("paced:100");
    let pid = target.pid();
    let who = format!("process {pid} (*)");
    let hint = "hint: the closest names: probe:tick";
    check(
        &["record", "-p", &pid, "-e", "probe:tik"],
        3,
        &format!("error: no trace point of {who} matches 'probe:tik'\n{hint}*"),
    );
    check(
        &["list", "probe:tik"],
        3,
        &format!("error: no trace point of any process of yours matches 'probe:tik'\n{hint}*"),
    );
    check(
        &["list", "-p", &pid, "probe:tik"],
        3,
        &format!("error: no trace point of {who} matches 'probe:tik'\n{hint}*"),
    );
    check(
        &["disable", "probe:tik", "-p", &pid],
        3,
        &format!("error: no trace point of {who} matches 'probe:tik'\n{hint}*"),
    );
    let colons = "hint: between target and name stands one `:`; try 'probe*'\n\
                  hint: the closest names: probe:never, probe:tick";
    for args in [
        &["record", "-p", &pid, "-e", "probe::*"][..],
        &["list", "-p", &pid, "probe::*"],
        &["enable", "-p", &pid, "probe::*"],
    ] {
        let no = format!("error: no trace point of {who} matches 'probe::*'\n{colons}");
        check(args, 3, &no);
    }
    check(
        &["record", "-p", &pid, "--level", "warn"],
        3,
        "error: 2 trace points of *, but none is of level warn*\nhint: *--level info",
    );
    check(
        &["enable", "probe:*", "-p", &pid],
        3,
        "error: 2 trace points matched, but nobody is recording*\nhint: *",
    );
}

#[test]
fn u1_patterns_that_leave_out_everything_there_is() {
    let target = Target::start("paced:100");
    let want = "error: every trace point of process * is left out by '!probe:*'\nhint: *";
    check(&["record", "-p", &target.pid(), "-e", "!probe:*"], 3, want);
}

#[test]
fn what_is_too_long_is_not_repeated_whole() {
    let filter = "x".repeat(3000);
    let dir = tempfile::tempdir().unwrap();
    let ran = run(dir.path(), &["record", "-p", "1", "--where", &format!("{filter} ==")]);
    let start = format!("error: invalid value '{}..' for '--where <EXPR>': column ", &filter[..80]);
    assert!(ran.code == 2 && ran.stderr.starts_with(&start), "{ran:?}");
    assert!(ran.stderr.len() < 1000, "{ran:?}");
}

#[test]
fn u1_a_filter_on_a_field_that_is_not_there() {
    let target = Target::start("paced:100");
    let want = "error: --where can hold for no event of the 2 trace points that would be recorded\nhint: no event has a field `sqe`; closest: `seq`\nhint: their fields are: a, note, seq";
    check(&["record", "-p", &target.pid(), "--where", "sqe > 5"], 3, want);
    // One that can hold all the same.
    let dir = tempfile::tempdir().unwrap();
    let args = ["record", "-o", "t", "-p", &target.pid(), "--duration", "300ms", "--where"];
    let ran = run(dir.path(), &[&args[..], &["sqe > 5 or note == 5 or seq >= 0"]].concat());
    let want = "warning: --where: so far no event has a field `sqe`; closest: `seq`\n\
                warning: --where: so far `note` is text in every event that has it: it is compared with text\n\
                recording ";
    assert!(ran.code == 0 && ran.stderr.starts_with(want), "{ran:?}");
}

#[test]
fn d8_a_stopped_process_is_named_within_a_second() {
    let target = Target::start("idle:60");
    let pid = target.pid();
    target.signal(Signal::STOP);
    let want = format!(
        "error: process {pid} (*) does not answer: it is stopped\nhint: *kill -CONT {pid}*"
    );
    for args in [&["record", "-p", &pid][..], &["list", &pid], &["enable", "x", "-p", &pid]] {
        check(args, 5, &want);
    }
    let dir = tempfile::tempdir().unwrap();
    let list = run(dir.path(), &["list"]);
    let warning = format!("warning: process {pid} ");
    assert!(list.stderr.starts_with(&warning) && list.took < Duration::from_secs(2), "{list:?}");
    // Without a pid, too; it is the only process unless somebody else's is there.
    for args in [&["enable", "x:*"][..], &["disable", "x:*"], &["list", "x:*"]] {
        let ran = run(dir.path(), args);
        let alone = ran.code == 5 && owlet_wire::config::glob(&want, ran.stderr.trim_end());
        let beside = ran.code == 5 && ran.stderr.starts_with(&warning);
        assert!(alone || beside, "{args:?}: {ran:?}");
    }
    target.signal(Signal::CONT);
}

#[test]
fn x5_other_users_processes_are_refused_by_name() {
    if !rustix::process::geteuid().is_root() {
        // Process 1 is root's, or not to be seen at all.
        check(
            &["record", "-p", "1"],
            5,
            "error: process 1 (*) belongs to user root, not to you\nhint: *",
        );
    }
}

#[test]
fn directories_that_cannot_be_recorded_into() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("something"), "").unwrap();
    let full = dir.path().to_str().unwrap();
    let file = dir.path().join("something").to_str().unwrap().to_string();
    let missing = dir.path().join("a/b").to_str().unwrap().to_string();
    let not_empty =
        format!("error: cannot record into {full}: the directory is not empty\nhint: *");
    check(&["record", "-o", full, "--", "true"], 1, &not_empty);
    check(
        &["record", "-o", &file, "--", "true"],
        1,
        "error: cannot record into *: there is a file of that name\nhint: *",
    );
    check(
        &["record", "-o", &missing, "--", "true"],
        1,
        "error: */a/b: cannot make the trace directory: no such file or directory\nhint: *",
    );
    check(&["record", "-o", "/proc/owlet", "--", "true"], 1, "error: */proc/owlet: *\nhint: *");
}

#[test]
fn commands_that_cannot_be_started_leave_nothing() {
    check(
        &["record", "--", "no-such-command"],
        1,
        "error: cannot start no-such-command: no such command\nhint: *",
    );
    check(
        &["record", "--", "/etc/passwd"],
        1,
        "error: cannot start /etc/passwd: it is no executable file",
    );
    check(
        &["record", "--", "./nothing"],
        1,
        "error: cannot start ./nothing: no such file or directory",
    );
    // Executable, and yet no program.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    std::fs::write(&program, b"\0\0\0\0").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    check(
        &["record", "--", program.to_str().unwrap()],
        1,
        "error: cannot start *: exec format error",
    );
}

#[test]
fn traces_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("metadata"), b"\x00\xff garbage").unwrap();
    std::fs::write(dir.path().join(".owlet"), b"garbage garbage garbage").unwrap();
    let garbage = dir.path().to_str().unwrap();
    let perfetto = dir.path().join("out").to_str().unwrap().to_string();
    for command in [&["report"][..], &["stat"], &["recover"], &["export", "--perfetto", &perfetto]]
    {
        for place in ["/nowhere/at/all", "/etc/passwd", "/etc", garbage] {
            let args = [command, &[place]].concat();
            check(&args, 1, "error: *\nhint: *");
        }
    }
    assert!(!std::path::Path::new(&perfetto).exists());
}

#[test]
fn a_socket_directory_of_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = dir.path().join("owlet");
    std::fs::create_dir(&sockets).unwrap();
    std::fs::set_permissions(&sockets, std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    let output = crate::common::owlet(dir.path(), &["list"])
        .env("XDG_RUNTIME_DIR", dir.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: cannot trust the socket directory "), "{stderr}");
}
