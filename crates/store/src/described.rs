//! What `metadata` says, for a trace whose `.owlet` is damaged or gone.
//!
//! A strict reader of the lines that `tsdl` writes, and of no other TSDL: a line is understood whole or
//! not at all. The text has less than the sidecar. A field has the identifier that was made of its
//! name, and an event neither its kind (spans read as plain events) nor its place and documentation.

use crate::meta::{ClockInfo, ClockKind, TraceMeta};
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};

/// Longer texts are not read.
pub(crate) const TEXT_MAX: u64 = 64 << 20;
/// Types inside each other at most.
const DEPTH_MAX: usize = 16;
const EVENT: &str = "event { name = \"";
const NS_PER_S: i64 = 1_000_000_000;

/// What was understood.
#[derive(Debug, Default)]
pub(crate) struct Described {
    /// The trace and its clock.
    pub(crate) meta: Option<TraceMeta>,
    pub(crate) events: Vec<(u32, Schema)>,
    /// Lines that begin as an event's and are none of ours: perhaps cut, or changed.
    pub(crate) strange: usize,
    /// It is all there, as far as can be seen.
    pub(crate) whole: bool,
}

/// Reads the text of a metadata file.
pub(crate) fn read(text: &str) -> Described {
    let mut found = Described { meta: trace(text), ..Described::default() };
    for line in text.lines().filter(|line| line.starts_with(EVENT)) {
        match Cursor(line).event() {
            Some((0, id, schema)) if schema.check().is_ok() => found.events.push((id, schema)),
            // Our own events of threads and processes.
            Some((1, ..)) => {}
            _ => found.strange += 1,
        }
    }
    found.whole = found.meta.is_some() && found.strange == 0 && text.ends_with("};\n");
    found
}

fn trace(text: &str) -> Option<TraceMeta> {
    if !text.starts_with("/* CTF 1.8 */\n") || !text.contains("\ttracer_name = \"owlet\";\n") {
        return None;
    }
    let line = |begin: &str| text.lines().find_map(|line| line.strip_prefix(begin));
    let quoted = |begin: &str| {
        let mut rest = Cursor(line(begin)?);
        let value = rest.quoted()?;
        (rest.0 == ";").then_some(value)
    };
    let number = |begin: &str| line(begin)?.strip_suffix(';')?.parse::<i64>().ok();
    let begins = |name: &str| text.contains(&format!("clock {{\n\tname = \"{name}\";\n"));
    let kind = match (begins("tsc"), begins("monotonic")) {
        (true, false) => ClockKind::Tsc,
        (false, true) => ClockKind::Monotonic,
        _ => return None,
    };
    let freq_hz = u64::try_from(number("\tfreq = ")?).ok().filter(|freq| *freq > 0)?;
    let (seconds, ticks) = (number("\toffset_s = ")?, number("\toffset = ")?);
    // The tick of the next whole second, so that the origin computed from it is the same to a tick.
    let base_ticks = freq_hz.checked_sub(u64::try_from(ticks).ok()?)?;
    let base_unix_ns = seconds.checked_add(1)?.checked_mul(NS_PER_S)?;
    Some(TraceMeta {
        uuid: uuid(&quoted("\tuuid = \"")?)?,
        hostname: quoted("\thostname = \"")?,
        clock: ClockInfo { kind, freq_hz, base_ticks, base_unix_ns },
        tracer_version: quoted("\ttracer_version = \"")?,
        // The clock has one, too, behind it.
        description: text
            .split_once("\nclock {\n")
            .and_then(|(env, _)| {
                let begin = "\n\tdescription = \"";
                Cursor(env.split_once(begin)?.1).quoted()
            })
            .unwrap_or_default(),
    })
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let mut uuid = [0; 16];
    for (at, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    (digits.len() == 32).then_some(uuid)
}

/// What is left of a line.
#[derive(Clone, Copy)]
struct Cursor<'t>(&'t str);

impl<'t> Cursor<'t> {
    fn eat(&mut self, text: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// Takes `text` if it is next.
    fn may(&mut self, text: &str) -> bool {
        self.eat(text).is_some()
    }

    fn take(&mut self, good: impl Fn(char) -> bool) -> Option<&'t str> {
        let end = self.0.find(|c| !good(c)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at_checked(end).filter(|(taken, _)| !taken.is_empty())?;
        self.0 = rest;
        Some(taken)
    }

    fn identifier(&mut self) -> Option<&'t str> {
        self.take(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.take(|c| c.is_ascii_digit() || c == '-')?.parse().ok()
    }

    /// Text behind its opening quote, up to and with the closing one.
    fn quoted(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.0.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => text.push(chars.next()?),
                c => text.push(c),
            }
        }
        self.0 = chars.as_str();
        Some(text)
    }

    /// A whole line: the stream, the id and the description.
    fn event(mut self) -> Option<(u32, u32, Schema)> {
        self.eat(EVENT)?;
        let name = self.quoted()?;
        self.eat("; id = ")?;
        let id = self.number()?;
        self.eat("; stream_id = ")?;
        let stream = self.number()?;
        self.eat("; loglevel = ")?;
        let level = match self.number::<u8>()? {
            3 => Level::Error,
            4 => Level::Warn,
            6 => Level::Info,
            7 => Level::Debug,
            14 => Level::Trace,
            _ => return None,
        };
        self.eat("; fields := struct {")?;
        let mut fields = Vec::new();
        while self.0 != " }; };" {
            self.eat(" ")?;
            fields.push(self.field()?);
        }
        let (file, doc) = (String::new(), String::new());
        Some((stream, id, Schema { name, kind: Kind::Event, level, file, line: 0, doc, fields }))
    }

    fn field(&mut self) -> Option<Field> {
        let mut counted = *self;
        if let Some(field) = counted.counted() {
            *self = counted;
            return Some(field);
        }
        let ty = if self.may("enum option_t ") {
            let tag = self.identifier()?;
            self.eat("; ")?;
            self.option(tag, 0)?
        } else if self.may("enum dynamic_t ") {
            let tag = self.identifier()?;
            self.eat("; variant dynamic_v <")?;
            self.eat(tag)?;
            self.eat(">")?;
            Type::Dynamic
        } else {
            self.scalar_or_enum()?
        };
        self.eat(" _")?;
        let name = self.identifier()?.to_owned();
        let ty = match ty {
            Type::Scalar(scalar) if self.may("[") => {
                let len = self.number()?;
                self.eat("]")?;
                Type::Array(scalar, len)
            }
            ty => ty,
        };
        self.eat(";")?;
        Some(Field { name, ty })
    }

    /// A length, and that many elements.
    fn counted(&mut self) -> Option<Field> {
        self.eat("u32_t ")?;
        let length = self.identifier()?;
        self.eat("; ")?;
        let ty = self.elements()?;
        self.eat(" _")?;
        let name = self.identifier()?.to_owned();
        self.eat("[")?;
        self.eat(length)?;
        self.eat("];")?;
        Some(Field { name, ty })
    }

    fn elements(&mut self) -> Option<Type> {
        if self.may("text_t") {
            return Some(Type::Str);
        }
        Some(match self.scalar()? {
            // A list of u8 has the same bytes.
            Scalar::U8 => Type::Bytes,
            scalar => Type::Seq(scalar),
        })
    }

    fn scalar(&mut self) -> Option<Scalar> {
        let all = [
            ("u8_t", Scalar::U8),
            ("u16_t", Scalar::U16),
            ("u32_t", Scalar::U32),
            ("u64_t", Scalar::U64),
            ("i8_t", Scalar::I8),
            ("i16_t", Scalar::I16),
            ("i32_t", Scalar::I32),
            ("i64_t", Scalar::I64),
            ("f32_t", Scalar::F32),
            ("f64_t", Scalar::F64),
            ("enum bool_t", Scalar::Bool),
        ];
        all.into_iter().find_map(|(name, scalar)| self.may(name).then_some(scalar))
    }

    fn scalar_or_enum(&mut self) -> Option<Type> {
        if !self.may("enum : ") {
            return self.scalar().map(Type::Scalar);
        }
        let base = self.scalar()?;
        self.eat(" { ")?;
        let mut names = Vec::new();
        loop {
            self.eat("\"")?;
            let name = self.quoted()?;
            self.eat(" = ")?;
            let number = match base {
                Scalar::U64 => self.number::<u64>()?.cast_signed(),
                _ => self.number()?,
            };
            names.push((number, name));
            if !self.may(", ") {
                break;
            }
        }
        self.eat(" }")?;
        Some(Type::Enum(base, names))
    }

    /// `variant <tag> { struct {} none; T some; }`.
    fn option(&mut self, tag: &str, depth: usize) -> Option<Type> {
        self.eat("variant <")?;
        self.eat(tag)?;
        self.eat("> { struct {} none; ")?;
        let inner = self.some(depth + 1)?;
        self.eat(" some; }")?;
        Some(Type::Option(Box::new(inner)))
    }

    fn some(&mut self, depth: usize) -> Option<Type> {
        if depth > DEPTH_MAX {
            return None;
        }
        if self.may("struct { u32_t len; text_t text[len]; }") {
            return Some(Type::Str);
        }
        if self.may("struct { u32_t len; u8_t data[len]; }") {
            return Some(Type::Bytes);
        }
        if self.may("struct { enum dynamic_t tag; variant dynamic_v <tag> value; }") {
            return Some(Type::Dynamic);
        }
        if self.may("struct { enum option_t tag; ") {
            let inner = self.option("tag", depth)?;
            self.eat(" value; }")?;
            return Some(inner);
        }
        if self.may("struct { u32_t len; ") {
            let scalar = self.scalar()?;
            self.eat(" list[len]; }")?;
            return Some(Type::Seq(scalar));
        }
        if self.may("struct { ") {
            let scalar = self.scalar()?;
            self.eat(" list[")?;
            let len = self.number()?;
            self.eat("]; }")?;
            return Some(Type::Array(scalar, len));
        }
        self.scalar_or_enum()
    }
}

#[cfg(test)]
#[path = "described_tests.rs"]
mod tests;
