//! Field values as debug annotations.
//!
//! | value | annotation |
//! |---|---|
//! | integers, bool | their own type; a `u64` beyond `i64` as decimal text, since the reader's columns are signed |
//! | floats | double; NaN and infinities as text, since SQL would show NULL |
//! | text | UTF-8; NUL and bytes that are not UTF-8 as `\xNN`, so that nothing is cut short |
//! | bytes | hexadecimal text |
//! | lists | an array; an empty one the text `[]` |
//! | an enum | its name, or its number when it has no name |
//! | nothing, malformed | no annotation; the text `<malformed>` |

use super::packets::{Interner, Names};
use super::proto::field::{annotation, event};
use super::proto::{bytes, double, int, message, uint};
use owlet_analyze::event::Field;
use owlet_analyze::json;
use owlet_wire::value::Value;
use std::fmt::Write;

/// The annotations of one slice or instant: of two with one name the later counts.
#[derive(Debug, Default)]
pub(super) struct Args(Vec<(u64, Vec<u8>)>);

impl Args {
    /// Adds a field of an event.
    pub(super) fn field(&mut self, names: &mut Interner, field: &Field<'_>) {
        if let Some(value) = shown(field) {
            self.named(names, field.name, value);
        }
    }

    /// Adds a value.
    pub(super) fn named(&mut self, names: &mut Interner, name: &str, value: &Value<'_>) {
        let name = names.id(Names::Annotations, name);
        self.0.retain(|(known, _)| *known != name);
        let mut encoded = Vec::new();
        encode(&mut encoded, name, value);
        self.0.push((name, encoded));
    }

    /// Appends them to a track event.
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        for (_, encoded) in &self.0 {
            out.extend_from_slice(encoded);
        }
    }
}

/// Appends one field to a track event. The names of one event's fields are unique already.
pub(super) fn push_field(out: &mut Vec<u8>, names: &mut Interner, field: &Field<'_>) {
    if let Some(value) = shown(field) {
        push(out, names, field.name, value);
    }
}

/// What to show for a field; `None` for nothing.
fn shown<'f, 'a>(field: &'f Field<'a>) -> Option<&'f Value<'a>> {
    match &field.value {
        Some(Value::None) => None,
        // A span id of 0 says that there is none.
        Some(Value::U64(0)) if field.leading => None,
        Some(value) => Some(value),
        None => Some(&Value::Str(b"<malformed>")),
    }
}

/// Appends one value to a track event.
pub(super) fn push(out: &mut Vec<u8>, names: &mut Interner, name: &str, value: &Value<'_>) {
    encode(out, names.id(Names::Annotations, name), value);
}

fn encode(out: &mut Vec<u8>, name: u64, value: &Value<'_>) {
    message(out, event::DEBUG_ANNOTATIONS, |out| {
        uint(out, annotation::NAME_IID, name);
        push_value(out, value);
    });
}

fn push_value(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::U64(n) if i64::try_from(*n).is_err() => {
            bytes(out, annotation::STRING, n.to_string().as_bytes());
        }
        Value::U64(n) => uint(out, annotation::UINT, *n),
        Value::I64(n) => int(out, annotation::INT, *n),
        Value::F32(x) => push_float(out, (*x).into()),
        Value::F64(x) => push_float(out, *x),
        Value::Bool(b) => uint(out, annotation::BOOL, u64::from(*b)),
        Value::Str(text) => push_str(out, text),
        Value::Bytes(data) => push_hex(out, data),
        Value::List(items) if items.is_empty() => bytes(out, annotation::STRING, b"[]"),
        Value::List(items) => {
            for item in items {
                message(out, annotation::ARRAY, |out| push_value(out, item));
            }
        }
        Value::Enum(_, Some(name)) => push_str(out, name.as_bytes()),
        Value::Enum(n, None) => int(out, annotation::INT, *n),
        Value::None => bytes(out, annotation::STRING, b"none"),
    }
}

fn push_float(out: &mut Vec<u8>, x: f64) {
    if x.is_finite() {
        double(out, annotation::DOUBLE, x);
    } else {
        bytes(out, annotation::STRING, json::non_finite(x).as_bytes());
    }
}

fn push_str(out: &mut Vec<u8>, text: &[u8]) {
    if str::from_utf8(text).is_ok() && !text.contains(&0) {
        bytes(out, annotation::STRING, text);
    } else {
        bytes(out, annotation::STRING, without_nul(text).as_bytes());
    }
}

fn without_nul(text: &[u8]) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\0' { out.push_str("\\x00") } else { out.push(c) }
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

fn push_hex(out: &mut Vec<u8>, data: &[u8]) {
    let mut text = String::with_capacity(data.len() * 2);
    for byte in data {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    bytes(out, annotation::STRING, text.as_bytes());
}
