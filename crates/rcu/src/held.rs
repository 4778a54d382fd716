//! How many sections each thread is in, per domain and rank.
//!
//! Not needed for grace periods; needed to know, in a forked child, which of the inherited sections
//! are the surviving thread's own, and in debug builds to catch a thread that waits for itself.
//!
//! Thread-local, constant-initialised, without a destructor: usable in signal handlers, in thread
//! constructors and after thread-local destructors. Each increment is one instruction
//! ([`owlet_percpu::increment_own`]): a handler that takes sections comes before it or after it. (A load
//! and a store would lose what a handler between them began, but not what it ended.)
//!
//! # Near and far
//! The first [`BUCKETS`] domains are *near*: their counts are in the thread-local area itself, at the
//! byte their index names. Domains beyond are *far*: their counts are in pages that a thread gets
//! when it first enters one, found by the domain's number; readers of such domains take the slow
//! path. The pages of a thread that has ended are used again by the next.
//!
//! # Invariants
//! 1. The count, begun less ended, is never less than the number of sections this thread has taken
//!    and not given back. It goes up before the entry is counted and down after the exit is.
//! 2. It may be more: between those instants, and for guards that another thread gave back. Those are
//!    counted apart ([`note_foreign`]) and subtracted by [`count`], unless there are too many to keep.

use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

mod far;
mod foreign;

pub(crate) use far::{down as far_down, up as far_up};
pub(crate) use foreign::note as note_foreign;

/// Domains whose counts are in the thread-local area.
pub(crate) const BUCKETS: u32 = 64;
/// Bytes of a near domain's counts: begun and ended, for each of two ranks.
const BUCKET: u32 = 16;
const CELLS: usize = (BUCKETS * BUCKET) as usize / size_of::<u32>();

/// Indices, which are SRCU's tokens, are below this.
pub(crate) const TOKENS: u32 = BUCKETS * BUCKET;

/// The bit of an index that is the rank. Indices are multiples of it.
pub(crate) const RANK: u32 = 8;

/// The index of domain number `id` with rank 0. The byte in the thread-local area where the sections
/// begun in that rank are counted, with those ended behind it; far domains only use the rank.
pub(crate) fn index(id: u32) -> u32 {
    if is_near(id) { id * BUCKET } else { 0 }
}

/// True if domain number `id` has its counts in the thread-local area.
pub(crate) fn is_near(id: u32) -> bool {
    id < BUCKETS
}

/// Sections begun and ended, apart: one word that goes up and down in every section would be a chain
/// of two store-to-load forwards where each of these is one.
#[repr(C, align(16))]
struct Marks {
    near: [AtomicU32; CELLS],
    serial: Cell<u64>,
    far: far::Pages,
}

thread_local! {
    static MARKS: Marks = const {
        Marks {
            near: [const { AtomicU32::new(0) }; CELLS],
            serial: Cell::new(0),
            far: far::Pages::new(),
        }
    };
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
/// Serials below this belong to threads of a parent process, except `SURVIVOR`.
static FORK_MARK: AtomicU64 = AtomicU64::new(0);
static SURVIVOR: AtomicU64 = AtomicU64::new(0);

/// Sections ended are counted that many bytes behind those begun.
const ENDED: usize = size_of::<u32>();

/// # Safety
/// `index` is the index of a near domain; `DISP` is 0 or [`ENDED`].
#[inline(always)]
unsafe fn bump<const DISP: usize>(index: u32) {
    MARKS.with(|marks| {
        let base = NonNull::from(&marks.near).cast();
        // SAFETY: inside the array (caller), which is this thread's.
        unsafe { owlet_percpu::increment_own::<DISP>(base, index as usize) };
    });
}

/// Before an entry.
///
/// # Safety
/// `index` is the index of a near domain.
#[inline(always)]
pub(crate) unsafe fn up(index: u32) {
    // SAFETY: the caller's.
    unsafe { bump::<0>(index) };
}

/// After an exit.
///
/// # Safety
/// As [`up`].
#[inline(always)]
pub(crate) unsafe fn down(index: u32) {
    // SAFETY: the caller's.
    unsafe { bump::<ENDED>(index) };
}

/// Sections of this thread in domain number `id`, in the rank of `index` (an upper bound).
pub(crate) fn count(id: u32, index: u32) -> u32 {
    let rank = index & RANK;
    MARKS.with(|marks| {
        let count = if is_near(id) {
            let at = ((id * BUCKET + rank) / 4) as usize;
            let of =
                |at: usize| marks.near.get(at).map_or(0, |count| count.load(Ordering::Relaxed));
            of(at).wrapping_sub(of(at + 1))
        } else {
            marks.far.count(id, rank)
        };
        count.saturating_sub(foreign::count(marks.serial.get(), id, rank))
    })
}

/// A number that names this thread among all of the process's past and future ones, never 0.
#[inline(always)]
pub(crate) fn serial() -> u64 {
    let serial = MARKS.with(|m| m.serial.get());
    if serial == 0 { serial_slow() } else { serial }
}

/// True if this thread is the one that [`serial`] named `serial`.
#[inline(always)]
pub(crate) fn is_mine(serial: u64) -> bool {
    MARKS.with(|m| m.serial.get()) == serial
}

#[cold]
#[inline(never)]
fn serial_slow() -> u64 {
    MARKS.with(|marks| {
        let mine = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        // A handler between the two lines takes a number that nobody then has: harmless.
        marks.serial.set(mine);
        mine
    })
}

/// True if the thread `serial` stayed behind in a parent process: its sections were struck out at the
/// fork and must not be counted as ended again.
pub(crate) fn stayed_behind(serial: u64) -> bool {
    serial < FORK_MARK.load(Ordering::Relaxed) && serial != SURVIVOR.load(Ordering::Relaxed)
}

/// In a forked child, on its only thread.
pub(crate) fn mark_fork() {
    SURVIVOR.store(MARKS.with(|m| m.serial.get()), Ordering::Relaxed);
    FORK_MARK.store(NEXT_SERIAL.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// An address that names this thread among the living ones and stays the same over fork.
pub(crate) fn identity() -> usize {
    MARKS.with(|marks| core::ptr::from_ref(marks).addr())
}

#[cfg(test)]
mod tests;
