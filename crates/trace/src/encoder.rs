//! Building one event's payload without allocating.
//!
//! An [`Encoder`] is 512 bytes of scratch and up to 15 *external parts*: long text and bytes are
//! not copied here but referenced, and the ring copies them once, straight into the record. Both
//! live on the stack of the emitting function, so that an event may be emitted from a signal
//! handler or while the allocator is busy.
//!
//! # Invariants
//! 1. `used <= SCRATCH`, and `scratch[..used]` is initialised.
//! 2. `externals <= PARTS`, and `parts[..externals]` is initialised; their `at` never decreases and
//!    never exceeds `used`.
//! 3. What does not fit sets `overflow` and is left out; the event is then refused as a whole and
//!    counted as too large. An event is never recorded in part.

use core::mem::MaybeUninit;
use owlet_wire::schema::DynTag;

/// Bytes of an event's payload that are copied through the stack.
pub const SCRATCH: usize = 512;
/// Texts, byte strings and arrays of one event that may be longer than [`INLINE`].
pub const PARTS: usize = 15;
/// Text and bytes up to this length are copied into the scratch at once.
pub const INLINE: usize = 64;
/// Bytes after which the end of a raw C string is no longer looked for.
pub const CSTR_MAX: usize = 4096;

#[derive(Clone, Copy)]
struct External<'a> {
    /// How much of the scratch comes before it.
    at: usize,
    bytes: &'a [u8],
}

/// One event's payload while it is being put together.
///
/// Cost: stores into the stack. Signal safety: every method is async-signal-safe.
pub struct Encoder<'a> {
    used: usize,
    externals: usize,
    overflow: bool,
    scratch: [MaybeUninit<u8>; SCRATCH],
    parts: [MaybeUninit<External<'a>>; PARTS],
}

impl Default for Encoder<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Encoder<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Encoder")
            .field("len", &self.len())
            .field("overflow", &self.overflow)
            .finish()
    }
}

impl<'a> Encoder<'a> {
    /// An empty payload.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            used: 0,
            externals: 0,
            overflow: false,
            scratch: [MaybeUninit::uninit(); SCRATCH],
            parts: [MaybeUninit::uninit(); PARTS],
        }
    }

    /// Whether something did not fit. Such an event is counted as too large, never recorded.
    #[inline(always)]
    #[must_use]
    pub const fn overflowed(&self) -> bool {
        self.overflow
    }

    /// Appends `bytes` as they are.
    #[inline(always)]
    pub fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(slot) = self.scratch.get_mut(self.used..).and_then(<[_]>::first_chunk_mut::<N>)
        {
            *slot = bytes.map(MaybeUninit::new);
            self.used += N;
        } else {
            self.overflow = true;
        }
    }

    /// Appends a count and the bytes: the encoding of text and bytes.
    ///
    /// Up to [`INLINE`] bytes are copied now. Longer ones are copied when the event is recorded,
    /// exactly as many bytes as counted here, whatever happens to them in between.
    #[inline]
    pub fn counted(&mut self, bytes: &'a [u8]) {
        match u32::try_from(bytes.len()) {
            Ok(len) => self.put(len.to_le_bytes()),
            Err(_) => self.overflow = true,
        }
        self.raw(bytes);
    }

    /// Appends the bytes of a scalar array, without a count.
    #[inline]
    pub fn raw(&mut self, bytes: &'a [u8]) {
        if bytes.len() > INLINE
            && let Some(part) = self.parts.get_mut(self.externals)
        {
            *part = MaybeUninit::new(External { at: self.used, bytes });
            self.externals += 1;
        } else {
            self.copy(bytes);
        }
    }

    /// Appends a copy of `bytes`, which may go away afterwards.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) {
        let room = self.scratch.get_mut(self.used..).and_then(|s| s.get_mut(..bytes.len()));
        let Some(slot) = room else {
            self.overflow = true;
            return;
        };
        // SAFETY: `slot` is `bytes.len()` writable bytes of our own, `bytes` as many readable ones,
        // and a unique borrow cannot overlap a shared one.
        unsafe {
            core::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                slot.as_mut_ptr().cast::<u8>(),
                bytes.len(),
            );
        }
        self.used += bytes.len();
    }

    /// A `Dynamic` field that was not recorded.
    #[inline]
    pub fn dyn_absent(&mut self) {
        self.put([DynTag::Absent as u8]);
    }

    /// A `Dynamic` field holding a `u64`.
    #[inline]
    pub fn dyn_u64(&mut self, value: u64) {
        self.put([DynTag::U64 as u8]);
        self.put(value.to_le_bytes());
    }

    /// A `Dynamic` field holding an `i64`.
    #[inline]
    pub fn dyn_i64(&mut self, value: i64) {
        self.put([DynTag::I64 as u8]);
        self.put(value.to_le_bytes());
    }

    /// A `Dynamic` field holding an `f64`.
    #[inline]
    pub fn dyn_f64(&mut self, value: f64) {
        self.put([DynTag::F64 as u8]);
        self.put(value.to_le_bytes());
    }

    /// A `Dynamic` field holding a `bool`.
    #[inline]
    pub fn dyn_bool(&mut self, value: bool) {
        self.put([DynTag::Bool as u8, u8::from(value)]);
    }

    /// A `Dynamic` field holding text.
    #[inline]
    pub fn dyn_str(&mut self, value: &'a str) {
        self.put([DynTag::Str as u8]);
        self.counted(value.as_bytes());
    }

    /// A `Dynamic` field holding bytes.
    #[inline]
    pub fn dyn_bytes(&mut self, value: &'a [u8]) {
        self.put([DynTag::Bytes as u8]);
        self.counted(value);
    }

    /// Bytes of the payload so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.externals().iter().fold(self.used, |sum, part| sum.saturating_add(part.bytes.len()))
    }

    /// Whether nothing was appended yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `f` with the payload in pieces, in order.
    #[inline(always)]
    pub fn with_parts<R>(&self, f: impl FnOnce(&[&[u8]]) -> R) -> R {
        if self.externals == 0 {
            return f(&[self.scratch()]);
        }
        self.with_parts_slow(f)
    }

    #[cold]
    fn with_parts_slow<R>(&self, f: impl FnOnce(&[&[u8]]) -> R) -> R {
        let mut pieces: [&[u8]; 2 * PARTS + 1] = [&[]; 2 * PARTS + 1];
        let (mut from, mut count) = (0, 0);
        let mut push = |piece| {
            if let Some(slot) = pieces.get_mut(count) {
                *slot = piece;
                count += 1;
            }
        };
        for part in self.externals() {
            push(self.scratch().get(from..part.at).unwrap_or_default());
            push(part.bytes);
            from = part.at;
        }
        push(self.scratch().get(from..).unwrap_or_default());
        f(pieces.get(..count).unwrap_or_default())
    }

    /// Copies the payload into `buf`; `None` when it does not fit.
    #[must_use]
    pub fn flatten<'b>(&self, buf: &'b mut [u8]) -> Option<&'b [u8]> {
        let len = self.with_parts(|parts| {
            let mut at = 0usize;
            for part in parts {
                buf.get_mut(at..)?.get_mut(..part.len())?.copy_from_slice(part);
                at += part.len();
            }
            Some(at)
        })?;
        buf.get(..len)
    }

    #[inline(always)]
    fn scratch(&self) -> &[u8] {
        let init = self.scratch.get(..self.used).unwrap_or_default();
        // SAFETY: invariant 1: every byte before `used` was written by `put` or `copy`.
        unsafe { core::slice::from_raw_parts(init.as_ptr().cast::<u8>(), init.len()) }
    }

    #[inline(always)]
    fn externals(&self) -> &[External<'a>] {
        let init = self.parts.get(..self.externals).unwrap_or_default();
        // SAFETY: invariant 2: every part before `externals` was written by `raw`.
        unsafe { core::slice::from_raw_parts(init.as_ptr().cast::<External<'a>>(), init.len()) }
    }
}
