//! The readers' side of the lock.

use core::cell::Cell;
use core::sync::atomic::Ordering;
use core::task::Waker;
use std::sync::Arc;
use std::time::Instant;

use owlet_percpu::{Entered, Hot, Slots, hot};

use super::Policy;
use super::place::{Place, TO_EXITS};
use super::protocol;
use super::queue::{Kind, Waiter, time_left};
use super::raw::RawRwLock;
use super::seat::Announced;
use crate::check;

/// Looks at a closed lock before its reader joins the queue.
pub(super) const LOOKS: u32 = 200;
/// Attempts of a reader that saw the lock open each time it was about to join the queue, and closed
/// each time it tried.
const ATTEMPTS: u32 = 16;

/// A shared hold of a [`RawRwLock`]: what gives it back.
#[must_use = "the hold ends only when this is given back"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadHold {
    /// The lock's counters.
    place: Place,
    /// When it was taken: its generation tells whether it is over, and the rest saves the end a load.
    hot: Hot,
}

impl ReadHold {
    /// A hold counted in `place` after `hot` was looked at.
    #[inline(always)]
    pub(super) fn new(place: Place, hot: Hot) -> Self {
        Self { place, hot }
    }
}

impl RawRwLock {
    /// Takes it shared; waits while a writer has it or, by the lock's policy, waits for it.
    ///
    /// Cost: some two nanoseconds with [`RawRwLock::unlock_read`] while no writer has been there for a
    /// while; two atomic instructions on the CPU's own lines otherwise. Ordering: acquire.
    #[inline(always)]
    pub fn read(&self) -> ReadHold {
        match self.read_fast() {
            Some(hold) => hold,
            None => self.read_slow(),
        }
    }

    /// Takes it shared if no writer has it or waits for it. Never waits; async-signal-safe.
    #[inline]
    pub fn try_read(&self) -> Option<ReadHold> {
        self.read_fast().or_else(|| self.try_read_slow())
    }

    #[inline(always)]
    fn read_fast(&self) -> Option<ReadHold> {
        let place = self.place_if_any()?;
        let hold = ReadHold::new(place, hot());
        let (at, word) = (place.as_ptr(), self.core.word());
        // SAFETY: the address of a place.
        match unsafe { Slots::increment_at_if_low::<0>(hold.hot, at, word, 0) } {
            Entered::Sequence => {}
            // It was counted some time after the look; that is a full barrier.
            Entered::Atomic if self.core.is_idle() => {}
            Entered::Atomic => return self.counted_late(hold),
            Entered::Moved => return None,
        }
        self.note();
        Some(hold)
    }

    /// Counted, when the `rcu_sync` was no longer idle: a slow reader.
    #[cold]
    fn counted_late(&self, hold: ReadHold) -> Option<ReadHold> {
        if self.words.block.load(Ordering::Acquire) == 0 {
            self.note();
            return Some(hold);
        }
        self.leave_slow(hold.place);
        None
    }

    /// For the checks of debug builds.
    #[inline(always)]
    fn note(&self) {
        self.check.enter_shared();
    }

    #[cold]
    #[inline(never)]
    fn try_read_slow(&self) -> Option<ReadHold> {
        if !self.try_settle() {
            return None;
        }
        let hold = ReadHold::new(self.place(), hot());
        let inside = self.attempt();
        if inside {
            self.note();
        }
        inside.then_some(hold)
    }

    /// One slow attempt.
    pub(super) fn attempt(&self) -> bool {
        let place = self.place();
        let inside = protocol::enter_slow(&place, &self.words);
        if !inside {
            if self.pressed.load(Ordering::Relaxed) == 0 {
                self.pressed.store(1, Ordering::Relaxed);
            }
            if protocol::is_to_prod(&place, &self.words) {
                self.prod();
            }
        }
        inside
    }

    #[cold]
    #[inline(never)]
    fn read_slow(&self) -> ReadHold {
        loop {
            if let Some(hold) = self.read_until(None) {
                return hold;
            }
        }
    }

    /// Takes it shared, waiting up to the deadline. `None` if it has passed.
    pub fn read_until(&self, deadline: Option<Instant>) -> Option<ReadHold> {
        self.after_fork();
        let now_and_then = TICK.with(|tick| {
            tick.set(tick.get().wrapping_add(1));
            tick.get() % 32 == 0
        });
        if now_and_then {
            self.reopen();
        }
        let hold = ReadHold::new(self.place(), hot());
        for attempt in 0.. {
            if self.attempt() {
                break;
            }
            // Whatever keeps sending it round: who comes for a moment does not stay.
            if attempt != 0 && deadline.is_some() && time_left(deadline).is_none() {
                return None;
            }
            if self.looks_open_soon() && attempt < ATTEMPTS {
                continue;
            }
            if deadline.is_none() {
                self.refuse_own_hold();
                self.check.waits();
            }
            let Some(waiter) = self.join_readers(attempt >= ATTEMPTS, None) else { continue };
            if waiter.sleep(deadline).or_else(|| self.leave_queue(&waiter)).is_some() {
                break;
            }
            return None;
        }
        self.note();
        Some(hold)
    }

    fn looks_open_soon(&self) -> bool {
        (0..LOOKS).any(|_| {
            core::hint::spin_loop();
            self.words.is_open()
        })
    }

    /// The hold that a waiter was granted.
    pub(super) fn granted_hold(&self, waiter: &Waiter) -> ReadHold {
        self.note();
        ReadHold::new(self.place(), waiter.hot)
    }

    /// Joins the queue. `None` if there is nothing to wait for after all.
    pub(super) fn join_readers(&self, insist: bool, waker: Option<&Waker>) -> Option<Arc<Waiter>> {
        // Wakers are cloned and dropped without the latch.
        let waiter = Waiter::new(Kind::Reader, waker);
        let mut line = self.queue.lock();
        match self.seat.announce() {
            // Who waits has an owner to wait for (invariant 1 of `seat`: it is open).
            Announced::Free => {
                self.seat.decline();
                None
            }
            Announced::Taken { upgradable } => {
                let insist = insist && !upgradable && self.policy() != Policy::ReaderPreferring;
                if self.words.is_open() && !insist {
                    if line.waiters.is_empty() {
                        self.seat.no_queue();
                    }
                    return None;
                }
                line.waiters.push_back(waiter.clone());
                Some(waiter)
            }
        }
    }

    /// Debug builds: the calling thread has taken it and not given it back.
    pub(super) fn holds_itself(&self) -> bool {
        check::ON && self.check.is_held()
    }

    /// Debug builds: a thread must not wait for itself without end.
    pub(super) fn refuse_own_hold(&self) {
        assert!(
            !self.holds_itself(),
            "waiting for lock {:?}, which this thread holds: a writer waits for it, or it is the writer",
            self.settings.name
        );
    }

    /// Gives a shared hold back.
    ///
    /// Ordering: release.
    ///
    /// # Safety
    /// `hold` came from this lock and has not been given back. (On whatever thread.)
    #[inline(always)]
    pub unsafe fn unlock_read(&self, hold: ReadHold) {
        let now = hot();
        if now == hold.hot {
            self.leave(hold.place, now);
        } else {
            self.leave_late(hold, now);
        }
    }

    /// The process has been forked since, or has decided on its backend.
    #[cold]
    #[inline(never)]
    fn leave_late(&self, hold: ReadHold, now: Hot) {
        // Otherwise struck out when the process was forked; so is what the checks know of it.
        if hold.hot.generation() == now.generation() {
            self.leave(hold.place, now);
        }
    }

    #[inline(always)]
    fn leave(&self, place: Place, hot: Hot) {
        debug_assert_eq!(Some(place), self.place_if_any(), "given back to a lock it is not of");
        self.check.leave_shared();
        let (at, word) = (place.as_ptr(), self.core.word());
        // SAFETY: the address of a place.
        match unsafe { Slots::increment_at_if_low::<TO_EXITS>(hot, at, word, 0) } {
            Entered::Sequence => {}
            // Counted, and that is a full barrier: [B] and [Y].
            Entered::Atomic if self.core.is_idle() => {}
            Entered::Atomic => self.left_late(place),
            Entered::Moved => self.leave_slow(place),
        }
    }

    #[cold]
    #[inline(never)]
    fn left_late(&self, place: Place) {
        if protocol::is_to_prod(&place, &self.words) {
            self.prod();
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_slow(&self, place: Place) {
        if protocol::leave_slow(&place, &self.words) {
            self.prod();
        }
    }
}

thread_local! {
    /// Slow reads of this thread.
    static TICK: Cell<u32> = const { Cell::new(0) };
}
