//! What programs see of arguments and return values.
//!
//! | Rust | [`Value`] |
//! |---|---|
//! | `u8`..`u64`, `usize` | `Unsigned` |
//! | `i8`..`i64`, `isize` | `Signed` |
//! | `f32`, `f64` | `Float` |
//! | `bool`, `char`, `()` | `Bool`, `Char`, `Unit` |
//! | `*const T`, `*mut T`, `NonNull<T>` | `Pointer` |
//! | `str`, `String`, `Box<str>`, `Arc<str>`, `Rc<str>`, `Cow<str>` | `Text` |
//! | `[u8]`, `[u8; N]`, `Vec<u8>`, `Box<[u8]>` | `Bytes` |
//! | `Duration` | `Unsigned`, nanoseconds |
//! | `Option<T>`, `Result<T, E>` of a `T` above | `None` and `Err`, or what `T` is |
//! | any other `Option`, `Result` | `None`, `Some`, `Ok`, `Err` |
//! | `&T`, `&mut T` of any of these | the same |
//! | everything else | `Absent` with the type's name |
//!
//! Which row a parameter is in is found out where `#[traced]` stands, by method resolution
//! ([`Wrap`]): inside a generic function a `T` without the bound [`AsValue`] is everything else.
//!
//! # How long they are there
//! Numbers are copied when the call begins. Text and bytes are borrowed: at entry from the argument; at
//! exit only from arguments that are shared references (the caller keeps what they point to until the
//! call has ended); others may have been moved away by the body, and are [`Value::Gone`] then.
//!
//! # Invariants
//! 1. A [`RawValue`] of text or bytes is turned into a [`Value`] only while its argument is alive: by
//!    programs of the entry, and by those of the exit if `LASTS`.

use core::ptr::NonNull;
use core::time::Duration;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

/// An argument or a return value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// An unsigned integer.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// A floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A character.
    Char(char),
    /// A raw pointer's address.
    Pointer(usize),
    /// Text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// `()`.
    Unit,
    /// `None`.
    None,
    /// `Some` of something that has no value here.
    Some,
    /// `Ok` of something that has no value here.
    Ok,
    /// `Err`.
    Err,
    /// Nothing is known but the type's name.
    Absent(&'static str),
    /// Skipped by `#[traced(skip(..))]`.
    Skipped,
    /// It was there at entry; the body may have moved it away.
    Gone,
}

impl Value<'_> {
    /// The value as a machine word, as eBPF programs see it: numbers as they are (signed ones
    /// sign-extended, floats their bits), text and bytes their address, `Some` and `true` 1, `Err` the word
    /// of -1, everything else 0.
    #[must_use]
    pub fn word(&self) -> u64 {
        match *self {
            Self::Unsigned(n) => n,
            Self::Signed(n) => n as u64,
            Self::Float(x) => x.to_bits(),
            Self::Bool(b) => u64::from(b),
            Self::Char(c) => u64::from(c),
            Self::Pointer(at) => at as u64,
            Self::Text(text) => text.as_ptr().addr() as u64,
            Self::Bytes(bytes) => bytes.as_ptr().addr() as u64,
            Self::Some => 1,
            Self::Err => u64::MAX,
            Self::Unit | Self::None | Self::Ok | Self::Absent(_) | Self::Skipped | Self::Gone => 0,
        }
    }
}

/// Whether what a value borrows lasts until the call has ended: only references of this crate's
/// knowing do.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Lasts(bool);

/// A type whose values programs can see.
///
/// Implement it for your own types with one of the other variants; inside generic functions, bound a
/// parameter by it.
pub trait AsValue {
    /// Text or bytes that [`AsValue::as_value`] borrows are there until the call has ended, whatever the
    /// body does with the argument: true for shared references only.
    #[doc(hidden)]
    const LASTS: Lasts = Lasts(false);

    /// The value. Must be async-signal-safe and must not panic if the function is called in handlers.
    fn as_value(&self) -> Value<'_>;
}

macro_rules! plain {
    ($($ty:ty => |$value:ident| $make:expr;)*) => {$(
        impl AsValue for $ty {
            #[inline(always)]
            fn as_value(&self) -> Value<'_> {
                let $value = self;
                $make
            }
        }
    )*};
}

plain! {
    u8 => |n| Value::Unsigned(u64::from(*n));
    u16 => |n| Value::Unsigned(u64::from(*n));
    u32 => |n| Value::Unsigned(u64::from(*n));
    u64 => |n| Value::Unsigned(*n);
    usize => |n| Value::Unsigned(*n as u64);
    i8 => |n| Value::Signed(i64::from(*n));
    i16 => |n| Value::Signed(i64::from(*n));
    i32 => |n| Value::Signed(i64::from(*n));
    i64 => |n| Value::Signed(*n);
    isize => |n| Value::Signed(*n as i64);
    f32 => |x| Value::Float(f64::from(*x));
    f64 => |x| Value::Float(*x);
    bool => |b| Value::Bool(*b);
    char => |c| Value::Char(*c);
    () => |_unit| Value::Unit;
    str => |text| Value::Text(text);
    String => |text| Value::Text(text);
    Box<str> => |text| Value::Text(text);
    Arc<str> => |text| Value::Text(text);
    Rc<str> => |text| Value::Text(text);
    Cow<'_, str> => |text| Value::Text(text);
    [u8] => |bytes| Value::Bytes(bytes);
    Vec<u8> => |bytes| Value::Bytes(bytes);
    Box<[u8]> => |bytes| Value::Bytes(bytes);
    Duration => |time| Value::Unsigned(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

impl<const N: usize> AsValue for [u8; N] {
    #[inline(always)]
    fn as_value(&self) -> Value<'_> {
        Value::Bytes(self)
    }
}

impl<T: ?Sized> AsValue for *const T {
    #[inline(always)]
    fn as_value(&self) -> Value<'_> {
        Value::Pointer(self.addr())
    }
}

impl<T: ?Sized> AsValue for *mut T {
    #[inline(always)]
    fn as_value(&self) -> Value<'_> {
        Value::Pointer(self.addr())
    }
}

impl<T: ?Sized> AsValue for NonNull<T> {
    #[inline(always)]
    fn as_value(&self) -> Value<'_> {
        Value::Pointer(self.addr().get())
    }
}

impl<T: AsValue + ?Sized> AsValue for &T {
    // What a shared reference that is an argument points to is there, unchanged, until the call has
    // ended: the function could use it until then. A mutable one may have been given to the result.
    const LASTS: Lasts = Lasts(true);

    #[inline(always)]
    fn as_value(&self) -> Value<'_> {
        (**self).as_value()
    }
}

impl<T: AsValue + ?Sized> AsValue for &mut T {
    #[inline(always)]
    fn as_value(&self) -> Value<'_> {
        (**self).as_value()
    }
}

impl<T: AsValue> AsValue for Option<T> {
    const LASTS: Lasts = T::LASTS;

    #[inline(always)]
    fn as_value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::None, AsValue::as_value)
    }
}

impl<T: AsValue, E> AsValue for Result<T, E> {
    const LASTS: Lasts = T::LASTS;

    #[inline(always)]
    fn as_value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Err, AsValue::as_value)
    }
}

/// Types of which only the shape can be told.
#[doc(hidden)]
pub trait Shape {
    /// It.
    fn shape(&self) -> Value<'static>;
}

impl<T> Shape for Option<T> {
    #[inline(always)]
    fn shape(&self) -> Value<'static> {
        if self.is_some() { Value::Some } else { Value::None }
    }
}

impl<T, E> Shape for Result<T, E> {
    #[inline(always)]
    fn shape(&self) -> Value<'static> {
        if self.is_ok() { Value::Ok } else { Value::Err }
    }
}

/// A value without its lifetime (invariant 1).
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum RawValue {
    /// One that borrows nothing.
    Plain(Value<'static>),
    /// Text, and whether it lasts until the call has ended.
    Text(*const str, bool),
    /// Bytes, likewise.
    Bytes(*const [u8], bool),
}

// SAFETY: numbers and addresses; who reads what they point to answers for it (invariant 1).
unsafe impl Send for RawValue {}
// SAFETY: as for Send.
unsafe impl Sync for RawValue {}

impl RawValue {
    /// Of a parameter that is skipped.
    pub const SKIPPED: Self = Self::Plain(Value::Skipped);

    /// Of a parameter of which only the type is known.
    #[must_use]
    pub const fn absent(ty: &'static str) -> Self {
        Self::Plain(Value::Absent(ty))
    }

    #[inline(always)]
    fn new(value: Value<'_>, lasts: bool) -> Self {
        match value {
            Value::Text(text) => Self::Text(text, lasts),
            Value::Bytes(bytes) => Self::Bytes(bytes, lasts),
            other => {
                // SAFETY: of the variants those two alone borrow anything, and the layout does not depend
                // on a lifetime.
                let other = unsafe { core::mem::transmute::<Value<'_>, Value<'static>>(other) };
                Self::Plain(other)
            }
        }
    }

    /// Keeps of text and bytes only that they were there.
    pub(crate) fn forget(&mut self) {
        if let Self::Text(_, lasts) | Self::Bytes(_, lasts) = self {
            *lasts = false;
        }
    }

    /// [`Value::word`] of [`RawValue::get`], without following an address.
    #[inline(always)]
    pub(crate) fn word(&self, entry: bool) -> u64 {
        match *self {
            Self::Plain(Value::Unsigned(n)) => n,
            _ => self.word_slow(entry),
        }
    }

    #[inline(never)]
    fn word_slow(&self, entry: bool) -> u64 {
        match *self {
            Self::Plain(value) => value.word(),
            Self::Text(text, lasts) if entry || lasts => text.addr() as u64,
            Self::Bytes(bytes, lasts) if entry || lasts => bytes.addr() as u64,
            Self::Text(..) | Self::Bytes(..) => 0,
        }
    }

    /// The value again.
    ///
    /// # Safety
    /// The argument is alive for `'a`, or it lasts and `entry` is false (invariant 1).
    #[inline(always)]
    pub(crate) unsafe fn get<'a>(self, entry: bool) -> Value<'a> {
        match self {
            Self::Plain(value) => value,
            // SAFETY: the caller's.
            Self::Text(text, lasts) if entry || lasts => Value::Text(unsafe { &*text }),
            // SAFETY: the caller's.
            Self::Bytes(bytes, lasts) if entry || lasts => Value::Bytes(unsafe { &*bytes }),
            Self::Text(..) | Self::Bytes(..) => Value::Gone,
        }
    }
}

/// A value to be captured: which of the traits below its type has is found out by method resolution,
/// `(&&&Wrap(&value)).capture()`, the first that fits.
#[doc(hidden)]
#[derive(Debug)]
pub struct Wrap<'a, T: ?Sized>(pub &'a T);

/// A type with a value.
#[doc(hidden)]
pub trait CaptureValue {
    /// It.
    fn capture(&self) -> RawValue;
}

/// A type with a shape.
#[doc(hidden)]
pub trait CaptureShape {
    /// It.
    fn capture(&self) -> RawValue;
}

/// Any type.
#[doc(hidden)]
pub trait CaptureName {
    /// Its name.
    fn capture(&self) -> RawValue;
}

impl<T: AsValue + ?Sized> CaptureValue for &&Wrap<'_, T> {
    #[inline(always)]
    fn capture(&self) -> RawValue {
        RawValue::new(self.0.as_value(), T::LASTS.0)
    }
}

impl<T: Shape + ?Sized> CaptureShape for &Wrap<'_, T> {
    #[inline(always)]
    fn capture(&self) -> RawValue {
        RawValue::Plain(self.0.shape())
    }
}

impl<T: ?Sized> CaptureName for Wrap<'_, T> {
    #[inline(always)]
    fn capture(&self) -> RawValue {
        RawValue::Plain(Value::Absent(core::any::type_name::<T>()))
    }
}
