//! Decoding one payload field by field. Input is hostile: every length is checked against what is
//! there, nothing panics, nothing allocates but the decoded vectors, whose size the input bounds.

use crate::schema::{DynTag, Field, Scalar, Type};

/// One decoded value, borrowing text and bytes from the record.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Value<'a> {
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Meant to be UTF-8; the bytes are what the program wrote.
    Str(&'a [u8]),
    Bytes(&'a [u8]),
    List(Vec<Value<'a>>),
    /// The number, and the name if it has one.
    Enum(i64, Option<&'a str>),
    /// `Option::None`, or a dynamic field that was not recorded.
    None,
}

/// Takes one value of type `ty` from the front of `bytes`; `None` when the bytes do not hold one.
#[must_use]
pub fn take<'a>(ty: &'a Type, bytes: &mut &'a [u8]) -> Option<Value<'a>> {
    match ty {
        Type::Scalar(scalar) => take_scalar(*scalar, bytes),
        Type::Str => take_counted(bytes).map(Value::Str),
        Type::Bytes => take_counted(bytes).map(Value::Bytes),
        Type::Array(scalar, len) => take_list(*scalar, *len as usize, bytes),
        Type::Seq(scalar) => {
            let len = take_u32(bytes)? as usize;
            take_list(*scalar, len, bytes)
        }
        Type::Enum(scalar, names) => {
            let number = match take_scalar(*scalar, bytes)? {
                Value::U64(n) => n.cast_signed(),
                Value::I64(n) => n,
                Value::Bool(b) => i64::from(b),
                _ => return None,
            };
            let name = names.iter().find(|(n, _)| *n == number).map(|(_, name)| name.as_str());
            Some(Value::Enum(number, name))
        }
        Type::Option(inner) => match take_scalar(Scalar::U8, bytes)? {
            Value::U64(0) => Some(Value::None),
            Value::U64(1) => take(inner, bytes),
            _ => None,
        },
        Type::Dynamic => take_dynamic(bytes),
    }
}

/// Decodes a payload: the values in the order of `fields`, and whether it holds exactly those. When
/// it does not, the values are the ones before the first that is missing or malformed.
#[must_use]
pub fn decode<'a>(fields: &'a [Field], mut payload: &'a [u8]) -> (Vec<Value<'a>>, bool) {
    let mut values = Vec::with_capacity(fields.len());
    for field in fields {
        match take(&field.ty, &mut payload) {
            Some(value) => values.push(value),
            None => return (values, false),
        }
    }
    (values, payload.is_empty())
}

/// Whether a payload holds exactly `fields`: what [`decode`] would say, without decoding.
/// Allocates nothing.
#[must_use]
pub fn fits(fields: &[Field], mut payload: &[u8]) -> bool {
    fields.iter().all(|field| skip(&field.ty, &mut payload).is_some()) && payload.is_empty()
}

/// Skips one value of type `ty`; `None` when [`take`] would say so.
pub fn skip(ty: &Type, bytes: &mut &[u8]) -> Option<()> {
    match ty {
        Type::Scalar(scalar) => skip_scalars(*scalar, 1, bytes),
        Type::Str | Type::Bytes => take_counted(bytes).map(drop),
        Type::Array(scalar, len) => skip_scalars(*scalar, *len as usize, bytes),
        Type::Seq(scalar) => {
            let len = take_u32(bytes)? as usize;
            skip_scalars(*scalar, len, bytes)
        }
        Type::Enum(Scalar::F32 | Scalar::F64, _) => None,
        Type::Enum(scalar, _) => skip_scalars(*scalar, 1, bytes),
        Type::Option(inner) => match take_chunk::<1>(bytes)? {
            [0] => Some(()),
            [1] => skip(inner, bytes),
            _ => None,
        },
        Type::Dynamic => take_dynamic(bytes).map(drop),
    }
}

fn skip_scalars(scalar: Scalar, len: usize, bytes: &mut &[u8]) -> Option<()> {
    let (skipped, rest) = bytes.split_at_checked(len.checked_mul(scalar.size())?)?;
    if scalar == Scalar::Bool && skipped.iter().any(|b| *b > 1) {
        return None;
    }
    *bytes = rest;
    Some(())
}

fn take_dynamic<'a>(bytes: &mut &'a [u8]) -> Option<Value<'a>> {
    const ABSENT: u8 = DynTag::Absent as u8;
    const U64: u8 = DynTag::U64 as u8;
    const I64: u8 = DynTag::I64 as u8;
    const F64: u8 = DynTag::F64 as u8;
    const BOOL: u8 = DynTag::Bool as u8;
    const STR: u8 = DynTag::Str as u8;
    const BYTES: u8 = DynTag::Bytes as u8;
    let (tag, rest) = bytes.split_first()?;
    *bytes = rest;
    match *tag {
        ABSENT => Some(Value::None),
        U64 => take_scalar(Scalar::U64, bytes),
        I64 => take_scalar(Scalar::I64, bytes),
        F64 => take_scalar(Scalar::F64, bytes),
        BOOL => take_scalar(Scalar::Bool, bytes),
        STR => take_counted(bytes).map(Value::Str),
        BYTES => take_counted(bytes).map(Value::Bytes),
        _ => None,
    }
}

fn take_chunk<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (chunk, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*chunk)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take_chunk(bytes).map(u32::from_le_bytes)
}

fn take_counted<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_u32(bytes)? as usize;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn take_list<'a>(scalar: Scalar, len: usize, bytes: &mut &'a [u8]) -> Option<Value<'a>> {
    // Checked before the allocation, so that a hostile count costs nothing.
    if len.checked_mul(scalar.size())? > bytes.len() {
        return None;
    }
    let mut list = Vec::with_capacity(len);
    for _ in 0..len {
        list.push(take_scalar(scalar, bytes)?);
    }
    Some(Value::List(list))
}

fn take_scalar<'a>(scalar: Scalar, bytes: &mut &'a [u8]) -> Option<Value<'a>> {
    Some(match scalar {
        Scalar::U8 => Value::U64(u8::from_le_bytes(take_chunk(bytes)?).into()),
        Scalar::U16 => Value::U64(u16::from_le_bytes(take_chunk(bytes)?).into()),
        Scalar::U32 => Value::U64(u32::from_le_bytes(take_chunk(bytes)?).into()),
        Scalar::U64 => Value::U64(u64::from_le_bytes(take_chunk(bytes)?)),
        Scalar::I8 => Value::I64(i8::from_le_bytes(take_chunk(bytes)?).into()),
        Scalar::I16 => Value::I64(i16::from_le_bytes(take_chunk(bytes)?).into()),
        Scalar::I32 => Value::I64(i32::from_le_bytes(take_chunk(bytes)?).into()),
        Scalar::I64 => Value::I64(i64::from_le_bytes(take_chunk(bytes)?)),
        Scalar::F32 => Value::F32(f32::from_le_bytes(take_chunk(bytes)?)),
        Scalar::F64 => Value::F64(f64::from_le_bytes(take_chunk(bytes)?)),
        Scalar::Bool => match take_chunk::<1>(bytes)? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            _ => return None,
        },
    })
}

/// Appends `value` encoded as `ty`; `None`, with `out` as it was, when it is no value of that type.
///
/// For tests and for tools that make traces; a traced process encodes without this.
#[must_use]
pub fn put(ty: &Type, value: &Value<'_>, out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    let done = put_inner(ty, value, out);
    if done.is_none() {
        out.truncate(start);
    }
    done
}

fn put_inner(ty: &Type, value: &Value<'_>, out: &mut Vec<u8>) -> Option<()> {
    match (ty, value) {
        (Type::Scalar(scalar), value) => put_scalar(*scalar, value, out),
        (Type::Str, Value::Str(bytes)) | (Type::Bytes, Value::Bytes(bytes)) => {
            put_counted(bytes, out)
        }
        (Type::Array(scalar, len), Value::List(list)) if list.len() == *len as usize => {
            list.iter().try_for_each(|value| put_scalar(*scalar, value, out))
        }
        (Type::Seq(scalar), Value::List(list)) => {
            out.extend(u32::try_from(list.len()).ok()?.to_le_bytes());
            list.iter().try_for_each(|value| put_scalar(*scalar, value, out))
        }
        (Type::Enum(scalar, _), Value::Enum(number, _)) => {
            let value = match scalar {
                Scalar::Bool => Value::Bool(*number != 0),
                Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64 => Value::I64(*number),
                _ => Value::U64(number.cast_unsigned()),
            };
            put_scalar(*scalar, &value, out)
        }
        (Type::Option(_), Value::None) => {
            out.push(0);
            Some(())
        }
        (Type::Option(inner), value) => {
            out.push(1);
            put_inner(inner, value, out)
        }
        (Type::Dynamic, value) => put_dynamic(value, out),
        _ => None,
    }
}

fn put_dynamic(value: &Value<'_>, out: &mut Vec<u8>) -> Option<()> {
    let tag = match value {
        Value::None => DynTag::Absent,
        Value::U64(_) => DynTag::U64,
        Value::I64(_) => DynTag::I64,
        Value::F64(_) => DynTag::F64,
        Value::Bool(_) => DynTag::Bool,
        Value::Str(_) => DynTag::Str,
        Value::Bytes(_) => DynTag::Bytes,
        Value::F32(_) | Value::List(_) | Value::Enum(..) => return None,
    };
    out.push(tag as u8);
    match value {
        Value::U64(_) => put_scalar(Scalar::U64, value, out),
        Value::I64(_) => put_scalar(Scalar::I64, value, out),
        Value::F64(_) => put_scalar(Scalar::F64, value, out),
        Value::Bool(_) => put_scalar(Scalar::Bool, value, out),
        Value::Str(bytes) | Value::Bytes(bytes) => put_counted(bytes, out),
        _ => Some(()),
    }
}

fn put_counted(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.extend(u32::try_from(bytes.len()).ok()?.to_le_bytes());
    out.extend(bytes);
    Some(())
}

fn put_scalar(scalar: Scalar, value: &Value<'_>, out: &mut Vec<u8>) -> Option<()> {
    match (scalar, value) {
        (Scalar::U8, Value::U64(n)) => out.extend(u8::try_from(*n).ok()?.to_le_bytes()),
        (Scalar::U16, Value::U64(n)) => out.extend(u16::try_from(*n).ok()?.to_le_bytes()),
        (Scalar::U32, Value::U64(n)) => out.extend(u32::try_from(*n).ok()?.to_le_bytes()),
        (Scalar::U64, Value::U64(n)) => out.extend(n.to_le_bytes()),
        (Scalar::I8, Value::I64(n)) => out.extend(i8::try_from(*n).ok()?.to_le_bytes()),
        (Scalar::I16, Value::I64(n)) => out.extend(i16::try_from(*n).ok()?.to_le_bytes()),
        (Scalar::I32, Value::I64(n)) => out.extend(i32::try_from(*n).ok()?.to_le_bytes()),
        (Scalar::I64, Value::I64(n)) => out.extend(n.to_le_bytes()),
        (Scalar::F32, Value::F32(n)) => out.extend(n.to_le_bytes()),
        (Scalar::F64, Value::F64(n)) => out.extend(n.to_le_bytes()),
        (Scalar::Bool, Value::Bool(b)) => out.push((*b).into()),
        _ => return None,
    }
    Some(())
}
