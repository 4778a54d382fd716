//! One event as one JSON object on one line, and any value of ours as JSON that is safe to print.
//!
//! ```text
//! {"time_ns":1764496912123456789,"cpu":1,"pid":812,"tid":812,"comm":"demo","event":"demo:tick",
//!  "kind":"event","level":"info","fields":{"seq":7,"note":"a\tb"}}
//! ```
//! (one line; broken here for the page)
//!
//! | value | JSON |
//! |---|---|
//! | integers | numbers with all their digits, also beyond 2^53 |
//! | floats | numbers; `"NaN"`, `"Infinity"`, `"-Infinity"` as strings |
//! | text that is UTF-8 | a string |
//! | text that is not, bytes | `{"hex":"00ff"}` |
//! | an enum | its name as a string, or its number when it has no name |
//! | nothing | `null` |
//!
//! The fields that a span record's kind prescribes (`span`, `parent`, `duration_ns`, `follows`) stand
//! beside `kind`; the program's own are in `fields`, a repeated name as `name#2`. `lost_before` and
//! `"malformed":true` appear only when there is something to say. Characters that
//! [`crate::escape::is_unsafe`] names are written as `\uNNNN`.

use crate::escape;
use crate::event::{Event, Field};
use crate::text;
use owlet_wire::schema::Kind;
use owlet_wire::value::Value;
use serde::ser::{Error as _, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use std::io;

/// Renders events one after another, into one buffer.
#[derive(Debug, Default)]
pub struct Line {
    out: Vec<u8>,
}

impl Line {
    /// The event as one line, the newline included.
    pub fn render(&mut self, event: &Event<'_>) -> &str {
        self.out.clear();
        let mut serializer = serde_json::Serializer::with_formatter(&mut self.out, Safe);
        // Keys are strings and the writer is memory: neither can fail.
        let written = EventJson(event).serialize(&mut serializer).is_ok();
        debug_assert!(written, "an event serialises");
        self.out.push(b'\n');
        str::from_utf8(&self.out).unwrap_or("\n")
    }
}

/// Any serialisable value on one line, safe to print, without the newline.
///
/// # Errors
/// When the value cannot be JSON (a map whose keys are no strings).
pub fn to_string<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Safe))?;
    String::from_utf8(out).map_err(serde_json::Error::custom)
}

/// Compact JSON in which unsafe characters are escaped.
struct Safe;

impl serde_json::ser::Formatter for Safe {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        if fragment.bytes().all(|b| matches!(b, 0x20..0x7f)) {
            return writer.write_all(fragment.as_bytes());
        }
        let mut from = 0;
        for (at, c) in fragment.char_indices().filter(|(_, c)| escape::is_unsafe(*c)) {
            writer.write_all(&fragment.as_bytes()[from..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            from = at + c.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[from..])
    }
}

/// A kind's name in JSON.
#[must_use]
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Event => "event",
        Kind::SpanNew => "span_new",
        Kind::SpanEnter => "span_enter",
        Kind::SpanExit => "span_exit",
        Kind::SpanClose => "span_close",
        Kind::SpanFollows => "span_follows",
        Kind::SpanRecord => "span_record",
        Kind::SpanEvent => "span_event",
    }
}

struct EventJson<'e, 'a>(&'e Event<'a>);

impl Serialize for EventJson<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let event = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("time_ns", &event.time_ns)?;
        map.serialize_entry("cpu", &event.cpu)?;
        map.serialize_entry("pid", &event.pid())?;
        map.serialize_entry("tid", &event.tid())?;
        map.serialize_entry("comm", &String::from_utf8_lossy(event.comm()))?;
        map.serialize_entry("event", event.name())?;
        map.serialize_entry("kind", kind_name(event.kind()))?;
        map.serialize_entry("level", text::level_name(event.schema().level))?;
        let leading = match event.kind() {
            Kind::Event => ["", ""],
            Kind::SpanNew => ["span", "parent"],
            Kind::SpanClose => ["span", "duration_ns"],
            Kind::SpanFollows => ["span", "follows"],
            _ => ["span", ""],
        };
        let mut malformed = false;
        for (field, key) in event.fields().take_while(|field| field.leading).zip(leading) {
            match &field.value {
                Some(value) => map.serialize_entry(key, &ValueJson(value))?,
                None => malformed = true,
            }
        }
        map.serialize_entry("fields", &FieldsJson(event))?;
        malformed |= event.fields().any(|field| field.value.is_none());
        if malformed {
            map.serialize_entry("malformed", &true)?;
        }
        if event.lost_before > 0 {
            map.serialize_entry("lost_before", &event.lost_before)?;
        }
        map.end()
    }
}

struct FieldsJson<'e, 'a>(&'e Event<'a>);

impl Serialize for FieldsJson<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for Field { name, leading, value } in self.0.fields() {
            if let (false, Some(value)) = (leading, &value) {
                map.serialize_entry(name, &ValueJson(value))?;
            }
        }
        map.end()
    }
}

/// A decoded value as the table in the module's header says.
#[derive(Debug)]
pub struct ValueJson<'v, 'a>(pub &'v Value<'a>);

impl Serialize for ValueJson<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::U64(n) => serializer.serialize_u64(*n),
            Value::I64(n) => serializer.serialize_i64(*n),
            Value::F32(x) if x.is_finite() => serializer.serialize_f32(*x),
            Value::F32(x) => serializer.serialize_str(non_finite((*x).into())),
            Value::F64(x) if x.is_finite() => serializer.serialize_f64(*x),
            Value::F64(x) => serializer.serialize_str(non_finite(*x)),
            Value::Bool(b) => serializer.serialize_bool(*b),
            Value::Str(bytes) => match str::from_utf8(bytes) {
                Ok(text) => serializer.serialize_str(text),
                Err(_) => hex(bytes, serializer),
            },
            Value::Bytes(bytes) => hex(bytes, serializer),
            Value::List(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    seq.serialize_element(&ValueJson(item))?;
                }
                seq.end()
            }
            Value::Enum(_, Some(name)) => serializer.serialize_str(name),
            Value::Enum(n, None) => serializer.serialize_i64(*n),
            Value::None => serializer.serialize_none(),
        }
    }
}

/// The name of a float that JSON has no number for.
#[must_use]
pub fn non_finite(x: f64) -> &'static str {
    if x.is_nan() {
        "NaN"
    } else if x > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    }
}

fn hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        escape::push_hex_digits(&mut digits, *byte);
    }
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry("hex", &digits)?;
    map.end()
}
