//! No restartable sequences: another processor, or `cfg(owlet_portable)`.

use super::{Outcome, Rings};

/// See `x86_64.rs`.
pub(crate) const SEQUENCES: bool = false;

/// See `x86_64.rs`.
#[derive(Clone, Copy)]
pub(crate) struct Part;

impl Part {
    pub(crate) fn new(_: &[u8]) -> Self {
        Self
    }
}

/// Pushes nothing: the caller takes the portable way.
///
/// # Safety
/// None needed; the signature is that of `x86_64.rs`.
#[inline(always)]
pub(crate) unsafe fn push_words(
    _: &Rings,
    _: usize,
    _: [u64; 2],
    _: *const u8,
    _: usize,
    _: u64,
) -> Outcome {
    Outcome::NoCpu
}

/// Pushes nothing: the caller takes the portable way.
///
/// # Safety
/// None needed; the signature is that of `x86_64.rs`.
pub(crate) unsafe fn push_parts(_: &Rings, _: usize, _: [u64; 2], _: &[Part]) -> Outcome {
    Outcome::NoCpu
}
