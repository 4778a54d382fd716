//! Directories, permissions, space, descriptors: the file system's side.

use crate::common::{
    babeltrace, dump, encode, loss, meta, packet, push, rich, thread, tick, tick_payload,
    write_ticks,
};
use owlet_store::{
    ErrorKind, Recorder, StreamName, TraceReader, TraceWriter, UNKNOWN_CAUSE, recover,
};
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::{Scalar, Type};
use owlet_wire::value::{Value, decode};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

fn create_error(dir: &Path) -> ErrorKind {
    let error = TraceWriter::create(dir, &meta()).unwrap_err();
    assert!(error.to_string().starts_with(&dir.display().to_string()), "{error}");
    assert!(!error.hint().is_empty(), "{error} has no hint");
    error.kind
}

#[test]
fn creating_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "x").unwrap();
    assert_eq!(create_error(&at("file")), ErrorKind::NotADirectory);
    assert_eq!(create_error(&at("file/below")), ErrorKind::NotADirectory);
    assert_eq!(create_error(&at("no/parent")), ErrorKind::NotFound);
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/precious"), "x").unwrap();
    assert_eq!(create_error(&at("full")), ErrorKind::NotEmpty);
    assert_eq!(fs::read_dir(at("full")).unwrap().count(), 1, "nothing was added");
    // Nobody may make directories there, root included.
    assert_eq!(create_error(Path::new("/sys/owlet-test")), ErrorKind::Permission);
    let mut bad = meta();
    bad.clock.freq_hz = 0;
    let error = TraceWriter::create(&at("clock"), &bad).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    // A trace is never written into another.
    fs::create_dir(at("empty")).unwrap();
    write_ticks(&at("empty"), 1).finish().unwrap();
    assert_eq!(create_error(&at("empty")), ErrorKind::NotEmpty);
}

/// Mounts a tmpfs; `None`, or a failure under OWLET_REQUIRE_TOOLS=1, when that is not allowed.
fn tmpfs(options: &str) -> Option<Mounted> {
    let dir = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", options, "none"])
        .arg(dir.path())
        .output()
        .is_ok_and(|out| out.status.success());
    if !mounted {
        eprintln!("skipped: may not mount a tmpfs here (needs root)");
        return None;
    }
    Some(Mounted(dir))
}

struct Mounted(tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn read_only_file_system() {
    let Some(mount) = tmpfs("ro") else { return };
    assert_eq!(create_error(&mount.0.path().join("t")), ErrorKind::ReadOnly);
}

/// A full disk: a clear error, and every packet that was reported written is still there.
#[test]
fn full_disk_loses_nothing_written() {
    let Some(mount) = tmpfs("size=256k") else { return };
    let dir = mount.0.path().join("t");
    let mut writer = TraceWriter::create(&dir, &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    let mut seq = 0;
    let error = loop {
        let mut run = Vec::new();
        for _ in 0..100 {
            push(&mut run, 1000 + seq, 1, 101, &tick_payload(seq, b"some text"));
            seq += 1;
        }
        match writer.append_packet(StreamName::cpu(0), &packet(&run, 1000, 1000 + seq, 0)) {
            Ok(done) => assert_eq!(done.events, 100),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, ErrorKind::NoSpace);
    assert_eq!(error.hint(), "free some space; what was written before is intact");
    let written = writer.summary().events;
    assert!(written >= 100 && (seq - 100..seq).contains(&written), "{written} {seq}");
    let babel = babeltrace(&dir);
    assert!(babel.is_none_or(|b| b.stderr.is_empty() && b.events().len() as u64 == written));
    // The end may or may not fit; nothing written before is lost either way.
    let _ = writer.finish();
    let text = dump(&dir);
    assert_eq!(text.matches("demo:tick").count() as u64, written);
    assert!(!text.contains("partial"), "{text}");
}

/// One packet larger than the disk: as many of its events as fit, in whole packets.
#[test]
fn full_disk_keeps_what_fits() {
    let Some(mount) = tmpfs("size=400k") else { return };
    let dir = mount.0.path().join("t");
    let mut writer = TraceWriter::create(&dir, &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    let mut run = Vec::new();
    for seq in 0..20_000 {
        push(&mut run, 1000 + seq, 1, 101, &tick_payload(seq, b"some text"));
    }
    let error = writer
        .append_packet(StreamName::cpu(0), &packet(&run, 1000, 50_000, 0))
        .expect_err("a disk of 400 KB");
    assert_eq!(error.kind, ErrorKind::NoSpace);
    // 45 bytes each, 48 with padding.
    let written = writer.summary().events;
    assert!(written > 7000, "{written}");
    drop(writer);
    let text = dump(&dir);
    assert_eq!(text.matches("demo:tick").count() as u64, written);
    let last = text.lines().rfind(|line| line.contains("demo:tick")).unwrap();
    assert!(last.contains(&format!("seq={} ", written - 1)), "{last}");
    let babel = babeltrace(&dir);
    assert!(babel.is_none_or(|b| b.stderr.is_empty() && b.events().len() as u64 == written));
}

/// Somebody removes, replaces or truncates a file while it is being written: it is noticed.
#[test]
fn files_that_change_meanwhile_are_noticed() {
    for name in ["cpu_0", "threads", "metadata", ".owlet"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let file = path.join(name);
        let mut writer = write_ticks(&path, 5);
        writer.check(false).unwrap();
        let told = |writer: &mut owlet_store::TraceWriter, what: &str| {
            let error = writer.check(false).unwrap_err();
            assert_eq!((error.kind, error.path.as_path()), (ErrorKind::Changed, file.as_path()));
            assert!(error.what.starts_with(what), "{error}");
        };
        let content = fs::read(&file).unwrap();
        fs::File::options().write(true).open(&file).unwrap().set_len(10).unwrap();
        told(&mut writer, "was truncated");
        fs::write(&file, &content).unwrap();
        writer.check(false).unwrap();
        // Cut, and grown again by zeros: not within the clock tick of our own write.
        sleep(Duration::from_millis(30));
        let grown = fs::File::options().write(true).open(&file).unwrap();
        grown.set_len(content.len() as u64 / 2).unwrap();
        grown.set_len(content.len() as u64).unwrap();
        told(&mut writer, "was changed by somebody else");
        fs::write(&file, &content).unwrap();
        writer.check(true).unwrap();
        fs::rename(&file, path.join("aside")).unwrap();
        told(&mut writer, "was removed");
        fs::copy(path.join("aside"), &file).unwrap();
        told(&mut writer, "was replaced");
        fs::remove_dir_all(&path).unwrap();
        assert!(writer.check(false).unwrap_err().what.starts_with("the directory was removed"));
    }
}

/// What the last unit does not show, because more was appended since, the packets' headers do.
#[test]
fn a_hole_in_a_stream_is_found_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = write_ticks(&dir.path().join("t"), 5);
    writer.check(true).unwrap();
    let file = fs::File::options().write(true).open(dir.path().join("t/cpu_0")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 8], 0).unwrap();
    writer.check(false).unwrap();
    let error = writer.check(true).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Changed);
    assert!(error.what.starts_with("was changed by somebody else"), "{error}");
}

/// A directory that is moved takes its trace along, streams to come included.
#[test]
fn a_directory_that_is_moved_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut writer = write_ticks(&at("a"), 5);
    fs::rename(at("a"), at("b")).unwrap();
    // Another one in its place.
    fs::create_dir(at("a")).unwrap();
    for cpu in [0, 5] {
        let mut run = Vec::new();
        push(&mut run, 9000, 1, 101, &tick_payload(7, b"moved"));
        writer.append_packet(StreamName::cpu(cpu), &packet(&run, 9000, 9000, 0)).unwrap();
    }
    writer.check(true).unwrap();
    assert_eq!(writer.dir(), at("b"));
    fs::rename(at("b"), at("c")).unwrap();
    writer.finish().unwrap();
    assert!(fs::read_dir(at("a")).unwrap().next().is_none());
    let trace = TraceReader::open(&at("c")).unwrap();
    assert!(trace.finished() && trace.problems().is_empty(), "{:?}", trace.problems());
    let names: Vec<_> = trace.streams().iter().map(|info| info.name.to_string()).collect();
    assert!(names.contains(&"cpu_5".to_owned()), "{names:?}");
}

/// A trace that is being recorded says so, and is not repaired.
#[test]
fn a_trace_being_recorded_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = write_ticks(dir.path(), 5);
    writer.set_recorder(Recorder { pid: 4711, rings: 4, ring_bytes: 1 << 20 }).unwrap();
    let path = dir.path().join("cpu_0");
    let whole = fs::read(&path).unwrap();
    // A packet that is being written this moment.
    let half = [&whole[..], &whole[..100]].concat();
    fs::write(&path, &half).unwrap();
    for _ in 0..2 {
        let trace = TraceReader::open(dir.path()).unwrap();
        assert!(trace.live() && !trace.finished());
        let [told] = trace.problems() else { panic!("{:?}", trace.problems()) };
        assert!(told.notice && !told.repairable, "{told:?}");
        assert!(told.to_string().starts_with("the trace is being recorded by process 4711; "));
        let error = recover(dir.path()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.what.starts_with("the trace is being recorded by process 4711"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), half);
    }
    drop(writer);
    let trace = TraceReader::open(dir.path()).unwrap();
    assert!(!trace.live());
    let told: Vec<_> = trace.problems().iter().map(ToString::to_string).collect();
    assert!(
        told[0].contains("in its 4 rings then, at most 4194304 bytes, is not here"),
        "{told:?}"
    );
    assert!(told[1].starts_with("cpu_0 at byte") && trace.problems().iter().all(|p| p.notice));
    assert_eq!(recover(dir.path()).unwrap().cut.len(), 1);
}

#[test]
fn modes_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    write_ticks(&path, 1).finish().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o700);
    let mut names: Vec<_> = fs::read_dir(&path)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [".owlet", "cpu_0", "metadata", "threads"]);
    for name in names {
        assert_eq!(mode(&path.join(&name)), 0o600, "{name}");
    }
}

/// 300 streams, written in turn, with at most 64 of them open.
#[test]
fn descriptors_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    let open = || {
        fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
            .filter(|target| target.starts_with(dir.path()))
            .count()
    };
    for round in 0..3 {
        for cpu in 0..150 {
            for stream in [StreamName::cpu(cpu), StreamName::portable(cpu)] {
                let mut run = Vec::new();
                let time = 1000 + round;
                push(&mut run, time, 1, 101, &tick_payload(round, b""));
                let _ = writer.append_packet(stream, &packet(&run, time, time, 0)).unwrap();
                // The directory, and its three files that are no streams.
                assert!(open() <= 64 + 4, "{}", open());
            }
        }
    }
    writer.finish().unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    assert_eq!((trace.streams().len(), trace.problems().len()), (300, 0));
    assert_eq!(dump(dir.path()).matches("demo:tick").count(), 900);
}

/// C4: embedded NUL, invalid UTF-8, empty text, arrays of no element, extremes and NaN.
#[test]
fn c4_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, values) = rich();
    let payload = encode(&schema, &values);
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(7, &schema).unwrap();
    let mut run = Vec::new();
    push(&mut run, 1000, 7, 101, &payload);
    let _ = writer.append_packet(StreamName::cpu(1), &packet(&run, 900, 1000, 0)).unwrap();
    writer.finish().unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    assert_eq!(trace.schemas()[&7], schema);
    let mut events = trace.events(0).unwrap();
    let event = events.next_event().unwrap();
    let len = 24 + payload.len() as u32;
    assert_eq!(event.header, RecordHeader { time: 1000, id: 7, len, pid: 100, tid: 101 });
    assert_eq!(event.payload, payload);
    let (read, whole) = decode(&trace.schemas()[&7].fields, event.payload);
    assert!(whole);
    for ((read, written), field) in read.iter().zip(&values).zip(&schema.fields) {
        match (read, written) {
            (Value::F64(read), Value::F64(written)) => {
                assert_eq!(read.to_bits(), written.to_bits(), "{}", field.name);
            }
            _ => assert_eq!(read, written, "{}", field.name),
        }
    }
    assert!(events.next_event().is_none() && events.current().is_none());
}

/// P1: records of every size around the packet's split, and one as large as a packet may be.
#[test]
fn p1_big_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    let text = vec![b'x'; 70 << 20];
    let limit = (64 << 20) - 88 - 8 - 24 - 12;
    let sizes = [1, 1 << 10, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 10 << 20, limit];
    let mut run = Vec::new();
    for (at, size) in sizes.iter().enumerate() {
        push(&mut run, 1000 + at as u64, 1, 101, &tick_payload(*size as u64, &text[..*size]));
    }
    let done = writer.append_packet(StreamName::cpu(0), &packet(&run, 1000, 2000, 0)).unwrap();
    assert_eq!((done.events, done.malformed), (7, 0));
    let mut run = Vec::new();
    push(&mut run, 1500, 1, 101, &tick_payload(8, &text));
    let done = writer.append_packet(StreamName::cpu(0), &packet(&run, 1000, 2000, 0)).unwrap();
    assert_eq!((done.events, done.malformed), (0, 1));
    let mut run = Vec::new();
    push(&mut run, 1600, 1, 101, &tick_payload(9, b"after"));
    let _ = writer.append_packet(StreamName::cpu(0), &packet(&run, 1000, 2000, 0)).unwrap();
    writer.finish().unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    assert_eq!(trace.problems(), []);
    assert!(trace.streams()[0].packets >= 6);
    let mut events = trace.events(0).unwrap();
    for size in sizes {
        assert_eq!(events.next_event().unwrap().payload.len(), 12 + size);
    }
    let last = events.next_event().unwrap();
    assert_eq!((last.payload.len(), last.discarded), (17, 1));
}

/// K3: on a stream, time never goes back, whatever the clock did; a wild time is refused.
#[test]
fn k3_time_never_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    let mut malformed = 0;
    for times in [[1000, 990, 1005], [1001, u64::MAX, 1010], [1 << 63, 1011, 1012]] {
        let mut run = Vec::new();
        for time in times {
            push(&mut run, time, 1, 101, &tick_payload(time, b""));
        }
        let done = writer.append_packet(StreamName::cpu(0), &packet(&run, 900, 1100, 0)).unwrap();
        malformed += done.malformed;
    }
    assert_eq!(malformed, 2);
    writer.finish().unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    let mut events = trace.events(0).unwrap();
    let mut times = Vec::new();
    while let Some(event) = events.next_event() {
        times.push(event.header.time);
    }
    assert_eq!(times, [1000, 1000, 1005, 1005, 1010, 1011, 1012]);
    assert!(events.problems().is_empty() && trace.problems().is_empty());
    let babel = babeltrace(dir.path());
    assert!(babel.is_none_or(|babel| babel.events().len() == 7));
}

#[test]
fn schemas_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    let mut other = tick();
    other.name = "demo:other".into();
    let error = writer.add_schema(1, &other).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert_eq!(error.what, "event id 1 is demo:tick already, not demo:other");
    other.fields[0].ty = Type::Enum(Scalar::F64, vec![]);
    assert_eq!(writer.add_schema(2, &other).unwrap_err().kind, ErrorKind::Invalid);
    // Its events count as malformed and harm nothing.
    let mut run = Vec::new();
    push(&mut run, 1000, 2, 101, &[0; 12]);
    push(&mut run, 1001, 1, 101, &tick_payload(1, b""));
    let done = writer.append_packet(StreamName::cpu(0), &packet(&run, 1000, 2000, 0)).unwrap();
    assert_eq!((done.events, done.malformed), (1, 1));
    writer.finish().unwrap();
    assert_eq!(TraceReader::open(dir.path()).unwrap().schemas().len(), 1);
}

#[test]
fn losses_and_names_over_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = write_ticks(dir.path(), 1);
    let cpu = Some(StreamName::cpu(0));
    writer.set_losses(&[loss(cpu, "full", 3), loss(None, "recursion", 1)]).unwrap();
    writer.set_losses(&[loss(cpu, "full", 5), loss(cpu, "busy", 0)]).unwrap();
    writer.add_thread(2000, &thread(100, 101, "worker")).unwrap();
    writer.add_thread(1500, &thread(100, 101, "between")).unwrap();
    // Read while it is being recorded.
    let trace = TraceReader::open(dir.path()).unwrap();
    assert!(!trace.finished());
    assert_eq!(trace.losses(), [loss(cpu, "full", 5), loss(None, "recursion", 1)]);
    for (time, comm) in [(0, "main"), (950, "main"), (1999, "between"), (2000, "worker")] {
        assert_eq!(trace.comm(100, 101, time), Some(comm.as_bytes()), "{time}");
    }
    assert_eq!(trace.comm(100, 999, 0), None);
    writer.finish().unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    assert!(trace.finished() && trace.problems().is_empty());
    let babel = babeltrace(dir.path());
    assert!(babel.is_none_or(|babel| babel.stderr.is_empty()), "threads stream out of order");
    let done = recover(dir.path()).unwrap();
    assert!(done.cut.is_empty() && !done.metadata_rewritten && done.remaining.is_empty());
}

/// Two streams whose packets count 40 and 7 lost, and one malformed record in the first.
fn write_lossy(dir: &Path) -> TraceWriter {
    let mut writer = TraceWriter::create(dir, &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    for (cpu, lost) in [(0, 3), (0, 40), (1, 7)] {
        let time = 1000 + lost;
        let mut run = Vec::new();
        push(&mut run, time, 1, 101, &tick_payload(lost, b""));
        if lost == 40 {
            push(&mut run, time, 99, 101, b"no schema");
        }
        let _ =
            writer.append_packet(StreamName::cpu(cpu), &packet(&run, 1000, time, lost)).unwrap();
    }
    writer
}

/// A killed recorder wrote no causes: the packets' counts are what was lost, before recovery and
/// after it, and a recovered trace has nothing left to repair.
#[test]
fn losses_of_a_killed_recording_are_those_of_its_packets() {
    let dir = tempfile::tempdir().unwrap();
    drop(write_lossy(dir.path()));
    let cpu = |n| Some(StreamName::cpu(n));
    let expected = [loss(cpu(0), UNKNOWN_CAUSE, 41), loss(cpu(1), UNKNOWN_CAUSE, 7)];
    let trace = TraceReader::open(dir.path()).unwrap();
    assert_eq!(trace.losses(), expected);
    assert_eq!((trace.problems().len(), trace.recovered()), (1, false));
    assert!(trace.problems()[0].repairable);
    for _ in 0..2 {
        let remaining = recover(dir.path()).unwrap().remaining;
        let trace = TraceReader::open(dir.path()).unwrap();
        assert_eq!(trace.losses(), expected);
        assert!(trace.recovered() && !trace.finished());
        // For ever: what was in the rings is not here.
        assert_eq!(trace.problems(), remaining);
        let [told] = remaining.as_slice() else { panic!("{remaining:?}") };
        assert!(told.notice && !told.repairable, "{told:?}");
        assert!(told.message.contains("was recovered later: what was in its rings"), "{told}");
    }
    let size = || fs::metadata(dir.path().join(".owlet")).unwrap().len();
    let before = size();
    recover(dir.path()).unwrap();
    assert_eq!(size(), before, "marked twice");
}

/// Causes that are older than the last packets explain a part. What no packet counts explains
/// nothing of it.
#[test]
fn losses_with_partial_causes_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = write_lossy(dir.path());
    let cpu = |n| Some(StreamName::cpu(n));
    let told = [
        loss(cpu(0), "full", 25),
        loss(cpu(0), "not_written", 500),
        loss(cpu(1), "busy", 6),
        loss(None, "recursion", 9),
    ];
    writer.set_losses(&told).unwrap();
    drop(writer);
    let trace = TraceReader::open(dir.path()).unwrap();
    let (told, rest) = trace.losses().split_at(5);
    assert_eq!(told[4], loss(cpu(0), "malformed", 1));
    assert_eq!(rest, [loss(cpu(0), UNKNOWN_CAUSE, 15), loss(cpu(1), UNKNOWN_CAUSE, 1)]);
}

/// All causes told: nothing counts twice, and causes may count more than the last packet.
#[test]
fn losses_with_all_causes_count_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = write_lossy(dir.path());
    let cpu = |n| Some(StreamName::cpu(n));
    // The recorder tells the malformed record, too.
    let told = [
        loss(cpu(0), "full", 30),
        loss(cpu(0), "busy", 10),
        loss(cpu(0), "malformed", 1),
        loss(cpu(0), "not_written", 500),
        loss(cpu(1), "full", 8),
    ];
    writer.set_losses(&told).unwrap();
    writer.finish().unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    assert_eq!(trace.losses(), told);
    assert_eq!(trace.streams().iter().map(|s| s.discarded).collect::<Vec<_>>(), [41, 7]);
}

/// What summary() and finish() say is what is there.
#[test]
fn summary_is_true() {
    let dir = tempfile::tempdir().unwrap();
    let summary = write_ticks(dir.path(), 10).finish().unwrap();
    let bytes: u64 =
        fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert_eq!((summary.events, summary.malformed, summary.bytes), (10, 0, bytes));
}

/// A packet's count is as of its end: what it adds is behind its events, and the last of it at the end.
#[test]
fn losses_stand_where_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    for (at, lost) in [0, 5, 5, 12].into_iter().enumerate() {
        let mut run = Vec::new();
        for seq in 0..3 {
            let time = 1000 + 10 * at as u64 + seq;
            push(&mut run, time, 1, 101, &tick_payload(10 * at as u64 + seq, b""));
        }
        let _ = writer.append_packet(StreamName::cpu(0), &packet(&run, 0, 2000, lost)).unwrap();
    }
    writer.finish().unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    let mut events = trace.events(0).unwrap();
    let mut marks = Vec::new();
    while let Some(event) = events.next_event() {
        if event.discarded > 0 {
            marks.push((event.header.time, event.discarded));
        }
    }
    assert_eq!((marks, events.discarded_at_end()), (vec![(1020, 5)], 7));
}

/// A run too long for one packet: its losses are behind the last.
#[test]
fn losses_of_a_long_run_are_behind_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    let mut run = Vec::new();
    for seq in 0..60_000 {
        push(&mut run, 1000 + seq, 1, 101, &tick_payload(seq, b""));
    }
    for (at, lost) in [(0, 9), (1, 9)] {
        let run = if at == 0 { &run[..] } else { &run[run.len() - 40..] };
        let _ = writer.append_packet(StreamName::cpu(0), &packet(run, 0, 99_000, lost)).unwrap();
    }
    writer.finish().unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    assert!(trace.streams()[0].packets > 3);
    let mut events = trace.events(0).unwrap();
    let mut at = 0;
    while let Some(event) = events.next_event() {
        assert_eq!(event.discarded, if at == 60_000 { 9 } else { 0 }, "event {at}");
        at += 1;
    }
    assert_eq!((at, events.discarded_at_end()), (60_001, 0));
}
