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
//! 1. `HELD` is never less than the number of sections this thread has taken and not given back. It
//!    goes up before the entry is counted and down after the exit is.
//! 2. It may be more: between those instants; for a guard that was given back by another thread
//!    (`FOREIGN` then says so); and where two domains share a bucket.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

/// Domains that are told apart exactly.
pub(super) const BUCKETS: u32 = 32;
const CELLS: usize = 2 * BUCKETS as usize;

thread_local! {
    static HELD: [Cell<u32>; CELLS] = const { [const { Cell::new(0) }; CELLS] };
    static SERIAL: Cell<u64> = const { Cell::new(0) };
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
/// Guards given back by another thread than took them.
static FOREIGN: AtomicU64 = AtomicU64::new(0);
/// Serials below this belong to threads of a parent process, except `SURVIVOR`.
static FORK_MARK: AtomicU64 = AtomicU64::new(0);
static SURVIVOR: AtomicU64 = AtomicU64::new(0);

#[inline(always)]
fn cell(base: u32, rank: u32, f: impl FnOnce(&Cell<u32>)) {
    HELD.with(|held| {
        let at = (base.wrapping_add(rank) as usize) % CELLS;
        if let Some(cell) = held.get(at) {
            f(cell);
        }
    });
}

/// Before an entry. `base` is twice the domain's bucket.
#[inline(always)]
pub(super) fn up(base: u32, rank: u32) {
    cell(base, rank, |c| c.set(c.get().wrapping_add(1)));
}

/// After an exit.
#[inline(always)]
pub(super) fn down(base: u32, rank: u32) {
    cell(base, rank, |c| c.set(c.get().wrapping_sub(1)));
}

/// Sections of this thread in a domain and rank (an upper bound).
pub(super) fn count(base: u32, rank: u32) -> u32 {
    let mut n = 0;
    cell(base, rank, |c| n = c.get());
    n
}

/// A number that names this thread among all of the process's past and future ones, never 0.
#[inline(always)]
pub(super) fn serial() -> u64 {
    let serial = SERIAL.with(Cell::get);
    if serial == 0 { serial_slow() } else { serial }
}

#[cold]
#[inline(never)]
fn serial_slow() -> u64 {
    SERIAL.with(|s| {
        let mine = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        // A handler between the two lines takes a number that nobody then has: harmless.
        s.set(mine);
        mine
    })
}

/// Notes that a guard taken by the thread `serial` is given back by another. False if that thread
/// stayed behind in a parent process: its section was struck out at the fork and must not be counted
/// as ended again.
pub(super) fn note_foreign(serial: u64) -> bool {
    if serial < FORK_MARK.load(Ordering::Relaxed) && serial != SURVIVOR.load(Ordering::Relaxed) {
        return false;
    }
    FOREIGN.fetch_add(1, Ordering::Relaxed);
    true
}

/// True if no guard has been given back by another thread: then counts are exact.
pub(super) fn exact() -> bool {
    FOREIGN.load(Ordering::Relaxed) == 0
}

/// In a forked child, on its only thread.
pub(super) fn mark_fork() {
    SURVIVOR.store(SERIAL.with(Cell::get), Ordering::Relaxed);
    FORK_MARK.store(NEXT_SERIAL.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// An address that names this thread among the living ones and stays the same over fork.
pub(super) fn identity() -> usize {
    HELD.with(|held| held.as_ptr().addr())
}
