//! What an event's payload looks like.
//!
//! Two forms of one shape: [`SchemaRef`] borrows everything, so that a traced process describes an
//! event without allocating; [`Schema`] owns everything, for the tools outside. Serialised with
//! postcard they are the same bytes.
//!
//! # Payload encoding
//! Fields follow one another without padding, little endian.
//!
//! | type | bytes |
//! |---|---|
//! | integers, floats | their own size |
//! | `Bool` | 1, zero or one |
//! | `Str`, `Bytes` | u32 length, then the bytes (`Str` is meant to be UTF-8, readers must not rely on it) |
//! | `Array` | its elements |
//! | `Seq` | u32 number of elements, then the elements |
//! | `Enum` | the integer `repr` |
//! | `Option` | u8 zero, or u8 one and the value |
//! | `Dynamic` | u8 [`DynTag`], then the value: the field's type was not fixed by its declaration |

mod decode;
mod own;

use serde::{Deserialize, Serialize};

/// How deep `Option` may nest. Deeper types do not decode, so that no input can exhaust a stack.
pub const MAX_DEPTH: usize = 4;
/// Fields of one event at most.
pub const MAX_FIELDS: usize = 1024;
/// Bytes of one name at most.
pub const MAX_NAME: usize = 1024;

/// Severity, in `tracing`'s terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something is suspicious.
    Warn,
    /// Normal, and worth a line.
    Info,
    /// For the author of the code.
    Debug,
    /// Everything else.
    Trace,
}

/// What an event means. The leading fields of each kind are fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Something happened. No leading field.
    Event,
    /// A span was created. Leading fields: `span: u64` (its id, never 0), `parent: u64` (0 = none).
    SpanNew,
    /// A thread entered a span. Leading field: `span: u64`.
    SpanEnter,
    /// A thread left a span. Leading field: `span: u64`.
    SpanExit,
    /// A span ended. Leading fields: `span: u64`, `duration_ns: u64` (since `SpanNew`).
    SpanClose,
    /// A span gained a cause. Leading fields: `span: u64`, `follows: u64`.
    SpanFollows,
    /// A span's field got a value after its creation. Leading field: `span: u64`.
    SpanRecord,
    /// Something happened inside a span. Leading field: `span: u64` (0 = none).
    SpanEvent,
}

/// A fixed-size element of an array or sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Scalar {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
    Bool,
}

impl Scalar {
    /// Encoded size in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// What follows the tag byte of a `Dynamic` field. The discriminant is the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DynTag {
    /// Nothing was recorded. No bytes.
    Absent = 0,
    /// `u64`.
    U64 = 1,
    /// `i64`.
    I64 = 2,
    /// `f64`.
    F64 = 3,
    /// `Bool`.
    Bool = 4,
    /// `Str`.
    Str = 5,
    /// `Bytes`.
    Bytes = 6,
}

/// A field's type, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum TypeRef<'a> {
    /// A number or a bool.
    Scalar(Scalar),
    /// Text.
    Str,
    /// Bytes.
    Bytes,
    /// A fixed number of elements.
    Array(Scalar, u32),
    /// A counted number of elements.
    Seq(Scalar),
    /// An integer with names for some values.
    Enum(Scalar, &'a [(i64, &'a str)]),
    /// Perhaps a value.
    Option(&'a TypeRef<'a>),
    /// A type told by each value.
    Dynamic,
}

/// One field, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FieldRef<'a> {
    /// The name as the program wrote it.
    pub name: &'a str,
    /// The type.
    pub ty: TypeRef<'a>,
}

/// An event's description, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SchemaRef<'a> {
    /// Full name: `provider:event`.
    pub name: &'a str,
    /// What the event means.
    pub kind: Kind,
    /// Severity.
    pub level: Level,
    /// Source file, or empty.
    pub file: &'a str,
    /// Source line, or 0.
    pub line: u32,
    /// What the author says of it, or empty.
    pub doc: &'a str,
    /// The payload's fields in order, the kind's leading fields first.
    pub fields: &'a [FieldRef<'a>],
}

/// A field's type, owned. See [`TypeRef`]. Decoding refuses types deeper than [`MAX_DEPTH`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[expect(missing_docs, reason = "as in TypeRef")]
pub enum Type {
    Scalar(Scalar),
    Str,
    Bytes,
    Array(Scalar, u32),
    Seq(Scalar),
    Enum(Scalar, Vec<(i64, String)>),
    Option(Box<Type>),
    Dynamic,
}

/// One field, owned. See [`FieldRef`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in FieldRef")]
pub struct Field {
    pub name: String,
    pub ty: Type,
}

/// An event's description, owned. See [`SchemaRef`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in SchemaRef")]
pub struct Schema {
    pub name: String,
    pub kind: Kind,
    pub level: Level,
    pub file: String,
    pub line: u32,
    pub doc: String,
    pub fields: Vec<Field>,
}
