//! Traces to test with, a text dump of what our reader sees, and babeltrace2.

use owlet_store::{
    ClockInfo, ClockKind, Loss, PacketInfo, StreamName, TraceMeta, TraceReader, TraceWriter,
};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};
use owlet_wire::value::{Value, decode, put};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

pub(crate) const CLOCK: ClockInfo = ClockInfo {
    kind: ClockKind::Tsc,
    freq_hz: 2_596_140_000,
    base_ticks: 5_000_000_000,
    base_unix_ns: 1_700_000_000_123_456_789,
};

pub(crate) fn meta() -> TraceMeta {
    TraceMeta {
        uuid: *b"0123456789abcdef",
        hostname: "host-a".into(),
        clock: CLOCK,
        tracer_version: "0.1.0".into(),
        description: String::new(),
    }
}

pub(crate) fn schema(name: &str, kind: Kind, fields: &[(&str, Type)]) -> Schema {
    let fields =
        fields.iter().map(|(name, ty)| Field { name: (*name).into(), ty: ty.clone() }).collect();
    Schema {
        name: name.into(),
        kind,
        level: Level::Info,
        file: "src/x.rs".into(),
        line: 7,
        doc: String::new(),
        fields,
    }
}

pub(crate) fn u64t() -> Type {
    Type::Scalar(Scalar::U64)
}

pub(crate) fn option(ty: Type) -> Type {
    Type::Option(Box::new(ty))
}

/// `demo:tick(seq, note)`.
pub(crate) fn tick() -> Schema {
    schema("demo:tick", Kind::Event, &[("seq", u64t()), ("note", Type::Str)])
}

pub(crate) fn tick_payload(seq: u64, note: &[u8]) -> Vec<u8> {
    encode(&tick(), &[Value::U64(seq), Value::Str(note)])
}

pub(crate) fn encode(schema: &Schema, values: &[Value<'_>]) -> Vec<u8> {
    assert_eq!(schema.fields.len(), values.len());
    let mut payload = Vec::new();
    for (field, value) in schema.fields.iter().zip(values) {
        assert!(put(&field.ty, value, &mut payload).is_some(), "{} {value:?}", field.name);
    }
    payload
}

/// Appends one record as the ring holds it.
pub(crate) fn push(run: &mut Vec<u8>, time: u64, id: u32, tid: u32, payload: &[u8]) {
    let len = (RECORD_HEADER_LEN + payload.len()) as u32;
    run.extend(RecordHeader { time, id, len, pid: 100, tid }.to_bytes());
    run.extend(payload);
    run.resize(run.len().next_multiple_of(8), 0);
}

pub(crate) fn packet(records: &[u8], begin: u64, end: u64, discarded_total: u64) -> PacketInfo<'_> {
    PacketInfo { cpu: 0, begin, end, discarded_total, records }
}

pub(crate) fn process(pid: u32) -> Process {
    Process {
        pid,
        ppid: 1,
        pid_namespace: 4_026_531_836,
        exe: b"/usr/bin/serv\"er".to_vec(),
        args: b"server\0--port\x0080\0".to_vec(),
        backend: "rseq".into(),
    }
}

pub(crate) fn thread(pid: u32, tid: u32, comm: &str) -> Thread {
    Thread { pid, tid, comm: comm.into() }
}

/// Every type, with the values that other tools lost (C4).
pub(crate) fn rich() -> (Schema, Vec<Value<'static>>) {
    let colour = || {
        let names =
            [(-1, "minus"), (2, "green"), (2, "verde"), (3, "green"), (300, "far"), (4, "")];
        names.map(|(n, name)| (n, name.to_owned())).to_vec()
    };
    let list = |values: Vec<u64>| Value::List(values.into_iter().map(Value::U64).collect());
    let fields: Vec<(&str, Type, Value<'static>)> = vec![
        ("nul", Type::Str, Value::Str(b"a\0b")),
        ("invalid", Type::Str, Value::Str(b"\xff\xfe")),
        ("empty", Type::Str, Value::Str(b"")),
        ("bytes", Type::Bytes, Value::Bytes(b"\0\x01")),
        ("max", u64t(), Value::U64(u64::MAX)),
        ("min", Type::Scalar(Scalar::I64), Value::I64(i64::MIN)),
        ("nan", Type::Scalar(Scalar::F64), Value::F64(f64::NAN)),
        ("single", Type::Scalar(Scalar::F32), Value::F32(-0.0)),
        ("yes", Type::Scalar(Scalar::Bool), Value::Bool(true)),
        ("zero0", Type::Array(Scalar::U8, 0), list(vec![])),
        ("after0", Type::Scalar(Scalar::U8), Value::U64(1)),
        ("zero1", Type::Array(Scalar::U16, 0), list(vec![])),
        ("zero2", Type::Array(Scalar::U32, 0), list(vec![])),
        ("zero3", Type::Array(Scalar::U64, 0), list(vec![])),
        ("none_seq", Type::Seq(Scalar::F64), list(vec![])),
        ("seq", Type::Seq(Scalar::U16), list(vec![1, 65535])),
        ("pair", Type::Array(Scalar::U32, 2), list(vec![7, 8])),
        ("bools", Type::Array(Scalar::Bool, 1), Value::List(vec![Value::Bool(false)])),
        ("colour", Type::Enum(Scalar::U8, colour()), Value::Enum(2, Some("green"))),
        ("signed", Type::Enum(Scalar::I32, colour()), Value::Enum(-1, Some("minus"))),
        ("plain", Type::Enum(Scalar::U64, vec![]), Value::Enum(9, None)),
        ("some", option(Type::Str), Value::Str(b"x")),
        ("none", option(Type::Scalar(Scalar::U32)), Value::None),
        ("deep", option(option(Type::Seq(Scalar::U8))), list(vec![5])),
        ("odyn", option(Type::Dynamic), Value::I64(-3)),
        ("oarr", option(Type::Array(Scalar::U8, 2)), list(vec![1, 2])),
        ("oenum", option(Type::Enum(Scalar::U8, colour())), Value::Enum(3, Some("green"))),
        ("d_u", Type::Dynamic, Value::U64(1)),
        ("d_i", Type::Dynamic, Value::I64(-1)),
        ("d_f", Type::Dynamic, Value::F64(0.5)),
        ("d_b", Type::Dynamic, Value::Bool(true)),
        ("d_s", Type::Dynamic, Value::Str(b"dyn")),
        ("d_y", Type::Dynamic, Value::Bytes(b"\x07")),
        ("d_n", Type::Dynamic, Value::None),
    ];
    let values = fields.iter().map(|(_, _, value)| value.clone()).collect();
    let fields: Vec<_> = fields.into_iter().map(|(name, ty, _)| (name, ty)).collect();
    (schema("app:rich", Kind::Event, &fields), values)
}

/// A trace of one stream with `events` ticks in packets of three.
pub(crate) fn write_ticks(dir: &Path, events: u64) -> TraceWriter {
    let mut writer = TraceWriter::create(dir, &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    writer.add_process(900, &process(100)).unwrap();
    writer.add_thread(950, &thread(100, 101, "main")).unwrap();
    let mut seq = 0;
    while seq < events {
        let mut run = Vec::new();
        let begin = 1000 + seq * 10;
        for _ in 0..3.min(events - seq) {
            push(
                &mut run,
                1000 + seq * 10,
                1,
                101,
                &tick_payload(seq, &b"note"[..seq as usize % 5]),
            );
            seq += 1;
        }
        let done = writer
            .append_packet(StreamName::cpu(0), &packet(&run, begin, 1000 + seq * 10, 0))
            .unwrap();
        assert_eq!(done.malformed, 0);
    }
    writer
}

/// All our reader sees, as text.
pub(crate) fn dump(dir: &Path) -> String {
    let trace = match TraceReader::open(dir) {
        Ok(trace) => trace,
        Err(error) => return format!("error {:?}: {}\n", error.kind, error.what),
    };
    let mut out = String::new();
    let clock = trace.clock();
    writeln!(out, "host {} clock {:?} {} Hz", trace.meta().hostname, clock.kind, clock.freq_hz)
        .unwrap();
    writeln!(out, "finished {}", trace.finished()).unwrap();
    for record in trace.processes() {
        let p = &record.process;
        writeln!(
            out,
            "process {} parent {} exe \"{}\" args \"{}\" {} at {}",
            p.pid,
            p.ppid,
            p.exe.escape_ascii(),
            p.args.escape_ascii(),
            p.backend,
            record.time
        )
        .unwrap();
    }
    for record in trace.threads() {
        let t = &record.thread;
        writeln!(
            out,
            "thread {}/{} \"{}\" at {}",
            t.pid,
            t.tid,
            t.comm.escape_ascii(),
            record.time
        )
        .unwrap();
    }
    for loss in trace.losses() {
        let stream = loss.stream.map_or_else(|| "-".to_owned(), |s| s.to_string());
        writeln!(out, "lost {stream} {} {}", loss.cause, loss.events).unwrap();
    }
    for problem in trace.problems() {
        writeln!(out, "problem {problem}").unwrap();
    }
    for (at, info) in trace.streams().iter().enumerate() {
        writeln!(
            out,
            "stream {} packets {} bytes {} from {} to {} discarded {}",
            info.name, info.packets, info.bytes, info.begin, info.end, info.discarded
        )
        .unwrap();
        let mut events = trace.events(at).unwrap();
        while let Some(event) = events.next_event() {
            let schema = &trace.schemas()[&event.header.id];
            let (values, whole) = decode(&schema.fields, event.payload);
            write!(
                out,
                "  {} ({} ns) cpu {} {}/{} ",
                event.header.time,
                clock.unix_ns(event.header.time),
                event.cpu,
                event.header.pid,
                event.header.tid
            )
            .unwrap();
            if event.discarded > 0 {
                write!(out, "[{} lost] ", event.discarded).unwrap();
            }
            write!(out, "{:?} {}", schema.kind, schema.name.escape_debug()).unwrap();
            for (field, value) in schema.fields.iter().zip(&values) {
                write!(out, " {}={}", field.name.escape_debug(), show(value)).unwrap();
            }
            writeln!(out, "{}", if whole { "" } else { " BROKEN" }).unwrap();
        }
        if events.discarded_at_end() > 0 {
            writeln!(out, "  [{} lost]", events.discarded_at_end()).unwrap();
        }
        for problem in events.problems() {
            writeln!(out, "  problem {problem}").unwrap();
        }
    }
    out
}

fn show(value: &Value<'_>) -> String {
    match value {
        Value::Str(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::Bytes(bytes) => format!("b\"{}\"", bytes.escape_ascii()),
        Value::List(list) => {
            format!("[{}]", list.iter().map(show).collect::<Vec<_>>().join(" "))
        }
        Value::Enum(n, Some(name)) => format!("{name}({n})"),
        Value::Enum(n, None) => format!("({n})"),
        Value::U64(n) => n.to_string(),
        Value::I64(n) => n.to_string(),
        Value::F32(n) => format!("{n:?}f32"),
        Value::F64(n) => format!("{n:?}"),
        Value::Bool(b) => b.to_string(),
        Value::None => "none".to_owned(),
    }
}

/// What babeltrace2 says.
pub(crate) struct Babel {
    pub(crate) lines: Vec<String>,
    pub(crate) stderr: String,
}

/// Whether tests with a tool run: without it they say so, or fail under OWLET_REQUIRE_TOOLS=1.
pub(crate) fn have(tool: &str, argument: &str) -> bool {
    let found = Command::new(tool).arg(argument).output().is_ok_and(|out| out.status.success());
    let required = std::env::var_os("OWLET_REQUIRE_TOOLS").is_some_and(|v| v == "1");
    assert!(found || !required, "{tool} is required (OWLET_REQUIRE_TOOLS=1) and does not run");
    if !found {
        eprintln!("skipped: {tool} is not installed (Debian package {tool})");
    }
    found
}

/// Text of a trace with times in seconds; `None` when babeltrace2 is absent.
pub(crate) fn babeltrace(dir: &Path) -> Option<Babel> {
    if !have("babeltrace2", "--version") {
        return None;
    }
    let out = Command::new("babeltrace2")
        .args(["--clock-seconds", "--no-delta", "--names=payload,context"])
        .arg(dir)
        .env("BABELTRACE_TERM_COLOR", "NEVER")
        .output()
        .unwrap();
    let lines = String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect();
    let mut stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    if !out.status.success() {
        write!(stderr, "exit {:?}", out.status.code()).unwrap();
    }
    Some(Babel { lines, stderr })
}

impl Babel {
    /// Lines of the event streams, without thread and process records.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.lines.iter().map(String::as_str).filter(|line| !line.contains(" owlet:")).collect()
    }

    /// Unix time of a line, in nanoseconds.
    pub(crate) fn time(line: &str) -> i64 {
        let (time, _) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')).unwrap();
        let (seconds, nanos) = time.split_once('.').unwrap();
        seconds.parse::<i64>().unwrap() * 1_000_000_000 + nanos.parse::<i64>().unwrap()
    }
}

pub(crate) fn loss(stream: Option<StreamName>, cause: &str, events: u64) -> Loss {
    Loss { stream, cause: cause.into(), events }
}
