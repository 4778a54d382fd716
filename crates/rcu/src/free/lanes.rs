//! One CPU's part of a store: the blocks being filled, and the queue of those that wait.
//!
//! A lane has two *banks* of open blocks, one for each kind: the first is written by restartable
//! sequences of the lane's own CPU, the other under a lock that nobody waits for. They share no word.
//!
//! | word | written by | meaning |
//! |---|---|---|
//! | `frozen` | the store's freezer | not 0: sequences leave the lane alone |
//! | `open` | sequences; the freezer while `frozen` | the first bank's open blocks |
//! | `ready` | the same | a block of addresses of memory to be used again (`reuse`) |
//! | `Bank::lock` | whoever comes | `identity` of the thread that has the bank |
//! | `Bank::open` | its owner | the other bank's |
//! | `queue` | see `queue` | closed blocks |
//!
//! # Taking another CPU's open block
//! `frozen`, then a heavy fence that restarts sequences: whoever was in one has committed before, and is
//! seen, or starts again and finds the lane frozen. Then the word is the freezer's; then it thaws the
//! lane.
//!
//! | letter | where | what |
//! |---|---|---|
//! | `[F3]` | [`Lane::freeze`], then the heavy fence | every sequence has committed or sees `frozen` |
//! | `[F4]` | [`Lane::thaw`] | release: the freezer's store of `open` before sequences run again |
//! | `[F5]` | `Bank::lock` | full at taking it: the stamp is looked at after what was unpublished; release: the block as its owner left it |
//!
//! # Invariants
//! 1. An open block is put into by whoever may write its bank, and by nobody else; who takes it out of
//!    the bank has it to itself.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

use super::arch::Words;
use super::block::{Block, KINDS};
use super::queue::Queue;

/// Bytes of a lane, as a shift.
pub(crate) const SHIFT: u32 = 8;

/// See the module's header.
#[repr(C, align(256))]
#[derive(Debug)]
pub(crate) struct Lane {
    pub(super) frozen: AtomicU32,
    pub(super) open: [AtomicPtr<Block>; KINDS],
    pub(super) ready: AtomicPtr<Block>,
    pub(super) bank: Bank,
    pub(super) queue: Shelf,
}

/// A queue on lines of its own.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct Shelf(pub(super) Queue);

const _: () = assert!(size_of::<Lane>() == 1 << SHIFT, "SHIFT is right");

/// Open blocks behind a lock.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Bank {
    lock: AtomicUsize,
    open: [AtomicPtr<Block>; KINDS],
}

/// What became of an object for a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Banked {
    Done,
    /// There is no open block, or a full one.
    NoRoom,
}

impl Lane {
    /// Sequences leave the lane alone from now on, once a heavy fence has been had.
    pub(super) fn freeze(&self) {
        // [F3] with the heavy fence that follows: pairs with the sequence's look at `frozen`. Without
        // the fence: a sequence in flight puts an object into a block that has been taken.
        self.frozen.store(1, Ordering::Release);
    }

    /// Takes an open block out of a frozen lane.
    pub(super) fn take(&self, kind: usize) -> *mut Block {
        self.open.get(kind).map_or(core::ptr::null_mut(), take)
    }

    /// Takes the memory to be used again out of a frozen lane.
    pub(super) fn take_ready(&self) -> *mut Block {
        take(&self.ready)
    }

    /// Sequences may run again.
    pub(super) fn thaw(&self) {
        // [F4] Release: pairs with the sequence's look at `frozen`, an acquire as every load on x86-64.
        self.frozen.store(0, Ordering::Release);
    }
}

fn take(place: &AtomicPtr<Block>) -> *mut Block {
    let old = place.load(Ordering::Acquire);
    place.store(core::ptr::null_mut(), Ordering::Relaxed);
    old
}

/// A bank that is ours for the moment.
pub(super) struct Owned<'b>(&'b Bank);

impl Bank {
    /// The bank, unless somebody else has it.
    pub(super) fn try_lock(&self, me: usize) -> Option<Owned<'_>> {
        // [F5] full: pairs with the leader's [E], as a snapshot's [L] does: what the caller has
        // unpublished is so before the stamp is looked at.
        let got = self.lock.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed);
        got.ok()?;
        if !cfg!(target_arch = "x86_64") {
            fence(Ordering::SeqCst);
        }
        Some(Owned(self))
    }

    /// In a forked child: an owner that stayed behind has it no longer.
    pub(super) fn inherit(&self, me: usize) {
        let owner = self.lock.load(Ordering::Relaxed);
        if owner != me {
            self.lock.store(0, Ordering::Relaxed);
        }
    }

    /// For counting, when nobody moves.
    pub(super) fn open(&self, kind: usize) -> *mut Block {
        let null = core::ptr::null_mut();
        self.open.get(kind).map_or(null, |open| open.load(Ordering::Relaxed))
    }
}

impl Owned<'_> {
    /// Puts an object in.
    pub(super) fn put(&self, kind: usize, words: Words, weight: u64, stamp: u64) -> Banked {
        // SAFETY: null, or the bank's open block, which is live (invariant 1).
        let open = unsafe { self.0.open(kind).as_ref() };
        match open.filter(|block| !block.is_full()) {
            None => Banked::NoRoom,
            Some(block) => {
                block.stamp.store(stamp, Ordering::Relaxed);
                block.put(words, weight);
                Banked::Done
            }
        }
    }

    /// Makes `new` the open block and gives the old one, unless that has room.
    pub(super) fn swap(&self, kind: usize, new: *mut Block) -> Option<*mut Block> {
        let old = self.0.open(kind);
        // SAFETY: as in put().
        if unsafe { old.as_ref() }.is_some_and(|block| !block.is_full()) {
            return None;
        }
        Some(self.replace(kind, new))
    }

    /// Makes `new` the open block and gives the old one.
    pub(super) fn replace(&self, kind: usize, new: *mut Block) -> *mut Block {
        let old = self.0.open(kind);
        if let Some(open) = self.0.open.get(kind) {
            open.store(new, Ordering::Release);
        }
        old
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // [F5] Release: pairs with the exchange in try_lock().
        self.0.lock.store(0, Ordering::Release);
    }
}
