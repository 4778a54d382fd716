//! One table of (expression, answer) against one rich event, then the errors, then the edges.

use super::{Bound, Doubt, Filter, HELP, MAX_NESTING, MAX_TESTS, Side, Verdict};
use crate::record::RecordHeader;
use crate::schema::{Field, Kind, Level, Scalar, Schema, Type};
use crate::value::{Value, put};

const HEADER: RecordHeader = RecordHeader { time: 0, id: 1, len: 0, pid: 42, tid: 43 };

fn schema(kind: Kind, fields: &[(&str, Type)]) -> Schema {
    Schema {
        name: "app:request".into(),
        kind,
        level: Level::Warn,
        file: String::new(),
        line: 0,
        doc: String::new(),
        fields: fields
            .iter()
            .map(|(name, ty)| Field { name: (*name).into(), ty: ty.clone() })
            .collect(),
    }
}

fn rich() -> (Schema, Vec<u8>) {
    let colour = Type::Enum(Scalar::U8, vec![(1, "red".into()), (2, "green".into())]);
    let option = |ty| Type::Option(Box::new(ty));
    let fields: Vec<(&str, Type, Value<'_>)> = vec![
        ("len", Type::Scalar(Scalar::U32), Value::U64(100)),
        ("user", Type::Str, Value::Str(b"ann")),
        ("big", Type::Scalar(Scalar::U64), Value::U64(u64::MAX)),
        ("neg", Type::Scalar(Scalar::I8), Value::I64(-5)),
        ("half", Type::Scalar(Scalar::F64), Value::F64(0.5)),
        ("tenth", Type::Scalar(Scalar::F32), Value::F32(0.1)),
        ("nan", Type::Scalar(Scalar::F64), Value::F64(f64::NAN)),
        ("ok", Type::Scalar(Scalar::Bool), Value::Bool(true)),
        ("raw", Type::Bytes, Value::Bytes(b"a\0\xff")),
        ("colour", colour.clone(), Value::Enum(2, None)),
        ("odd", colour, Value::Enum(9, None)),
        ("some", option(Type::Scalar(Scalar::U16)), Value::U64(7)),
        ("none", option(Type::Str), Value::None),
        ("http.status", Type::Dynamic, Value::U64(503)),
        ("text", Type::Dynamic, Value::Str(b"x=1")),
        ("gone", Type::Dynamic, Value::None),
        ("list", Type::Seq(Scalar::U16), Value::List(vec![Value::U64(1), Value::U64(300)])),
        ("pid", Type::Scalar(Scalar::U8), Value::U64(1)),
        ("a b", Type::Str, Value::Str(b"")),
    ];
    let mut payload = Vec::new();
    for (name, ty, value) in &fields {
        assert!(put(ty, value, &mut payload).is_some(), "{name}");
    }
    let fields: Vec<_> = fields.into_iter().map(|(name, ty, _)| (name, ty)).collect();
    (schema(Kind::Event, &fields), payload)
}

fn bind(text: &str, schema: &Schema) -> Bound {
    match Filter::parse(text) {
        Ok(filter) => filter.bind(schema),
        Err(error) => panic!("{text}: {error} ({})", error.hint),
    }
}

const YES: &[&str] = &[
    "",
    "  ",
    "len == 100",
    "len >= 100 and len <= 100",
    "100 <= len",
    "0x64 == len",
    "len == 1_00",
    "len == 100.0",
    "len > 1e1",
    "len == 100ns",
    "len < 1us",
    "user == \"ann\"",
    "user == 'ann'",
    "user != \"bob\"",
    "user < \"bob\"",
    "user ~ \"a*\"",
    "user ~ \"?nn\"",
    "user contains \"nn\"",
    "user contains \"\"",
    "big == 18446744073709551615",
    "big == 0xffff_ffff_ffff_ffff",
    "big > 9223372036854775807",
    "neg == -5",
    "neg < 0",
    "-6 < neg",
    "half == 0.5",
    "half < 1",
    "tenth == 0.1",
    "nan != 1",
    "ok",
    "ok == true",
    "ok != false",
    "raw == \"a\\0\\xff\"",
    "raw contains \"\\xff\"",
    "colour == \"green\"",
    "colour == 2",
    "colour ~ \"gr*\"",
    "odd == 9",
    "some == 7",
    "has(some)",
    "has(len)",
    "has(pid)",
    "http.status >= 500",
    "has(http.status)",
    "text ~ \"x=*\"",
    "list contains 300",
    "pid == 42",
    ".pid == 1",
    "tid == 43",
    ".\"a b\" == \"\"",
    "level == warn",
    "level >= warn",
    "level >= info",
    "level < error",
    "level == \"WARN\"",
    "name == \"app:request\"",
    "name ~ \"app:*\"",
    "name contains \"req\"",
    "comm ~ \"wor*\"",
    "not (len == 1)",
    "!(len == 1) && !!ok",
    "len == 1 or user == \"ann\"",
    "len == 1 || len == 100",
    // `and` binds closer than `or`.
    "ok or ok and len == 1",
    // Missing: the comparison is false, its negation true.
    "not nosuch == 1",
    "not nosuch != 1",
    "not has(nosuch)",
    "not none == \"\"",
];

const NO: &[&str] = &[
    "len == 99",
    "len > 100",
    "len != 100",
    "nosuch == 1",
    "nosuch != 1",
    "has(nosuch)",
    "has(none)",
    "has(gone)",
    "none == \"x\"",
    "none != \"x\"",
    "gone != 1",
    "user == \"an\"",
    "user contains \"na\"",
    "user == 5",
    "len == \"100\"",
    "len contains 100",
    "http.status == \"503\"",
    "http.status contains 503",
    "text > 1",
    "nan == nan_literal",
    "nan == 0",
    "nan < 0",
    "ok == false",
    "odd == \"red\"",
    "list contains 2",
    "pid == 1",
    "level > warn",
    "level == error",
    "name ~ \"other:*\"",
    "comm == \"x\"",
    "duration > 0",
    "not ok",
    "ok and len == 1",
    "(ok or ok) and len == 1",
];

#[test]
fn answers() {
    let (schema, payload) = rich();
    let ask = |text: &str| bind(text, &schema).matches_parts(&HEADER, &[&payload], Some(b"worker"));
    for text in YES {
        assert!(ask(text), "should match: {text}");
    }
    for text in NO.iter().filter(|text| !text.contains("nan_literal")) {
        assert!(!ask(text), "should not match: {text}");
    }
}

/// Cutting the payload in two anywhere outside a text changes no answer.
#[test]
fn pieces() {
    let (schema, payload) = rich();
    let one = |text: &str, at: usize| {
        let (front, back) = payload.split_at(at);
        bind(text, &schema).matches_parts(&HEADER, &[&[], front, &[], back], Some(b"worker"))
    };
    for at in 0..=payload.len() {
        for text in ["len == 100", "big == 18446744073709551615", "http.status >= 500", ".pid == 1"]
        {
            assert!(one(text, at), "{text} cut at {at}");
        }
    }
    // `user` lies at 8..11: a cut at its edge is harmless, inside it the value counts as missing.
    assert!(one("user == \"ann\"", 8) && one("user == \"ann\"", 11));
    assert!(!one("user == \"ann\"", 9) && one("not user == \"ann\"", 9));
}

#[test]
fn verdicts() {
    let (schema, _) = rich();
    let verdict = |text: &str| bind(text, &schema).verdict();
    assert_eq!(verdict(""), Verdict::Always);
    assert_eq!(verdict("level >= debug"), Verdict::Always);
    assert_eq!(verdict("level >= warn or len == 1"), Verdict::Always);
    assert_eq!(verdict("name ~ \"x*\" and len == 1"), Verdict::Never);
    assert_eq!(verdict("nosuch == 1"), Verdict::Never);
    assert_eq!(verdict("user == 5"), Verdict::Never);
    assert_eq!(verdict("user == 5 or len == 1"), Verdict::Depends);
    assert_eq!(verdict("len == 1 and false == true_field"), Verdict::Never);
    assert_eq!(verdict("has(len)"), Verdict::Always);
    assert_eq!(verdict("has(some)"), Verdict::Depends);
}

#[test]
fn static_mismatch_is_told() {
    let (schema, _) = rich();
    let bound = bind("user == 5 or len ~ \"1*\" or nosuch == 1 or nosuch == 2", &schema);
    let warnings = bound.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    // Bound from the last to the first.
    assert_eq!(
        warnings[1],
        "column 1: field `user` of app:request is text: it is compared with text"
    );
    assert!(warnings[0].starts_with("column 14: field `len` of app:request is a number"));
    assert_eq!(bound.missing(), ["nosuch"]);
    assert!(bind("http.status == \"x\" and colour == 1", &schema).warnings().is_empty());
}

/// What no event can answer: a field that none has, or that is something else in all that have it.
#[test]
fn doubts_are_about_all_events_together() {
    let word = Type::Scalar(Scalar::U64);
    let first = schema(Kind::Event, &[("user", word.clone()), ("both", word)]);
    let list = Type::Option(Box::new(Type::Seq(Scalar::U8)));
    let second = schema(Kind::Event, &[("both", Type::Str), ("odd", list), ("any", Type::Dynamic)]);
    let third = schema(Kind::Event, &[("odd", Type::Scalar(Scalar::Bool))]);
    let schemas = [first, second, third];
    let doubts = |text: &str| {
        let doubts = Filter::parse(text).unwrap().doubts(&schemas);
        let of = |d: Doubt| format!("{} {} {:?} {}", d.column, d.field, d.is, d.how);
        doubts.into_iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(doubts("usr == 50 and user == 1 or has(usr)"), ["1 usr [] "]);
    let want = "1 user [\"a number\"] it is compared with a number";
    assert_eq!(doubts("user == \"50\" or user ~ \"5*\""), [want]);
    assert_eq!(doubts("not has(nosuch)"), ["5 nosuch [] "]);
    assert_eq!(doubts("odd == 5"), ["1 odd [\"a list\", \"a bool\"] "]);
    for fine in ["", "both == 5", "both == \"x\"", "odd", "any ~ \"x\"", "has(odd)", "pid == 5"] {
        assert_eq!(doubts(fine), [""; 0], "{fine}");
    }
}

#[test]
fn duration_is_of_closing_spans() {
    let u64 = Type::Scalar(Scalar::U64);
    let close = schema(Kind::SpanClose, &[("span", u64.clone()), ("duration_ns", u64.clone())]);
    let payload: Vec<u8> = [1_u64, 2_500_000].iter().flat_map(|n| n.to_le_bytes()).collect();
    for yes in ["duration > 2ms", "duration == 2.5ms", "duration < 1s", "has(duration)"] {
        assert!(bind(yes, &close).matches(&HEADER, &payload), "{yes}");
    }
    assert!(!bind("duration > 3ms", &close).matches(&HEADER, &payload));
    // The same field in an event that closes nothing is only a field.
    let event = schema(Kind::SpanEvent, &[("span", u64.clone()), ("duration_ns", u64)]);
    assert_eq!(bind("duration > 2ms", &event).verdict(), Verdict::Never);
    assert!(bind("duration_ns > 2ms", &event).matches(&HEADER, &payload));
}

#[test]
fn comm_is_for_readers() {
    let filter = Filter::parse("pid == 1 or comm == \"x\"").unwrap();
    assert!(filter.validate(Side::Reader).is_ok());
    assert_eq!(filter.validate(Side::Target).unwrap_err().column, 13);
    assert!(Filter::parse("pid == 1").unwrap().validate(Side::Target).is_ok());
}

#[test]
fn errors_name_the_column_and_help() {
    let many = vec!["a"; MAX_TESTS + 1].join(" or ");
    let deep = "(".repeat(MAX_NESTING + 1);
    let nots = "!".repeat(MAX_NESTING + 1);
    let cases: &[(&str, usize, &str)] = &[
        ("len = 5", 5, "unknown operator `=`"),
        ("len == ", 8, "expected a value, found the end"),
        ("len == foo", 8, "expected a value, found the name `foo`"),
        ("len == 5 user == 6", 10, "expected `and`, `or` or the end, found `user`"),
        ("(len == 5", 10, "expected `)` for the `(` at column 1"),
        ("len == 5)", 9, "`)` without its `(`"),
        ("and", 1, "expected a comparison, found `and`"),
        ("len == 5 and", 13, "expected a comparison, found the end"),
        ("len == 5x", 8, "`5x` is no number"),
        ("len == 1.2.3", 8, "`1.2.3` is no number"),
        ("len == 0xfg", 8, "`0xfg` is no hexadecimal number of 64 bits"),
        ("len == -", 8, "no number after `-`"),
        ("len == 99999999999999999999", 8, "`99999999999999999999` is no number"),
        ("len == 1inf", 8, "`1inf` is no number"),
        ("user == \"x", 9, "text without its closing quote"),
        ("user == \"\\q\"", 10, "unknown escape"),
        ("user == \"\\x1\"", 10, "\\x needs two hexadecimal digits"),
        ("user ~ 5", 8, "`~` takes a glob as text"),
        ("level == loud", 10, "unknown level `loud`"),
        ("level", 6, "`level` is no condition by itself"),
        ("pid == \"x\"", 5, "`pid` is not compared like that"),
        ("duration ~ \"x\"", 10, "`duration` is not compared like that"),
        ("name > 5", 6, "`name` is not compared like that"),
        ("has()", 5, "has() takes the name of a field"),
        ("has(len", 8, "expected `)` after the name"),
        ("len & 5", 5, "unknown operator `&`"),
        ("len # 5", 5, "unexpected character `#`"),
        ("5", 2, "expected a comparison after the value"),
        ("5 == 6", 6, "expected a name after the comparison"),
        (". == 5", 1, "no field name after `.`"),
        // Columns count characters, not bytes.
        ("user == \"\u{e9}\u{e9}\" len", 14, "expected `and`, `or` or the end, found `len`"),
        (&many, many.chars().count(), "more than 128 comparisons"),
        (&deep, MAX_NESTING + 1, "nested deeper than 32"),
        (&nots, MAX_NESTING + 1, "nested deeper than 32"),
    ];
    for (text, column, message) in cases {
        let error = Filter::parse(text).expect_err(text);
        assert_eq!((error.column, error.message.as_str()), (*column, *message), "{text}");
    }
    assert!(Filter::parse(&"x".repeat(5000)).is_err());
    assert_eq!(Filter::parse("len == foo").unwrap_err().hint, "text is quoted: \"foo\"");
}

/// What the help shows, works.
#[test]
fn help_examples_parse() {
    let examples: Vec<_> =
        HELP.lines().skip_while(|line| !line.contains("level >= warn and")).collect();
    assert_eq!(examples.len(), 3);
    for example in examples {
        assert!(Filter::parse(example).is_ok(), "{example}");
    }
    assert!(HELP.is_ascii() && HELP.lines().all(|line| line.len() <= 110));
}
