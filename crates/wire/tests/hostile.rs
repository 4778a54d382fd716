//! Bytes that no Owlet wrote: nothing panics, overflows a stack or allocates what was not sent.

use owlet_wire::entry::{self, Entry, EntryRef};
use owlet_wire::filter::{Filter, Side};
use owlet_wire::frame;
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::{
    DynTag, Field, Kind, Level, MAX_DEPTH, Scalar, Schema, SchemaRef, Type, TypeRef,
};
use owlet_wire::value::{Value, decode, fits, put, skip, take};
use proptest::prelude::*;

const OPTION: u8 = 6;

/// A schema entry up to its only field's type.
fn entry_with_type(ty: &[u8]) -> Vec<u8> {
    let schema = SchemaRef {
        name: "n",
        kind: Kind::Event,
        level: Level::Info,
        file: "",
        line: 0,
        doc: "",
        fields: &[],
    };
    let mut buf = [0; 64];
    let mut bytes = entry::encode(&EntryRef::Schema(1, schema), &mut buf).unwrap().to_vec();
    bytes.pop();
    bytes.extend([1, 1, b'f']);
    bytes.extend(ty);
    bytes
}

/// A million nested options overflow no stack: they are refused at `MAX_DEPTH`.
#[test]
fn deep_options_do_not_decode() {
    let nested = |depth: usize| {
        let mut ty = vec![OPTION; depth];
        ty.push(1);
        entry::decode(&entry_with_type(&ty))
    };
    assert!(nested(MAX_DEPTH).is_some());
    assert!(nested(MAX_DEPTH + 1).is_none());
    assert!(nested(1_000_000).is_none());
    let json = "{\"Option\":".repeat(100_000) + "\"Str\"";
    assert!(serde_json::from_str::<Type>(&json).is_err());
}

/// Counts of 2^63 with nothing behind them.
#[test]
fn huge_counts_allocate_nothing() {
    let varint = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    let mut names = vec![5, 6];
    names.extend(varint);
    assert!(entry::decode(&entry_with_type(&names)).is_none());
    // Fields, a string, bytes.
    let mut fields = entry_with_type(&[1]);
    fields.truncate(fields.len() - 4);
    fields.extend(varint);
    assert!(entry::decode(&fields).is_none());
    let mut comm = vec![1, 1, 1];
    comm.extend(varint);
    assert!(entry::decode(&comm).is_none());

    let seq = Type::Seq(Scalar::U64);
    assert_eq!(take(&seq, &mut &[0xff, 0xff, 0xff, 0xff, 1, 2][..]), None);
    assert_eq!(take(&Type::Array(Scalar::F64, u32::MAX), &mut &[0; 64][..]), None);
    assert_eq!(take(&Type::Str, &mut &[0xff, 0xff, 0xff, 0xff][..]), None);

    // A length just under the limit with nothing behind it: the buffer grows with what arrives.
    let mut liar = &[0xff, 0xff, 0xff, 0][..];
    assert!(frame::read::<u8>(&mut liar, 1 << 24).is_err());
}

#[test]
fn check_refuses_what_tools_cannot_hold() {
    let schema = |kind, fields: Vec<(&str, Type)>| Schema {
        name: "n".into(),
        kind,
        level: Level::Info,
        file: String::new(),
        line: 0,
        doc: String::new(),
        fields: fields.into_iter().map(|(n, ty)| Field { name: n.into(), ty }).collect(),
    };
    let u64 = || Type::Scalar(Scalar::U64);
    assert!(schema(Kind::Event, vec![]).check().is_ok());
    assert!(schema(Kind::SpanNew, vec![("span", u64()), ("parent", u64())]).check().is_ok());
    assert!(schema(Kind::SpanNew, vec![("span", u64())]).check().is_err());
    assert!(schema(Kind::SpanExit, vec![("spam", u64())]).check().is_err());
    assert!(schema(Kind::SpanExit, vec![("span", Type::Str)]).check().is_err());
    assert!(schema(Kind::Event, vec![("e", Type::Enum(Scalar::F32, vec![]))]).check().is_err());
    let nested = |depth| (0..depth).fold(Type::Str, |ty, _| Type::Option(Box::new(ty)));
    assert!(schema(Kind::Event, vec![("o", nested(MAX_DEPTH))]).check().is_ok());
    assert!(schema(Kind::Event, vec![("o", nested(MAX_DEPTH + 1))]).check().is_err());
    let many = (0..1025).map(|_| ("f", Type::Str)).collect();
    assert!(schema(Kind::Event, many).check().is_err());
    let _ = TypeRef::Dynamic.to_type();
}

fn scalar() -> impl Strategy<Value = Scalar> {
    prop_oneof![
        Just(Scalar::U8),
        Just(Scalar::U16),
        Just(Scalar::U32),
        Just(Scalar::U64),
        Just(Scalar::I8),
        Just(Scalar::I16),
        Just(Scalar::I32),
        Just(Scalar::I64),
        Just(Scalar::F32),
        Just(Scalar::F64),
        Just(Scalar::Bool),
    ]
}

fn ty() -> impl Strategy<Value = Type> {
    let leaf = prop_oneof![
        scalar().prop_map(Type::Scalar),
        Just(Type::Str),
        Just(Type::Bytes),
        (scalar(), 0_u32..5).prop_map(|(s, n)| Type::Array(s, n)),
        scalar().prop_map(Type::Seq),
        (scalar(), prop::collection::vec((-2_i64..3, "[a-c]"), 0..3))
            .prop_map(|(s, n)| Type::Enum(s, n)),
        Just(Type::Dynamic),
    ];
    leaf.prop_recursive(3, 4, 1, |inner| inner.prop_map(|ty| Type::Option(Box::new(ty))))
}

fn fields() -> impl Strategy<Value = Vec<Field>> {
    prop::collection::vec(("[a-e]", ty()).prop_map(|(name, ty)| Field { name, ty }), 0..5)
}

fn event(fields: Vec<Field>) -> Schema {
    Schema {
        name: "app:x".into(),
        kind: Kind::Event,
        level: Level::Info,
        file: String::new(),
        line: 0,
        doc: String::new(),
        fields,
    }
}

/// Bytes that look like small payloads more often than noise does.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![6 => Just(0_u8), 3 => 1_u8..8, 1 => any::<u8>()];
    prop::collection::vec(byte, 0..80)
}

/// Expressions from the language's own words, mostly well formed.
fn expression() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("a"),
        Just("b"),
        Just(".c"),
        Just("d"),
        Just("pid"),
        Just("name"),
        Just("level"),
        Just("duration"),
        Just("=="),
        Just("!="),
        Just("<"),
        Just("~"),
        Just("contains"),
        Just("and"),
        Just("or"),
        Just("not"),
        Just("("),
        Just(")"),
        Just("has(a)"),
        Just("5"),
        Just("-1"),
        Just("2.5"),
        Just("\"a\""),
        Just("true"),
        Just("warn"),
        Just("has(b) or"),
        Just("a == 0 and"),
        Just("b ~ \"*\" or"),
        Just("not c contains 1 and"),
        Just("d"),
    ];
    prop::collection::vec(word, 0..12).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn any_bytes_as_entry(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(entry) = entry::decode(&bytes) {
            // What decodes, encodes to something that decodes to the same.
            let again = postcard::to_allocvec(&entry).unwrap();
            prop_assert_eq!(entry::decode(&again), Some(entry));
        }
    }

    #[test]
    fn any_header(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Some(header) = RecordHeader::read(&bytes) {
            prop_assert_eq!(&header.to_bytes()[..], &bytes[..24]);
            prop_assert!(header.advance() >= header.len as usize);
        }
    }

    /// skip() and fits() say exactly what take() and decode() say; put() gives the bytes back.
    #[test]
    fn skip_agrees_with_take(fields in fields(), bytes in payload()) {
        for field in &fields {
            let (mut taken, mut skipped) = (&bytes[..], &bytes[..]);
            let value = take(&field.ty, &mut taken);
            let skip = skip(&field.ty, &mut skipped);
            prop_assert_eq!(value.is_some(), skip.is_some(), "{:?} {:?}", field.ty, value);
            if let Some(value) = value {
                prop_assert_eq!(taken, skipped);
                let mut out = vec![7];
                // An option around an absent value cannot be told from an absent option.
                if put(&field.ty, &value, &mut out).is_some() && !nested(&field.ty) {
                    prop_assert_eq!(&out[1..], &bytes[..bytes.len() - taken.len()]);
                }
            }
        }
        prop_assert_eq!(decode(&fields, &bytes).1, fits(&fields, &bytes));
    }

    #[test]
    fn any_text_as_filter(text in "\\PC{0,60}") {
        let _ = Filter::parse(&text);
    }

    /// Never a panic, and the pieces a payload comes in do not matter unless they cut a text.
    #[test]
    fn any_filter_on_any_payload(
        text in expression(), fields in fields(), bytes in payload(), cut in 0_usize..80,
    ) {
        if let Ok(filter) = Filter::parse(&text) {
            let _ = filter.validate(Side::Target);
            let bound = filter.bind(&event(fields.clone()));
            let header = RecordHeader { time: 0, id: 1, len: 0, pid: 5, tid: 5 };
            let whole = bound.matches(&header, &bytes);
            let (front, back) = bytes.split_at(cut.min(bytes.len()));
            let split = bound.matches_parts(&header, &[front, back], None);
            let texts = |ty: &Type| matches!(ty, Type::Str | Type::Bytes | Type::Dynamic | Type::Option(_));
            if !fields.iter().any(|field| texts(&field.ty)) {
                prop_assert_eq!(whole, split);
            }
        }
    }

    /// The program equals the naive reading of `a == N` on the decoded value.
    #[test]
    fn equality_is_equality(fields in fields(), bytes in payload(), wanted in 0_u64..8) {
        let bound = Filter::parse(&format!("a == {wanted}")).unwrap().bind(&event(fields.clone()));
        let header = RecordHeader::default();
        let (values, _) = decode(&fields, &bytes);
        let expected = fields.iter().position(|f| f.name == "a").and_then(|i| values.get(i));
        let expected = match expected {
            Some(Value::U64(n)) => *n == wanted,
            Some(Value::I64(n) | Value::Enum(n, _)) => *n == wanted.cast_signed(),
            Some(Value::F32(n)) => *n == wanted as f32,
            Some(Value::F64(n)) => *n == wanted as f64,
            _ => false,
        };
        let ill = values.len() < fields.len();
        prop_assert!(bound.matches(&header, &bytes) == expected || ill, "{fields:?}");
    }
}

fn nested(ty: &Type) -> bool {
    matches!(ty, Type::Option(inner) if matches!(**inner, Type::Option(_) | Type::Dynamic))
}

#[test]
fn put_refuses_other_types_and_restores() {
    let mut out = vec![1];
    let list = Value::List(vec![Value::U64(1), Value::Str(b"x")]);
    assert_eq!(put(&Type::Seq(Scalar::U8), &list, &mut out), None);
    assert_eq!(put(&Type::Scalar(Scalar::U8), &Value::U64(256), &mut out), None);
    assert_eq!(put(&Type::Array(Scalar::U8, 2), &Value::List(vec![]), &mut out), None);
    assert_eq!(put(&Type::Dynamic, &Value::F32(1.0), &mut out), None);
    assert_eq!(out, [1]);
    assert!(matches!(entry::decode(&[1, 1, 1, 0]), Some(Entry::Thread(_))));
    assert_eq!(DynTag::Bytes as u8, 6);
}
