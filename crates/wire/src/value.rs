//! Decoding one payload field by field. Input is hostile: every length is checked against what is
//! there, nothing panics, nothing allocates but the decoded vectors, whose size the input bounds.

use crate::schema::{DynTag, Scalar, Type};

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
