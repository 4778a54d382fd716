//! No restartable sequences: nothing ever commits, so the atomic bank is used.

use core::sync::atomic::AtomicU32;

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn add(_: *mut u64, _: u64) -> bool {
    false
}

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn increment_if(_: *mut u64, _: &AtomicU32, _: u32) -> bool {
    false
}
