//! Text and JSON of an event.

use crate::{span_schemas, tick};
use owlet_analyze::build::{Builder, Payload, at};
use owlet_analyze::{Trace, json, text};
use owlet_wire::schema::{Kind, Scalar, Type};

/// 2026-11-30 10:01:52.123456789 UTC.
const MORNING: u64 = 1_796_032_912_123_456_789;

fn lines(trace: &Trace, options: text::Options) -> Vec<String> {
    let mut line = text::Line::new(options);
    let mut events = trace.events().expect("memory opens");
    let mut all = Vec::new();
    while let Some(event) = events.next_event() {
        all.push(line.render(&event).to_owned());
    }
    all
}

fn values() -> Trace {
    let names = vec![(1, "Open".to_owned()), (2, "Clo\u{202e}sed".to_owned())];
    let fields = [
        ("nul", Type::Str),
        ("bad", Type::Str),
        ("empty", Type::Str),
        ("none", Type::Option(Box::new(Type::Str))),
        ("some", Type::Option(Box::new(Type::Scalar(Scalar::U8)))),
        ("list", Type::Seq(Scalar::I32)),
        ("no_items", Type::Array(Scalar::U64, 0)),
        ("max", Type::Scalar(Scalar::U64)),
        ("nan", Type::Scalar(Scalar::F64)),
        ("inf", Type::Scalar(Scalar::F32)),
        ("half", Type::Scalar(Scalar::F32)),
        ("yes", Type::Scalar(Scalar::Bool)),
        ("open", Type::Enum(Scalar::U8, names.clone())),
        ("closed", Type::Enum(Scalar::U8, names.clone())),
        ("other", Type::Enum(Scalar::I8, names)),
        ("data", Type::Bytes),
        ("twice", Type::Dynamic),
        ("twice", Type::Dynamic),
    ];
    let mut b = Builder::new(1);
    let id = b.schema("demo:values", Kind::Event, &fields);
    b.thread(10, 11, b"worker");
    let payload = Payload::new()
        .bytes(b"a\0b\n\"\\")
        .bytes(b"x\xff\xc2\xa0\x1b[2J\xc2\x9b")
        .bytes(b"")
        .raw(&[0])
        .raw(&[1, 7])
        .u32(2)
        .raw(&1_i32.to_le_bytes())
        .raw(&(-2_i32).to_le_bytes())
        .u64(u64::MAX)
        .raw(&f64::NAN.to_le_bytes())
        .raw(&f32::NEG_INFINITY.to_le_bytes())
        .raw(&0.1_f32.to_le_bytes())
        .raw(&[1, 1, 2, 0xff])
        .bytes(&[0, b'"', b'a', 255])
        .raw(&[0])
        .raw(&[4, 0]);
    b.event(at(MORNING), id, &payload);
    b.trace()
}

/// C4 in text.
#[test]
fn c4_values_in_text() {
    let expected = concat!(
        "[10:01:52.123456789] (+?) worker-11 [000] demo:values: { ",
        r#"nul = "a\x00b\n\"\\", bad = "x\xff"#,
        "\u{a0}",
        r#"\x1b[2J\u{9b}", empty = "", none = none, some = 7, list = [1, -2], no_items = [], "#,
        "max = 18446744073709551615, nan = NaN, inf = -inf, half = 0.1, yes = true, ",
        r#"open = Open(1), closed = Clo\u{202e}sed(2), other = -1, data = b"\x00\"a\xff", "#,
        "twice = none, twice#2 = false }\n",
    );
    assert_eq!(lines(&values(), text::Options::default()), [expected]);
}

/// C4 in JSON: read back by a reader of JSON, and nothing is lost.
#[test]
fn c4_values_in_json() {
    let trace = values();
    let mut events = trace.events().expect("memory opens");
    let mut line = json::Line::default();
    let event = events.next_event().expect("an event");
    let text = line.render(&event).to_owned();
    assert!(text.contains("\"max\":18446744073709551615,"), "{text}");
    assert!(text.contains("\"closed\":\"Clo\\u202esed\""), "{text}");
    let read: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let expected = serde_json::json!({
        "time_ns": MORNING, "cpu": 0, "pid": 10, "tid": 11, "comm": "worker",
        "event": "demo:values", "kind": "event", "level": "info",
        "fields": {
            "nul": "a\0b\n\"\\", "bad": {"hex": "78ffc2a01b5b324ac29b"}, "empty": "",
            "none": null, "some": 7, "list": [1, -2], "no_items": [], "max": u64::MAX,
            "nan": "NaN", "inf": "-Infinity", "half": 0.1, "yes": true, "open": "Open",
            "closed": "Clo\u{202e}sed", "other": -1, "data": {"hex": "002261ff"},
            "twice": null, "twice#2": false,
        },
    });
    assert_eq!(read, expected);
}

#[test]
fn span_records_say_what_happened() {
    let mut b = Builder::new(1);
    let span = span_schemas(&mut b, "app:work");
    b.thread(10, 11, b"w");
    span.create(&mut b, at(0), 3);
    span.close(&mut b, at(1_500_000_000), 3, 9);
    let trace = b.trace();
    let expected = [
        "[00:00:00.000000000] (+?) w-11 [000] app:work new: { span = 3, parent = 0 }\n",
        "[00:00:01.500000000] (+1.500000000) w-11 [000] app:work close: { span = 3, duration_ns = 9 }\n",
    ];
    assert_eq!(lines(&trace, text::Options::default()), expected);
    let mut events = trace.events().expect("memory opens");
    let mut line = json::Line::default();
    let text = line.render(&events.next_event().expect("an event")).to_owned();
    assert!(text.contains(r#""kind":"span_new","level":"info","span":3,"parent":0,"fields":{}"#));
}

#[test]
fn time_of_day_is_shifted_to_the_readers_zone_and_may_go_back() {
    let mut b = Builder::new(1);
    let id = tick(&mut b);
    b.event(at(86_399_000_000_001), id, &Payload::new().u64(0));
    b.event(at(86_398_000_000_000), id, &Payload::new().u64(1));
    let lines = lines(&b.trace(), text::Options { utc_offset_s: 3_600 });
    assert!(lines[0].starts_with("[00:59:59.000000001] (+?) -11 "), "{lines:?}");
    assert!(lines[1].starts_with("[00:59:58.000000000] (-1.000000001) "), "{lines:?}");
}

#[test]
fn fields_are_aligned_one_per_line() {
    let mut b = Builder::new(1);
    let fields = [("seq", Type::Scalar(Scalar::U64)), ("a_long_name", Type::Str)];
    let id = b.schema("demo:tick", Kind::Event, &fields);
    b.thread(10, 11, b"w");
    b.event(at(1), id, &Payload::new().u64(7).bytes(b"x\ty"));
    let trace = b.trace();
    let mut events = trace.events().expect("memory opens");
    let mut line = text::Line::default();
    let expected = "[00:00:00.000000001] (+?) w-11 [000] demo:tick  info  src/main.rs:1\n    \
        seq         = 7\n    a_long_name = \"x\\ty\"\n";
    assert_eq!(line.render_fields(&events.next_event().expect("an event")), expected);
}

#[test]
fn a_payload_that_is_too_short_is_malformed() {
    let mut b = Builder::new(1);
    let id =
        b.schema("demo:two", Kind::Event, &[("a", Type::Scalar(Scalar::U8)), ("b", Type::Str)]);
    b.event(at(1), id, &Payload::new().raw(&[1, 9, 0, 0, 0, b'x']));
    let trace = b.trace();
    let lines = lines(&trace, text::Options::default());
    assert!(lines[0].ends_with("demo:two: { a = 1, b = <malformed> }\n"), "{lines:?}");
    let mut events = trace.events().expect("memory opens");
    let text = json::Line::default().render(&events.next_event().expect("an event")).to_owned();
    assert!(text.ends_with("\"fields\":{\"a\":1},\"malformed\":true}\n"), "{text}");
}
