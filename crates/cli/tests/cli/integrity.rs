//! What happens to a trace behind the recorder's back, while it records and later, and what an export
//! is written into.

use crate::common::{Ran, Target, finish, kill, owlet, run};
use crate::reading::trace;
use crate::record::{record_command, start, verdict};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn export(dir: &Path, to: &str) -> Ran {
    run(dir, &["export", "--perfetto", to, "t"])
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn an_export_replaces_regular_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    trace(dir.path(), |_| {});
    assert_eq!(export(dir.path(), "new").code, 0);
    let whole = fs::read(at("new")).unwrap();
    assert_eq!((whole[0], mode(&at("new"))), (0x0a, 0o600), "no wider than the trace");
    // What is there keeps its mode; links stay and are followed, into nowhere, too.
    fs::write(at("old"), "old").unwrap();
    fs::set_permissions(at("old"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("old", at("link")).unwrap();
    symlink(at("link"), at("second")).unwrap();
    symlink("made", at("dangling")).unwrap();
    for name in ["second", "dangling"] {
        assert_eq!(export(dir.path(), name).code, 0, "{name}");
        assert!(fs::symlink_metadata(at(name)).unwrap().is_symlink(), "{name}");
        assert_eq!(fs::read(at(name)).unwrap(), whole, "{name}");
    }
    assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
    assert_eq!((mode(&at("old")), mode(&at("made"))), (0o640, 0o600));
    fs::create_dir(at("dir")).unwrap();
    let ran = export(dir.path(), "dir");
    assert!(ran.code == 1 && ran.stderr.contains("cannot write dir: is a directory"), "{ran:?}");
    // A device of our own, like /dev/null. Only root can make one.
    let made = std::process::Command::new("mknod").arg(at("null")).args(["c", "1", "3"]).status();
    if made.is_ok_and(|status| status.success()) {
        symlink("null", at("to-null")).unwrap();
        for name in ["null", "to-null"] {
            // A file system may forbid devices.
            let _ = export(dir.path(), name);
            assert!(fs::metadata(at(name)).unwrap().file_type().is_char_device(), "{name}");
        }
        fs::remove_file(at("null")).unwrap();
        fs::remove_file(at("to-null")).unwrap();
    }
    let all = ["dangling", "dir", "link", "made", "new", "old", "second", "t"];
    assert_eq!(names(dir.path()), all, "nothing half-written stays");
}

/// A descriptor is written to, whatever stands behind it.
#[test]
fn an_export_to_a_descriptor_goes_where_that_leads() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |_| {});
    let file = dir.path().join("file");
    for to in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let out = fs::File::create(&file).unwrap();
        // Gone from where it was: a rename would leave it empty.
        let aside = dir.path().join("aside");
        fs::rename(&file, &aside).unwrap();
        let mut command = owlet(dir.path(), &["export", "--perfetto", to, "t"]);
        assert!(command.stdout(out).stderr(Stdio::null()).status().unwrap().success(), "{to}");
        assert!(fs::metadata(&aside).unwrap().len() > 100, "{to}");
        assert!(!file.exists(), "{to}");
    }
}

/// One file cut between two packets, and each of the readers.
#[test]
fn a_cut_between_two_packets_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |_| {});
    let path = dir.path().join("t/cpu_0");
    // Ten packets of 3 events are of one size.
    let len = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(len / 10 * 6).unwrap();
    let want = "4 of 10 packets are missing, with 12 of 30 events";
    for args in [&["stat", "t"][..], &["report", "t"], &["recover", "t"], &["stat", "--json", "t"]]
    {
        let ran = run(dir.path(), args);
        assert!(ran.code == 6 && ran.stderr.contains(want), "{args:?} {ran:?}");
        assert!(!ran.stderr.contains("hint: `owlet recover"), "{ran:?}");
    }
    let ran = export(dir.path(), "out");
    assert!(ran.code == 6 && ran.stderr.contains(want), "{ran:?}");
}

/// A record whose length has grown hides those behind it in its packet, and each of the readers.
#[test]
fn a_record_that_swallows_others_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |_| {});
    let path = dir.path().join("t/cpu_0");
    let mut bytes = fs::read(&path).unwrap();
    // The first record's length, behind the packet's header of 88 bytes: to the packet's end.
    let to_end = bytes.len() / 10 - 88;
    bytes[88 + 12..88 + 16].copy_from_slice(&u32::try_from(to_end).unwrap().to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let want = "cpu_0 at byte 88: 28 of 30 events are there: the record here hides others\n";
    for args in [
        &["stat", "t"][..],
        &["report", "t"],
        &["export", "--perfetto", "out", "t"],
        &["recover", "t"],
    ] {
        let ran = run(dir.path(), args);
        assert!(ran.code == 6 && ran.stderr.contains(want), "{args:?} {ran:?}");
    }
}

/// A value that is none: each of the readers shows the event, and is no success.
#[test]
fn a_value_that_does_not_fit_is_noticed_by_every_reader() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |_| {});
    let path = dir.path().join("t/cpu_0");
    let mut bytes = fs::read(&path).unwrap();
    // The second record is cut short inside its value; its padding keeps the others in place.
    let at = 88 + 32 + 12;
    bytes[at..at + 4].copy_from_slice(&30_u32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let want = "cpu_0 at byte 120: an event does not fit its description\n";
    for args in [
        &["stat", "t"][..],
        &["report", "t"],
        &["report", "--json", "t"],
        &["report", "t", "--where", "seq > 5"],
        &["export", "--perfetto", "out", "t"],
        &["recover", "t"],
    ] {
        let ran = run(dir.path(), args);
        assert!(ran.code == 6 && ran.stderr.contains(want), "{args:?} {ran:?}");
    }
    let report = run(dir.path(), &["report", "t"]);
    assert_eq!(
        (report.stdout.matches("<malformed>").count(), report.stdout.lines().count()),
        (1, 60)
    );
}

#[test]
fn a_trace_that_is_being_recorded_is_read_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let recording = start(dir.path(), &["-p", &target.pid()]);
    sleep(Duration::from_millis(500));
    let metadata = fs::read(dir.path().join("t/metadata")).unwrap();
    let by = format!("the trace is being recorded by process {}", recording.child.id());
    for command in ["stat", "report"] {
        let ran = run(dir.path(), &[command, "t"]);
        assert!(ran.code == 0 && ran.stderr.contains(&format!("warning: {by}; ")), "{ran:?}");
        assert!(!ran.stderr.contains("owlet recover"), "{ran:?}");
    }
    let ran = run(dir.path(), &["recover", "t"]);
    assert!(ran.code == 1 && ran.stderr.contains(&by), "{ran:?}");
    assert_eq!(fs::read(dir.path().join("t/metadata")).unwrap(), metadata);
    kill(&recording.child, Signal::INT);
    let ran = recording.finish();
    let ((events, lost), stat) = (verdict(&ran), run(dir.path(), &["stat", "t"]));
    assert!(events > 300 && lost == 0 && stat.code == 0 && stat.stderr.is_empty(), "{stat:?}");
}

#[test]
fn a_killed_recorder_is_never_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let mut recording = start(dir.path(), &["-p", &target.pid(), "--size", "64K"]);
    sleep(Duration::from_millis(400));
    kill(&recording.child, Signal::KILL);
    recording.child.wait().unwrap();
    let stat = |when: &str| {
        let ran = run(dir.path(), &["stat", "t"]);
        assert_eq!(ran.code, 6, "{ran:?}");
        let start =
            format!("warning: the recording was not ended in order{when}: what was in its ");
        assert!(ran.stderr.starts_with(&start), "{ran:?}");
        let bytes = ran.stderr.split("at most ").nth(1).and_then(|rest| rest.split(' ').next());
        let bytes: u64 = bytes.unwrap().parse().unwrap();
        assert!(bytes >= 64 << 10 && bytes.is_multiple_of(64 << 10), "{ran:?}");
    };
    stat("");
    let ran = run(dir.path(), &["recover", "t"]);
    assert!(
        ran.code == 6 && ran.stderr.contains(", and the trace was recovered later: "),
        "{ran:?}"
    );
    stat(", and the trace was recovered later");
}

/// What is done to the directory, what is said of it, and whether some events are left.
fn change(act: impl Fn(&Path), said: &str, some: bool) {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:2000");
    let recording = start(dir.path(), &["-p", &target.pid(), "--duration", "20s"]);
    sleep(Duration::from_millis(600));
    act(&dir.path().join("t"));
    let begin = Instant::now();
    let ran = recording.finish();
    assert!(begin.elapsed() < Duration::from_secs(4), "{ran:?}");
    assert!(ran.code == 1 && ran.stderr.contains("error: recording ended early: t"), "{ran:?}");
    assert!(ran.stderr.contains(said), "{ran:?}");
    let (events, lost) = verdict(&ran);
    assert!(lost >= 500 && ran.verdict().contains("removed "), "{ran:?}");
    assert_eq!(events > 0, some, "{ran:?}");
    if some {
        let report = run(dir.path(), &["report", "t"]);
        assert_eq!(report.stdout.lines().count() as u64, events, "{ran:?}");
        assert_eq!(report.code, 6, "{:?}", report.stderr);
    }
}

#[test]
fn a_directory_that_is_removed_meanwhile_is_noticed() {
    change(|trace| fs::remove_dir_all(trace).unwrap(), "the directory was removed", false);
}

#[test]
fn streams_that_are_truncated_meanwhile_are_noticed() {
    let half = |trace: &Path| {
        for name in names(trace).iter().filter(|name| name.starts_with("cpu_")) {
            let file = fs::File::options().write(true).open(trace.join(name)).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
    };
    change(half, "was truncated while it was being written", true);
}

#[test]
fn streams_that_are_truncated_and_grow_again_are_noticed() {
    let regrown = |trace: &Path| {
        for name in names(trace).iter().filter(|name| name.starts_with("cpu_")) {
            let file = fs::File::options().write(true).open(trace.join(name)).unwrap();
            let len = file.metadata().unwrap().len();
            // Not within the clock tick of the recorder's own write.
            sleep(Duration::from_millis(20));
            file.set_len(len / 2).unwrap();
            file.set_len(len.max(file.metadata().unwrap().len())).unwrap();
        }
    };
    change(regrown, "while it was being written", true);
}

/// What only other readers need is missed, too, and what is lost for that has the cause of it.
#[test]
fn a_metadata_that_is_removed_meanwhile_is_noticed() {
    for name in ["metadata", "threads"] {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::start("paced:2000");
        let recording = start(dir.path(), &["-p", &target.pid(), "--duration", "20s"]);
        sleep(Duration::from_millis(600));
        fs::remove_file(dir.path().join("t").join(name)).unwrap();
        let ran = recording.finish();
        let said = format!("{name}: was removed while it was being written");
        assert!(ran.code == 1 && ran.stderr.contains(&said), "{ran:?}");
        assert!(!ran.verdict().contains("not_written"), "{ran:?}");
    }
}

/// A gap's size stands at the event behind it, and what was lost at the end is told there.
#[test]
fn losses_stand_where_they_were() {
    let dir = tempfile::tempdir().unwrap();
    // A program that changed its CPU has gaps that no one ring knows of, and what is lost between the
    // ring's being looked at and its room's being given back counts one packet later: another try.
    let mut tried = 0;
    for _ in 0..20 {
        let _ = fs::remove_dir_all(dir.path().join("t"));
        let ran = record_command(dir.path(), "burst:60000", &["--size", "64K"]);
        let (_, lost) = verdict(&ran);
        let streams = names(&dir.path().join("t"));
        if lost == 0 || streams.iter().filter(|n| n.contains('_')).count() != 1 {
            continue;
        }
        let report = run(dir.path(), &["report", "--json", "t"]);
        let (mut next, mut marked, mut exact) = (0, 0, true);
        for line in report.stdout.lines() {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let seq = event["fields"]["seq"].as_u64().unwrap();
            let before = event["lost_before"].as_u64().unwrap_or(0);
            exact &= seq - next == before;
            (next, marked) = (seq + 1, marked + before);
        }
        tried += 1;
        if !exact {
            continue;
        }
        let end = 60_000 - next;
        assert_eq!(marked + end, lost);
        assert_eq!(report.stderr.contains("behind the last one"), end > 0, "{report:?}");
        return;
    }
    assert_eq!(tried, 0, "not one run has its losses where they were");
    eprintln!("skipped: no run lost events on one CPU alone");
}

/// A directory that is moved is the same trace: nothing of it is lost, and nothing counts twice.
#[test]
fn a_directory_that_is_moved_meanwhile_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("paced:1000");
    let recording = start(dir.path(), &["-p", &target.pid()]);
    sleep(Duration::from_millis(600));
    fs::rename(dir.path().join("t"), dir.path().join("elsewhere")).unwrap();
    sleep(Duration::from_millis(1500));
    kill(&recording.child, Signal::INT);
    let ran = recording.finish();
    let ((events, lost), place) = (verdict(&ran), dir.path().join("elsewhere"));
    assert!(ran.code == 0 && lost == 0 && events > 1000, "{ran:?}");
    assert!(ran.verdict().ends_with(&format!(" in {}", place.display())), "{ran:?}");
    assert!(ran.stderr.contains("t was moved: recording on into "), "{ran:?}");
    assert_eq!(names(dir.path()), ["elsewhere"]);
    let report = run(dir.path(), &["report", "elsewhere"]);
    let lines = report.stdout.lines().count() as u64;
    assert_eq!((report.code, lines, report.stderr.as_str()), (0, events, ""), "{ran:?}");
}

/// A PID namespace hides the recorder's /proc: the process is found by its socket.
#[test]
fn a_command_in_a_pid_namespace_joins() {
    let unshare = ["unshare", "-pf", "--mount-proc"];
    let may = std::process::Command::new(unshare[0]).args(&unshare[1..]).arg("true").output();
    if !may.is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: may not make a PID namespace here (needs root)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = owlet(dir.path(), &["record", "-o", "t", "--"]);
    command.args(unshare).args(Target::words()).env("OWLET_TEST_TARGET", "late:500");
    let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!((ran.code, ran.verdict()), (0, "recorded 100 events, lost 0 in t"), "{ran:?}");
}

#[test]
fn a_command_without_an_agent_is_told_within_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let mut child = owlet(dir.path(), &["record", "-o", "t", "--", "sleep", "2"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    stderr.read_line(&mut first).unwrap();
    let took = begin.elapsed();
    assert_eq!(first, "warning: nothing of sleep has joined the recording yet\n");
    assert!(took < Duration::from_millis(1500), "{took:?}");
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    let hint = "hint: it joins when it calls `owlet::init()`; ";
    assert!(rest.starts_with(hint) && rest.matches(hint).count() == 1, "{rest}");
    assert!(rest.contains("no event was recorded: no process joined"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

/// A bit in the sidecar costs no event, and recovery makes nothing worse.
#[test]
fn a_damaged_sidecar_costs_no_event() {
    for at in [40, 150] {
        let dir = tempfile::tempdir().unwrap();
        trace(dir.path(), |_| {});
        let (sidecar, metadata) = (dir.path().join("t/.owlet"), dir.path().join("t/metadata"));
        let mut bytes = fs::read(&sidecar).unwrap();
        bytes[at] ^= 4;
        fs::write(&sidecar, &bytes).unwrap();
        let described = fs::read(&metadata).unwrap();
        for command in ["report", "recover", "report"] {
            let ran = run(dir.path(), &[command, "t"]);
            assert!(ran.code == 6 && ran.stderr.contains(".owlet at byte"), "{ran:?}");
            assert!(!ran.stderr.contains("hint: `owlet recover"), "{ran:?}");
            assert!(command != "report" || ran.stdout.lines().count() == 60, "{ran:?}");
        }
        assert_eq!(fs::read(&metadata).unwrap(), described);
        fs::remove_file(&sidecar).unwrap();
        let ran = run(dir.path(), &["report", "t"]);
        assert!(ran.code == 6 && ran.stdout.lines().count() == 60, "{ran:?}");
        assert!(ran.stderr.contains(".owlet at byte 0: the file is missing"), "{ran:?}");
    }
}

/// Junk in the rings is a loss with a cause, in the trace as in the last line.
#[test]
fn junk_in_the_rings_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let ran = record_command(dir.path(), "junk:1", &[]);
    assert!(ran.stderr.contains("in the rings were no records and were skipped"), "{ran:?}");
    let (_, lost) = verdict(&ran);
    assert!(lost >= 1 && ran.verdict().contains("corrupt "), "{ran:?}");
    let stat = run(dir.path(), &["stat", "t"]);
    let hint = "hint: corrupt: bytes in the rings were no records";
    assert!(stat.stdout.contains("corrupt ") && stat.stderr.contains(hint), "{stat:?}");
    let json = run(dir.path(), &["stat", "--json", "t"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["lost"].as_u64() == Some(lost) && json["corrupt_bytes"].as_u64() > Some(0));
}

#[test]
fn an_agent_that_turns_connections_away_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start("idle:60");
    let sockets = crate::common::sockets().join("owlet");
    let name = names(&sockets).into_iter().find(|name| name.starts_with(&target.pid())).unwrap();
    let idle: Vec<_> = (0..80)
        .filter_map(|_| std::os::unix::net::UnixStream::connect(sockets.join(&name)).ok())
        .collect();
    assert_eq!(idle.len(), 80);
    let pid = target.pid();
    let want = format!("process {pid} (");
    let ran = run(dir.path(), &["list", &pid]);
    assert!(ran.code == 5 && ran.stderr.contains("does not answer"), "{ran:?}");
    let ran = run(dir.path(), &["list"]);
    assert!(ran.stderr.contains(&want) && ran.stderr.contains("does not answer"), "{ran:?}");
    assert!(!ran.stderr.contains("no process of yours has an agent"), "{ran:?}");
    let ran = run(dir.path(), &["record", "-p", "999999999"]);
    assert!(ran.stderr.contains(&format!("{pid} (does not answer)")), "{ran:?}");
    drop(idle);
    let ran = run(dir.path(), &["record", "-p", &pid, "-p", "999999999"]);
    let with = format!("hint: processes with an agent: {pid} (");
    assert!(ran.code == 3 && ran.stderr.contains(&with), "{ran:?}");
}

#[test]
fn help_fails_where_stdout_does() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["--help"][..], &["--version"], &["help", "record"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let out = owlet(dir.path(), args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("cannot write to stdout: no space left"), "{stderr}");
        assert_eq!(run(dir.path(), args).code, 0);
    }
}
