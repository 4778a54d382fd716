//! The `metadata` file: TSDL text for babeltrace2, Trace Compass and other CTF 1.8 readers.
//!
//! Nothing a program names can break it: text is escaped, field names become identifiers behind an
//! underscore (readers drop one leading underscore, so `_len` shows as `len` and a field called
//! `struct` is no keyword), and names that collide get a number.
//!
//! The record's `len` is covered by the alignment of the event context, since readers warn about
//! header fields without a meaning to them. `Bool`, `Option` and `Dynamic` share named types.

use crate::meta::{ClockInfo, ClockKind, TraceMeta};
use owlet_wire::entry::Process;
use owlet_wire::schema::{Field, Level, Scalar, Schema, Type};
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;

/// Event ids of the `threads` stream.
pub(crate) const THREAD_EVENT: u32 = 1;
/// See [`THREAD_EVENT`].
pub(crate) const PROCESS_EVENT: u32 = 2;
/// Processes described in the `env` block at most; all are in the `threads` stream.
const ENV_PROCESSES: usize = 64;

const TYPES: &str = "\
typealias integer { size = 8; align = 8; signed = false; } := u8_t;
typealias integer { size = 16; align = 8; signed = false; } := u16_t;
typealias integer { size = 32; align = 8; signed = false; } := u32_t;
typealias integer { size = 64; align = 8; signed = false; } := u64_t;
typealias integer { size = 8; align = 8; signed = true; } := i8_t;
typealias integer { size = 16; align = 8; signed = true; } := i16_t;
typealias integer { size = 32; align = 8; signed = true; } := i32_t;
typealias integer { size = 64; align = 8; signed = true; } := i64_t;
typealias integer { size = 8; align = 8; signed = false; encoding = UTF8; } := text_t;
typealias floating_point { exp_dig = 8; mant_dig = 24; align = 8; } := f32_t;
typealias floating_point { exp_dig = 11; mant_dig = 53; align = 8; } := f64_t;
enum bool_t : u8_t { \"false\" = 0, \"true\" = 1 };
enum option_t : u8_t { none = 0, some = 1 };
enum dynamic_t : u8_t { absent = 0, u64 = 1, i64 = 2, f64 = 3, bool = 4, str = 5, bytes = 6 };
";

const STREAMS: &str = "\
variant dynamic_v {
\tstruct {} absent;
\tu64_t u64;
\ti64_t i64;
\tf64_t f64;
\tenum bool_t bool;
\tstruct { u32_t len; text_t text[len]; } str;
\tstruct { u32_t len; u8_t data[len]; } bytes;
};

struct packet_context {
\tticks_t timestamp_begin;
\tticks_t timestamp_end;
\tu64_t content_size;
\tu64_t packet_size;
\tu64_t packet_seq_num;
\tu64_t events_discarded;
\tu32_t cpu_id;
};

struct event_header { ticks_t timestamp; u32_t id; } align(64);
struct event_context { u32_t pid; u32_t tid; } align(64);

stream { id = 0; packet.context := struct packet_context; event.header := struct event_header; \
event.context := struct event_context; };
stream { id = 1; packet.context := struct packet_context; event.header := struct event_header; \
event.context := struct event_context; };

event { name = \"owlet:thread\"; id = 1; stream_id = 1; loglevel = 6; fields := struct { \
u32_t __comm_length; text_t _comm[__comm_length]; }; };
event { name = \"owlet:process\"; id = 2; stream_id = 1; loglevel = 6; fields := struct { \
u32_t _ppid; u64_t _pid_namespace; u32_t __exe_length; text_t _exe[__exe_length]; \
u32_t __args_length; text_t _args[__args_length]; \
u32_t __backend_length; text_t _backend[__backend_length]; }; };

";

/// Everything before the first event.
pub(crate) fn preamble(meta: &TraceMeta, clock: &ClockInfo, processes: &[Process]) -> String {
    let mut out = String::from("/* CTF 1.8 */\n\n");
    out.push_str(TYPES);
    out.push_str("\ntrace {\n\tmajor = 1;\n\tminor = 8;\n");
    line(&mut out, format_args!("\tuuid = \"{}\";", uuid_text(&meta.uuid)));
    out.push_str(
        "\tbyte_order = le;\n\tpacket.header := struct { u32_t magic; u8_t uuid[16]; \
         u32_t stream_id; u64_t stream_instance_id; };\n};\n\n",
    );
    env(&mut out, meta, processes);
    clock_block(&mut out, clock);
    out.push_str(STREAMS);
    out
}

fn line(out: &mut String, args: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(out, "{args}");
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn env(out: &mut String, meta: &TraceMeta, processes: &[Process]) {
    out.push_str("env {\n");
    line(out, format_args!("\thostname = \"{}\";", escape(meta.hostname.as_bytes())));
    out.push_str("\tdomain = \"ust\";\n\ttracer_name = \"owlet\";\n");
    let mut version = meta.tracer_version.split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).take(6).collect();
        digits.parse::<u32>().unwrap_or(0)
    });
    for name in ["major", "minor", "patch"] {
        line(out, format_args!("\ttracer_{name} = {};", version.next().unwrap_or(0)));
    }
    line(out, format_args!("\ttracer_version = \"{}\";", escape(meta.tracer_version.as_bytes())));
    if !meta.description.is_empty() {
        line(out, format_args!("\tdescription = \"{}\";", escape(meta.description.as_bytes())));
    }
    if let [only] = processes {
        let name = only.exe.rsplit(|c| *c == b'/').next().unwrap_or_default();
        line(out, format_args!("\tprocname = \"{}\";\n\tvpid = {};", escape(name), only.pid));
    }
    for (at, process) in processes.iter().take(ENV_PROCESSES).enumerate() {
        line(out, format_args!("\tprocess_{at}_pid = {};", process.pid));
        line(out, format_args!("\tprocess_{at}_exe = \"{}\";", escape(&process.exe)));
        line(out, format_args!("\tprocess_{at}_args = \"{}\";", escape(&spaced(&process.args))));
    }
    out.push_str("};\n\n");
}

/// Arguments with spaces for the NULs between them.
pub(crate) fn spaced(args: &[u8]) -> Vec<u8> {
    let args = args.strip_suffix(b"\0").unwrap_or(args);
    args.iter().map(|c| if *c == 0 { b' ' } else { *c }).collect()
}

fn clock_block(out: &mut String, clock: &ClockInfo) {
    let (name, description) = match clock.kind {
        ClockKind::Tsc => ("tsc", "time stamp counter"),
        ClockKind::Monotonic => ("monotonic", "CLOCK_MONOTONIC"),
    };
    let freq = clock.freq_hz.max(1);
    let (seconds, ticks) = clock.origin();
    line(
        out,
        format_args!(
            "clock {{\n\tname = \"{name}\";\n\tdescription = \"{description}\";\n\
             \tfreq = {freq};\n\toffset_s = {seconds};\n\toffset = {ticks};\n\
             \tabsolute = true;\n}};\n"
        ),
    );
    line(
        out,
        format_args!(
            "typealias integer {{ size = 64; align = 8; signed = false; \
             map = clock.{name}.value; }} := ticks_t;\n"
        ),
    );
}

/// One event's description.
pub(crate) fn event(id: u32, schema: &Schema) -> String {
    let mut fields = Fields { used: HashSet::new(), out: String::new() };
    for field in &schema.fields {
        fields.field(field);
    }
    format!(
        "event {{ name = \"{}\"; id = {id}; stream_id = 0; loglevel = {}; fields := struct {{{} }}; }};\n",
        escape(schema.name.as_bytes()),
        loglevel(schema.level),
        fields.out
    )
}

/// LTTng-UST's numbers, which other readers know.
fn loglevel(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug => 7,
        Level::Trace => 14,
    }
}

/// Text between quotes. Control characters become visible text, since readers print names raw.
pub(crate) fn escape(text: &[u8]) -> String {
    let mut out = String::new();
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                c if c.is_control() => {
                    let _ = write!(out, "\\\\u{{{:x}}}", u32::from(c));
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\\\x{byte:02x}");
        }
    }
    out
}

/// The members of one event's payload structure.
struct Fields {
    used: HashSet<String>,
    out: String,
}

impl Fields {
    /// `prefix` + an identifier made of `name` + `suffix`, distinct from all before.
    fn identifier(&mut self, prefix: &str, name: &str, suffix: &str) -> String {
        let mut base: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if base.is_empty() {
            base.push_str("field");
        }
        let mut made = format!("{prefix}{base}{suffix}");
        let mut number = 2;
        // babeltrace2 compares a name with others that have lost their underscore already.
        while self.used.contains(&made) {
            made = format!("{prefix}{base}_{number}{suffix}");
            number += 1;
        }
        self.used.insert(made.clone());
        self.used.extend(made.get(1..).map(str::to_owned));
        made
    }

    fn push(&mut self, args: std::fmt::Arguments<'_>) {
        let _ = write!(self.out, " {args};");
    }

    fn field(&mut self, field: &Field) {
        let name = self.identifier("_", &field.name, "");
        match &field.ty {
            Type::Scalar(scalar) => self.push(format_args!("{} {name}", scalar_name(*scalar))),
            Type::Str => self.counted(&field.name, &name, "text_t"),
            Type::Bytes => self.counted(&field.name, &name, "u8_t"),
            Type::Array(scalar, len) => {
                self.push(format_args!("{} {name}[{len}]", scalar_name(*scalar)));
            }
            Type::Seq(scalar) => self.counted(&field.name, &name, scalar_name(*scalar)),
            Type::Enum(scalar, names) => {
                self.push(format_args!("{} {name}", enum_type(*scalar, names)));
            }
            Type::Option(inner) => {
                let tag = self.identifier("__", &field.name, "_tag");
                self.push(format_args!("enum option_t {tag}"));
                self.push(format_args!("{} {name}", option_type(&tag, inner)));
            }
            Type::Dynamic => {
                let tag = self.identifier("__", &field.name, "_tag");
                self.push(format_args!("enum dynamic_t {tag}"));
                self.push(format_args!("variant dynamic_v <{tag}> {name}"));
            }
        }
    }

    fn counted(&mut self, field: &str, name: &str, element: &str) {
        let length = self.identifier("__", field, "_length");
        self.push(format_args!("u32_t {length}"));
        self.push(format_args!("{element} {name}[{length}]"));
    }
}

fn scalar_name(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::U8 => "u8_t",
        Scalar::U16 => "u16_t",
        Scalar::U32 => "u32_t",
        Scalar::U64 => "u64_t",
        Scalar::I8 => "i8_t",
        Scalar::I16 => "i16_t",
        Scalar::I32 => "i32_t",
        Scalar::I64 => "i64_t",
        Scalar::F32 => "f32_t",
        Scalar::F64 => "f64_t",
        Scalar::Bool => "enum bool_t",
    }
}

/// The type of an option's value behind its tag.
fn option_type(tag: &str, inner: &Type) -> String {
    let some = match inner {
        Type::Scalar(scalar) => scalar_name(*scalar).to_owned(),
        Type::Str => "struct { u32_t len; text_t text[len]; }".to_owned(),
        Type::Bytes => "struct { u32_t len; u8_t data[len]; }".to_owned(),
        Type::Array(scalar, len) => {
            format!("struct {{ {} list[{len}]; }}", scalar_name(*scalar))
        }
        Type::Seq(scalar) => {
            format!("struct {{ u32_t len; {} list[len]; }}", scalar_name(*scalar))
        }
        Type::Enum(scalar, names) => enum_type(*scalar, names),
        Type::Option(inner) => {
            format!("struct {{ enum option_t tag; {} value; }}", option_type("tag", inner))
        }
        Type::Dynamic => "struct { enum dynamic_t tag; variant dynamic_v <tag> value; }".to_owned(),
    };
    format!("variant <{tag}> {{ struct {{}} none; {some} some; }}")
}

/// An integer with those names that a value of the type can have: the first of each number, and no
/// name twice.
fn enum_type(scalar: Scalar, names: &[(i64, String)]) -> String {
    let base = if scalar == Scalar::Bool { "u8_t" } else { scalar_name(scalar) };
    let mut numbers = BTreeSet::new();
    let mut labels = HashSet::new();
    let mut mappings = Vec::new();
    for (number, name) in names {
        let Some(value) = enum_value(scalar, *number).filter(|value| numbers.insert(*value)) else {
            continue;
        };
        let name = if name.is_empty() { "?".to_owned() } else { escape(name.as_bytes()) };
        let mut label = name.clone();
        while !labels.insert(label.clone()) {
            label = format!("{name}#{value}");
            if labels.contains(&label) {
                label.push('\'');
            }
        }
        mappings.push(format!("\"{label}\" = {value}"));
    }
    if mappings.is_empty() {
        base.to_owned()
    } else {
        format!("enum : {base} {{ {} }}", mappings.join(", "))
    }
}

/// The value a number stands for in the field's own type; `None` when it has none.
fn enum_value(scalar: Scalar, number: i64) -> Option<i128> {
    let value = i128::from(number);
    let (low, high) = match scalar {
        Scalar::U64 => return Some(number.cast_unsigned().into()),
        Scalar::U8 => (0, u8::MAX.into()),
        Scalar::U16 => (0, u16::MAX.into()),
        Scalar::U32 => (0, u32::MAX.into()),
        Scalar::I8 => (i8::MIN.into(), i8::MAX.into()),
        Scalar::I16 => (i16::MIN.into(), i16::MAX.into()),
        Scalar::I32 => (i32::MIN.into(), i32::MAX.into()),
        Scalar::I64 => (i64::MIN.into(), i64::MAX.into()),
        Scalar::Bool => (0, 1),
        Scalar::F32 | Scalar::F64 => return None,
    };
    (value >= low && value <= high).then_some(value)
}
