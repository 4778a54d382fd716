//! Recording for real: exact counts, switching meanwhile, and every way a recording can end.

use crate::common::{Ran, Target, finish, kill, owlet, run};
use rustix::process::Signal;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Records the traced program from its first event.
pub(crate) fn record_command(dir: &Path, mode: &str, args: &[&str]) -> Ran {
    let words = Target::words();
    let args = [&["record", "-o", "t"], args, &["--"]].concat();
    let mut command = owlet(dir, &args);
    command.args(words).env("OWLET_TEST_TARGET", mode);
    finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Starts a recording and waits until it records.
pub(crate) fn start(dir: &Path, args: &[&str]) -> Started {
    let mut command = owlet(dir, &[&["record", "-o", "t"], args].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    stderr.read_line(&mut first).unwrap();
    assert!(first.starts_with("recording "), "{first}");
    Started { child, stderr, first }
}

/// A recording under way.
pub(crate) struct Started {
    pub(crate) child: Child,
    stderr: BufReader<ChildStderr>,
    first: String,
}

impl Started {
    pub(crate) fn finish(mut self) -> Ran {
        let begin = Instant::now();
        let mut stderr = self.first;
        self.stderr.read_to_string(&mut stderr).unwrap();
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        Ran { code, stdout: String::new(), stderr, took: begin.elapsed() }
    }
}

/// `seq` of every event of the trace, as `report` tells it.
fn seqs(dir: &Path) -> Vec<u64> {
    let report = run(dir, &["report", "t", "--json"]);
    assert_eq!(report.code, 0, "{report:?}");
    let seq = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["event"], "probe:tick");
        event["fields"]["seq"].as_u64().unwrap()
    };
    report.stdout.lines().map(seq).collect()
}

/// Events and losses of the last line.
pub(crate) fn verdict(ran: &Ran) -> (u64, u64) {
    let words: Vec<_> = ran.verdict().split([' ', ',']).filter(|word| !word.is_empty()).collect();
    assert!(matches!(words[..], ["recorded", _, "events", "lost", _, ..]), "{ran:?}");
    (words[1].parse().unwrap(), words[4].parse().unwrap())
}

#[test]
fn a_command_is_recorded_from_its_first_event_to_its_last() {
    let dir = tempfile::tempdir().unwrap();
    let ran = record_command(dir.path(), "burst:5000", &[]);
    assert_eq!((ran.code, ran.verdict()), (0, "recorded 5000 events, lost 0 in t"), "{ran:?}");
    assert_eq!(seqs(dir.path()), (0..5000).collect::<Vec<_>>());
    let stat = run(dir.path(), &["stat", "t", "--json"]);
    let stat: serde_json::Value = serde_json::from_str(&stat.stdout).unwrap();
    assert_eq!((stat["events"].as_u64(), stat["lost"].as_u64()), (Some(5000), Some(0)));
}

#[test]
fn l1_a_running_process_is_recorded_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:5000");
    let ran = run(dir.path(), &["record", "-o", "t", "-p", &target.pid(), "--duration", "1s"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let (events, lost) = verdict(&ran);
    assert_eq!(lost, 0, "{ran:?}");
    let seqs = seqs(dir.path());
    assert_eq!(seqs.len() as u64, events);
    assert!(events > 1000, "{events}");
    assert!(seqs.windows(2).all(|pair| pair[1] == pair[0] + 1), "a gap");
}

#[test]
fn what_does_not_fit_the_ring_is_counted_to_the_last_event() {
    let dir = tempfile::tempdir().unwrap();
    let ran = record_command(dir.path(), "burst:400000", &["--size", "4K"]);
    let (events, lost) = verdict(&ran);
    assert_eq!(events + lost, 400_000, "{ran:?}");
    assert!(lost > 0 && ran.verdict().contains("(full "), "{ran:?}");
    let stat = run(dir.path(), &["stat", "t", "--json"]);
    let stat: serde_json::Value = serde_json::from_str(&stat.stdout).unwrap();
    assert_eq!((stat["events"].as_u64(), stat["lost"].as_u64()), (Some(events), Some(lost)));
}

#[test]
fn points_are_switched_while_the_recording_runs() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let pid = target.pid();
    let child = start(dir.path(), &["-p", &pid, "--duration", "1500ms"]);
    sleep(Duration::from_millis(500));
    let off = run(dir.path(), &["disable", "probe:tick", "-p", &pid]);
    assert_eq!(
        (off.code, off.stderr.trim_end()),
        (0, "disabled 1 trace point in 1 process; 1 on now")
    );
    let list = run(dir.path(), &["list", &pid, "--json"]);
    let states: Vec<_> =
        list.stdout.lines().map(|line| line.contains("\"enabled\":true")).collect();
    assert_eq!(states, [true, false], "{list:?}");
    sleep(Duration::from_millis(300));
    let on = run(dir.path(), &["enable", "probe:t*"]);
    assert_eq!(
        (on.code, on.stderr.trim_end()),
        (0, "enabled 1 trace point in 1 process; 2 on now")
    );
    let ran = child.finish();
    assert_eq!(ran.code, 0, "{ran:?}");
    let seqs = seqs(dir.path());
    let gaps: Vec<_> = seqs.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert!(gaps[0][1] - gaps[0][0] > 200, "{gaps:?}");
}

#[test]
fn a_filter_is_decided_in_the_traced_process() {
    let dir = tempfile::tempdir().unwrap();
    let ran = record_command(dir.path(), "burst:1000", &["--where", "seq >= 10 and seq < 20"]);
    assert_eq!((ran.code, ran.verdict()), (0, "recorded 10 events, lost 0 in t"), "{ran:?}");
    assert_eq!(seqs(dir.path()), (10..20).collect::<Vec<_>>());
    let report = run(dir.path(), &["report", "t", "--where", "seq == 12"]);
    assert_eq!(report.stdout.lines().count(), 1, "{report:?}");
}

#[test]
fn signals_end_a_recording_in_order() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::start("paced:1000");
        let child = start(dir.path(), &["-p", &target.pid()]);
        sleep(Duration::from_millis(600));
        kill(&child.child, signal);
        let ran = child.finish();
        let (events, lost) = verdict(&ran);
        assert_eq!((ran.code, lost), (0, 0), "{ran:?}");
        assert_eq!(seqs(dir.path()).len() as u64, events);
    }
}

#[test]
fn the_end_of_the_process_ends_the_recording() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let child = start(dir.path(), &["-p", &target.pid()]);
    sleep(Duration::from_millis(600));
    drop(target);
    let ran = child.finish();
    let (events, lost) = verdict(&ran);
    assert!(ran.code == 0 && lost == 0 && events > 100, "{ran:?}");
    assert!(ran.stderr.contains("every recorded process has ended"), "{ran:?}");
    assert!(ran.took < Duration::from_secs(2), "{ran:?}");
}

#[test]
fn d8_a_process_stopped_meanwhile_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let child = start(dir.path(), &["-p", &target.pid(), "--duration", "700ms"]);
    sleep(Duration::from_millis(400));
    target.signal(Signal::STOP);
    let ran = child.finish();
    target.signal(Signal::CONT);
    assert!(ran.took < Duration::from_secs(2), "{ran:?}");
    assert!(ran.stderr.contains("does not answer: it is stopped"), "{ran:?}");
    assert!(verdict(&ran).0 > 50, "{ran:?}");
}

#[test]
fn the_status_of_the_command_is_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let ran = record_command(dir.path(), "exit:7", &[]);
    assert_eq!(ran.code, 7, "{ran:?}");
    assert!(ran.stderr.contains("the command exited with status 7"), "{ran:?}");
    assert!(ran.stderr.contains("no process joined the session"), "{ran:?}");
}

#[test]
fn a_reader_of_stderr_that_leaves_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let mut child = start(dir.path(), &["-p", &target.pid(), "--duration", "400ms"]);
    drop(child.stderr);
    assert_eq!(child.child.wait().unwrap().code(), Some(0));
    assert!(!seqs(dir.path()).is_empty());
}

#[test]
fn u1_a_recording_without_events_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("idle:60");
    let ran = run(dir.path(), &["record", "-o", "t", "-p", &target.pid(), "--duration", "200ms"]);
    assert_eq!((ran.code, ran.verdict()), (4, "recorded 0 events, lost 0 in t"), "{ran:?}");
    let why =
        "warning: no event was recorded: 2 trace points on in 1 process, hits 0\nhint: the code";
    assert!(ran.stderr.contains(why), "{ran:?}");

    let dir = tempfile::tempdir().unwrap();
    let ran = record_command(dir.path(), "burst:1000", &["--where", "seq > 5000"]);
    assert!(ran.stderr.contains("warning: no event was recorded: 1 trace point on"), "{ran:?}");
    assert_eq!((ran.code, ran.verdict()), (4, "recorded 0 events, lost 0 in t"), "{ran:?}");

    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let args = [
        "record",
        "-o",
        "t",
        "-p",
        &target.pid(),
        "--duration",
        "300ms",
        "--where",
        "seq > 999999999",
    ];
    let ran = run(dir.path(), &args);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("but --where let nothing pass"), "{ran:?}");
}

#[test]
fn a_full_disk_ends_the_recording_and_keeps_what_is_written() {
    use std::os::unix::process::CommandExt as _;
    let dir = tempfile::tempdir().unwrap();
    let args = ["record", "-o", "t", "--size", "64K", "--"];
    let mut command = owlet(dir.path(), &args);
    command.args(Target::words()).env("OWLET_TEST_TARGET", "burst:10000000");
    // The limit of a file's size stands in for the disk's. The session's memory is a file, too.
    let limit = ((owlet_percpu::cpus() as u64 * 128) << 10) + (10 << 20);
    let limit = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
    let set = move || rustix::process::setrlimit(rustix::process::Resource::Fsize, limit);
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(move || set().map_err(Into::into)) };
    let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let (events, lost) = verdict(&ran);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("error: recording ended early: t/"), "{ran:?}");
    assert!(events > 1000 && lost > 0 && ran.verdict().contains("not_written"), "{ran:?}");
    let seqs = seqs(dir.path());
    assert_eq!(seqs.len() as u64, events);
    assert!(seqs.is_sorted(), "out of order");
}

#[test]
fn x5_a_process_that_scribbles_over_the_session_breaks_nothing_of_ours() {
    for seed in 1..4 {
        let dir = tempfile::tempdir().unwrap();
        let ran = record_command(dir.path(), &format!("scribble:{seed}"), &[]);
        assert!(ran.took < Duration::from_secs(10), "{ran:?}");
        assert!(ran.code >= 0 && ran.code < 101, "{ran:?}");
        assert!(ran.verdict().starts_with("recorded "), "{ran:?}");
        let report = run(dir.path(), &["report", "t"]);
        assert_eq!(report.code, 0, "{report:?}");
    }
}

#[test]
fn progress_is_shown_only_where_it_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let args = ["record", "-o", "t", "-p", &target.pid(), "--duration", "1300ms", "--progress"];
    let ran = run(dir.path(), &args);
    let lines = ran.stderr.lines().filter(|line| line.starts_with("recording 00:0")).count();
    assert_eq!(lines, 1, "{ran:?}");
    assert_eq!(ran.stdout, "");
}

#[test]
fn sockets_of_killed_recorders_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:100");
    let mut killed = start(dir.path(), &["-p", &target.pid()]);
    let sockets = crate::common::sockets().join("owlet");
    let socket = |child: &Child| sockets.join(format!("recorder-{}.sock", child.id()));
    let left = socket(&killed.child);
    kill(&killed.child, Signal::KILL);
    killed.child.wait().unwrap();
    assert!(left.exists(), "{left:?}");
    let other = tempfile::tempdir().unwrap();
    let lives = start(other.path(), &["-p", &target.pid()]);
    assert!(!left.exists(), "{left:?}");
    // That of a living one stays.
    let third = tempfile::tempdir().unwrap();
    let ran = run(third.path(), &["record", "-o", "t", "--", "true"]);
    assert!(socket(&lives.child).exists(), "{ran:?}");
    kill(&lives.child, Signal::INT);
    assert_eq!(lives.finish().code, 0);
}

#[test]
fn a_command_is_recorded_as_long_as_what_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["record", "-o", "t", "--", "/bin/sh", "-c", "\"$@\" & sleep 1; exit 3", "sh"];
    let mut command = owlet(dir.path(), &args);
    command.args(Target::words()).env("OWLET_TEST_TARGET", "late:2500");
    let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let said = "sh has ended; 1 process it started goes on: recording them, Ctrl-C ends it\n";
    assert_eq!(ran.stderr.matches(said).count(), 1, "{ran:?}");
    assert_eq!((ran.code, ran.verdict()), (3, "recorded 100 events, lost 0 in t"), "{ran:?}");
}

#[test]
fn a_killed_recording_is_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let mut child = start(dir.path(), &["-p", &target.pid()]);
    sleep(Duration::from_millis(600));
    kill(&child.child, Signal::KILL);
    child.child.wait().unwrap();
    for _ in 0..2 {
        let ran = run(dir.path(), &["recover", "t"]);
        assert_eq!(ran.code, 6, "what was in the rings is missing for ever: {ran:?}");
    }
    // Nor can what is cut now be brought back.
    let largest = std::fs::read_dir(dir.path().join("t")).unwrap().map(|entry| entry.unwrap());
    let largest = largest.filter(|entry| entry.file_name().to_str().unwrap().starts_with("cpu_"));
    let largest = largest.max_by_key(|entry| entry.metadata().unwrap().len()).unwrap();
    std::fs::OpenOptions::new().append(true).open(largest.path()).unwrap().set_len(5000).unwrap();
    for _ in 0..2 {
        let ran = run(dir.path(), &["recover", "t"]);
        assert_eq!(ran.code, 6, "{ran:?}");
    }
}
