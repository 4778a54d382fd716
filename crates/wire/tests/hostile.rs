//! Bytes that no Owlet wrote: nothing panics, overflows a stack or allocates what was not sent.

use owlet_wire::control::{Reply, Request};
use owlet_wire::entry::{self, Entry, EntryRef};
use owlet_wire::filter::{Filter, Side};
use owlet_wire::frame;
use owlet_wire::functions::{
    Attach, FunctionCount, FunctionInfo, Histogram, Map, Moments, Standing, Work, bounds, bucket,
    field_names,
};
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::{
    DynTag, Field, Kind, Level, MAX_DEPTH, Scalar, Schema, SchemaRef, Type, TypeRef,
};
use owlet_wire::value::{Value, decode, fits, put, skip, take};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

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

    // Patterns, an image, functions of a reply.
    for message in [&[6][..], &[6, 0, 2], &[6, 0, 2, 0], &[5]] {
        assert!(postcard::from_bytes::<Request>(&[message, &varint].concat()).is_err());
    }
    for message in [&[1][..], &[5], &[7], &[7, 0, 0, 0, 0], &[7, 0, 0, 0, 0, 0]] {
        assert!(postcard::from_bytes::<Reply>(&[message, &varint].concat()).is_err());
    }

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

/// What a message decodes to when it is all there; what is left out or cut short does not decode.
fn whole<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: &T) {
    let bytes = postcard::to_allocvec(message).unwrap();
    assert_eq!(postcard::from_bytes::<T>(&bytes).as_ref(), Ok(message));
    for len in 0..bytes.len() {
        assert!(postcard::from_bytes::<T>(&bytes[..len]).is_err(), "{len} bytes of {message:?}");
    }
}

/// What decodes, encodes to something that decodes to the same.
fn stable<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = postcard::from_bytes::<T>(bytes) {
        let again = postcard::to_allocvec(&message).unwrap();
        assert_eq!(postcard::from_bytes::<T>(&again), Ok(message));
    }
}

/// Bytes as any message about functions.
fn stable_as_any(bytes: &[u8]) {
    stable::<Request>(bytes);
    stable::<Reply>(bytes);
    stable::<Attach>(bytes);
    stable::<Work>(bytes);
    stable::<Standing>(bytes);
    stable::<FunctionInfo>(bytes);
    stable::<Histogram>(bytes);
    stable::<Map>(bytes);
}

fn work() -> impl Strategy<Value = Work> {
    use Moments::{Both, Entry, Exit, Latency};
    prop_oneof![
        prop::sample::select(vec![Entry, Exit, Both, Latency]).prop_map(Work::Record),
        any::<(Option<String>, Option<String>)>()
            .prop_map(|(field, by)| Work::Histogram { field, by }),
        any::<(Vec<u8>, String)>().prop_map(|(image, program)| Work::Program { image, program }),
    ]
}

fn standing() -> impl Strategy<Value = Standing> {
    let function = any::<(String, u64, bool)>().prop_map(|(name, calls, attached)| FunctionCount {
        name,
        calls,
        attached,
    });
    let histogram = any::<(String, Vec<u64>, u64, u64, u64)>().prop_map(
        |(key, buckets, sum, negative, without)| Histogram { key, buckets, sum, negative, without },
    );
    let pairs = prop::collection::vec(any::<(Vec<u8>, Vec<u8>)>(), 0..3);
    let records = prop::collection::vec(any::<Vec<u8>>(), 0..3);
    let map = (any::<(String, String, u32, u64, bool)>(), pairs, records).prop_map(
        |((name, kind, value_size, lost, cut), entries, records)| Map {
            name,
            kind,
            entries,
            value_size,
            records,
            lost,
            cut,
        },
    );
    let some = 0..3;
    (
        prop::collection::vec(function, some.clone()),
        prop::collection::vec(histogram, some.clone()),
        prop::collection::vec(map, some),
        any::<(u64, u64, String)>(),
    )
        .prop_map(|(functions, histograms, maps, (missed, faults, engine))| Standing {
            functions,
            missed,
            faults,
            engine,
            histograms,
            maps,
        })
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
    fn any_bytes_as_messages_about_functions(
        // Mostly one of the variants that there are.
        first in prop_oneof![0_u8..10, any::<u8>()],
        bytes in prop::collection::vec(prop_oneof![0_u8..8, any::<u8>()], 0..200),
    ) {
        stable_as_any(&bytes);
        stable_as_any(&[&[first][..], &bytes].concat());
    }

    #[test]
    fn messages_about_functions_are_whole_or_nothing(
        patterns in prop::collection::vec(any::<String>(), 0..3),
        work in work(),
        filter in any::<String>(),
        standing in standing(),
        (at, bit) in (any::<prop::sample::Index>(), 0_u32..8),
    ) {
        let attach = Request::AttachFunctions(Attach { patterns, work, filter });
        let reply = Reply::Standing(standing);
        whole(&attach);
        whole(&reply);
        // And with one bit that is another.
        for mut bytes in [postcard::to_allocvec(&attach).unwrap(), postcard::to_allocvec(&reply).unwrap()] {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            stable_as_any(&bytes);
        }
    }

    #[test]
    fn any_number_is_in_its_bucket_and_names_are_different(
        number in any::<u64>(),
        params in prop::collection::vec(prop_oneof![Just("_"), Just("ret"), Just("a"), Just("b")], 0..9),
    ) {
        let (low, high) = bounds(bucket(number)).unwrap();
        prop_assert!((low..=high).contains(&number));
        let names = field_names(&params);
        let different: std::collections::BTreeSet<_> = names.iter().collect();
        prop_assert_eq!((names.len(), different.len()), (params.len(), params.len()));
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
