//! The bytes of the format. A change of any string below is a change of `WIRE_VERSION`.

use owlet_wire::config::{Rule, SessionConfig, glob, glob_bytes};
use owlet_wire::control::{FRAME_MAX, MAGIC, Reply, Request};
use owlet_wire::entry::{self, Entry, EntryRef, ProcessRef, ThreadRef};
use owlet_wire::frame::{self, FrameError};
use owlet_wire::functions::{Attach, BUCKETS, Moments, Work, bounds, bucket, field_names};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::schema::{FieldRef, Kind, Level, Scalar, Schema, SchemaRef, TypeRef};
use owlet_wire::{WIRE_VERSION, schema::DynTag};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const SCALARS: [Scalar; 11] = [
    Scalar::U8,
    Scalar::U16,
    Scalar::U32,
    Scalar::U64,
    Scalar::I8,
    Scalar::I16,
    Scalar::I32,
    Scalar::I64,
    Scalar::F32,
    Scalar::F64,
    Scalar::Bool,
];

fn all_types(check: impl FnOnce(SchemaRef<'_>)) {
    let names = [(-1, "minus"), (7, "seven")];
    let text = TypeRef::Str;
    let option = TypeRef::Option(&text);
    let fields = [
        FieldRef { name: "a", ty: TypeRef::Scalar(Scalar::U64) },
        FieldRef { name: "b", ty: TypeRef::Str },
        FieldRef { name: "c", ty: TypeRef::Bytes },
        FieldRef { name: "d", ty: TypeRef::Array(Scalar::U16, 300) },
        FieldRef { name: "e", ty: TypeRef::Seq(Scalar::F32) },
        FieldRef { name: "f", ty: TypeRef::Enum(Scalar::I32, &names) },
        FieldRef { name: "g", ty: TypeRef::Option(&option) },
        FieldRef { name: "h", ty: TypeRef::Dynamic },
    ];
    check(SchemaRef {
        name: "app:x",
        kind: Kind::Event,
        level: Level::Info,
        file: "src/x.rs",
        line: 300,
        doc: "doc",
        fields: &fields,
    });
}

#[test]
fn version() {
    assert_eq!(WIRE_VERSION, 2);
}

#[test]
fn record_header() {
    let header =
        RecordHeader { time: 0x0102_0304_0506_0708, id: 0x11, len: 33, pid: 0x21, tid: 0x31 };
    let bytes = header.to_bytes();
    assert_eq!(hex(&bytes), "080706050403020111000000210000002100000031000000");
    assert_eq!(RecordHeader::read(&bytes), Some(header));
    assert_eq!(RecordHeader::read(&bytes[..RECORD_HEADER_LEN - 1]), None);
    assert_eq!(header.advance(), 40);
    assert_eq!(RecordHeader { len: 32, ..header }.advance(), 32);
}

/// The owned and the borrowed form are the same bytes, and these.
#[test]
fn schema_bytes() {
    all_types(|schema| {
        let bytes = postcard::to_allocvec(&schema).unwrap();
        assert_eq!(
            hex(&bytes),
            "056170703a780002087372632f782e7273ac0203646f6308016100030162010163020164\
             0301ac0201650408016605060201056d696e75730e05736576656e0167060601016807"
        );
        let owned: Schema = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(owned, schema.to_schema());
        assert_eq!(postcard::to_allocvec(&owned).unwrap(), bytes);
        let json = serde_json::to_string(&owned).unwrap();
        assert_eq!(serde_json::from_str::<Schema>(&json).unwrap(), owned);
    });
}

#[test]
fn scalars_kinds_levels_tags() {
    let bytes = postcard::to_allocvec(&SCALARS).unwrap();
    assert_eq!(hex(&bytes), "000102030405060708090a");
    let kinds = [
        Kind::Event,
        Kind::SpanNew,
        Kind::SpanEnter,
        Kind::SpanExit,
        Kind::SpanClose,
        Kind::SpanFollows,
        Kind::SpanRecord,
        Kind::SpanEvent,
    ];
    assert_eq!(hex(&postcard::to_allocvec(&kinds).unwrap()), "0001020304050607");
    let levels = [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];
    assert_eq!(hex(&postcard::to_allocvec(&levels).unwrap()), "0001020304");
    let tags = [
        DynTag::Absent,
        DynTag::U64,
        DynTag::I64,
        DynTag::F64,
        DynTag::Bool,
        DynTag::Str,
        DynTag::Bytes,
    ];
    assert_eq!(tags.map(|tag| tag as u8), [0, 1, 2, 3, 4, 5, 6]);
    let sizes: Vec<_> = SCALARS.iter().map(|scalar| scalar.size()).collect();
    assert_eq!(sizes, [1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 1]);
}

#[test]
fn entries() {
    let mut buf = [0; 256];
    let thread = EntryRef::Thread(ThreadRef { pid: 300, tid: 301, comm: b"w\xff" });
    let bytes = entry::encode(&thread, &mut buf).unwrap();
    assert_eq!(hex(bytes), "01ac02ad020277ff");
    let Some(Entry::Thread(owned)) = entry::decode(bytes) else { panic!("no thread") };
    assert_eq!((owned.pid, owned.tid, owned.comm.as_slice()), (300, 301, &b"w\xff"[..]));

    let process = EntryRef::Process(ProcessRef {
        pid: 1,
        ppid: 2,
        pid_namespace: 3,
        exe: b"/bin/x",
        args: b"x\0y\0",
        backend: "rseq",
    });
    let bytes = entry::encode(&process, &mut buf).unwrap();
    assert_eq!(hex(bytes), "02010203062f62696e2f7804780079000472736571");
    assert!(matches!(entry::decode(bytes), Some(Entry::Process(_))));

    all_types(|schema| {
        let bytes = entry::encode(&EntryRef::Schema(5, schema), &mut buf).unwrap();
        assert_eq!(hex(&bytes[..4]), "00050561");
        assert_eq!(entry::decode(bytes), Some(Entry::Schema(5, schema.to_schema())));
        // Every cut and every extension is refused.
        for cut in 0..bytes.len() {
            assert_eq!(entry::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(entry::decode(&longer), None);
    });
    assert!(entry::encode(&thread, &mut [0; 7]).is_none(), "does not fit");
}

#[test]
fn control_and_config() {
    assert_eq!(&MAGIC, b"OWL1");
    let requests = [
        (Request::Hello { wire_version: 1 }, "0001"),
        (Request::List { pattern: "*".into() }, "01012a"),
        (Request::Attach, "02"),
        (
            Request::Control { rules: vec![Rule { pattern: "a".into(), enable: true }] },
            "0301016101",
        ),
        (Request::Detach, "04"),
        (Request::Functions { pattern: "*".into() }, "05012a"),
        (
            Request::AttachFunctions(Attach {
                patterns: vec!["a".into(), "b".into()],
                work: Work::Record(Moments::Latency),
                filter: "c".into(),
            }),
            "060201610162000301\
            63",
        ),
        (
            Request::AttachFunctions(Attach {
                patterns: vec!["a".into()],
                work: Work::Histogram { field: None, by: Some("k".into()) },
                filter: String::new(),
            }),
            "060101610100\
            01016b00",
        ),
        (
            Request::AttachFunctions(Attach {
                patterns: Vec::new(),
                work: Work::Program { image: vec![7, 8], program: "p".into() },
                filter: String::new(),
            }),
            "06000202070801\
            7000",
        ),
        (Request::DetachFunctions { pattern: "*".into(), own: true }, "07012a01"),
        (Request::Standing { maps: true }, "0801"),
    ];
    for (request, expected) in requests {
        assert_eq!(hex(&postcard::to_allocvec(&request).unwrap()), expected, "{request:?}");
    }
    let config = SessionConfig {
        session: 1,
        rules: vec![Rule { pattern: "*".into(), enable: true }],
        level: Level::Trace,
        filter: "a".into(),
        rendezvous: String::new(),
        recorder_pid: 9,
    };
    assert_eq!(
        hex(&config.encode()),
        "02000000\
        0101012a01040161\
        0009"
    );
}

#[test]
fn a_configuration_of_another_version_does_not_decode() {
    let config = SessionConfig {
        session: 1,
        rules: Vec::new(),
        level: Level::Trace,
        filter: String::new(),
        rendezvous: String::new(),
        recorder_pid: 9,
    };
    let mut bytes = config.encode();
    bytes.extend([0; 16]);
    assert_eq!(SessionConfig::decode(&bytes), Some(config));
    for other in [0, WIRE_VERSION + 1, WIRE_VERSION << 8, u32::MAX] {
        bytes[..4].copy_from_slice(&other.to_le_bytes());
        assert_eq!(SessionConfig::decode(&bytes), None, "{other}");
    }
    for len in 0..4 {
        assert_eq!(SessionConfig::decode(&WIRE_VERSION.to_le_bytes()[..len]), None);
    }
}

#[test]
fn globs() {
    let yes = [
        ("*", ""),
        ("*", "x"),
        ("", ""),
        ("app:*", "app:x:y"),
        ("*:tick", "demo:tick"),
        ("a?c", "abc"),
        ("a*c*e", "abcde"),
        ("**a**", "a"),
        ("*aab", "aaaab"),
        ("?", "\u{e9}"),
        ("?x", "\u{20ac}x"),
        ("*?", "\u{20ac}"),
        ("a.b[1]", "a.b[1]"),
    ];
    for (pattern, name) in yes {
        assert!(glob(pattern, name), "{pattern} {name}");
    }
    let no = [
        ("", "x"),
        ("?", ""),
        ("a", "ab"),
        ("*b", "a"),
        ("a?", "a"),
        ("??", "\u{e9}"),
        ("*??", "\u{20ac}"),
        ("A", "a"),
        ("*aab", "aaabx"),
    ];
    for (pattern, name) in no {
        assert!(!glob(pattern, name), "{pattern} {name}");
    }
    assert!(
        glob_bytes(b"?\xff*", b"\xc3\xff"),
        "bytes that are no UTF-8 are characters of one byte"
    );
}

#[test]
fn frames() {
    let mut wire = Vec::new();
    frame::write_magic(&mut wire).unwrap();
    frame::write(&mut wire, &Request::Hello { wire_version: 1 }).unwrap();
    frame::write(&mut wire, &Request::Detach).unwrap();
    assert_eq!(hex(&wire), "4f574c3102000000000101000000".to_owned() + "04");
    let mut input = wire.as_slice();
    frame::read_magic(&mut input).unwrap();
    let first: Request = frame::read(&mut input, FRAME_MAX).unwrap();
    assert_eq!(first, Request::Hello { wire_version: 1 });
    let second: Request = frame::read(&mut input, FRAME_MAX).unwrap();
    assert_eq!(second, Request::Detach);
    assert!(matches!(frame::read::<Request>(&mut input, FRAME_MAX), Err(FrameError::Closed)));

    let read = |bytes: &[u8]| frame::read::<Request>(&mut &*bytes, 100);
    assert!(matches!(read(&[1, 0]), Err(FrameError::Truncated)));
    assert!(matches!(read(&[2, 0, 0, 0, 0]), Err(FrameError::Truncated)));
    assert!(matches!(read(&[101, 0, 0, 0]), Err(FrameError::TooLong { len: 101, max: 100 })));
    assert!(matches!(read(&[0, 0, 0, 0]), Err(FrameError::Malformed)));
    assert!(matches!(read(&[2, 0, 0, 0, 4, 0]), Err(FrameError::Malformed)), "bytes left over");
    assert!(matches!(frame::read_magic(&mut &b"GET "[..]), Err(FrameError::Magic(_))));
    assert!(matches!(frame::read_magic(&mut &b""[..]), Err(FrameError::Closed)));

    let big = Reply::Error { message: "x".repeat(FRAME_MAX as usize), hint: String::new() };
    assert!(frame::to_vec(&big).is_none() && frame::write(&mut Vec::new(), &big).is_err());
}

#[test]
fn buckets_of_histograms_hold_what_their_bounds_say() {
    assert_eq!([0, 1, 2, 3, 4, 1023, 1024, u64::MAX].map(bucket), [0, 1, 2, 2, 3, 10, 11, 64]);
    let mut next = 0_u64;
    for number in 0..BUCKETS {
        let (low, high) = bounds(number).unwrap();
        assert_eq!(low, next, "no gap before {number}");
        assert_eq!((bucket(low), bucket(high)), (number, number));
        next = high.wrapping_add(1);
    }
    assert_eq!((next, bounds(BUCKETS)), (0, None));
}

#[test]
fn parameters_become_fields_of_different_names() {
    let names = field_names(&["self", "_", "ret", "key", "_", "span", "key"]);
    assert_eq!(names, ["self", "arg1", "ret_arg2", "key", "arg4", "span_arg5", "key_arg6"]);
}
