//! The lock without what it protects.
//!
//! `read`: the readers' side; `write`: the seat, and making readers wait; `hand`: who is next; this file:
//! the words, settings and forks.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::time::Instant;

use super::Policy;
use super::place::{FORKS, Place};
use super::protocol::{self, BY_TASK, Words};
use super::queue::Queue;
use super::seat::Seat;
use super::write::Otherwise;
use crate::check;
use crate::engine;
use crate::engine::pace::Futex;
use crate::gate::Gate;
use crate::held;
use crate::rcu_sync::grace::{GracePeriod, Wake};
use crate::rcu_sync::machine::{Entering, Passing, State};
use crate::rcu_sync::word::Core;

/// How a lock behaves; made by [`Options`](super::Options).
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) policy: Policy,
    pub(super) reopen_after: Duration,
    pub(super) grace: Option<&'static dyn GracePeriod>,
    pub(super) name: &'static str,
}

/// How far the owner of the seat has got; for a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Has the seat.
    Seated,
    /// Has entered the `rcu_sync`.
    Entered,
    /// Writes.
    Inside,
}

/// A per-CPU reader-writer lock that protects nothing by itself, for data that is elsewhere; see the
/// [module](super).
///
/// Whoever takes it with a method of this type gives it back with one.
#[repr(C)]
pub struct RawRwLock {
    /// Readers look at its word, and write nothing here.
    pub(super) core: Core,
    at: AtomicPtr<u8>,
    pub(super) settings: Settings,
    pub(super) words: Words,
    pub(super) seat: Seat,
    /// `Stage` of the owner.
    stage: AtomicU32,
    /// 1 once a reader has had to wait, until the end of the write phase.
    pub(super) pressed: AtomicU32,
    /// When the phase of readers ends, in ns; 0 = none.
    pub(super) phase_until: AtomicU64,
    /// `held::identity` of the owner.
    owner: AtomicUsize,
    /// Another whenever the seat is taken, and where a forked child takes it away from its owner. Written
    /// by the owner only: as long as he has the seat, it is what he found when he took it.
    turn: AtomicU64,
    /// Tasks of the forking thread that a forked child has forgotten.
    forgotten: AtomicU64,
    /// As many of them as were reported.
    told: AtomicU64,
    /// Twice [`FORKS`] when the words were last right; one more while they are being put right.
    forks: AtomicU32,
    pub(super) drain: Gate,
    pub(super) queue: Queue,
    pub(super) check: check::Lock,
    blocking: AtomicU64,
    membarriers: AtomicU64,
}

/// What a lock has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Grace periods that a writer waited for.
    pub blocking: u64,
    /// Heavy fences (`membarrier` calls), those of readers that went back to the fast way included.
    pub membarriers: u64,
    /// Wakers of tasks that have panicked: the others were woken.
    pub waker_panics: u64,
    /// In a forked child: tasks that waited when it was forked, and that the forking thread had polled.
    /// Nobody wakes them there, and what they wait for may be theirs once they are polled.
    pub forgotten: u64,
}

impl RawRwLock {
    pub(super) const fn with(settings: Settings) -> Self {
        Self {
            core: Core::new(),
            at: AtomicPtr::new(core::ptr::null_mut()),
            words: Words::new(),
            seat: Seat::new(),
            stage: AtomicU32::new(0),
            pressed: AtomicU32::new(0),
            phase_until: AtomicU64::new(0),
            owner: AtomicUsize::new(0),
            turn: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            told: AtomicU64::new(0),
            forks: AtomicU32::new(0),
            drain: Gate::new(),
            queue: Queue::new(),
            check: check::Lock::new(settings.name),
            blocking: AtomicU64::new(0),
            membarriers: AtomicU64::new(0),
            settings,
        }
    }

    /// The counters, if anybody has needed them yet.
    #[inline(always)]
    pub(super) fn place_if_any(&self) -> Option<Place> {
        // Acquire: pairs with the release in place_slow().
        let at = NonNull::new(self.at.load(Ordering::Acquire))?;
        // SAFETY: stored by place_slow().
        Some(unsafe { Place::from_ptr(at) })
    }

    /// The counters.
    #[inline]
    pub(super) fn place(&self) -> Place {
        self.place_if_any().unwrap_or_else(|| self.place_slow())
    }

    #[cold]
    fn place_slow(&self) -> Place {
        // Decides the backend, if nobody has.
        let _ = owlet_percpu::backend();
        let mine = Place::claim();
        let at = mine.as_ptr().as_ptr();
        let null = core::ptr::null_mut();
        match self.at.compare_exchange(null, at, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => mine,
            Err(_) => {
                mine.give_back();
                self.place_if_any().unwrap_or(mine)
            }
        }
    }

    pub(super) fn grace(&self) -> Grace<'_> {
        Grace(self)
    }

    /// Readers are slow until [`RawRwLock::exit`]. True if a grace period had to be waited for.
    pub(super) fn enter(&self) {
        if self.core.enter(&self.grace()) {
            self.blocking.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// [`RawRwLock::enter`] up to a deadline. False, and not entered, if it has passed before a grace
    /// period that the lock was given.
    pub(super) fn enter_until(&self, deadline: Instant) -> bool {
        let Some(given) = self.settings.grace else {
            // What there is to wait for is a membarrier, which waits for nobody.
            self.enter();
            return true;
        };
        let (entering, due) = self.core.begin();
        if entering == Entering::Slow {
            return true;
        }
        let give_up = Otherwise(|| self.exit());
        if entering == Entering::First {
            self.core.post(given.start());
        }
        while !self.poll_entered(given, due) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(Duration::from_micros(200)));
        }
        self.blocking.fetch_add(1, Ordering::Relaxed);
        give_up.not();
        true
    }

    /// True once the grace period number `due`, for which the caller is entering, is over.
    fn poll_entered(&self, given: &dyn GracePeriod, due: u32) -> bool {
        let now = self.core.look();
        if now.due() != due || now.state() != State::Enter {
            return true;
        }
        let cookie = self.core.due_cookie(now);
        let passed = cookie.is_some_and(|cookie| given.poll(cookie));
        if passed {
            self.heavy_fence();
            let _ = self.core.pass(now);
        }
        passed
    }

    /// The other end of [`RawRwLock::enter`]. The grace period that is due now is asked for by the first
    /// reader that finds it so.
    pub(super) fn exit(&self) {
        let _ = self.core.exit();
    }

    /// If nobody needs slow readers any more, and has not for a while, makes them fast.
    pub(super) fn reopen(&self) {
        let now = self.core.look();
        if now.count() != 0 || !matches!(now.state(), State::Exit | State::Replay) {
            return;
        }
        let grace = self.grace();
        match self.core.due_cookie(now) {
            None => self.core.post_in(now, grace.start()),
            Some(cookie) if grace.poll(cookie) => {
                self.heavy_fence();
                if self.core.pass(now) == Passing::Again {
                    let now = self.core.look();
                    self.core.post_in(now, grace.start());
                }
            }
            Some(_) => {}
        }
    }

    fn heavy_fence(&self) {
        self.membarriers.fetch_add(1, Ordering::Relaxed);
        // Mutant L5: none.
        if !owlet_percpu::planted!("L5") {
            engine::heavy_fence();
        }
    }

    /// A count has changed while a writer waits: wakes it if it has nothing to wait for any more.
    #[cold]
    pub(super) fn prod(&self) {
        // Of several readers that leave at once the last, by `[Y]`, finds the sums equal.
        // In a child, who waited has stayed behind, and so has the runtime of its waker.
        if self.try_settle() && protocol::is_drained(&self.place()) {
            self.drain.open(&Futex::default());
            // (Looked at again: not for a waiter of the parent's.)
            if self.words.wanted.load(Ordering::Relaxed) == BY_TASK {
                self.queue.wake_drainer();
            }
        }
    }

    pub(super) fn stage(&self, stage: Stage) {
        self.stage.store(stage as u32, Ordering::Relaxed);
    }

    /// The owner of the seat is about to give it up.
    pub(super) fn disown(&self) {
        self.owner.store(0, Ordering::Relaxed);
    }

    /// The seat is the calling thread's: in a forked child of it, it goes on being taken.
    pub(super) fn own(&self) {
        self.owner.store(held::identity(), Ordering::Relaxed);
    }

    pub(super) fn seated(&self) {
        self.own();
        self.next_turn();
        self.stage(Stage::Seated);
    }

    fn next_turn(&self) {
        self.turn.store(self.turn().wrapping_add(1), Ordering::Relaxed);
    }

    /// The owner's turn.
    #[inline]
    pub(super) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    /// True if the seat that was taken for `turn`, and not given up, was not lost at a fork.
    pub(super) fn is_still(&self, turn: u64) -> bool {
        self.after_fork();
        self.turn() == turn
    }

    /// Before anything that may wait, and before a hold that may have come over a fork ends: in a forked
    /// child, forgets those who stayed behind.
    #[inline]
    pub(super) fn after_fork(&self) {
        engine::fork::check();
        while !self.try_settle() {
            std::thread::yield_now();
        }
        if check::ON {
            self.report_forgotten();
        }
    }

    /// Debug builds: says once what only somebody who polls can mend.
    fn report_forgotten(&self) {
        let forgotten = self.forgotten.load(Ordering::Relaxed);
        if forgotten > self.told.swap(forgotten, Ordering::Relaxed) {
            eprintln!(
                "owlet-rcu: lock {:?}: {forgotten} tasks of this thread waited for it when the process was forked; \
                 nobody wakes them in the child: poll or drop them",
                self.settings.name
            );
        }
    }

    /// [`RawRwLock::after_fork`] for a child whose handlers of `pthread_atfork` have run: waits for nobody,
    /// and is async-signal-safe. False while another thread, or one that the caller's signal handler
    /// has interrupted, is at it.
    #[inline]
    pub(super) fn try_settle(&self) -> bool {
        let settled = FORKS.load(Ordering::Relaxed) << 1;
        self.forks.load(Ordering::Acquire) == settled || self.try_repair(settled)
    }

    #[cold]
    fn try_repair(&self, settled: u32) -> bool {
        // A child that was forked while another thread did this finds an older number, and does it anew.
        let seen = self.forks.load(Ordering::Acquire);
        let (order, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        if seen == settled
            || seen == settled | 1
            || self.forks.compare_exchange(seen, settled | 1, order, relaxed).is_err()
        {
            return seen == settled;
        }
        self.forget_others();
        self.forks.store(settled, Ordering::Release);
        true
    }

    /// In a forked child. A lock that a thread which stayed behind was writing under stays locked for
    /// ever: what it protects is half-written. One that it was only about to take is free.
    fn forget_others(&self) {
        let forgotten = self.queue.forget(held::identity());
        self.forgotten.fetch_add(forgotten, Ordering::Relaxed);
        self.seat.no_queue();
        protocol::unwant(&self.words);
        let stage = self.stage.load(Ordering::Relaxed);
        let inside = stage == Stage::Inside as u32;
        let mine = self.owner.load(Ordering::Relaxed) == held::identity();
        if self.seat.is_taken() && !inside && !mine {
            if stage == Stage::Entered as u32 {
                self.exit();
            }
            self.disown();
            // The hold may be in the child, where another thread than took it was forked.
            self.next_turn();
            self.seat.leave(&self.words);
        }
    }

    /// How the lock behaves.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.settings.policy
    }

    /// True if readers are on the fast way at the moment.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.core.is_idle()
    }

    /// True if a writer has the lock, or is waiting for readers to leave, at the moment.
    #[must_use]
    pub fn is_write_locked(&self) -> bool {
        let _ = self.try_settle();
        self.seat.is_taken() && !self.words.is_open()
    }

    /// Readers inside: a guess while any come or go.
    #[must_use]
    pub fn readers(&self) -> u64 {
        self.place_if_any().map_or(0, Place::inside)
    }

    /// Somebody waits for it, at the moment.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        let _ = self.try_settle();
        self.seat.shows_queue()
    }

    /// How many wait in the queue, at the moment.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.after_fork();
        self.queue.lock().waiters.len()
    }

    /// What it has cost so far.
    #[must_use]
    pub fn stats(&self) -> LockStats {
        LockStats {
            blocking: self.blocking.load(Ordering::Relaxed),
            membarriers: self.membarriers.load(Ordering::Relaxed),
            waker_panics: self.queue.panics(),
            forgotten: self.forgotten.load(Ordering::Relaxed),
        }
    }
}

/// The grace periods of a lock: its own membarrier, and what it was given.
pub(super) struct Grace<'a>(&'a RawRwLock);

impl GracePeriod for Grace<'_> {
    fn snapshot(&self) -> u64 {
        self.0.settings.grace.map_or(0, GracePeriod::snapshot)
    }

    /// Without others' grace periods, the cookie is the time.
    fn start(&self) -> u64 {
        self.0.settings.grace.map_or_else(owlet_sys::clock::monotonic_ns, GracePeriod::start)
    }

    /// The heavy fence is still to be done.
    fn poll(&self, cookie: u64) -> bool {
        let settings = &self.0.settings;
        settings.grace.map_or_else(
            || {
                let age = owlet_sys::clock::monotonic_ns().saturating_sub(cookie);
                u128::from(age) >= settings.reopen_after.as_nanos()
            },
            |grace| grace.poll(cookie),
        )
    }

    fn wait(&self, cookie: u64) {
        if let Some(grace) = self.0.settings.grace {
            grace.wait(cookie);
        }
        // Sequences that found the `rcu_sync` idle have committed, and are in the sums; every other
        // one, and every thread's later look, finds it entered.
        self.0.heavy_fence();
    }

    fn wake(&self, cookie: u64, waker: &Waker) -> Wake {
        self.wait(cookie);
        waker.wake_by_ref();
        Wake::none()
    }
}

impl Drop for RawRwLock {
    fn drop(&mut self) {
        if let Some(place) = self.place_if_any() {
            place.give_back();
        }
    }
}

impl fmt::Debug for RawRwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawRwLock")
            .field("policy", &self.settings.policy)
            .field("readers", &self.readers())
            .field("write_locked", &self.is_write_locked())
            .finish_non_exhaustive()
    }
}
