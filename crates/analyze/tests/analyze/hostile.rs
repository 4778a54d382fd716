//! Arbitrary bytes wherever the target has a say.

use owlet_analyze::build::{Builder, Payload, at};
use owlet_analyze::{Stats, Trace, escape, json, text};
use owlet_wire::schema::{Kind, Scalar, Type};
use proptest::prelude::*;

fn build(comm: &[u8], name: &str, field: &str, value: &[u8], raw: &[u8], kind: Kind) -> Trace {
    let mut b = Builder::new(1);
    let names = vec![(0, name.to_owned())];
    let fields = [
        (field, Type::Str),
        (field, Type::Bytes),
        (field, Type::Enum(Scalar::U8, names)),
        (field, Type::Dynamic),
    ];
    let id = b.schema(name, kind, &fields);
    b.thread(10, 11, comm);
    b.process(10, 1, comm, value);
    b.lose(name, 1);
    let whole = Payload::new().u64(1).u64(2).bytes(value).bytes(value).raw(&[0]).raw(raw);
    b.event(at(1), id, &whole);
    b.event(at(2), id, &Payload::new().raw(raw));
    b.trace()
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Event),
        Just(Kind::SpanNew),
        Just(Kind::SpanEnter),
        Just(Kind::SpanExit),
        Just(Kind::SpanClose),
        Just(Kind::SpanFollows),
        Just(Kind::SpanRecord),
        Just(Kind::SpanEvent),
    ]
}

/// Bytes with a good share of what terminals act on.
fn nasty() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<char>().prop_map(|c| c.to_string().into_bytes()),
        any::<u8>().prop_map(|b| vec![b]),
        Just(b"\x1b[2J".to_vec()),
        Just("\u{202e}\u{2066}\u{9b}\u{feff}\u{2028}".as_bytes().to_vec()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// One line, and nothing in it that a terminal acts on. On purpose not the product's own list.
fn is_safe(line: &str) -> bool {
    let acts = |c: char| {
        c.is_control()
            || "\u{61c}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\
                \u{2066}\u{2067}\u{2068}\u{2069}\u{feff}"
                .contains(c)
    };
    line.strip_suffix('\n').is_some_and(|line| !line.contains(acts))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// One event is one line without a control character, in every rendering.
    #[test]
    fn rendered_text_has_no_control_bytes(
        comm in nasty(), name in nasty(), field in nasty(), value in nasty(), raw in nasty(),
        kind in kind(),
    ) {
        let name = String::from_utf8_lossy(&name);
        let field = String::from_utf8_lossy(&field);
        let trace = build(&comm, &name, &field, &value, &raw, kind);
        let mut events = trace.events().expect("memory opens");
        let (mut line, mut json_line) = (text::Line::default(), json::Line::default());
        while let Some(event) = events.next_event() {
            prop_assert!(is_safe(line.render(&event)));
            for line in line.render_fields(&event).split_inclusive('\n') {
                prop_assert!(is_safe(line));
            }
            let text = json_line.render(&event);
            prop_assert!(is_safe(text));
            prop_assert!(serde_json::from_str::<serde_json::Value>(text).is_ok());
        }
        let stats = Stats::collect(&trace, &mut trace.events().expect("memory opens"));
        let stats = json::to_string(&stats).expect("it serialises") + "\n";
        prop_assert!(is_safe(&stats));
    }

    /// Within quotes, the escaped form determines the bytes.
    #[test]
    fn escaping_in_quotes_loses_nothing(a in nasty(), b in nasty()) {
        let quoted = |bytes: &[u8]| {
            let mut out = String::new();
            escape::push_quoted(&mut out, bytes);
            out
        };
        prop_assert_eq!(unescape(&quoted(&a)), a.clone());
        prop_assert_eq!(a == b, quoted(&a) == quoted(&b));
    }
}

/// The bytes that quoted text stands for.
fn unescape(quoted: &str) -> Vec<u8> {
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect("quotes");
    let mut chars = inner.chars();
    let mut out = Vec::new();
    let take = |chars: &mut std::str::Chars<'_>| match chars.next()? {
        '\\' => Some(match chars.next().expect("a character follows") {
            'n' => vec![b'\n'],
            'r' => vec![b'\r'],
            't' => vec![b'\t'],
            'x' => {
                let digits: String = chars.take(2).collect();
                vec![u8::from_str_radix(&digits, 16).expect("two digits")]
            }
            'u' => {
                let digits: String = chars.skip(1).take_while(|c| *c != '}').collect();
                let c = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                c.expect("a character").to_string().into_bytes()
            }
            c => c.to_string().into_bytes(),
        }),
        c => Some(c.to_string().into_bytes()),
    };
    while let Some(bytes) = take(&mut chars) {
        out.extend(bytes);
    }
    out
}
