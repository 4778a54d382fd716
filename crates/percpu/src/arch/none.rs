//! No restartable sequences: nothing ever commits, so the atomic bank is used.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::backend::Hot;

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn add<const DISP: usize>(_: *mut u8, _: u64) -> bool {
    false
}

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn increment<const DISP: usize>(_: *mut u8) -> bool {
    false
}

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn increment_if<const DISP: usize>(_: *mut u8, _: *const u32, _: u32) -> bool {
    false
}

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn increment_if_with<const DISP: usize>(
    _: Hot,
    _: *mut u8,
    _: *const u32,
    _: u32,
) -> bool {
    false
}

/// `*(base + at + DISP) += 1`, atomically: no other way is known to be one instruction.
///
/// # Safety
/// The address is that of an aligned word of this thread's own.
#[inline(always)]
pub(crate) unsafe fn increment_own<const DISP: usize>(base: *mut u8, at: usize) {
    // SAFETY: the caller's.
    let word = unsafe { AtomicU32::from_ptr(base.wrapping_add(at + DISP).cast()) };
    word.fetch_add(1, Ordering::Relaxed);
}
