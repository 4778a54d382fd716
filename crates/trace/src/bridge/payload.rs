//! One event's values while they are being collected.
//!
//! A [`Payload`] lies on the stack of the emitting call and holds [`CAPACITY`] bytes. Values are
//! encoded as their visitor hands them over; text is formatted straight into it. It belongs to one
//! call, so a `Debug` implementation that emits an event of its own meets nothing of ours. One that
//! panics is stopped there: its text so far is kept and ends with [`PANICKED`], and the next field's
//! turn comes. A program must not die of a defect that only a recording brings to light.
//!
//! # Bounds
//! - Room for every field still to come is set aside, so numbers always fit.
//! - Text and bytes that do not fit are cut, text at a character and with an ellipsis at its end.
//! - [`FIELDS`] fields at most; further ones are left out.
//! - Payloads inside payloads (a `Debug` that emits): [`NESTED`] at most on one thread, then they
//!   are counted as lost to recursion.
//!
//! # Invariants
//! 1. `len <= CAPACITY` and `data[..len]` is initialised.
//! 2. `count <= FIELDS` and `parts[..count]` is initialised; their ranges lie within `..len`.

use core::any::Any;
use core::cell::Cell;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use core::panic::AssertUnwindSafe;
use owlet_wire::schema::{Scalar, TypeRef};
use std::panic::catch_unwind;

/// Bytes of one event's values.
pub(crate) const CAPACITY: usize = 4096;
/// Fields of one event.
pub(crate) const FIELDS: usize = 64;
/// Payloads a thread may be building at once.
const NESTED: u32 = 4;
/// Room set aside for a field that is still to come: a number, or a length and an ellipsis.
const ROOM: usize = 8;
/// Ends a text whose implementation panicked.
const PANICKED: &str = "<panicked>";
const ELLIPSIS: &[u8] = "\u{2026}".as_bytes();

/// A value's type, as far as it matters for the schema. Absent is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Tag {
    U64 = 1,
    I64 = 2,
    F64 = 3,
    Bool = 4,
    Str = 5,
    Bytes = 6,
}

impl Tag {
    /// Of the four bits that stand for one field in a [`Signature`].
    pub(crate) fn from_bits(bits: u8) -> Option<Self> {
        [Self::U64, Self::I64, Self::F64, Self::Bool, Self::Str, Self::Bytes]
            .into_iter()
            .find(|tag| *tag as u8 == bits)
    }

    pub(crate) fn ty(self) -> TypeRef<'static> {
        match self {
            Self::U64 => TypeRef::Scalar(Scalar::U64),
            Self::I64 => TypeRef::Scalar(Scalar::I64),
            Self::F64 => TypeRef::Scalar(Scalar::F64),
            Self::Bool => TypeRef::Scalar(Scalar::Bool),
            Self::Str => TypeRef::Str,
            Self::Bytes => TypeRef::Bytes,
        }
    }
}

/// Which fields have a value, and of which type: four bits a field, in declared order.
pub(crate) type Signature = u128;
/// Fields that a [`Signature`] can tell apart.
pub(crate) const SIGNED: usize = 32;

/// One value's place.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) index: u16,
    pub(crate) tag: u8,
    start: u16,
    end: u16,
}

/// One event's values. See the module.
pub(crate) struct Payload {
    len: usize,
    count: usize,
    /// Fields the call site declares.
    declared: usize,
    signature: Signature,
    /// The signature does not tell the order: something came twice, late, or after the 32nd.
    irregular: bool,
    data: [MaybeUninit<u8>; CAPACITY],
    parts: [MaybeUninit<Part>; FIELDS],
}

impl Payload {
    #[inline]
    pub(crate) fn new(declared: usize) -> Self {
        Self {
            len: 0,
            count: 0,
            declared: declared.min(FIELDS),
            signature: 0,
            irregular: false,
            data: [MaybeUninit::uninit(); CAPACITY],
            parts: [MaybeUninit::uninit(); FIELDS],
        }
    }

    /// A leading field of the event's kind. Before all others.
    #[inline]
    pub(crate) fn lead(&mut self, value: u64) {
        self.copy(&value.to_le_bytes(), CAPACITY);
    }

    #[inline]
    pub(crate) fn u64(&mut self, index: usize, value: u64) {
        self.fixed(index, Tag::U64, &value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn i64(&mut self, index: usize, value: i64) {
        self.fixed(index, Tag::I64, &value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn f64(&mut self, index: usize, value: f64) {
        self.fixed(index, Tag::F64, &value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn bool(&mut self, index: usize, value: bool) {
        self.fixed(index, Tag::Bool, &[u8::from(value)]);
    }

    pub(crate) fn bytes(&mut self, index: usize, value: &[u8]) {
        let Some(start) = self.open(index) else { return };
        let limit = self.limit();
        let room = limit.saturating_sub(self.len + 4);
        let cut = value.get(..room).unwrap_or(value);
        self.copy(&(cut.len() as u32).to_le_bytes(), CAPACITY);
        self.copy(cut, limit);
        self.close(index, Tag::Bytes, start);
    }

    pub(crate) fn str(&mut self, index: usize, value: &str) {
        self.text(index, |text| text.push(value));
    }

    /// Runs code of the user's.
    pub(crate) fn format(&mut self, index: usize, value: fmt::Arguments<'_>) {
        self.text(index, |text| match value.as_str() {
            Some(literal) => text.push(literal),
            None => text.run(value),
        });
    }

    /// Runs code of the user's.
    pub(crate) fn debug(&mut self, index: usize, value: &dyn fmt::Debug) {
        self.text(index, |text| text.run(format_args!("{value:?}")));
    }

    pub(crate) fn signature(&self) -> Option<Signature> {
        (!self.irregular).then_some(self.signature)
    }

    /// Everything, in the order in which it came.
    #[inline]
    pub(crate) fn all(&self) -> &[u8] {
        self.slice(0, self.len)
    }

    /// The leading fields: what comes before the first value.
    pub(crate) fn leading(&self) -> &[u8] {
        self.slice(0, self.parts().first().map_or(self.len, |part| part.start.into()))
    }

    pub(crate) fn parts(&self) -> &[Part] {
        let init = self.parts.get(..self.count).unwrap_or_default();
        // SAFETY: invariant 2: `close` wrote every part before `count`.
        unsafe { core::slice::from_raw_parts(init.as_ptr().cast::<Part>(), init.len()) }
    }

    pub(crate) fn value(&self, part: &Part) -> &[u8] {
        self.slice(part.start.into(), part.end.into())
    }

    fn slice(&self, start: usize, end: usize) -> &[u8] {
        let init =
            self.data.get(..self.len).and_then(|data| data.get(start..end)).unwrap_or_default();
        // SAFETY: invariant 1: `copy` wrote every byte before `len`.
        unsafe { core::slice::from_raw_parts(init.as_ptr().cast::<u8>(), init.len()) }
    }

    /// How far the value that is open may reach: the fields still to come have room behind it.
    fn limit(&self) -> usize {
        CAPACITY - ROOM * self.declared.saturating_sub(self.count + 1)
    }

    #[inline]
    fn fixed(&mut self, index: usize, tag: Tag, bytes: &[u8]) {
        let Some(start) = self.open(index) else { return };
        if self.copy(bytes, CAPACITY) {
            self.close(index, tag, start);
        } else {
            self.irregular = true;
        }
    }

    fn text(&mut self, index: usize, write: impl FnOnce(&mut Text<'_>)) {
        let Some(start) = self.open(index) else { return };
        let limit = self.limit();
        if limit < self.len + ROOM {
            self.irregular = true;
            return;
        }
        self.copy(&[0; 4], CAPACITY);
        let from = self.len;
        let mut text = Text { payload: self, limit, cut: false };
        write(&mut text);
        if text.cut {
            self.ellipsis(from, limit);
        }
        let bytes = ((self.len - from) as u32).to_le_bytes();
        if let Some(slot) = self.data.get_mut(start..).and_then(<[_]>::first_chunk_mut::<4>) {
            *slot = bytes.map(MaybeUninit::new);
        }
        self.close(index, Tag::Str, start);
    }

    /// Ends a text that was cut: whole characters, then the mark.
    #[cold]
    fn ellipsis(&mut self, from: usize, limit: usize) {
        let mut end = self.len.min(limit - ELLIPSIS.len()).max(from);
        let text = self.slice(from, self.len);
        // A byte 10xxxxxx continues a character.
        while end > from && text.get(end - from).is_some_and(|byte| byte & 0xc0 == 0x80) {
            end -= 1;
        }
        self.len = end;
        self.copy(ELLIPSIS, limit);
    }

    /// Where the field's value begins; `None` when it is one too many.
    #[inline]
    fn open(&mut self, index: usize) -> Option<usize> {
        if self.count >= FIELDS || index >= FIELDS {
            return None;
        }
        Some(self.len)
    }

    #[inline]
    fn close(&mut self, index: usize, tag: Tag, start: usize) {
        let part =
            Part { index: index as u16, tag: tag as u8, start: start as u16, end: self.len as u16 };
        let Some(slot) = self.parts.get_mut(self.count) else { return };
        *slot = MaybeUninit::new(part);
        self.count += 1;
        // Declared order means that every field sets bits above all those set so far.
        let shift = 4 * index as u32;
        if index >= SIGNED || self.signature >> shift != 0 {
            self.irregular = true;
        } else {
            self.signature |= u128::from(tag as u8) << shift;
        }
    }

    /// Appends if it ends before `limit`.
    #[inline]
    fn copy(&mut self, bytes: &[u8], limit: usize) -> bool {
        let end = self.len + bytes.len();
        if end > limit {
            return false;
        }
        let Some(slot) = self.data.get_mut(self.len..end) else { return false };
        // SAFETY: `slot` is `bytes.len()` writable bytes of our own, and a unique borrow cannot
        // overlap a shared one.
        unsafe {
            core::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                slot.as_mut_ptr().cast::<u8>(),
                bytes.len(),
            );
        }
        self.len = end;
        true
    }
}

/// Text being written into a payload. Never fails: many a `Debug` implementation unwraps.
pub(crate) struct Text<'p> {
    payload: &'p mut Payload,
    limit: usize,
    cut: bool,
}

impl Text<'_> {
    /// Runs code of the user's. An error or a panic of it leaves what it wrote so far.
    fn run(&mut self, value: fmt::Arguments<'_>) {
        // Unwind safety: of ours the code reaches this text alone, and each piece is appended as a
        // whole or not at all. What is the user's own he would find the same had he caught it.
        let write = AssertUnwindSafe(|| self.write_fmt(value));
        if let Err(panic) = catch_unwind(write) {
            self.panicked_slow(panic);
        }
    }

    #[cold]
    fn panicked_slow(&mut self, panic: Box<dyn Any + Send>) {
        self.push(PANICKED);
        // Its destructor is the user's as well and may panic in its turn; then that one is left alone.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            core::mem::forget(again);
        }
    }

    pub(crate) fn push(&mut self, text: &str) {
        if self.cut {
            return;
        }
        if !self.payload.copy(text.as_bytes(), self.limit) {
            self.cut = true;
            let room = self.limit.saturating_sub(self.payload.len);
            let rest = text.as_bytes().get(..room).unwrap_or_default();
            self.payload.copy(rest, self.limit);
        }
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

thread_local! { static BUILDING: Cell<u32> = const { Cell::new(0) } }

/// This thread is building a payload. Also over when it unwinds.
pub(crate) struct Building(());

impl Building {
    /// `None` when the thread is building too many already.
    #[inline]
    pub(crate) fn enter() -> Option<Self> {
        BUILDING.with(|depth| {
            let now = depth.get();
            (now < NESTED).then(|| {
                depth.set(now + 1);
                Self(())
            })
        })
    }
}

impl Drop for Building {
    #[inline]
    fn drop(&mut self) {
        BUILDING.with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}
