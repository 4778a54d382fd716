//! How many sections each thread is in, per domain and rank.
//!
//! Not needed for grace periods; needed to know, in a forked child, which of the inherited sections
//! are the surviving thread's own, and in debug builds to catch a thread that waits for itself.
//!
//! Thread-local, constant-initialised, without a destructor: usable in signal handlers, in thread
//! constructors and after thread-local destructors. Plain increments: a handler that interrupts one
//! leaves the count as it found it.
//!
//! # Invariants
//! 1. The count, begun less ended, is never less than the number of sections this thread has taken and not given back. It
//!    goes up before the entry is counted and down after the exit is.
//! 2. It may be more: between those instants; for a guard that was given back by another thread
//!    (`FOREIGN` then says so); and where two domains share a bucket.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

/// Domains that are told apart exactly.
pub(crate) const BUCKETS: u32 = 32;
const CELLS: usize = 2 * BUCKETS as usize;

/// Sections begun and ended, apart: one word that goes up and down in every section would be a chain
/// of two store-to-load forwards where each of these is one.
struct Marks {
    begun: [Cell<u32>; CELLS],
    ended: [Cell<u32>; CELLS],
    serial: Cell<u64>,
}

thread_local! {
    static MARKS: Marks = const {
        Marks {
            begun: [const { Cell::new(0) }; CELLS],
            ended: [const { Cell::new(0) }; CELLS],
            serial: Cell::new(0),
        }
    };
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
/// Guards given back by another thread than took them.
static FOREIGN: AtomicU64 = AtomicU64::new(0);
/// Serials below this belong to threads of a parent process, except `SURVIVOR`.
static FORK_MARK: AtomicU64 = AtomicU64::new(0);
static SURVIVOR: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// `at` is below `CELLS`.
#[inline(always)]
unsafe fn bump(cells: &[Cell<u32>; CELLS], at: u32) {
    // SAFETY: the caller's.
    let cell = unsafe { cells.get_unchecked(at as usize) };
    cell.set(cell.get().wrapping_add(1));
}

/// Before an entry.
///
/// # Safety
/// `at` is the index of a block: twice its bucket, plus the rank, so below `CELLS`.
#[inline(always)]
pub(crate) unsafe fn up(at: u32) {
    // SAFETY: the caller's.
    MARKS.with(|marks| unsafe { bump(&marks.begun, at) });
}

/// After an exit.
///
/// # Safety
/// As [`up`].
#[inline(always)]
pub(crate) unsafe fn down(at: u32) {
    // SAFETY: the caller's.
    MARKS.with(|marks| unsafe { bump(&marks.ended, at) });
}

/// Sections of this thread in a domain and rank (an upper bound).
pub(crate) fn count(at: u32) -> u32 {
    let of = |cells: &[Cell<u32>; CELLS]| cells.get(at as usize % CELLS).map_or(0, Cell::get);
    MARKS.with(|marks| of(&marks.begun).wrapping_sub(of(&marks.ended)))
}

/// A number that names this thread among all of the process's past and future ones, never 0.
#[inline(always)]
pub(crate) fn serial() -> u64 {
    let serial = MARKS.with(|m| m.serial.get());
    if serial == 0 { serial_slow() } else { serial }
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

/// Notes that a guard taken by the thread `serial` is given back by another. False if that thread
/// stayed behind in a parent process: its section was struck out at the fork and must not be counted
/// as ended again.
pub(crate) fn note_foreign(serial: u64) -> bool {
    if serial < FORK_MARK.load(Ordering::Relaxed) && serial != SURVIVOR.load(Ordering::Relaxed) {
        return false;
    }
    FOREIGN.fetch_add(1, Ordering::Relaxed);
    true
}

/// True if no guard has been given back by another thread: then counts are exact.
pub(crate) fn exact() -> bool {
    FOREIGN.load(Ordering::Relaxed) == 0
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
