//! The words for levels, kinds and types, in one place.

use crate::text::escape;
use owlet_wire::schema::{Field, Kind, Level, Scalar, Type};

/// `error` to `trace`.
pub(crate) fn level(level: Level) -> &'static str {
    owlet_analyze::text::level_name(level)
}

/// What an event means, in a word or two.
pub(crate) fn kind(kind: Kind) -> &'static str {
    owlet_analyze::json::kind_name(kind)
}

/// A field's type in Rust's words.
pub(crate) fn ty(ty: &Type) -> String {
    match ty {
        Type::Scalar(s) => scalar(*s).into(),
        Type::Str => "str".into(),
        Type::Bytes => "bytes".into(),
        Type::Array(s, n) => format!("[{}; {n}]", scalar(*s)),
        Type::Seq(s) => format!("[{}]", scalar(*s)),
        Type::Enum(s, names) => {
            let names: Vec<_> = names.iter().map(|(_, name)| escape(name.as_bytes())).collect();
            format!("enum {}({})", scalar(*s), names.join("|"))
        }
        Type::Option(inner) => format!("option {}", self::ty(inner)),
        Type::Dynamic => "any".into(),
    }
}

/// `(seq: u64, note: str)`.
pub(crate) fn fields(fields: &[Field]) -> String {
    let fields: Vec<_> =
        fields.iter().map(|f| format!("{}: {}", escape(f.name.as_bytes()), ty(&f.ty))).collect();
    format!("({})", fields.join(", "))
}

fn scalar(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::U8 => "u8",
        Scalar::U16 => "u16",
        Scalar::U32 => "u32",
        Scalar::U64 => "u64",
        Scalar::I8 => "i8",
        Scalar::I16 => "i16",
        Scalar::I32 => "i32",
        Scalar::I64 => "i64",
        Scalar::F32 => "f32",
        Scalar::F64 => "f64",
        Scalar::Bool => "bool",
    }
}
