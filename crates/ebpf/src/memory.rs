//! Memory that programs and host share: plain bytes that anybody may read and write at any time.
//!
//! Programs access it with plain machine instructions, at the width they were compiled for. So that the
//! rest of the process may look, everything on this side goes through relaxed atomics of the widest
//! aligned piece: an aligned word of up to 8 bytes is never seen half-written, longer things may be.
//!
//! These are atomics of raw memory, which no model carries; the protocols between threads
//! ([`crate::map`]) have theirs in words of their own.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use owlet_sys::memory::Mapping;

use crate::error::Result;

/// Values of a map: `count` pieces of `size` bytes, `stride` apart, on zeroed pages of their own.
#[derive(Debug)]
pub(crate) struct Values {
    mapping: Mapping,
    pub(crate) stride: usize,
    pub(crate) count: usize,
    pub(crate) size: usize,
}

impl Values {
    /// Room for `count` values of `size` bytes. Neither is 0; the product was checked.
    pub(crate) fn new(count: usize, size: usize) -> Result<Self> {
        let stride = size.next_multiple_of(8);
        let mapping = Mapping::anonymous(stride.saturating_mul(count))?;
        // Best effort: a page that is missing costs a fault on its first use.
        let _ = mapping.populate(0, mapping.len());
        Ok(Self { mapping, stride, count, size })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Address of a value.
    pub(crate) fn at(&self, index: usize) -> Option<*mut u8> {
        (index < self.count).then(|| self.base().wrapping_add(index * self.stride))
    }

    /// Whether `len` bytes at `address` lie in one value.
    pub(crate) fn holds(&self, address: u64, len: usize) -> bool {
        let base = self.base().expose_provenance() as u64;
        let Some(offset) = address.checked_sub(base) else { return false };
        let Ok(offset) = usize::try_from(offset) else { return false };
        offset / self.stride < self.count && offset % self.stride + len <= self.size
    }
}

/// Reads `N` aligned-or-not bytes as a little-endian number, at most 8.
///
/// # Safety
/// `at` is valid for reads of `len` (1 to 8) bytes.
pub(crate) unsafe fn load(at: *const u8, len: usize) -> u64 {
    // Widths are powers of two: a mask, where a remainder would cost a division.
    let whole = at.addr() & len.wrapping_sub(1) == 0;
    match len {
        // SAFETY: the caller's range, aligned.
        8 if whole => unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) }.load(Relaxed),
        // SAFETY: as above.
        4 if whole => unsafe { AtomicU32::from_ptr(at.cast_mut().cast()) }.load(Relaxed).into(),
        // SAFETY: as above.
        2 if whole => unsafe { AtomicU16::from_ptr(at.cast_mut().cast()) }.load(Relaxed).into(),
        // SAFETY: the caller's range.
        _ => unsafe { load_bytes(at, len) },
    }
}

/// As [`load`], byte by byte.
///
/// # Safety
/// As [`load`].
unsafe fn load_bytes(at: *const u8, len: usize) -> u64 {
    let mut bytes = [0; 8];
    for (i, byte) in bytes.iter_mut().take(len).enumerate() {
        // SAFETY: `i < len`, by the caller's range.
        *byte = unsafe { AtomicU8::from_ptr(at.wrapping_add(i).cast_mut()) }.load(Relaxed);
    }
    u64::from_le_bytes(bytes)
}

/// Writes the lower `len` (1 to 8) bytes of `value`.
///
/// # Safety
/// `at` is valid for writes of `len` bytes.
pub(crate) unsafe fn store(at: *mut u8, len: usize, value: u64) {
    // Widths are powers of two: a mask, where a remainder would cost a division.
    let whole = at.addr() & len.wrapping_sub(1) == 0;
    match len {
        // SAFETY: the caller's range, aligned.
        8 if whole => unsafe { AtomicU64::from_ptr(at.cast()) }.store(value, Relaxed),
        // SAFETY: as above.
        4 if whole => unsafe { AtomicU32::from_ptr(at.cast()) }.store(value as u32, Relaxed),
        // SAFETY: as above.
        2 if whole => unsafe { AtomicU16::from_ptr(at.cast()) }.store(value as u16, Relaxed),
        // SAFETY: the caller's range.
        _ => unsafe { store_bytes(at, len, value) },
    }
}

/// As [`store`], byte by byte.
///
/// # Safety
/// As [`store`].
unsafe fn store_bytes(at: *mut u8, len: usize, value: u64) {
    for (i, byte) in value.to_le_bytes().into_iter().take(len).enumerate() {
        // SAFETY: `i < len`, by the caller's range.
        unsafe { AtomicU8::from_ptr(at.wrapping_add(i)) }.store(byte, Relaxed);
    }
}

/// Copies `len` bytes by words.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(8);
        // SAFETY: `done + piece <= len`, the caller's range.
        let word = unsafe { load(from.wrapping_add(done), piece) };
        // SAFETY: as above.
        unsafe { store(to.wrapping_add(done), piece, word) };
        done += piece;
    }
}

/// Writes zeros.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
pub(crate) unsafe fn clear(to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(8);
        // SAFETY: `done + piece <= len`, the caller's range.
        unsafe { store(to.wrapping_add(done), piece, 0) };
        done += piece;
    }
}

/// Copies into a slice of our own.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes.
pub(crate) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller's; a slice is valid for writes of its length.
    unsafe { copy(from, to.as_mut_ptr(), to.len()) };
}
