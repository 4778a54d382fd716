//! A ring's control block, and both ends of what moves data through a ring.
//!
//! Positions are byte counts since the ring was made: 64 bits, never reset, masked for use. Data
//! between tail and head are whole records; everything else is room.
//!
//! # States of a portable ring's owner word
//! | owner | meaning | next |
//! |---|---|---|
//! | 0 | free | a writer's tag (compare-exchange) |
//! | tag | that thread writes; its record is not there yet, or just committed | 0 by the owner; 0 by a reader that has proved the owner dead |
//!
//! # Invariants
//! 1. Head moves only by commits, over records that are wholly written (Invariant 1 of
//!    `arch/x86_64.rs`, or under the owner word).
//! 2. Tail moves only by readers, by compare-exchange, to positions they have read as head or
//!    reached record by record below it.
//! 3. The owner word is broken only for a thread that no longer exists. It stored head or it did
//!    not; in both cases Invariant 1 holds, so there is nothing to repair.
//!
//! # Barriers
//! | letter | what | pairs with | without it |
//! |---|---|---|---|
//! | [A] | Release store of head in `commit` (in the section: x86-64 store order) | [B] | a reader copies a record that is not written yet |
//! | [B] | Acquire load of head by the reader | [A] | the same |
//! | [C] | Release compare-exchange of tail by the reader | [D] | a writer overwrites bytes still being copied |
//! | [D] | Acquire load of tail by the writer (in the section: x86-64 load order) | [C] | the same |
//! | [E] | Acquire compare-exchange of owner | [F] | two owners compute from the same head |
//! | [F] | Release store of owner | [E] | the same |

use crate::sync::{AtomicU64, Ordering};

/// The words of one control block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control<'a> {
    pub(crate) head: &'a AtomicU64,
    pub(crate) tail: &'a AtomicU64,
    pub(crate) wake_at: &'a AtomicU64,
    pub(crate) last_time: &'a AtomicU64,
    pub(crate) owner: &'a AtomicU64,
}

impl Control<'_> {
    /// Reader: where data end.
    pub(crate) fn head_for_reader(&self) -> u64 {
        // [B] Acquire: pairs with [A]; what lies below head can be copied.
        self.head.load(Ordering::Acquire)
    }

    /// Reader: where data begin.
    pub(crate) fn tail_for_reader(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// Reader: gives back what lies before `to`; false if another reader was faster.
    #[must_use]
    pub(crate) fn release(&self, from: u64, to: u64) -> bool {
        // [C] Release: pairs with [D]; the copying comes before the room is offered.
        self.tail.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Portable writer: becomes owner, or says who is.
    pub(crate) fn lock(&self, tag: u64) -> Result<(), u64> {
        // [E] Acquire: pairs with [F]; head and data are as the last owner left them.
        self.owner.compare_exchange(0, tag, Ordering::Acquire, Ordering::Relaxed).map(drop)
    }

    /// Portable writer: steps down.
    pub(crate) fn unlock(&self) {
        // [F] Release: pairs with [E]; everything done as owner comes before.
        self.owner.store(0, Ordering::Release);
    }

    /// Portable writer, owner: head, if `len` bytes fit behind it.
    pub(crate) fn room(&self, len: u64, size: u64) -> Option<u64> {
        let head = self.head.load(Ordering::Relaxed);
        // [D] Acquire: pairs with [C]; the reader is done with what lies before tail.
        let tail = self.tail.load(Ordering::Acquire);
        (head.wrapping_add(len).wrapping_sub(tail) <= size).then_some(head)
    }

    /// Portable writer, owner: the records below `head` are there.
    pub(crate) fn commit(&self, head: u64) {
        // [A] Release: pairs with [B]; the record's bytes come before.
        self.head.store(head, Ordering::Release);
    }
}
