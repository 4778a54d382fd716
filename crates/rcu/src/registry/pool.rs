//! Where chunks come from, and whose records they hold.
//!
//! Chunks are mapped when no record is free, linked into one list of all chunks for ever, and go
//! from domain to domain. The list of all is what a forked child walks.
//!
//! | `used` | meaning | who moves it on |
//! |---|---|---|
//! | 0 | free, all its records too | [`take`], to 1 |
//! | 1 | in a domain's list, or on its way there | [`List::give_up`], to 0 if its records are free; else it stays, leaked |

use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;

use owlet_sys::memory::Mapping;
use owlet_sys::process;

use super::{Chunk, List, Record};
use crate::quiescent::{Fences, Letter};

/// A chunk's place among all.
#[derive(Debug)]
pub(super) struct Link {
    next: AtomicPtr<Chunk>,
    used: AtomicU32,
}

const _: () = assert!(size_of::<Chunk>() == 4096, "a chunk is a page");

static ALL: AtomicPtr<Chunk> = AtomicPtr::new(core::ptr::null_mut());

/// The machine's own barriers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real;

impl Fences for Real {
    #[inline(always)]
    fn full(&self, _: Letter) {
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn release(&self, _: Letter) {
        core::sync::atomic::fence(Ordering::Release);
    }

    #[inline(always)]
    fn acquire(&self, _: Letter) {
        core::sync::atomic::fence(Ordering::Acquire);
    }
}

thread_local! {
    /// The thread's number for the kernel when it last registered; its address names the thread.
    static ME: Cell<u32> = const { Cell::new(0) };
}

/// An address that names this thread among the living ones and stays the same over fork.
pub(crate) fn identity() -> usize {
    ME.with(|me| core::ptr::from_ref(me).addr())
}

impl List {
    /// Registers the calling thread.
    pub(crate) fn register(&self) -> &'static Record {
        let record = self.claim(identity(), &Real, take);
        let tid = process::gettid();
        record.set_tid(tid);
        ME.with(|me| me.set(tid));
        record
    }

    /// Lets the chunks of a domain that is no more be used by others. Nobody walks the list any more.
    pub(crate) fn give_up(&self) {
        let mut at = self.head.swap(core::ptr::null_mut(), Ordering::Acquire);
        // SAFETY: null, or a chunk in the list; never unmapped (invariant 1).
        while let Some(chunk) = unsafe { at.as_ref() } {
            at = chunk.next.load(Ordering::Acquire);
            if chunk.records.iter().all(|record| record.owner() == 0) {
                chunk.pool.used.store(0, Ordering::Release);
            }
        }
    }
}

/// All chunks ever mapped.
fn all() -> impl Iterator<Item = &'static Chunk> {
    let mut at = ALL.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: null, or a chunk that `link` put there; never unmapped (invariant 1).
        let chunk = unsafe { at.as_ref() }?;
        at = chunk.pool.next.load(Ordering::Acquire);
        Some(chunk)
    })
}

/// A chunk that is in no list, its records free. Waits for memory if there is none: a thread that is
/// not registered must not read, so there is nothing right to do without.
fn take() -> &'static Chunk {
    let free = |chunk: &&Chunk| {
        let used = &chunk.pool.used;
        used.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    if let Some(chunk) = all().find(free) {
        return chunk;
    }
    loop {
        if let Ok(memory) = Mapping::anonymous(size_of::<Chunk>()) {
            return link(memory);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn link(memory: Mapping) -> &'static Chunk {
    let at = memory.leak().cast::<Chunk>().as_ptr();
    // SAFETY: fresh zeroed pages, aligned to a page and long enough, never unmapped; all zero is a
    // chunk in no list with free records.
    let chunk = unsafe { &*at };
    chunk.pool.used.store(1, Ordering::Relaxed);
    let mut first = ALL.load(Ordering::Relaxed);
    loop {
        chunk.pool.next.store(first, Ordering::Relaxed);
        match ALL.compare_exchange_weak(first, at, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return chunk,
            Err(now) => first = now,
        }
    }
}

/// In a forked child, on its only thread: the registrations of threads that stayed behind end; those
/// of this thread go on, under its new number.
pub(crate) fn prune() {
    let me = identity();
    let was = ME.with(Cell::get);
    let now = process::gettid();
    for record in all().flat_map(|chunk| &chunk.records) {
        let owner = record.owner();
        // A thread that has ended may have left its address to this one, but not its number. A
        // record without number is being claimed: by this thread, if it forked in a handler.
        if owner == me && (record.tid() == was || record.tid() == 0) {
            record.set_tid(now);
        } else if owner != 0 {
            record.give_back(&Real);
        }
    }
    ME.with(|me| me.set(now));
}

impl Record {
    /// True if the calling thread registered. A thread that has ended without giving its record back may
    /// have left its address to this one, but not its number.
    pub(crate) fn is_mine(&self) -> bool {
        self.owner() == identity() && self.tid() == ME.with(Cell::get)
    }

    /// True if the thread that registered has ended without giving the record back. A system call.
    pub(crate) fn is_orphan(&self) -> bool {
        let tid = self.tid();
        tid != 0 && process::thread_is_gone(tid) && self.tid() == tid
    }

    /// Ends the registration of a thread that has ended.
    pub(crate) fn bury(&self) {
        self.mark.clear();
        self.give_back(&Real);
    }
}
