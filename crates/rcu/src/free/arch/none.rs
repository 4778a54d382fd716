//! No restartable sequences: nothing ever commits, so the banks behind a lock are used.

use super::{Swap, Words};
use crate::free::block::Block;
use crate::free::store::Store;

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn push<const KIND: usize>(_: *const Store, _: Words, _: u64) -> bool {
    false
}

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn swap<const KIND: usize>(_: *const Store, _: *mut Block) -> Swap {
    Swap::Closed
}

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn pull(_: *const Store) -> usize {
    0
}

/// As on machines that have it; never commits.
#[inline(always)]
pub(crate) unsafe fn offer(_: *const Store, _: *mut Block) -> Swap {
    Swap::Closed
}
