//! Writes that fail, one after the other: nothing that was reported as written is lost, and the
//! writer goes on.

use crate::file::fault;
use crate::meta::{ClockInfo, ClockKind, Loss};
use crate::{ErrorKind, PacketInfo, StreamName, TraceMeta, TraceReader, TraceWriter};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};
use std::path::Path;

fn meta() -> TraceMeta {
    let mut meta = TraceMeta::new(ClockInfo::nanoseconds(ClockKind::Monotonic, 0));
    meta.hostname = "h".into();
    meta
}

fn schema(name: &str) -> Schema {
    Schema {
        name: name.into(),
        kind: Kind::Event,
        level: Level::Info,
        file: String::new(),
        line: 0,
        doc: String::new(),
        fields: vec![Field { name: "seq".into(), ty: Type::Scalar(Scalar::U64) }],
    }
}

fn run(seqs: std::ops::Range<u64>) -> Vec<u8> {
    let mut run = Vec::new();
    for seq in seqs {
        run.extend(RecordHeader { time: 1000 + seq, id: 1, len: 32, pid: 1, tid: 1 }.to_bytes());
        run.extend(seq.to_le_bytes());
    }
    run
}

/// Sequence numbers of the whole trace.
fn read(dir: &Path) -> Vec<u64> {
    let trace = TraceReader::open(dir).unwrap();
    let strange: Vec<_> = trace.problems().iter().filter(|problem| !problem.notice).collect();
    assert!(strange.is_empty(), "{strange:?}");
    let mut seqs = Vec::new();
    for at in 0..trace.streams().len() {
        let mut events = trace.events(at).unwrap();
        while let Some(event) = events.next_event() {
            seqs.push(u64::from_le_bytes(*event.payload.first_chunk().unwrap()));
        }
        assert!(events.problems().is_empty());
    }
    seqs.sort_unstable();
    seqs
}

/// One recording; every failed step is tried once more, which must do. Returns what was reported
/// written, and how often a step failed.
fn record(dir: &Path) -> Option<(Vec<u64>, usize)> {
    let mut failed = 0;
    let mut retry = |result: Result<(), crate::StoreError>| match result {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
            failed += 1;
            true
        }
    };
    let mut writer = match TraceWriter::create(dir, &meta()) {
        Ok(writer) => writer,
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::NoSpace);
            return None;
        }
    };
    let mut step =
        |writer: &mut TraceWriter,
         act: &dyn Fn(&mut TraceWriter) -> Result<(), crate::StoreError>| {
            if retry(act(writer)) {
                act(writer).unwrap();
            }
        };
    let process = Process {
        pid: 1,
        ppid: 0,
        pid_namespace: 0,
        exe: b"/x".to_vec(),
        args: Vec::new(),
        backend: "rseq".into(),
    };
    let thread = Thread { pid: 1, tid: 1, comm: b"main".to_vec() };
    let loss = Loss { stream: None, cause: "full".into(), events: 1 };
    step(&mut writer, &|w| w.add_schema(1, &schema("a:b")));
    step(&mut writer, &|w| w.add_process(1, &process));
    step(&mut writer, &|w| w.add_thread(2, &thread));
    let mut reported = Vec::new();
    for (at, stream) in [0, 1, 0, 1].into_iter().enumerate() {
        let at = at as u64 * 10;
        let records = run(at..at + 3);
        step(&mut writer, &|w| {
            let packet = PacketInfo {
                cpu: stream,
                begin: 1000,
                end: 5000,
                discarded_total: at,
                records: &records,
            };
            w.append_packet(StreamName::cpu(stream), &packet).map(|done| {
                assert_eq!((done.events, done.malformed), (3, 0));
            })
        });
        reported.extend(at..at + 3);
        // At any time, a reader sees what was reported so far.
        assert_eq!(read(dir), reported);
    }
    step(&mut writer, &|w| w.set_losses(std::slice::from_ref(&loss)));
    step(&mut writer, &|w| w.set_clock(ClockInfo::nanoseconds(ClockKind::Monotonic, 5)));
    if retry(writer.finish().map(drop)) {
        assert!(!TraceReader::open(dir).unwrap().finished());
    }
    Some((reported, failed))
}

/// The n-th write fails, having stored nothing, some or all but one of its bytes.
#[test]
fn every_write_fails_once() {
    for partial in [0, 1, 40, 100, usize::MAX] {
        let mut writes = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("t");
            fault::arm(writes, partial);
            let outcome = record(&path);
            if fault::disarm() {
                // The failure was never reached: all writes have had their turn.
                let (reported, failed) = outcome.unwrap();
                assert_eq!((reported.len(), failed), (12, 0));
                assert!(TraceReader::open(&path).unwrap().finished());
                break;
            }
            if let Some((reported, failed)) = outcome {
                // A packet for which there is no room the first time is written in parts.
                assert!(failed <= 1, "write {writes}");
                assert_eq!(read(&path), reported, "write {writes}, {partial} bytes of it");
                let trace = TraceReader::open(&path).unwrap();
                assert_eq!(trace.schemas().len(), 1);
                // What the packets of the two streams count has no cause in the sidecar.
                assert_eq!(trace.losses().len(), 3);
                assert_eq!(trace.clock().base_unix_ns, 5);
                let done = crate::recover(&path).unwrap();
                assert!(done.cut.is_empty(), "{done:?}");
            }
            writes += 1;
        }
        assert!(writes >= 15, "{writes}");
    }
}

/// A trace that cannot be begun leaves what was there: no directory, or an empty one. So does one
/// that is discarded.
#[test]
fn a_begin_that_fails_leaves_nothing() {
    let left = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    for writes in 0..2 {
        fault::arm(writes, 5);
        TraceWriter::create(&path, &meta()).unwrap_err();
        assert!(!fault::disarm());
        assert_eq!(left(dir.path()), 0);
        fault::arm(writes, 5);
        TraceWriter::create(dir.path(), &meta()).unwrap_err();
        assert_eq!(left(dir.path()), 0);
    }
    TraceWriter::create(&path, &meta()).unwrap().discard();
    assert_eq!(left(dir.path()), 0);
    TraceWriter::create(dir.path(), &meta()).unwrap().discard();
    assert_eq!(left(dir.path()), 0);
    // Another recorder's files are not ours to take away.
    let other = TraceWriter::create(&path, &meta()).unwrap();
    TraceWriter::create(&path, &meta()).unwrap_err();
    assert_eq!(left(&path), 3);
    drop(other);
}

/// A packet for which there is no room once is written in two; nothing is lost, and nothing twice.
#[test]
fn a_packet_is_split_where_there_is_little_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let mut writer = TraceWriter::create(&path, &meta()).unwrap();
    writer.add_schema(1, &schema("a:b")).unwrap();
    let records = run(0..1000);
    let packet =
        PacketInfo { cpu: 0, begin: 0, end: 1 << 40, discarded_total: 3, records: &records };
    fault::arm(2, 1000);
    let done = writer.append_packet(StreamName::cpu(0), &packet).unwrap();
    assert!(!fault::disarm());
    assert_eq!((done.events, done.malformed), (1000, 0));
    writer.finish().unwrap();
    assert_eq!(read(&path), (0..1000).collect::<Vec<_>>());
    let stream = TraceReader::open(&path).unwrap().streams()[0].clone();
    // The empty one that makes the count exact, and the halves.
    assert_eq!((stream.packets, stream.discarded), (3, 3));
}

/// Packets before the one that fails in a long run count.
#[test]
fn a_long_run_fails_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let mut writer = TraceWriter::create(&path, &meta()).unwrap();
    writer.add_schema(1, &schema("a:b")).unwrap();
    // 100,000 records of 32 bytes are four packets.
    let records = run(0..100_000);
    let packet =
        PacketInfo { cpu: 0, begin: 0, end: 1 << 40, discarded_total: 0, records: &records };
    // The first write tells the sidecar of the stream.
    fault::arm_full(3, 1000);
    let error = writer.append_packet(StreamName::cpu(0), &packet).unwrap_err();
    assert!(fault::disarm());
    assert_eq!(error.kind, ErrorKind::NoSpace);
    let written = writer.summary().events;
    assert!((60_000..70_000).contains(&written), "{written}");
    let done = writer.append_packet(
        StreamName::cpu(0),
        &PacketInfo { records: &records[written as usize * 32..], ..packet },
    );
    assert_eq!(done.unwrap().events, 100_000 - written);
    assert_eq!(writer.finish().unwrap().events, 100_000);
    assert_eq!(read(&path), (0..100_000).collect::<Vec<_>>());
}

#[test]
fn clock_arithmetic() {
    let clock = ClockInfo {
        kind: ClockKind::Tsc,
        freq_hz: 3_000_000_000,
        base_ticks: 9_000_000_000,
        base_unix_ns: 10,
    };
    assert_eq!(clock.unix_ns(9_000_000_000), 10);
    assert_eq!(clock.unix_ns(9_000_000_003), 11);
    assert_eq!(clock.unix_ns(9_000_000_002), 10);
    assert_eq!(clock.unix_ns(8_999_999_999), 9, "rounded down before the base, too");
    assert_eq!(clock.unix_ns(0), -2_999_999_990);
    assert_eq!(clock.ticks_to_ns(3_000_000_000), 1_000_000_000);
    assert_eq!(clock.ticks_to_ns(u64::MAX), u64::MAX / 3);
    let slow = ClockInfo { freq_hz: 1, ..clock };
    assert_eq!((slow.unix_ns(u64::MAX), slow.ticks_to_ns(u64::MAX)), (i64::MAX, u64::MAX));
    let zero = ClockInfo { freq_hz: 0, ..clock };
    assert_eq!(zero.unix_ns(9_000_000_000), 0, "as at 1 Hz: a tick is the finest there is");
}

#[test]
fn stream_names() {
    for name in [StreamName::cpu(0), StreamName::cpu(1023), StreamName::portable(u32::MAX)] {
        assert_eq!(StreamName::parse(&name.to_string()), Some(name));
    }
    for bad in
        ["", "cpu", "cpu_", "cpu_01", "cpu_-1", "cpu_+1", "CPU_1", "cpu_4294967296", "threads"]
    {
        assert_eq!(StreamName::parse(bad), None, "{bad}");
    }
}
