//! Per-CPU counters.
//!
//! One slot of 128 bytes per possible CPU (two cache lines, because adjacent lines are fetched in
//! pairs), each with two banks of eight words:
//!
//! | bytes | bank | written by |
//! |---|---|---|
//! | 0..64 | rseq | restartable sequences of the slot's own CPU |
//! | 64..128 | atomic | threads without rseq, from anywhere |
//!
//! A counter is the sum of its word over all slots and both banks, modulo 2^64: single words may
//! well be "negative" where increments and decrements meet different CPUs.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use owlet_sys::memory::Mapping;
use owlet_sys::{Result, SysError};

use crate::arch::{portable, rseq};
use crate::backend::Hot;

/// Bytes of a slot.
pub const SLOT_SIZE: usize = 128;
/// Counters in a slot.
pub const WORDS: usize = 8;

/// Outcome of [`Slots::increment_if`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// Counted, and the index held the expected value in the same instant.
    Sequence,
    /// Counted by an atomic instruction, some time after the index was compared.
    Atomic,
    /// Not counted: the index holds another value.
    Moved,
}

/// The slots of some counters: a pointer whose memory somebody else keeps.
///
/// Adding is async-signal-safe and costs about half a nanosecond in the rseq backend.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    base: NonNull<u64>,
}

// SAFETY: the words are written by sequences and atomics and read by atomics only, from any thread.
unsafe impl Send for Slots {}
// SAFETY: as for Send.
unsafe impl Sync for Slots {}

impl Slots {
    /// Bytes that [`Slots::from_raw`] needs.
    #[must_use]
    pub fn bytes() -> usize {
        crate::cpus() * SLOT_SIZE
    }

    /// Counters on given memory.
    ///
    /// # Safety
    /// `base` is aligned to [`SLOT_SIZE`] and starts [`Slots::bytes`] bytes, zero at first, that live
    /// as long as the result or a copy of it is used and that only counters write.
    #[inline(always)]
    #[must_use]
    pub unsafe fn from_raw(base: NonNull<u64>) -> Self {
        Self { base }
    }

    /// Address of the slots.
    #[must_use]
    pub fn base(self) -> NonNull<u64> {
        self.base
    }

    /// Adds `n` to counter `word` (below [`WORDS`]; taken modulo it).
    ///
    /// Ordering: a release of the caller's earlier accesses, and a [`crate::fence::light`] fence.
    /// Without rseq it is a full barrier.
    #[inline(always)]
    pub fn add(self, word: usize, n: u64) {
        let at = self.word(word).cast();
        // SAFETY: `from_raw` promised a live slot for each of `cpus()` CPUs.
        if !unsafe { rseq::add::<0>(at, n) } {
            // SAFETY: a word of the first slot (`from_raw`).
            unsafe { add_atomic_slow(self.word(word), n) };
        }
    }

    /// Adds 1 to counter `word` if `index` holds `expected`.
    ///
    /// In the rseq backend comparison and increment are one ([`Entered::Sequence`]): once the index
    /// has changed and [`crate::fence::heavy_rseq`] has returned, nobody can add for the old value.
    /// A thread without rseq adds some time after it compared ([`Entered::Atomic`]).
    ///
    /// Ordering as of [`Slots::add`]; where it comes out [`Entered::Atomic`] it is a full barrier.
    #[inline(always)]
    pub fn increment_if(self, word: usize, index: &AtomicU32, expected: u32) -> Entered {
        let at = self.word(word).cast();
        // SAFETY: as in `add`.
        if unsafe { rseq::increment_if::<0>(at, index.as_ptr(), expected) } {
            return Entered::Sequence;
        }
        // SAFETY: a word of the first slot (`from_raw`).
        unsafe {
            increment_slow(self.word(word), move || index.load(Ordering::Relaxed) == expected)
        }
    }

    /// [`Slots::increment_if`] without slots: on the word whose copy for CPU 0 is `DISP` bytes behind
    /// `at`. Fewer instructions, for the place where that matters.
    ///
    /// # Safety
    /// `at + DISP` is a word of the first bank in the first slot of what [`Slots::from_raw`] wants.
    #[inline(always)]
    pub unsafe fn increment_at_if<const DISP: usize>(
        at: NonNull<u8>,
        index: &AtomicU32,
        expected: u32,
    ) -> Entered {
        // SAFETY: as in `add`, by the caller's word.
        if unsafe { rseq::increment_if::<DISP>(at.as_ptr(), index.as_ptr(), expected) } {
            return Entered::Sequence;
        }
        let word = at.as_ptr().wrapping_add(DISP).cast();
        // SAFETY: the caller's.
        unsafe { increment_slow(word, move || index.load(Ordering::Relaxed) == expected) }
    }

    /// [`Slots::increment_at_if`] for an index that is the lower half of a word, and for a caller who has
    /// a [`Hot`], of whatever time, in a register: two loads less.
    ///
    /// # Safety
    /// As [`Slots::increment_at_if`].
    #[inline(always)]
    pub unsafe fn increment_at_if_low<const DISP: usize>(
        hot: Hot,
        at: NonNull<u8>,
        word: &AtomicU64,
        expected: u32,
    ) -> Entered {
        // x86-64, where sequences are, is little-endian: the lower half comes first.
        let (first, low) = (at.as_ptr(), word.as_ptr().cast());
        // SAFETY: as in `add`, by the caller's word.
        if unsafe { rseq::increment_if_with::<DISP>(hot, first, low, expected) } {
            return Entered::Sequence;
        }
        let at = first.wrapping_add(DISP).cast();
        // SAFETY: the caller's.
        unsafe { increment_slow(at, move || word.load(Ordering::Relaxed) as u32 == expected) }
    }

    /// [`Slots::add`] of 1, likewise.
    ///
    /// # Safety
    /// As [`Slots::increment_at_if`].
    #[inline(always)]
    pub unsafe fn increment_at<const DISP: usize>(at: NonNull<u8>) {
        // SAFETY: as in `add`, by the caller's word.
        if !unsafe { rseq::increment::<DISP>(at.as_ptr()) } {
            // SAFETY: the caller's.
            unsafe { add_atomic_slow(at.as_ptr().wrapping_add(DISP).cast(), 1) };
        }
    }

    /// The counter's value, modulo 2^64. Neither atomic over the slots nor ordered: the caller
    /// knows which words still move, and has fences around it.
    #[must_use]
    pub fn sum(self, word: usize) -> u64 {
        let mut sum = 0_u64;
        for slot in 0..crate::cpus() {
            let first = self.word(word).wrapping_add(slot * SLOT_WORDS);
            for at in [first, first.wrapping_add(portable::BANK)] {
                // SAFETY: `from_raw` promised live, aligned words; sequences write them with
                // single aligned stores, so an atomic load sees a whole value.
                let value = unsafe { AtomicU64::from_ptr(at) };
                sum = sum.wrapping_add(value.load(Ordering::Relaxed));
                if portable::BANK == 0 {
                    break;
                }
            }
        }
        sum
    }

    /// Adds `n` to counter `word` in the atomic bank, whatever the backend. A full barrier.
    pub fn add_atomic(self, word: usize, n: u64) {
        // SAFETY: a word of the first slot (`from_raw`).
        unsafe { add_atomic_slow(self.word(word), n) };
    }

    /// Address of a word in the first slot.
    #[inline(always)]
    fn word(self, word: usize) -> *mut u64 {
        self.base.as_ptr().wrapping_add(word % WORDS)
    }
}

/// Adds `n` to the atomic twin of `word` in the slot of some CPU.
///
/// # Safety
/// `word` is a word of the first bank in the first of `cpus()` live slots.
#[inline(never)]
unsafe fn add_atomic_slow(word: *mut u64, n: u64) {
    let at = word_here(word);
    crate::testpoint::reached(crate::testpoint::Point::BeforeAtomicAdd);
    // SAFETY: in the first bank of a live slot (caller).
    unsafe { portable::add(at, n) };
}

/// # Safety
/// As [`add_atomic_slow`].
#[cold]
#[inline(never)]
unsafe fn increment_slow(word: *mut u64, as_expected: impl FnOnce() -> bool) -> Entered {
    if !as_expected() {
        return Entered::Moved;
    }
    let at = word_here(word);
    crate::testpoint::reached(crate::testpoint::Point::BeforeAtomicEntry);
    // SAFETY: in the first bank of a live slot (caller).
    unsafe { portable::add(at, 1) };
    Entered::Atomic
}

/// The same word in the slot of the present CPU.
fn word_here(word: *mut u64) -> *mut u64 {
    word.wrapping_add(crate::current_cpu() * SLOT_WORDS)
}

const SLOT_WORDS: usize = SLOT_SIZE / size_of::<u64>();

/// Adds 1 to a word of the calling thread's own, `DISP` bytes behind `base + at`: in one instruction, so
/// that a handler which does the same comes before it or after it, and neither increment is lost.
///
/// # Safety
/// The address is that of an aligned `u32` that lives and that no other thread writes.
#[inline(always)]
pub unsafe fn increment_own<const DISP: usize>(base: NonNull<u8>, at: usize) {
    // SAFETY: the caller's.
    unsafe { rseq::increment_own::<DISP>(base.as_ptr(), at) };
}

/// Eight counters with a slot per CPU, on memory of their own.
#[derive(Debug)]
pub struct PerCpuCounters {
    slots: Slots,
    _memory: Mapping,
}

impl PerCpuCounters {
    /// All counters zero.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let memory = Mapping::anonymous(Slots::bytes())?;
        let base = NonNull::new(memory.as_ptr().cast())
            .ok_or(SysError { call: "mmap", errno: libc::ENOMEM })?;
        // SAFETY: fresh zeroed pages of the right length, kept by `_memory`.
        let slots = unsafe { Slots::from_raw(base) };
        Ok(Self { slots, _memory: memory })
    }

    /// Adds `n` to counter `word` (below [`WORDS`]).
    #[inline(always)]
    pub fn add(&self, word: usize, n: u64) {
        self.slots.add(word, n);
    }

    /// The value of counter `word`, modulo 2^64; exact once nobody adds any more.
    #[must_use]
    pub fn sum(&self, word: usize) -> u64 {
        self.slots.sum(word)
    }

    /// The slots, borrowed.
    #[must_use]
    pub fn slots(&self) -> Slots {
        self.slots
    }
}
