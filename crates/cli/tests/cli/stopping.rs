//! Signals to a recording that has started a command: the command gets them too, is waited for, and
//! its status is the recording's.

use crate::common::{Target, finish, kill, owlet, run};
use crate::record::verdict;
use rustix::process::Signal;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

fn start(dir: &Path, words: &[&str]) -> Child {
    let mut command = owlet(dir, &[&["record", "-o", "t", "--"], words].concat());
    // A group of its own: the shells below end what they started with a signal to the group.
    command.process_group(0);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_millis(600));
    child
}

#[test]
fn a_command_that_handles_the_signal_gives_its_own_status() {
    for (signal, name, status) in [(Signal::INT, "INT", 7), (Signal::TERM, "TERM", 9)] {
        let dir = tempfile::tempdir().unwrap();
        let script =
            format!("trap 'exit {status}' {name}; for i in $(seq 200); do sleep 0.05; done");
        let child = start(dir.path(), &["/bin/sh", "-c", &script]);
        kill(&child, signal);
        let ran = finish(child);
        assert_eq!((ran.code, verdict(&ran)), (status, (0, 0)), "{ran:?}");
        assert!(ran.took < Duration::from_secs(3), "{ran:?}");
    }
}

#[test]
fn a_command_that_ends_by_the_same_signal_is_recorded_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = owlet(dir.path(), &["record", "-o", "t", "--"]);
    command.args(Target::words()).env("OWLET_TEST_TARGET", "paced:1000");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_millis(600));
    kill(&child, Signal::INT);
    let ran = finish(child);
    assert_eq!(ran.code, 128 + 2, "{ran:?}");
    assert!(ran.stderr.contains("the command was killed by signal 2"), "{ran:?}");
    let (events, lost) = verdict(&ran);
    assert!(events > 100 && lost == 0, "{ran:?}");
}

#[test]
fn a_command_that_ends_late_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'sleep 2; exit 5' INT; for i in $(seq 200); do sleep 0.05; done";
    let child = start(dir.path(), &["/bin/sh", "-c", script]);
    kill(&child, Signal::INT);
    let ran = finish(child);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.stderr.contains("waiting for sh to end"), "{ran:?}");
}

#[test]
fn a_second_signal_ends_the_recording_of_a_command_that_ignores_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap '' INT; echo $$ > pid; sleep 30";
    let child = start(dir.path(), &["/bin/sh", "-c", script]);
    kill(&child, Signal::INT);
    sleep(Duration::from_millis(1500));
    kill(&child, Signal::INT);
    // It keeps our pipes open.
    let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
    sleep(Duration::from_millis(700));
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let group = rustix::process::getpgid(Some(pid)).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    let ran = finish(child);
    assert_eq!((ran.code, verdict(&ran)), (128 + 2, (0, 0)), "{ran:?}");
    assert!(ran.stderr.contains("goes on without being recorded"), "{ran:?}");
}

/// A recording that fails says so at once, switches its trace points off, and still waits for the
/// command, to which it passes signals on.
#[test]
fn a_command_outlives_a_recording_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'touch got; kill $!; exit 7' TERM; \"$@\" & wait";
    let mut command =
        owlet(dir.path(), &["record", "-o", "t", "--", "/bin/sh", "-c", script, "sh"]);
    command.args(Target::words()).env("OWLET_TEST_TARGET", "paced:1000");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_millis(800));
    std::fs::remove_dir_all(dir.path().join("t")).unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("sh goes on without being recorded; its end is waited for\n") {
        assert!(stderr.read_line(&mut said).unwrap() > 0, "{said}");
    }
    let cause = "error: recording ended early: t: the directory was removed while";
    assert!(said.starts_with(cause), "{said}");
    assert!(child.try_wait().unwrap().is_none());
    // Nobody records the program any more.
    let list = run(dir.path(), &["list", "--json", "-p", &descendant(&child)]);
    assert!(list.code == 0 && list.stdout.contains("\"enabled\":false"), "{list:?}");
    assert!(!list.stdout.contains("\"enabled\":true"), "{list:?}");
    kill(&child, Signal::TERM);
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(dir.path().join("got").exists(), "{said}");
    let rest = said.split("is waited for\n").nth(1).unwrap();
    assert!(rest.starts_with("the command exited with status 7\n"), "{said}");
    assert!(rest.contains("\nrecorded 0 events, lost ") && rest.contains("removed "), "{said}");
}

/// The process that the command of a recording has started.
fn descendant(recorder: &Child) -> String {
    let children =
        |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children(children(&recorder.id().to_string()).trim()).trim().to_owned()
}
