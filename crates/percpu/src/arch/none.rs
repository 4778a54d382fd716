//! No restartable sequences: nothing ever commits, so the atomic bank is used.

use core::sync::atomic::AtomicU32;

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
pub(crate) unsafe fn increment_if<const DISP: usize>(_: *mut u8, _: &AtomicU32, _: u32) -> bool {
    false
}
