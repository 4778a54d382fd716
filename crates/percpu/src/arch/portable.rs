//! Per-CPU words by atomics.
//!
//! They live in the second bank of a slot (invariant 1 of the crate). The CPU number is only a
//! hint that keeps threads apart; any slot would do.

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use crate::counters::WORDS;

/// Distance in words from a word of the rseq bank to its twin in the atomic bank.
///
/// Mutant M21 puts both in one place: a plain increment then overwrites atomic ones.
pub(crate) const BANK: usize = if cfg!(owlet_mutant = "M21") { 0 } else { WORDS };

/// Adds `n` to the atomic twin of `word`, the rseq bank's word in the slot of some CPU. A full
/// barrier: earlier accesses are before it, later ones behind it.
///
/// # Safety
/// `word` points into the first bank of a live slot.
#[inline]
pub(crate) unsafe fn add(word: *mut u64, n: u64) {
    // SAFETY: the second bank lies `BANK` words behind the first, in the same slot.
    let twin = unsafe { word.add(BANK) };
    // SAFETY: aligned, live (caller), and only written by atomics (invariant 1 of the crate).
    let twin = unsafe { AtomicU64::from_ptr(twin) };
    // SeqCst and the fence: see `full_fence`.
    twin.fetch_add(n, Ordering::SeqCst);
    full_fence();
}

/// Makes the atomic increment before it a full barrier, so that threads of the atomic bank carry
/// both halves of their fences themselves and no heavy fence has to reach them.
///
/// On x86-64 a locked instruction is one already; elsewhere an RMW need not be.
#[inline(always)]
fn full_fence() {
    if cfg!(target_arch = "x86_64") {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}
