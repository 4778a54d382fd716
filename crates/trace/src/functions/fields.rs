//! A call's values as fields of a trace. Runs in traced threads: async-signal-safe, no allocation.

use crate::encoder::Encoder;
use owlet_attach::{Call, Function, Phase, Value};
use owlet_wire::functions::{DURATION, PHASE, PHASES, RET, field_names};
use owlet_wire::schema::{DynTag, FieldRef, Scalar, TypeRef};

const WORD: TypeRef<'static> = TypeRef::Scalar(Scalar::U64);

/// The return value, of whatever type.
pub(super) const FIELD_RET: FieldRef<'static> = FieldRef { name: RET, ty: TypeRef::Dynamic };
/// How the call ended.
pub(super) const FIELD_PHASE: FieldRef<'static> =
    FieldRef { name: PHASE, ty: TypeRef::Enum(Scalar::U8, PHASES) };
/// How long it took.
pub(super) const FIELD_DURATION: FieldRef<'static> = FieldRef { name: DURATION, ty: WORD };
/// Leading fields of spans.
pub(super) const FIELD_SPAN: FieldRef<'static> = FieldRef { name: "span", ty: WORD };
/// As [`FIELD_SPAN`].
pub(super) const FIELD_PARENT: FieldRef<'static> = FieldRef { name: "parent", ty: WORD };

/// Names of the fields that a function's parameters become.
pub(super) fn names(function: &Function) -> Vec<String> {
    field_names(function.params())
}

/// Those fields.
pub(super) fn params(names: &[String]) -> impl Iterator<Item = FieldRef<'_>> {
    names.iter().map(|name| FieldRef { name, ty: TypeRef::Dynamic })
}

/// Appends the arguments.
#[inline]
pub(super) fn put_args<'a>(call: &'a Call<'_>, out: &mut Encoder<'a>) {
    for number in 0..call.function().params().len() {
        put(call.arg(number).unwrap_or(Value::Gone), out);
    }
}

/// Appends the return value and how the call ended.
#[inline]
pub(super) fn put_end<'a>(call: &'a Call<'_>, out: &mut Encoder<'a>) {
    put(call.ret().unwrap_or(Value::Gone), out);
    out.put([match call.phase() {
        Phase::Entry | Phase::Return => 0,
        Phase::Unwound => 1,
        Phase::Dropped => 2,
    }]);
}

/// Appends one value, with its type.
fn put<'a>(value: Value<'a>, out: &mut Encoder<'a>) {
    match value {
        Value::Unsigned(n) => out.dyn_u64(n),
        Value::Signed(n) => out.dyn_i64(n),
        Value::Float(x) => out.dyn_f64(x),
        Value::Bool(b) => out.dyn_bool(b),
        Value::Pointer(at) => out.dyn_u64(at as u64),
        Value::Text(text) => out.dyn_str(text),
        Value::Bytes(bytes) => out.dyn_bytes(bytes),
        Value::Char(c) => {
            let mut utf8 = [0; 4];
            let text = c.encode_utf8(&mut utf8);
            out.put([DynTag::Str as u8]);
            out.put((text.len() as u32).to_le_bytes());
            out.copy(text.as_bytes());
        }
        Value::Some => out.dyn_str("Some"),
        Value::Ok => out.dyn_str("Ok"),
        Value::Err => out.dyn_str("Err"),
        Value::Unit | Value::None | Value::Absent(_) | Value::Skipped | Value::Gone => {
            out.dyn_absent();
        }
    }
}
