//! One event as a line of text, or as a head line and its fields aligned.
//!
//! ```text
//! [10:01:52.123456789] (+0.000000213) redis-server-812 [001] demo:tick: { seq = 7, note = "a\tb" }
//! ```
//!
//! | part | meaning |
//! |---|---|
//! | `[..]` | time of day, UTC or shifted by [`Options::utc_offset_s`] |
//! | `(+..)` | seconds since the line before, `(-..)` when the clock went back, `(+?)` on the first |
//! | `comm-tid` | the thread's name and id |
//! | `[001]` | the CPU |
//! | name | the event's name; span records add what happened: `new`, `enter`, `exit`, .. |
//! | `{ .. }` | the fields; text in quotes, bytes as `b".."`, `none` for nothing |
//!
//! Everything that came from the target is escaped ([`escape`]). A value the payload does not hold
//! reads `<malformed>`; events that its stream lost between the packet before and this event's packet,
//! whose first event it is, end the line as ` (N lost before)`. One event is one line, always.

use crate::escape;
use crate::event::Event;
use owlet_wire::schema::{Kind, Level};
use owlet_wire::value::Value;
use std::fmt::Write;

/// How to show events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Seconds to add to UTC for the time of day.
    pub utc_offset_s: i32,
}

/// Renders events one after another, into one buffer.
#[derive(Debug, Default)]
pub struct Line {
    options: Options,
    out: String,
    last_ns: Option<u64>,
}

impl Line {
    /// With these options.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// The event on one line, the newline included.
    pub fn render(&mut self, event: &Event<'_>) -> &str {
        self.head(event);
        self.out.push_str(": {");
        let mut separator = " ";
        for field in event.fields() {
            self.out.push_str(separator);
            separator = ", ";
            escape::push(&mut self.out, field.name.as_bytes());
            self.out.push_str(" = ");
            push_value_or_malformed(&mut self.out, field.value.as_ref());
        }
        self.out.push_str(" }");
        self.push_lost(event);
        self.out.push('\n');
        &self.out
    }

    /// The event on a head line with its level and source line, and each field on a line of its
    /// own, names aligned.
    pub fn render_fields(&mut self, event: &Event<'_>) -> &str {
        self.head(event);
        let schema = event.schema();
        self.out.push_str("  ");
        self.out.push_str(level_name(schema.level));
        if !schema.file.is_empty() {
            self.out.push_str("  ");
            escape::push(&mut self.out, schema.file.as_bytes());
            put(&mut self.out, format_args!(":{}", schema.line));
        }
        self.push_lost(event);
        self.out.push('\n');
        let names: Vec<_> = event.fields().map(|f| escape::escaped(f.name.as_bytes())).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        for (field, name) in event.fields().zip(names) {
            put(&mut self.out, format_args!("    {name:width$} = "));
            push_value_or_malformed(&mut self.out, field.value.as_ref());
            self.out.push('\n');
        }
        &self.out
    }

    fn head(&mut self, event: &Event<'_>) {
        self.out.clear();
        self.out.push('[');
        push_time_of_day(&mut self.out, event.time_ns, self.options.utc_offset_s);
        self.out.push_str("] (");
        push_delta(&mut self.out, self.last_ns.replace(event.time_ns), event.time_ns);
        self.out.push_str(") ");
        escape::push(&mut self.out, event.comm());
        put(&mut self.out, format_args!("-{} [{:03}] ", event.tid(), event.cpu));
        escape::push(&mut self.out, event.name().as_bytes());
        if let Some(verb) = verb(event.kind()) {
            self.out.push(' ');
            self.out.push_str(verb);
        }
    }

    fn push_lost(&mut self, event: &Event<'_>) {
        if event.lost_before > 0 {
            put(&mut self.out, format_args!(" ({} lost before)", event.lost_before));
        }
    }
}

/// What a span record says happened to the span; `None` for events.
#[must_use]
pub fn verb(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Event | Kind::SpanEvent => None,
        Kind::SpanNew => Some("new"),
        Kind::SpanEnter => Some("enter"),
        Kind::SpanExit => Some("exit"),
        Kind::SpanClose => Some("close"),
        Kind::SpanFollows => Some("follows"),
        Kind::SpanRecord => Some("record"),
    }
}

/// A level's name, in lower case.
#[must_use]
pub fn level_name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

/// Appends a decoded value, escaped.
pub fn push_value(out: &mut String, value: &Value<'_>) {
    match value {
        Value::U64(n) => put(out, format_args!("{n}")),
        Value::I64(n) => put(out, format_args!("{n}")),
        Value::F32(x) => put(out, format_args!("{x:?}")),
        Value::F64(x) => put(out, format_args!("{x:?}")),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Str(text) => escape::push_quoted(out, text),
        Value::Bytes(bytes) => push_bytes(out, bytes),
        Value::List(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                push_value(out, item);
            }
            out.push(']');
        }
        Value::Enum(n, None) => put(out, format_args!("{n}")),
        Value::Enum(n, Some(name)) => {
            escape::push(out, name.as_bytes());
            put(out, format_args!("({n})"));
        }
        Value::None => out.push_str("none"),
    }
}

fn push_value_or_malformed(out: &mut String, value: Option<&Value<'_>>) {
    match value {
        Some(value) => push_value(out, value),
        None => out.push_str("<malformed>"),
    }
}

/// `b"..."` as Rust writes it: printable ASCII as it is, everything else `\xNN`.
fn push_bytes(out: &mut String, bytes: &[u8]) {
    out.push_str("b\"");
    for byte in bytes {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(*byte));
            }
            0x20..0x7f => out.push(char::from(*byte)),
            _ => escape::push_hex(out, *byte),
        }
    }
    out.push('"');
}

const NS_PER_S: u64 = 1_000_000_000;

/// Appends `HH:MM:SS.nnnnnnnnn`.
pub fn push_time_of_day(out: &mut String, unix_ns: u64, utc_offset_s: i32) {
    let seconds = (unix_ns / NS_PER_S).cast_signed().saturating_add(utc_offset_s.into());
    let day = seconds.rem_euclid(86_400);
    let (h, m, s) = (day / 3_600, day / 60 % 60, day % 60);
    put(out, format_args!("{h:02}:{m:02}:{s:02}.{:09}", unix_ns % NS_PER_S));
}

fn push_delta(out: &mut String, last: Option<u64>, now: u64) {
    let Some(last) = last else { return out.push_str("+?") };
    let (sign, delta) = if now >= last { ('+', now - last) } else { ('-', last - now) };
    put(out, format_args!("{sign}{}.{:09}", delta / NS_PER_S, delta % NS_PER_S));
}

/// Formatting into a `String` cannot fail.
fn put(out: &mut String, args: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(args);
}
