//! The seat that one writer (or upgradable reader) has at a time, and the sign that others wait.
//!
//! | word | state | next |
//! |---|---|---|
//! | 0 | free | [`Seat::take`]: `SEAT` |
//! | `SEAT` | taken, nobody waits | its owner: 0; somebody comes: `QUEUE` as well |
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
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[X0]` | [`Seat::take`], [`Seat::give_up`], [`Seat::announce`] | acquire and release: an owner's stores before the next one's |
//! | `[X1]` | [`Seat::announce`], [`Seat::has_queue`] | full on both sides: `QUEUE` before the last look at `block`; `block` open before the look for `QUEUE` |
//!
//! Proved by `tests/loom.rs` (the models `rwlock_seat..`).

use owlet_percpu::atomic::{AtomicU32, Ordering, fence};

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
    /// The seat was free, and is the caller's if he wants it: [`Seat::keep`] or [`Seat::leave`].
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

    /// The owner gives it up, unless somebody waits. True if he has.
    #[inline]
    #[must_use]
    pub fn give_up(&self) -> bool {
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

    /// Under the queue's lock: the queue is empty and the seat free from now on.
    pub fn leave(&self) {
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
