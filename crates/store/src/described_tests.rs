//! What is written as TSDL is read again, and nothing else is.

use super::{Cursor, read};
use crate::meta::{ClockInfo, ClockKind, TraceMeta};
use crate::tsdl;
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};

fn schema(fields: Vec<(&str, Type)>) -> Schema {
    let fields = fields.into_iter().map(|(name, ty)| Field { name: name.into(), ty });
    Schema {
        name: "a:\"b\\\n; id = 7;".into(),
        kind: Kind::Event,
        level: Level::Trace,
        file: String::new(),
        line: 0,
        doc: String::new(),
        fields: fields.collect(),
    }
}

fn all() -> Schema {
    let option = |ty| Type::Option(Box::new(ty));
    let names = |all: &[(i64, &str)]| all.iter().map(|(n, s)| (*n, (*s).to_owned())).collect();
    let colour = || Type::Enum(Scalar::I32, names(&[(-1, "a, \"b\" }"), (2, "")]));
    schema(vec![
        ("s", Type::Str),
        ("b", Type::Bytes),
        ("q", Type::Seq(Scalar::F64)),
        ("bools", Type::Seq(Scalar::Bool)),
        ("a", Type::Array(Scalar::U16, 3)),
        ("a0", Type::Array(Scalar::Bool, 0)),
        ("s", Type::Scalar(Scalar::U32)),
        ("x_length", Type::Scalar(Scalar::U32)),
        ("x-y", Type::Scalar(Scalar::Bool)),
        ("", Type::Dynamic),
        ("c", colour()),
        ("big", Type::Enum(Scalar::U64, names(&[(-1, "most")]))),
        ("o1", option(Type::Str)),
        ("o2", option(Type::Bytes)),
        ("o3", option(Type::Seq(Scalar::U8))),
        ("o4", option(Type::Array(Scalar::F32, 2))),
        ("o5", option(option(option(Type::Dynamic)))),
        ("o6", option(colour())),
        ("o7", option(Type::Scalar(Scalar::I8))),
    ])
}

#[test]
fn every_type_reads_back_to_the_same_text() {
    let line = tsdl::event(9, &all());
    let (stream, id, read) = Cursor(line.trim_end()).event().unwrap();
    assert_eq!((stream, id, read.fields.len()), (0, 9, all().fields.len()));
    assert_eq!(tsdl::event(9, &read), line);
    for (read, written) in read.fields.iter().zip(&all().fields) {
        let same = match (&read.ty, &written.ty) {
            // Names are escaped, and empty ones are a question mark.
            (Type::Enum(a, _), Type::Enum(b, _)) => a == b,
            (Type::Option(_), Type::Option(_)) => true,
            (a, b) => a == b,
        };
        assert!(same, "{read:?} {written:?}");
    }
}

/// Cut anywhere, or longer by anything: not understood, rather than half.
#[test]
fn a_part_of_a_line_is_nothing() {
    let line = tsdl::event(9, &all());
    let line = line.trim_end();
    for cut in (0..line.len()).filter(|cut| line.is_char_boundary(*cut)) {
        assert!(Cursor(&line[..cut]).event().is_none(), "{cut}");
    }
    assert!(Cursor(&format!("{line} ")).event().is_none());
    let found = read(&format!("{}\n{line}\n", &line[..40]));
    assert_eq!((found.events.len(), found.strange, found.whole), (1, 1, false));
    assert_eq!(read(&"event { name = \"".repeat(9)).strange, 1);
}

#[test]
fn the_trace_reads_back_with_the_same_clock() {
    for (base_unix_ns, base_ticks, freq_hz) in [
        (1_700_000_000_123_456_789, 5_000_000_000, 2_596_140_000),
        (0, 7, 1_000_000_000),
        (-5, 0, 3),
    ] {
        let clock = ClockInfo { kind: ClockKind::Tsc, freq_hz, base_ticks, base_unix_ns };
        let meta = TraceMeta {
            uuid: *b"0123456789abcdef",
            hostname: "h\"\\".into(),
            clock,
            tracer_version: "1.2.3".into(),
            description: "record \"x\"".into(),
        };
        let text = tsdl::preamble(&meta, &clock, &[]);
        let read = read(&text).meta.unwrap();
        assert_eq!(read.clock.origin(), clock.origin());
        assert_eq!((read.clock.kind, read.clock.freq_hz), (clock.kind, freq_hz));
        assert_eq!(TraceMeta { clock, ..read }, meta);
    }
}
