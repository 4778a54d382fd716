//! What a field of a tracepoint may be, and how it becomes bytes.
//!
//! | Rust | in the trace |
//! |---|---|
//! | `u8`..`u64`, `i8`..`i64`, `usize`, `isize`, `f32`, `f64`, `bool` | scalar |
//! | `&str`, `&CStr`, [`CStrPtr`] | text |
//! | `&[u8]`, [`BytesPtr`] | bytes |
//! | `[T; N]`, `&[T; N]` of a scalar | array |
//! | `&[T]` of a scalar other than `u8` | sequence |
//! | `Option<T>` of any of these | option |
//! | an [`event_enum!`](crate::event_enum) | a number with names |
//!
//! Payloads are little endian, and so is every platform this crate is built for: arrays are copied
//! as they lie in memory.

use crate::encoder::{CSTR_MAX, Encoder};
use core::ffi::{CStr, c_char};
use core::marker::PhantomData;
use owlet_wire::schema::{Scalar, TypeRef};

#[cfg(not(target_endian = "little"))]
compile_error!(
    "owlet records little-endian payloads as they lie in memory; this target is big endian"
);

/// A type that a tracepoint's field may have.
///
/// Values are `Copy`: an event may go to several probes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a tracepoint",
    label = "not a field type",
    note = "fields are integers, floats, bool, &str, &[u8], &CStr, arrays and slices of scalars, \
            enums declared with owlet::event_enum!, and Option of these",
    note = "an enum becomes a field type by its declaration, which gives it Debug, Clone and Copy: \
            owlet::event_enum! {{ pub enum Kind: u8 {{ Hot = 0, Cold = 1 }} }}"
)]
pub trait FieldValue: Copy {
    /// How the trace describes it.
    const TYPE: TypeRef<'static>;

    /// Appends the value. Must be async-signal-safe, must not panic, allocate or lock, and must
    /// append exactly what [`TYPE`](Self::TYPE) says.
    fn encode<'a>(&'a self, out: &mut Encoder<'a>);
}

mod sealed {
    pub trait Sealed {}
}

/// A fixed-size field, which arrays and slices may be made of.
pub trait ScalarValue: FieldValue + sealed::Sealed {
    /// Its kind.
    const SCALAR: Scalar;
    /// What a slice of it is called in the trace.
    const SLICE: TypeRef<'static>;
}

macro_rules! scalars {
    ($($ty:ty => $scalar:ident, $slice:expr;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl ScalarValue for $ty {
            const SCALAR: Scalar = Scalar::$scalar;
            const SLICE: TypeRef<'static> = $slice;
        }
        impl FieldValue for $ty {
            const TYPE: TypeRef<'static> = TypeRef::Scalar(Scalar::$scalar);
            #[inline(always)]
            fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
                out.put(self.to_le_bytes());
            }
        }
    )*};
}

scalars! {
    u8 => U8, TypeRef::Bytes;
    u16 => U16, TypeRef::Seq(Scalar::U16);
    u32 => U32, TypeRef::Seq(Scalar::U32);
    u64 => U64, TypeRef::Seq(Scalar::U64);
    i8 => I8, TypeRef::Seq(Scalar::I8);
    i16 => I16, TypeRef::Seq(Scalar::I16);
    i32 => I32, TypeRef::Seq(Scalar::I32);
    i64 => I64, TypeRef::Seq(Scalar::I64);
    f32 => F32, TypeRef::Seq(Scalar::F32);
    f64 => F64, TypeRef::Seq(Scalar::F64);
}

#[cfg(target_pointer_width = "64")]
scalars! {
    usize => U64, TypeRef::Seq(Scalar::U64);
    isize => I64, TypeRef::Seq(Scalar::I64);
}

impl sealed::Sealed for bool {}

impl ScalarValue for bool {
    const SCALAR: Scalar = Scalar::Bool;
    const SLICE: TypeRef<'static> = TypeRef::Seq(Scalar::Bool);
}

impl FieldValue for bool {
    const TYPE: TypeRef<'static> = TypeRef::Scalar(Scalar::Bool);

    #[inline(always)]
    fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
        out.put([u8::from(*self)]);
    }
}

fn bytes_of<T: ScalarValue>(values: &[T]) -> &[u8] {
    // SAFETY: `ScalarValue` is sealed and implemented for types without padding only, so every byte
    // of the slice is initialised.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}

impl FieldValue for &str {
    const TYPE: TypeRef<'static> = TypeRef::Str;

    #[inline(always)]
    fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
        out.counted(self.as_bytes());
    }
}

impl FieldValue for &CStr {
    const TYPE: TypeRef<'static> = TypeRef::Str;

    #[inline(always)]
    fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
        out.counted(self.to_bytes());
    }
}

impl<T: ScalarValue> FieldValue for &[T] {
    const TYPE: TypeRef<'static> = T::SLICE;

    #[inline(always)]
    fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
        out.put((self.len() as u32).to_le_bytes());
        out.raw(bytes_of(self));
    }
}

impl<T: ScalarValue, const N: usize> FieldValue for [T; N] {
    const TYPE: TypeRef<'static> = TypeRef::Array(T::SCALAR, N as u32);

    #[inline(always)]
    fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
        out.raw(bytes_of(self));
    }
}

impl<T: ScalarValue, const N: usize> FieldValue for &[T; N] {
    const TYPE: TypeRef<'static> = TypeRef::Array(T::SCALAR, N as u32);

    #[inline(always)]
    fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
        out.raw(bytes_of(*self));
    }
}

impl<T: FieldValue> FieldValue for Option<T> {
    const TYPE: TypeRef<'static> = TypeRef::Option(&T::TYPE);

    #[inline(always)]
    fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
        match self {
            None => out.put([0]),
            Some(value) => {
                out.put([1]);
                value.encode(out);
            }
        }
    }
}

/// A C string that another thread may be rewriting, or that has no end in sight.
///
/// At most [`CSTR_MAX`] bytes are looked at. The length is taken once and exactly that many bytes are
/// copied: a racing writer can change the text, never the framing of the event.
#[derive(Clone, Copy, Debug)]
pub struct CStrPtr<'a>(*const c_char, PhantomData<&'a [u8]>);

impl CStrPtr<'_> {
    /// Wraps `text`; null reads as empty.
    ///
    /// # Safety
    /// The bytes up to the NUL, or the first [`CSTR_MAX`] of them, must stay mapped for as long as
    /// the value lives. They may change.
    #[must_use]
    pub const unsafe fn new(text: *const c_char) -> Self {
        Self(text, PhantomData)
    }
}

impl FieldValue for CStrPtr<'_> {
    const TYPE: TypeRef<'static> = TypeRef::Str;

    fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
        let start = self.0.cast::<u8>();
        let mut len = 0;
        while !start.is_null() && len < CSTR_MAX {
            // SAFETY: `new`'s caller keeps every byte up to the NUL mapped, and we stop there.
            if unsafe { start.wrapping_add(len).read_volatile() } == 0 {
                break;
            }
            len += 1;
        }
        encode_racing(start, len, out);
    }
}

/// Bytes that another thread may be rewriting. See [`CStrPtr`].
#[derive(Clone, Copy, Debug)]
pub struct BytesPtr<'a>(*const u8, usize, PhantomData<&'a [u8]>);

impl BytesPtr<'_> {
    /// Wraps `len` bytes at `bytes`; null reads as empty.
    ///
    /// # Safety
    /// The bytes must stay mapped for as long as the value lives. They may change.
    #[must_use]
    pub const unsafe fn new(bytes: *const u8, len: usize) -> Self {
        Self(bytes, len, PhantomData)
    }
}

impl FieldValue for BytesPtr<'_> {
    const TYPE: TypeRef<'static> = TypeRef::Bytes;

    fn encode<'a>(&'a self, out: &mut Encoder<'a>) {
        encode_racing(self.0, if self.0.is_null() { 0 } else { self.1 }, out);
    }
}

/// Appends `len` bytes at `start`, the count fixed beforehand.
fn encode_racing<'a>(start: *const u8, len: usize, out: &mut Encoder<'a>) {
    if len == 0 {
        return out.counted(&[]);
    }
    // SAFETY: the wrapper's `new` promised `len` mapped bytes for as long as the wrapper lives. They
    // may change meanwhile: nothing here reads them twice or decides anything by their content, and
    // the ring copies them without looking.
    out.counted(unsafe { core::slice::from_raw_parts(start, len) });
}
