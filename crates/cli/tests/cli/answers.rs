//! Processes that do not answer, have ended, have become another program, or are out of something: what
//! is said, and that nothing is claimed of them.

use crate::common::{Target, finish, kill, owlet, run, sockets};
use crate::record::{record_command, start, verdict};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Nothing takes this long.
const LATE: Duration = Duration::from_secs(120);

#[test]
fn a_stopped_process_is_not_said_to_be_switched() {
    let dir = tempfile::tempdir().unwrap();
    let (stopped, runs) = (Target::start("paced:100"), Target::start("paced:100"));
    let recording = start(dir.path(), &["-p", &stopped.pid(), "-p", &runs.pid()]);
    stopped.signal(Signal::STOP);
    let warning = format!("warning: process {} (", stopped.pid());
    for (command, on) in [("disable", 1), ("enable", 2)] {
        let ran = run(dir.path(), &[command, "probe:tick"]);
        let said = format!(
            "{command}d 1 trace point in 1 process; {on} on now there; 1 process not switched\n"
        );
        assert!(ran.code == 5 && ran.stderr.ends_with(&said), "{ran:?}");
        assert!(ran.stderr.contains(&warning), "{ran:?}");
        assert!(ran.stderr.contains("does not answer: it is stopped"), "{ran:?}");
    }
    // What nobody who answers has, the other one may.
    let ran = run(dir.path(), &["disable", "probe:tock"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    stopped.signal(Signal::CONT);
    kill(&recording.child, Signal::INT);
    assert_eq!(recording.finish().code, 0);
}

#[test]
fn a_list_without_a_stopped_process_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (stopped, runs) = (Target::start("idle:60"), Target::start("idle:60"));
    stopped.signal(Signal::STOP);
    let warning = format!("warning: process {} (", stopped.pid());
    for (args, there) in [
        (&["list"][..], Some(runs.pid())),
        (&["list", "probe:*"], Some("probe:tick".into())),
        (&["list", "probe:*", "--json"], Some("probe:tick".into())),
        (&["list", "probe:tock"], None),
    ] {
        let ran = run(dir.path(), args);
        assert_eq!(ran.code, 5, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(&warning), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("warning: the list is incomplete: "), "{args:?}: {ran:?}");
        assert!(there.is_none_or(|there| ran.stdout.contains(&there)), "{args:?}: {ran:?}");
    }
    stopped.signal(Signal::CONT);
}

/// It is there when it is looked for, and gone when it is asked.
#[test]
fn a_process_that_ends_meanwhile_has_one_status() {
    let dir = tempfile::tempdir().unwrap();
    for words in [&["list"][..], &["record", "-p"], &["enable", "probe:*", "-p"]] {
        let target = Target::start("leaves:1");
        let pid = target.pid();
        let ran = run(dir.path(), &[words, &[&pid]].concat());
        let said = format!("process {pid} has ended\n");
        assert!(ran.code == 3 && ran.stderr.contains(&said), "{words:?}: {ran:?}");
    }
    // Without a name it is not missed; processes of others may be there.
    let _target = Target::start("leaves:1");
    let ran = run(dir.path(), &["list", "*"]);
    assert!(ran.code == 0 || ran.stderr.starts_with("error: no process of yours"), "{ran:?}");
    assert!(ran.code == 0 || ran.code == 3, "{ran:?}");
}

#[test]
fn a_process_that_executes_another_program_is_not_said_to_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("exec:3000");
    let ran = start(dir.path(), &["-p", &target.pid()]).finish();
    let pid = target.pid();
    let said =
        format!("process {pid} has executed another program (sleep), which is not recorded\n");
    assert!(ran.code == 0 && ran.stderr.contains(&said), "{ran:?}");
    assert!(ran.stderr.contains("\nno recorded process is left\n"), "{ran:?}");
    assert!(!ran.stderr.contains("every recorded process"), "{ran:?}");
    assert!(verdict(&ran).0 > 10, "{ran:?}");
}

#[test]
fn a_socket_that_somebody_removed_is_said_to_be_gone_until_it_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let socket = socket_of(&target).unwrap();
    std::fs::remove_file(&socket).unwrap();
    let pid = target.pid();
    let ran = run(dir.path(), &["record", "-p", &pid]);
    let said = format!("error: process {pid} (cli-");
    // The agent may have been quicker.
    if ran.stderr.starts_with("error") {
        assert!(ran.code == 5 && ran.stderr.starts_with(&said), "{ran:?}");
        assert!(ran.stderr.contains("cannot be reached: its agent's socket is gone\nhint: the "));
    }
    let until = Instant::now() + LATE;
    while socket_of(&target).is_none() {
        assert!(Instant::now() < until, "no socket again");
        sleep(Duration::from_millis(20));
    }
    assert_eq!(socket_of(&target).unwrap(), socket);
    let args = ["record", "-o", "t", "-p", &pid, "--duration", "300ms"];
    let ran = run(dir.path(), &args);
    assert!(ran.code == 0 && verdict(&ran).0 > 10, "{ran:?}");
}

fn socket_of(target: &Target) -> Option<PathBuf> {
    let sockets = owlet_sys::runtime_dir::list(&sockets().join("owlet")).unwrap();
    sockets.into_iter().find(|(name, _)| name.pid.to_string() == target.pid()).map(|(_, path)| path)
}

/// Lets a running process have so many files open, or so many bytes of address space.
fn limit(target: &Target, resource: Resource, to: u64) {
    let pid = Pid::from_raw(target.pid().parse().unwrap());
    prlimit(pid, resource, Rlimit { current: Some(to), maximum: Some(to) }).unwrap();
}

/// The lowest descriptor that a process does not use, once that has stayed the same for a while: an agent that
/// has just started opens some for a moment.
fn lowest_free(target: &Target) -> u64 {
    let look = || {
        let open: Vec<u64> = std::fs::read_dir(format!("/proc/{}/fd", target.pid()))
            .unwrap()
            .map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        (0..).find(|fd| !open.contains(fd)).unwrap()
    };
    let (mut free, mut same) = (look(), 0);
    while same < 20 {
        sleep(Duration::from_millis(10));
        let now = look();
        same = if now == free { same + 1 } else { 0 };
        free = now;
    }
    free
}

#[test]
fn a_process_without_a_descriptor_left_is_told_by_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    for (more, want) in [
        (0, "does not answer: it has reached its limit on open files, "),
        (1, "refuses: it has reached its limit on open files, "),
    ] {
        let target = Target::start("paced:100");
        let free = lowest_free(&target);
        limit(&target, Resource::Nofile, free + more);
        let ran = run(dir.path(), &["record", "-p", &target.pid(), "--duration", "1s"]);
        assert!(ran.code == 5 && ran.stderr.contains(want), "{more}: {ran:?}");
        assert!(ran.stderr.contains("\nhint: raise the limit"), "{more}: {ran:?}");
        assert!(ran.stderr.contains("prlimit --pid "), "{more}: {ran:?}");
    }
}

#[test]
fn a_process_without_address_space_for_the_rings_is_not_of_another_version() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:100");
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", target.pid())).unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    limit(&target, Resource::As, pages * 4096 + (16 << 20));
    let ran = run(dir.path(), &["record", "-p", &target.pid(), "--size", "32M"]);
    assert!(ran.code == 5 && ran.stderr.contains("cannot map the segment"), "{ran:?}");
    assert!(ran.stderr.contains("\nhint: the program's limit on address space"), "{ran:?}");
}

#[test]
fn a_filter_that_may_have_let_nothing_pass_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let ran = record_command(dir.path(), "burst:1000", &["--where", "seq > 5000"]);
    assert!(ran.stderr.contains("\nhint: --where let nothing pass, or the code"), "{ran:?}");
    assert!(!ran.stderr.contains("did not run meanwhile"), "{ran:?}");
    assert_eq!((ran.code, ran.verdict()), (4, "recorded 0 events, lost 0 in t"), "{ran:?}");
}

/// What a wrapper passes on comes within milliseconds of what the terminal sends.
#[test]
fn signals_that_come_together_are_one_request() {
    let together = [
        &[Signal::INT, Signal::INT][..],
        &[Signal::INT, Signal::TERM],
        &[Signal::TERM, Signal::HUP, Signal::INT, Signal::INT],
    ];
    for signals in together {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::start("paced:1000");
        let recording = start(dir.path(), &["-p", &target.pid()]);
        sleep(Duration::from_millis(300));
        signals.iter().for_each(|signal| kill(&recording.child, *signal));
        let ran = recording.finish();
        assert!(ran.code == 0 && verdict(&ran).1 == 0, "{signals:?}: {ran:?}");
        let report = run(dir.path(), &["report", "t"]);
        assert_eq!((report.code, report.stderr.as_str()), (0, ""), "{signals:?}");

        let dir = tempfile::tempdir().unwrap();
        let trap = "sleep 0.4; exit 5";
        let script = format!("trap '{trap}' INT TERM HUP; touch up; while :; do sleep 0.05; done");
        let mut command = owlet(dir.path(), &["record", "-o", "t", "--", "/bin/sh", "-c", &script]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let until = Instant::now() + LATE;
        while !dir.path().join("up").exists() {
            assert!(Instant::now() < until, "not started");
            sleep(Duration::from_millis(10));
        }
        signals.iter().for_each(|signal| kill(&child, *signal));
        let ran = finish(child);
        assert_eq!((ran.code, verdict(&ran)), (5, (0, 0)), "{signals:?}: {ran:?}");
    }
}
