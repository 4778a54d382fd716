//! A trace directory, as the recorder writes it, read through this crate.

use owlet_analyze::{Stats, Trace, text};
use owlet_store::{ClockInfo, ClockKind, Loss, PacketInfo, StreamName, TraceMeta, TraceWriter};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};
use std::path::Path;

const STREAMS: u64 = 2;
const PACKETS: u64 = 3;
const PER_PACKET: u64 = 5;

/// Ticks of 3 a nanosecond; record `n` of the whole trace is at tick `30 * n`.
fn record(n: u64) -> Vec<u8> {
    let len = u32::try_from(RECORD_HEADER_LEN + 8).expect("small");
    let header = RecordHeader { time: 30 * n, id: 1, len, pid: 10, tid: 11 };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(&n.to_le_bytes());
    bytes
}

fn schema() -> Schema {
    Schema {
        name: "demo:tick".to_owned(),
        kind: Kind::Event,
        level: Level::Info,
        file: String::new(),
        line: 0,
        doc: String::new(),
        fields: vec![Field { name: "seq".to_owned(), ty: Type::Scalar(Scalar::U64) }],
    }
}

/// Even numbers in one stream, odd ones in the other, some lost on the way.
fn record_trace(dir: &Path, finish: bool) {
    let clock = ClockInfo {
        kind: ClockKind::Tsc,
        freq_hz: 3_000_000_000,
        base_ticks: 0,
        base_unix_ns: 1_000_000_000,
    };
    let mut writer = TraceWriter::create(dir, &TraceMeta::new(clock)).expect("a directory");
    writer.add_schema(1, &schema()).expect("stored");
    writer.add_thread(0, &Thread { pid: 10, tid: 11, comm: b"ticker".to_vec() }).expect("stored");
    let (exe, args, backend) = (b"/bin/tick".to_vec(), Vec::new(), "rseq".to_owned());
    let process = Process { pid: 10, ppid: 1, pid_namespace: 0, exe, args, backend };
    writer.add_process(0, &process).expect("stored");
    for packet in 0..PACKETS {
        for stream in 0..STREAMS {
            let at = |n: u64| (packet * PER_PACKET + n) * STREAMS + stream;
            let records: Vec<_> = (0..PER_PACKET).flat_map(|n| record(at(n))).collect();
            let info = PacketInfo {
                cpu: u32::try_from(stream).expect("small"),
                begin: 30 * at(0),
                end: 30 * at(PER_PACKET - 1),
                discarded_total: 4 * packet,
                records: &records,
            };
            let stream = StreamName::cpu(info.cpu);
            let appended = writer.append_packet(stream, &info).expect("stored");
            assert_eq!(appended.events, PER_PACKET);
        }
    }
    let loss = |cpu| Loss { stream: Some(StreamName::cpu(cpu)), cause: "full".into(), events: 8 };
    if finish {
        writer.set_losses(&[loss(0), loss(1)]).expect("stored");
        let _ = writer.finish().expect("stored");
    }
}

#[test]
fn a_recorded_directory_is_merged_and_rendered() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("trace");
    record_trace(&dir, true);
    let trace = Trace::open(&dir).expect("it opens");
    assert_eq!(trace.problems(), &[] as &[String]);
    assert_eq!(trace.streams(), ["cpu_0", "cpu_1"]);
    let mut events = trace.events().expect("it opens");
    let mut line = text::Line::default();
    let (mut n, mut lost) = (0, 0);
    while let Some(event) = events.next_event() {
        assert_eq!(event.time_ns, 1_000_000_000 + 10 * n);
        assert_eq!(u64::from(event.cpu), n % STREAMS);
        let text = line.render(&event);
        assert!(text.contains(&format!("ticker-11 [00{}] demo:tick: {{ seq = {n} }}", n % 2)));
        assert_eq!(event.lost_before > 0, text.ends_with("lost before)\n"), "{text}");
        lost += event.lost_before;
        n += 1;
    }
    assert_eq!(n, STREAMS * PACKETS * PER_PACKET);
    assert_eq!(lost + events.lost_at_end(), 16);
    assert_eq!(events.problems(), &[] as &[String]);
    let stats = Stats::collect(&trace, &mut trace.events().expect("it opens"));
    assert_eq!((stats.events, stats.lost, stats.by_event.len()), (30, 16, 1));
    assert_eq!(stats.by_process[0].exe, "/bin/tick");
    let json = serde_json::to_string(&stats).expect("it is JSON");
    assert!(json.contains(r#""lost":16,"lost_by_cause":[{"cause":"full","events":16}]"#), "{json}");
}

/// A recorder that was killed leaves a trace that reads, and says so.
#[test]
fn a_recording_that_did_not_end_in_order_is_read_and_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("trace");
    record_trace(&dir, false);
    let trace = Trace::open(&dir).expect("it opens");
    let stats = Stats::collect(&trace, &mut trace.events().expect("it opens"));
    assert_eq!(stats.events, 30);
    // No causes were written: the packets know how many.
    let json = serde_json::to_string(&stats).expect("it is JSON");
    let lost = r#""lost":16,"lost_by_cause":[{"cause":"unknown","events":16}]"#;
    assert!(json.contains(lost), "{json}");
    assert_eq!(trace.lost_total(), 16);
    assert!(
        stats.problems.iter().any(|problem| problem.contains("not ended in order")),
        "{stats:?}"
    );
}

#[test]
fn no_trace_is_a_clear_error() {
    let error = Trace::open(Path::new("/nonexistent/trace")).expect_err("nothing is there");
    assert!(error.to_string().contains("/nonexistent/trace"), "{error}");
}
