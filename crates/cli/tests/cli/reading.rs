//! Traces that are read: what is damaged is told, what is odd is shown the same everywhere.

use crate::common::{Ran, run};
use owlet_store::{ClockInfo, ClockKind, Loss, PacketInfo, StreamName, TraceMeta, TraceWriter};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};
use owlet_wire::value::Value;
use std::path::Path;

/// A trace of 30 events on each of two CPUs, in packets of 3.
pub(crate) fn trace(dir: &Path, edit: impl FnOnce(&mut TraceWriter)) {
    let meta = TraceMeta::new(ClockInfo::nanoseconds(ClockKind::Monotonic, 0));
    let mut writer = TraceWriter::create(&dir.join("t"), &meta).unwrap();
    let seq = Field { name: "seq".into(), ty: Type::Scalar(Scalar::U64) };
    let schema = Schema {
        name: "a:b".into(),
        kind: Kind::Event,
        level: Level::Info,
        file: String::new(),
        line: 0,
        doc: String::new(),
        fields: vec![seq],
    };
    writer.add_schema(1, &schema).unwrap();
    let process = Process {
        pid: 5,
        ppid: 1,
        pid_namespace: 0,
        exe: b"/bin/na\xffme".to_vec(),
        args: Vec::new(),
        backend: "rseq".into(),
    };
    writer.add_process(1, &process).unwrap();
    writer.add_thread(1, &Thread { pid: 5, tid: 6, comm: b"ab\xffc".to_vec() }).unwrap();
    for packet in 0..10 {
        for cpu in 0..2 {
            let mut records = Vec::new();
            for at in 0..3_u64 {
                let time = 1000 + packet * 10 + at;
                records.extend(RecordHeader { time, id: 1, len: 32, pid: 5, tid: 6 }.to_bytes());
                records.extend((packet * 3 + at).to_le_bytes());
            }
            let info =
                PacketInfo { cpu, begin: 0, end: 9000, discarded_total: 0, records: &records };
            assert_eq!(writer.append_packet(StreamName::cpu(cpu), &info).unwrap().events, 3);
        }
    }
    edit(&mut writer);
    writer.finish().unwrap();
}

fn events(dir: &Path) -> (usize, Ran) {
    let ran = run(dir, &["report", "t"]);
    (ran.stdout.lines().count(), ran)
}

#[test]
fn names_that_are_not_utf8_are_shown_the_same_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |_| {});
    let report = run(dir.path(), &["report", "t"]).stdout;
    let stat = run(dir.path(), &["stat", "t"]).stdout;
    assert!(report.contains("ab\\xffc-6"), "{report}");
    assert!(stat.contains("ab\\xffc of na\\xffme"), "{stat}");
}

/// An empty answer to a question that no event can answer is a wrong one.
#[test]
fn u1_a_filter_on_what_no_event_has_is_told() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |writer| {
        // As of a `tracing` call site: only the events know what the field is.
        let field = |name: &str| Field { name: name.into(), ty: Type::Dynamic };
        let schema = Schema {
            name: "a:c".into(),
            kind: Kind::Event,
            level: Level::Info,
            file: String::new(),
            line: 0,
            doc: String::new(),
            fields: vec![field("user"), field("nobody")],
        };
        writer.add_schema(2, &schema).unwrap();
        let mut payload = Vec::new();
        owlet_wire::value::put(&Type::Dynamic, &Value::U64(50), &mut payload).unwrap();
        owlet_wire::value::put(&Type::Dynamic, &Value::None, &mut payload).unwrap();
        let len = u32::try_from(24 + payload.len()).unwrap();
        let mut records =
            RecordHeader { time: 2000, id: 2, len, pid: 5, tid: 6 }.to_bytes().to_vec();
        records.extend(payload);
        let info =
            PacketInfo { cpu: 0, begin: 0, end: 9000, discarded_total: 0, records: &records };
        assert_eq!(writer.append_packet(StreamName::cpu(0), &info).unwrap().events, 1);
    });
    let number = "is a number in every event that has it: it is compared with a number";
    for (filter, lines, said) in [
        ("usr == 50", 0, "no event has a field `usr`; closest: `user`".to_string()),
        ("qqq == 50", 0, "no event has a field `qqq`".into()),
        ("sqe == 5 or seq == 5", 2, "no event has a field `sqe`; closest: `seq`".into()),
        ("seq == \"5\"", 0, format!("`seq` {number}")),
        ("user == \"50\"", 0, format!("`user` {number}")),
    ] {
        for json in [&[][..], &["--json"]] {
            let ran = run(dir.path(), &[&["report", "t", "--where", filter], json].concat());
            assert_eq!((ran.code, ran.stdout.lines().count()), (0, lines), "{filter}: {ran:?}");
            assert_eq!(ran.stderr, format!("warning: --where: {said}\n"));
        }
    }
    for filter in ["user == 50", "user == 51", "seq > 1000000", "nobody == 1", "level == error", ""]
    {
        let ran = run(dir.path(), &["report", "t", "--where", filter]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{filter}");
    }
    let help = run(dir.path(), &["report", "--help"]).stdout;
    assert!(help.contains("stderr says so; the status stays"), "{help}");
}

/// An export into the directory that it reads would replace what it reads.
#[test]
fn an_export_does_not_write_into_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |_| {});
    std::os::unix::fs::symlink("t", dir.path().join("same")).unwrap();
    std::os::unix::fs::symlink("same/cpu_0", dir.path().join("link")).unwrap();
    let bytes = |name: &str| std::fs::read(dir.path().join("t").join(name)).unwrap();
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(dir.path().join("t"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let before: Vec<_> = names().iter().map(|name| (name.clone(), bytes(name))).collect();
    assert!(["metadata", "cpu_0", ".owlet"].iter().all(|name| names().iter().any(|n| n == name)));
    let files = ["t/.owlet", "t/cpu_0", "t/metadata", "t/new.pftrace", "same/cpu_1", "link"];
    for (file, from) in files.into_iter().flat_map(|file| [(file, "t"), (file, "same")]) {
        let ran = run(dir.path(), &["export", "--perfetto", file, from]);
        let said = format!(
            "error: cannot write {file}: it is in {from}, the trace directory that is read\nhint: "
        );
        assert!(ran.code == 2 && ran.stderr.starts_with(&said), "{ran:?}");
    }
    let appended = std::fs::File::options().append(true).open(dir.path().join("t/cpu_0")).unwrap();
    let args = ["export", "--perfetto", "/dev/stdout", "t"];
    let ran = crate::common::owlet(dir.path(), &args).stdout(appended).output().unwrap();
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
    let after: Vec<_> = names().iter().map(|name| (name.clone(), bytes(name))).collect();
    assert!(before == after, "the trace was changed");
    let ran = run(dir.path(), &["export", "--perfetto", "cpu_0", "t"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn a_cause_that_is_unknown_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let loss = |cause: &str| Loss { stream: None, cause: cause.into(), events: 4 };
    trace(dir.path(), |writer| writer.set_losses(&[loss("unknown")]).unwrap());
    for command in ["stat", "report"] {
        let ran = run(dir.path(), &[command, "t"]);
        let want = "hint: unknown: the recorder was killed, or still runs, and has not noted why";
        assert!(ran.stderr.contains(want), "{ran:?}");
    }
}

/// The damage of one stream costs its own events only, is cut by `recover`, and is no success.
#[test]
fn garbage_at_the_head_of_a_stream_costs_no_more_than_itself() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |_| {});
    assert_eq!(events(dir.path()).0, 60);
    let path = dir.path().join("t/cpu_0");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..40].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let (n, ran) = events(dir.path());
    assert_eq!(n, 57, "{ran:?}");
    assert!(ran.stderr.contains("cpu_0 at byte 0: no packet begins here; 184 bytes"), "{ran:?}");
    let hint = "hint: `owlet recover DIR`";
    assert!(ran.stderr.contains(hint), "{ran:?}");
    let ran = run(dir.path(), &["recover", "t"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (6, "cpu_0: cut 184 bytes at byte 0\n"), "{ran:?}");
    assert!(ran.stderr.contains("184 bytes of damaged data were cut"), "{ran:?}");
    assert_eq!(std::fs::metadata(dir.path().join("t/.cut-cpu_0")).unwrap().len(), 184);
    let (n, ran) = events(dir.path());
    assert_eq!(n, 57);
    // The hole stays, and no repair helps.
    assert!(ran.stderr.contains("packet 1 where 0 belongs") && !ran.stderr.contains(hint));
    assert_eq!(run(dir.path(), &["recover", "t"]).code, 6);
}

#[test]
fn a_missing_stream_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |_| {});
    std::fs::remove_file(dir.path().join("t/cpu_1")).unwrap();
    for command in ["stat", "report"] {
        let ran = run(dir.path(), &[command, "t"]);
        assert!(
            ran.code == 6
                && ran.stderr.contains("warning: cpu_1 at byte 0: the file is missing, and its 30")
        );
        assert!(!ran.stderr.contains("owlet recover"), "{ran:?}");
    }
    let ran = run(dir.path(), &["recover", "t"]);
    assert!(
        ran.code == 6 && ran.stderr.contains("cpu_1 at byte 0: the file is missing"),
        "{ran:?}"
    );
}

/// `/dev/null`, above all: a rename over it would break the machine.
#[test]
fn an_export_to_what_is_no_file_writes_into_it() {
    use std::os::unix::fs::FileTypeExt as _;
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), |_| {});
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Open both ways, so that nobody waits for the other side, and large enough for it all.
    let mut held = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let ran = run(dir.path(), &["export", "--perfetto", "pipe", "t"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    let mut first = [0; 1];
    std::io::Read::read_exact(&mut held, &mut first).unwrap();
    assert_eq!(first, [0x0a], "the first packet's tag");
    assert!(!dir.path().join("pipe.partial").exists());
}
