//! The seat that one writer (or upgradable reader) has at a time, and the sign that others wait.
//!
//! | word | state | next |
//! |---|---|---|
//! | 0 | free | [`Seat::take`]: `SEAT` |
//! | `SEAT` | taken, nobody waits | its owner, once `block` is open: 0; somebody comes: `QUEUE` as well |
//! | `SEAT + QUEUE` | taken, somebody waits | its owner hands it over: `SEAT` for another, with `QUEUE` if more wait |
//! | `.. + UPGRADABLE` | taken by a reader that lets other readers in | |
//! | `QUEUE` | never, but while the queue's lock is held | |
//!
//! `QUEUE` changes under the queue's lock only. So the owner that finds no `QUEUE` and gives the seat up
//! by compare-and-swap leaves nobody behind, and one that finds it takes the queue's lock and hands the
//! seat over. Who gives up waiting takes that lock too, and either is no longer in the queue, which he then
//! owns what he was waiting for, or leaves it: there is no moment at which his leaving and his being
//! served could both happen (parking_lot#465 was such a moment).
//!
//! # Invariants
//! 1. While the seat is free, `block` is open: only an owner closes it, and whoever frees the seat has
//!    opened it ([`Seat::leave`]) or found it open ([`Seat::give_up`]). So a reader that finds it closed
//!    has an owner to wait for.
//! 2. Without the queue's lock, `QUEUE` is a hint: by the next look those who waited may have given up. An
//!    owner who left `block` closed because of it ([`Seat::end_section`]) has promised it to somebody
//!    who may be gone, and finds out under the queue's lock, where he opens it for want of a next owner.
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[X0]` | [`Seat::take`], [`Seat::give_up`], [`Seat::announce`] | acquire and release: an owner's stores before the next one's |
//! | `[X1]` | [`Seat::announce`], [`Seat::has_queue`] | full on both sides: `QUEUE` before the last look at `block`; `block` open before the look for `QUEUE` |
//!
//! Proved by `tests/loom.rs` (the models `rwlock_seat..`).

use owlet_percpu::atomic::{AtomicU32, Ordering, fence};

use super::protocol::{self, Words};

const SEAT: u32 = 1;
const QUEUE: u32 = 2;
const UPGRADABLE: u32 = 4;

/// Who has the seat, and whether others wait.
#[derive(Debug)]
pub struct Seat(AtomicU32);

/// What who is about to wait finds.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// There is an owner, who will see to it.
    Taken {
        /// The owner lets readers in.
        upgradable: bool,
    },
    /// The seat was free, and is the caller's if he wants it: [`Seat::keep`] or [`Seat::decline`].
    Free,
}

impl Default for Seat {
    fn default() -> Self {
        Self::new()
    }
}

impl Seat {
    /// Free.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Free. (Loom's atomics are no constants.)
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// True if it was free and is now the caller's.
    #[inline]
    #[must_use]
    pub fn take(&self, upgradable: bool) -> bool {
        let mine = if upgradable { SEAT | UPGRADABLE } else { SEAT };
        // [X0] Acquire: pairs with the release in give_up().
        self.0.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// True if it looks free.
    #[must_use]
    pub fn looks_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// True if somebody has it.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed) & SEAT != 0
    }

    /// The owner's section is over: he opens `block`, unless somebody waits and finds it closed under a
    /// policy of bursts.
    pub fn end_section(&self, words: &Words, burst: bool) {
        if !(burst && self.shows_queue()) {
            protocol::unblock(words);
        }
    }

    /// The owner gives it up, unless somebody waits or `block` was left closed for who did. True if he has.
    #[inline]
    #[must_use]
    pub fn give_up(&self, words: &Words) -> bool {
        // Invariants 1 and 2; the owner is the only one to change `block`. Without it (mutant L6): who
        // waited gives up here, nobody has the seat, and readers wait for ever.
        if !owlet_percpu::planted!("L6") && !words.is_open() {
            return false;
        }
        let mut now = self.0.load(Ordering::Relaxed);
        while now & QUEUE == 0 {
            // [X0] Release: pairs with the acquire in take() and announce(). Without it: the next owner
            // misses this one's stores.
            match self.0.compare_exchange_weak(now, 0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => now = found,
            }
        }
        false
    }

    /// The caller, who has the queue's lock, is about to wait.
    pub fn announce(&self) -> Announced {
        // [X0] Acquire: as in take().
        let found = self.0.fetch_or(QUEUE, Ordering::AcqRel);
        // [X1] pairs with has_queue(): the sign is out before we look at `block` again. Without it: the
        // owner opens, sees nobody waiting, and we see it closed.
        fence(Ordering::SeqCst);
        if found & SEAT == 0 {
            return Announced::Free;
        }
        Announced::Taken { upgradable: found & UPGRADABLE != 0 }
    }

    /// The owner: whether somebody waits, after he has opened `block`.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        // [X1] pairs with announce(). Without it: as there.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) & QUEUE != 0
    }

    /// The same without the fence: a hint.
    #[must_use]
    pub fn shows_queue(&self) -> bool {
        self.0.load(Ordering::Relaxed) & QUEUE != 0
    }

    /// After [`Announced::Free`], under the same hold of the queue's lock (so the queue is empty): the
    /// caller takes the seat.
    pub fn keep(&self, upgradable: bool) {
        let mine = if upgradable { SEAT | UPGRADABLE } else { SEAT };
        self.0.store(mine, Ordering::Relaxed);
    }

    /// After [`Announced::Free`], under the same hold of the queue's lock: the caller does not want it.
    pub fn decline(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The owner, under the queue's lock: the queue is empty, and from now on `block` open and the seat
    /// free.
    pub fn leave(&self, words: &Words) {
        // Invariant 1.
        protocol::unblock(words);
        // [X0] Release: as in give_up().
        self.0.store(0, Ordering::Release);
    }

    /// Under the queue's lock: the seat is another's from now on.
    pub fn hand_over(&self, upgradable: bool, more_wait: bool) {
        let kind = if upgradable { SEAT | UPGRADABLE } else { SEAT };
        let queue = if more_wait { QUEUE } else { 0 };
        self.0.store(kind | queue, Ordering::Release);
    }

    /// Under the queue's lock: nobody waits any more; the seat stays whose it is.
    pub fn no_queue(&self) {
        self.0.fetch_and(!QUEUE, Ordering::Relaxed);
    }

    /// The owner lets readers in from now on, or no longer.
    pub fn set_upgradable(&self, upgradable: bool) {
        if upgradable {
            self.0.fetch_or(UPGRADABLE, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!UPGRADABLE, Ordering::Relaxed);
        }
    }
}
