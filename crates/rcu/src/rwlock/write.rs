//! The writers' side of the lock: the seat, making readers wait, and upgradable readers.

use core::sync::atomic::Ordering;
use core::task::Waker;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::Policy;
use super::protocol;
use super::queue::{Grant, Kind, Waiter, time_left};
use super::raw::{RawRwLock, Stage};
use super::read::{LOOKS, ReadHold};
use super::seat::Announced;
use crate::engine::pace::Futex;

/// How long readers that were kept waiting have for themselves, under [`Policy::PhaseFair`].
pub(super) const PHASE: Duration = Duration::from_micros(2);

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Endless,
    /// Not at all.
    None,
    Until(Instant),
}

impl Patience {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Endless => None,
            Self::None => Some(Instant::now()),
            Self::Until(deadline) => Some(deadline),
        }
    }
}

/// Something to be done when this goes, by a panic or otherwise, unless it is said not to be.
pub(super) struct Otherwise<F: FnMut()>(pub(super) F);

impl<F: FnMut()> Otherwise<F> {
    pub(super) fn not(self) {
        core::mem::forget(self);
    }
}

impl<F: FnMut()> Drop for Otherwise<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl RawRwLock {
    /// Takes it exclusively; waits for its turn, and for readers to leave.
    ///
    /// Cost: some 20 ns if the last writer left a moment ago and nobody else is there; the first writer
    /// after a while waits for a grace period, which is one membarrier (10 us where other CPUs are busy).
    /// Ordering: acquire.
    pub fn write(&self) {
        while !self.write_with(Patience::Endless) {}
    }

    /// Takes it exclusively if nobody else is there. Waits for nobody, but, as the first writer after a
    /// while, for a grace period: a membarrier, or what the lock was given.
    #[must_use]
    pub fn try_write(&self) -> bool {
        self.write_with(Patience::None)
    }

    /// [`RawRwLock::write`] up to a deadline, which ends every wait; false if it has passed.
    #[must_use]
    pub fn write_until(&self, deadline: Instant) -> bool {
        self.write_with(Patience::Until(deadline))
    }

    fn write_with(&self, patience: Patience) -> bool {
        let written = self.write_as(patience).is_some();
        if written {
            self.check.enter();
        }
        written
    }

    /// Comes to write: with the seat, or as one of a group.
    pub(super) fn write_as(&self, patience: Patience) -> Option<Grant> {
        let grant = self.sit(Kind::Writer, patience)?;
        if grant == Grant::Group {
            return Some(grant);
        }
        // Whether it is worth while to make readers slow.
        let hopeless = || self.place_if_any().is_some_and(|place| place.inside() != 0);
        let endless = patience == Patience::Endless && self.holds_itself();
        let seat = Otherwise(|| self.give_seat_up());
        if endless
            || patience == Patience::None && self.core.is_idle() && hopeless()
            || !self.begin_write(patience, false)
        {
            drop(seat);
            if endless {
                self.refuse_own_hold();
            }
            return None;
        }
        seat.not();
        Some(grant)
    }

    /// Takes the seat.
    fn sit(&self, kind: Kind, patience: Patience) -> Option<Grant> {
        self.after_fork();
        let grant = match () {
            () if self.seat.take(kind == Kind::Upgradable) => Some(Grant::Seat),
            () if patience == Patience::None => None,
            () => self.sit_slow(kind, patience),
        };
        if grant == Some(Grant::Seat) {
            self.seated();
        }
        grant
    }

    #[cold]
    fn sit_slow(&self, kind: Kind, patience: Patience) -> Option<Grant> {
        for _ in 0..LOOKS {
            core::hint::spin_loop();
            if self.seat.looks_free() && self.seat.take(kind == Kind::Upgradable) {
                return Some(Grant::Seat);
            }
        }
        if patience == Patience::Endless {
            self.refuse_own_hold();
            self.check.waits();
        }
        match self.join_writers(kind, None) {
            None => Some(Grant::Seat),
            Some(waiter) => waiter.sleep(patience.deadline()).or_else(|| self.leave_queue(&waiter)),
        }
    }

    /// Joins the queue; `None` if the seat was free, and is the caller's now.
    pub(super) fn join_writers(&self, kind: Kind, waker: Option<&Waker>) -> Option<Arc<Waiter>> {
        // Wakers are cloned and dropped without the latch.
        let waiter = Waiter::new(kind, waker);
        let mut line = self.queue.lock();
        match self.seat.announce() {
            Announced::Free => {
                self.seat.keep(kind == Kind::Upgradable);
                None
            }
            // A group began since he looked: nobody in it would call him before he leaves.
            Announced::Taken { .. } if kind == Kind::Writer && line.joins_group() => {
                self.seat.no_queue();
                waiter.grant(Grant::Group);
                Some(waiter)
            }
            Announced::Taken { .. } => {
                line.waiters.push_back(waiter.clone());
                Some(waiter)
            }
        }
    }

    /// The owner of the seat, who has it upgradable if he `upgrades`, makes readers wait, and waits for
    /// those inside. False, with everything as before, if the deadline has passed; as before too if it
    /// panics, as the reporter of the checks and grace periods may.
    fn begin_write(&self, patience: Patience, upgrades: bool) -> bool {
        if !self.begin_phase(patience) {
            return false;
        }
        let undo = Otherwise(|| {
            if upgrades {
                // First: a reader that comes late to the queue is not to wait for this hold.
                self.seat.set_upgradable(true);
            }
            self.stop_write();
        });
        if upgrades {
            self.seat.set_upgradable(false);
        }
        let drained = match self.settings.policy {
            Policy::ReaderPreferring => self.wait_for_a_gap(patience),
            Policy::WriterBurst | Policy::PhaseFair => {
                protocol::block(&self.place(), &self.words);
                protocol::is_drained(&self.place()) || self.drain_slow(patience)
            }
        };
        if drained {
            self.stage(Stage::Inside);
            undo.not();
        }
        drained
    }

    /// Up to the point at which readers can be made to wait. False, and nothing has happened, if the
    /// deadline has passed.
    pub(super) fn begin_phase(&self, patience: Patience) -> bool {
        let entered = match patience {
            Patience::Until(deadline) => self.enter_until(deadline),
            Patience::Endless | Patience::None => {
                self.enter();
                true
            }
        };
        if entered {
            self.stage(Stage::Entered);
            if self.phase_until.load(Ordering::Relaxed) != 0 {
                self.let_phase_pass();
            }
        }
        entered
    }

    /// Readers that had to wait for the last writer have the lock for themselves.
    #[cold]
    fn let_phase_pass(&self) {
        let until = self.phase_until.load(Ordering::Relaxed);
        while owlet_sys::clock::monotonic_ns() < until {
            core::hint::spin_loop();
        }
        self.phase_until.store(0, Ordering::Relaxed);
    }

    /// Waits until nobody is inside, with readers waiting. False if the deadline has passed.
    #[cold]
    fn drain_slow(&self, patience: Patience) -> bool {
        let place = self.place();
        let spins = if patience == Patience::None { 0 } else { LOOKS };
        for _ in 0..spins {
            core::hint::spin_loop();
            if protocol::is_drained(&place) {
                return true;
            }
        }
        if patience == Patience::None {
            return false;
        }
        if patience == Patience::Endless {
            self.check.waits_for_others();
        }
        self.sleep_until_drained(patience)
    }

    /// Sleeps until nobody is inside, or was a moment ago if readers do not wait.
    fn sleep_until_drained(&self, patience: Patience) -> bool {
        let place = self.place();
        loop {
            protocol::want(&place, &self.words, protocol::BY_THREAD);
            let drained = protocol::is_drained(&place);
            let left = time_left(patience.deadline());
            if let (false, Some(time)) = (drained, left) {
                self.drain.sleep_unless(&Futex(time), || protocol::is_drained(&place));
                continue;
            }
            protocol::unwant(&self.words);
            return drained;
        }
    }

    /// Makes readers wait only when there are none.
    fn wait_for_a_gap(&self, patience: Patience) -> bool {
        let place = self.place();
        loop {
            protocol::block(&place, &self.words);
            if protocol::is_drained(&place) {
                return true;
            }
            self.open();
            if patience == Patience::None {
                return false;
            }
            if patience == Patience::Endless {
                self.check.waits_for_others();
            }
            if !self.sleep_until_drained(patience) {
                return false;
            }
        }
    }

    /// The end of what [`RawRwLock::begin_write`] began; the seat stays the caller's.
    pub(super) fn stop_write(&self) {
        self.stage(Stage::Seated);
        self.open();
        self.exit();
    }

    /// Lets readers in, those in the queue too; the seat stays the caller's.
    pub(super) fn open(&self) {
        protocol::unblock(&self.words);
        if self.seat.has_queue() {
            self.call_readers();
        }
    }

    /// Gives it back after [`RawRwLock::write`] or its like.
    ///
    /// Ordering: release. Readers may be slow for another while; see [`super::Options::reopen_after`].
    ///
    /// # Safety
    /// It is held exclusively, and that hold ends with this. (On whatever thread.)
    pub unsafe fn unlock_write(&self) {
        self.after_fork();
        self.check.leave();
        self.end_write();
        self.give_seat_up();
    }

    pub(super) fn end_write(&self) {
        self.stage(Stage::Entered);
        if self.settings.policy == Policy::PhaseFair && self.pressed.load(Ordering::Relaxed) != 0 {
            self.pressed.store(0, Ordering::Relaxed);
            let until = owlet_sys::clock::monotonic_ns() + PHASE.as_nanos() as u64;
            self.phase_until.store(until, Ordering::Relaxed);
        }
        // A writer that follows at once finds the door closed.
        self.seat.end_section(&self.words, self.settings.policy == Policy::WriterBurst);
        // Before the exit: a child forked between the two has slow readers, not an exit too many.
        self.stage(Stage::Seated);
        self.exit();
    }

    /// The exclusive hold becomes a shared one, without a moment between.
    ///
    /// # Safety
    /// As [`RawRwLock::unlock_write`].
    pub unsafe fn downgrade(&self) -> ReadHold {
        self.after_fork();
        self.check.share();
        let hold = self.count_own();
        self.end_write();
        self.give_seat_up();
        hold
    }

    /// Counts the owner of the seat as a reader.
    fn count_own(&self) -> ReadHold {
        use super::protocol::Counters;
        let (place, hot) = (self.place(), owlet_percpu::hot());
        place.count_entry();
        ReadHold::new(place, hot)
    }

    /// Takes it shared, as the only one who may make that exclusive later: other readers are let in,
    /// writers and other upgradable readers are not.
    pub fn upgradable(&self) {
        while !self.upgradable_with(Patience::Endless) {}
    }

    /// [`RawRwLock::upgradable`] without waiting.
    #[must_use]
    pub fn try_upgradable(&self) -> bool {
        self.upgradable_with(Patience::None)
    }

    /// [`RawRwLock::upgradable`] up to a deadline; false if it has passed.
    #[must_use]
    pub fn upgradable_until(&self, deadline: Instant) -> bool {
        self.upgradable_with(Patience::Until(deadline))
    }

    pub(super) fn upgradable_with(&self, patience: Patience) -> bool {
        let seated = self.sit(Kind::Upgradable, patience).is_some();
        if seated {
            self.check.enter();
        }
        seated
    }

    /// Makes an upgradable hold exclusive. False if the deadline has passed; it is upgradable then.
    pub(super) fn upgrade_with(&self, patience: Patience) -> bool {
        self.after_fork();
        // What this thread holds is the seat, for which nobody waits here.
        self.check.leave();
        let endless = patience == Patience::Endless && self.holds_itself();
        self.check.enter();
        if endless {
            self.refuse_own_hold();
        }
        self.begin_write(patience, true)
    }

    /// Makes an upgradable hold exclusive; waits for readers to leave.
    ///
    /// # Safety
    /// It is held upgradable; from now on exclusively.
    pub unsafe fn upgrade(&self) {
        while !self.upgrade_with(Patience::Endless) {}
    }

    /// [`RawRwLock::upgrade`] if there are no readers; false, and nothing has changed, if there are.
    ///
    /// # Safety
    /// It is held upgradable; from now on exclusively, if the answer is true.
    #[must_use]
    pub unsafe fn try_upgrade(&self) -> bool {
        self.upgrade_with(Patience::None)
    }

    /// The exclusive hold becomes an upgradable one.
    ///
    /// # Safety
    /// It is held exclusively; from now on upgradable.
    pub unsafe fn downgrade_to_upgradable(&self) {
        self.after_fork();
        self.seat.set_upgradable(true);
        self.stop_write();
    }

    /// The upgradable hold becomes a shared one.
    ///
    /// # Safety
    /// It is held upgradable; from now on by the answer.
    pub unsafe fn downgrade_upgradable(&self) -> ReadHold {
        self.after_fork();
        self.check.share();
        let hold = self.count_own();
        self.give_seat_up();
        hold
    }

    /// Gives an upgradable hold back.
    ///
    /// # Safety
    /// It is held upgradable, and that hold ends with this. (On whatever thread.)
    pub unsafe fn unlock_upgradable(&self) {
        self.after_fork();
        self.check.leave();
        self.give_seat_up();
    }
}
