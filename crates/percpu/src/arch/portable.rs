//! Per-CPU words by atomics.
//!
//! They live in the second bank of a slot (invariant 1 of the crate). The CPU number is only a
//! hint that keeps threads apart; any slot would do.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::counters::WORDS;

/// Distance in words from a word of the rseq bank to its twin in the atomic bank.
///
/// Mutant M21 puts both in one place: a plain increment then overwrites atomic ones.
pub(crate) const BANK: usize = if cfg!(owlet_mutant = "M21") { 0 } else { WORDS };

/// Adds `n` to the atomic twin of `word`, the rseq bank's word in the slot of some CPU.
///
/// # Safety
/// `word` points into the first bank of a live slot.
#[inline]
pub(crate) unsafe fn add(word: *mut u64, n: u64) {
    // SAFETY: the second bank lies `BANK` words behind the first, in the same slot.
    let twin = unsafe { word.add(BANK) };
    // SAFETY: aligned, live (caller), and only written by atomics (invariant 1 of the crate).
    let twin = unsafe { AtomicU64::from_ptr(twin) };
    // Relaxed: whoever needs order has light fences around the call.
    twin.fetch_add(n, Ordering::Relaxed);
}
