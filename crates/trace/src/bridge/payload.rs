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
//! 2. `spelled <= FIELDS` and `parts[..spelled]` is initialised; their ranges lie within `..len`.
//! 3. While fields come in declared order, the signature tells what lies behind `led`, one value after
//!    the other. From the first one that does not on, `spelled == count`.

use crate::context;
use core::any::Any;
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
/// What ends before has room, however many fields are still to come.
const SURE: usize = CAPACITY - ROOM * (FIELDS + 1);
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
    fn from_bits(bits: u8) -> Option<Self> {
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature([u64; 2]);
/// Fields that a [`Signature`] can tell apart.
pub(crate) const SIGNED: usize = 32;
/// Fields of one word of a [`Signature`].
const A_WORD: usize = SIGNED / 2;

impl Signature {
    /// The type of that field's value; `None` when it has none.
    pub(crate) fn tag(self, index: usize) -> Option<Tag> {
        let word = self.0.get(index / A_WORD)?;
        Tag::from_bits((word >> (4 * (index % A_WORD))) as u8 & 0xf)
    }

    /// Notes the type of a field that has none yet.
    #[inline(always)]
    fn note(&mut self, index: usize, tag: Tag) {
        if let Some(word) = self.0.get_mut(index / A_WORD) {
            *word |= (tag as u64) << (4 * (index % A_WORD));
        }
    }
}

/// One value's place.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) index: u16,
    pub(crate) tag: u8,
    start: u16,
    end: u16,
}

/// No field may come next.
const IRREGULAR: usize = usize::MAX;

/// One event's values. See the module.
///
/// In this order, so that what a small event touches lies together.
#[repr(C)]
pub(crate) struct Payload {
    len: usize,
    count: usize,
    /// Fields the call site declares, at most [`FIELDS`].
    declared: usize,
    /// Where the leading fields end.
    led: usize,
    /// Fields that are in `parts`: none while the signature tells where they are, then all.
    spelled: usize,
    signature: Signature,
    /// The least field that may come next in declared order; [`IRREGULAR`] when the signature does not
    /// tell the order: something came twice, late, or after the 32nd.
    next: usize,
    parts: [MaybeUninit<Part>; FIELDS],
    data: [MaybeUninit<u8>; CAPACITY],
}

impl Payload {
    /// Nothing yet, of the `declared` fields of a call site: at most [`FIELDS`].
    #[inline(always)]
    pub(crate) fn new(declared: usize) -> Self {
        Self {
            len: 0,
            count: 0,
            declared,
            led: 0,
            spelled: 0,
            signature: Signature::default(),
            next: 0,
            data: [MaybeUninit::uninit(); CAPACITY],
            parts: [MaybeUninit::uninit(); FIELDS],
        }
    }

    /// A leading field of the event's kind. Before all others.
    #[inline(always)]
    pub(crate) fn lead(&mut self, value: u64) {
        self.put(value.to_le_bytes());
        self.led = self.len;
    }

    #[inline]
    pub(crate) fn u64(&mut self, index: usize, value: u64) {
        self.fixed(index, Tag::U64, value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn i64(&mut self, index: usize, value: i64) {
        self.fixed(index, Tag::I64, value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn f64(&mut self, index: usize, value: f64) {
        self.fixed(index, Tag::F64, value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn bool(&mut self, index: usize, value: bool) {
        self.fixed(index, Tag::Bool, [u8::from(value)]);
    }

    pub(crate) fn bytes(&mut self, index: usize, value: &[u8]) {
        let Some(start) = self.open(index) else { return };
        let limit = self.limit();
        let room = limit.saturating_sub(self.len + 4);
        let cut = value.get(..room).unwrap_or(value);
        self.put((cut.len() as u32).to_le_bytes());
        self.copy(cut, limit);
        self.close(index, Tag::Bytes, start);
    }

    #[inline]
    pub(crate) fn str(&mut self, index: usize, value: &str) {
        let Some(start) = self.open(index) else { return };
        if value.len() > SURE.saturating_sub(self.len) {
            return self.str_slow(index, value);
        }
        self.put((value.len() as u32).to_le_bytes());
        self.copy(value.as_bytes(), CAPACITY);
        self.close(index, Tag::Str, start);
    }

    /// A text that may have to be cut.
    #[inline(never)]
    fn str_slow(&mut self, index: usize, value: &str) {
        self.text(index, |text| text.push(value));
    }

    /// Runs code of the user's.
    pub(crate) fn format(&mut self, index: usize, value: fmt::Arguments<'_>) {
        match value.as_str() {
            Some(literal) => self.str(index, literal),
            None => self.text(index, |text| text.run(value)),
        }
    }

    /// Runs code of the user's.
    pub(crate) fn debug(&mut self, index: usize, value: &dyn fmt::Debug) {
        self.text(index, |text| text.run(format_args!("{value:?}")));
    }

    #[inline]
    pub(crate) fn signature(&self) -> Option<Signature> {
        (self.next != IRREGULAR).then_some(self.signature)
    }

    /// Everything, in the order in which it came.
    #[inline]
    pub(crate) fn all(&self) -> &[u8] {
        // SAFETY: invariant 1: `put` and `copy` wrote every byte before `len`.
        unsafe { core::slice::from_raw_parts(self.data.as_ptr().cast::<u8>(), self.len) }
    }

    /// The leading fields: what comes before the first value.
    pub(crate) fn leading(&self) -> &[u8] {
        self.slice(0, self.led)
    }

    /// Where each value is. Only after [`spell_slow`](Self::spell_slow), or some may be missing.
    pub(crate) fn parts(&self) -> &[Part] {
        let init = self.parts.get(..self.spelled).unwrap_or_default();
        // SAFETY: invariant 2: `spell_one` wrote every part before `spelled`.
        unsafe { core::slice::from_raw_parts(init.as_ptr().cast::<Part>(), init.len()) }
    }

    pub(crate) fn value(&self, part: &Part) -> &[u8] {
        self.slice(part.start.into(), part.end.into())
    }

    fn slice(&self, start: usize, end: usize) -> &[u8] {
        let init =
            self.data.get(..self.len).and_then(|data| data.get(start..end)).unwrap_or_default();
        // SAFETY: invariant 1: `put` and `copy` wrote every byte before `len`.
        unsafe { core::slice::from_raw_parts(init.as_ptr().cast::<u8>(), init.len()) }
    }

    /// How far the value that is open may reach: the fields still to come have room behind it.
    fn limit(&self) -> usize {
        CAPACITY - ROOM * self.declared.saturating_sub(self.count + 1)
    }

    #[inline(always)]
    fn fixed<const N: usize>(&mut self, index: usize, tag: Tag, bytes: [u8; N]) {
        let Some(start) = self.open(index) else { return };
        if self.put(bytes) {
            self.close(index, tag, start);
        } else {
            self.irregular_slow();
        }
    }

    #[inline(always)]
    fn text(&mut self, index: usize, write: impl FnOnce(&mut Text<'_>)) {
        let Some(start) = self.open(index) else { return };
        let limit = self.limit();
        if limit < self.len + ROOM {
            self.irregular_slow();
            return;
        }
        self.put([0; 4]);
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
    #[inline(always)]
    fn open(&self, index: usize) -> Option<usize> {
        if index >= self.next && index < SIGNED || self.open_slow(index) {
            return Some(self.len);
        }
        None
    }

    /// Whether there is room for a value out of the declared order.
    #[cold]
    fn open_slow(&self, index: usize) -> bool {
        self.count < FIELDS && index < FIELDS
    }

    #[inline(always)]
    fn close(&mut self, index: usize, tag: Tag, start: usize) {
        if index >= self.next && index < SIGNED {
            self.signature.note(index, tag);
            self.next = index + 1;
            self.count += 1;
        } else {
            self.close_slow(index, tag, start);
        }
    }

    /// A value out of the declared order.
    #[cold]
    #[inline(never)]
    fn close_slow(&mut self, index: usize, tag: Tag, start: usize) {
        self.irregular_slow();
        self.spell_one(index, tag, start, self.len);
        self.count = self.spelled;
    }

    /// From now on the signature does not tell the order.
    #[cold]
    fn irregular_slow(&mut self) {
        self.spell_slow();
        self.next = IRREGULAR;
    }

    /// Finds out where each value is, for [`parts`](Self::parts).
    #[cold]
    pub(crate) fn spell_slow(&mut self) {
        if self.next == IRREGULAR {
            return;
        }
        self.spelled = 0;
        let mut start = self.led;
        for index in 0..SIGNED {
            let Some(tag) = self.signature.tag(index) else { continue };
            let len = match tag {
                Tag::Bool => 1,
                Tag::U64 | Tag::I64 | Tag::F64 => 8,
                Tag::Str | Tag::Bytes => {
                    let count = self.slice(start, start + 4).first_chunk::<4>();
                    4 + count.map_or(0, |count| u32::from_le_bytes(*count) as usize)
                }
            };
            self.spell_one(index, tag, start, start + len);
            start += len;
        }
    }

    fn spell_one(&mut self, index: usize, tag: Tag, start: usize, end: usize) {
        let Some(slot) = self.parts.get_mut(self.spelled) else { return };
        let (index, start, end) = (index as u16, start as u16, end as u16);
        *slot = MaybeUninit::new(Part { index, tag: tag as u8, start, end });
        self.spelled += 1;
    }

    /// Appends if there is room.
    #[inline(always)]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> bool {
        let room = self.data.get_mut(self.len..).and_then(<[_]>::first_chunk_mut::<N>);
        let Some(slot) = room else { return false };
        *slot = bytes.map(MaybeUninit::new);
        self.len += N;
        true
    }

    /// Appends if it ends before `limit`.
    #[inline(always)]
    fn copy(&mut self, bytes: &[u8], limit: usize) -> bool {
        let end = self.len + bytes.len();
        if end > limit {
            return false;
        }
        let Some(slot) = self.data.get_mut(self.len..end) else { return false };
        copy(bytes, slot);
        self.len = end;
        true
    }
}

/// Copies a text or a piece of one into as many bytes. Short ones, which most are, without a call: two
/// words that may overlap.
#[inline(always)]
fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    if from.len() <= 16 {
        if !(ends::<8>(from, to) || ends::<4>(from, to) || ends::<2>(from, to)) {
            ends::<1>(from, to);
        }
        return;
    }
    // SAFETY: `to` is writable bytes that nobody else has, no fewer than `from` has readable ones says
    // the minimum, and a unique borrow cannot overlap a shared one.
    unsafe {
        core::ptr::copy_nonoverlapping(
            from.as_ptr(),
            to.as_mut_ptr().cast::<u8>(),
            from.len().min(to.len()),
        );
    }
}

/// Copies the first and the last `N` bytes; `false` when there are fewer.
#[inline(always)]
fn ends<const N: usize>(from: &[u8], to: &mut [MaybeUninit<u8>]) -> bool {
    let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) else {
        return false;
    };
    if let Some(slot) = to.first_chunk_mut::<N>() {
        *slot = first.map(MaybeUninit::new);
    }
    if let Some(slot) = to.last_chunk_mut::<N>() {
        *slot = last.map(MaybeUninit::new);
    }
    true
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

    #[inline(always)]
    fn push(&mut self, text: &str) {
        if self.cut || !self.payload.copy(text.as_bytes(), self.limit) {
            self.cut_slow(text);
        }
    }

    /// The first piece that does not fit, as far as it does; nothing of those after it.
    #[cold]
    #[inline(never)]
    fn cut_slow(&mut self, text: &str) {
        if !self.cut {
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

    /// Quotes, commas and spaces come one by one.
    fn write_char(&mut self, char: char) -> fmt::Result {
        self.push(char.encode_utf8(&mut [0; 4]));
        Ok(())
    }
}

/// This thread is building a payload. Also over when it unwinds.
pub(crate) struct Building(());

impl Building {
    /// `None` when the thread is building too many already.
    #[inline(always)]
    pub(crate) fn enter() -> Option<Self> {
        // Not `then_some`: what that throws away ends what it has not begun.
        context::with(|context| context.begin_building(NESTED)).then(|| Self(()))
    }
}

impl Drop for Building {
    #[inline(always)]
    fn drop(&mut self) {
        context::with(context::Context::end_building);
    }
}
