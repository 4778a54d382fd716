//! Who waits for a lock, in order, and how they sleep.
//!
//! A futex lock around a list. Its holders do nothing but put in and take out; nobody is woken under it.
//!
//! | bit of the latch | meaning |
//! |---|---|
//! | `HELD` | somebody has it |
//! | `SLEEPERS` | somebody may sleep for it |
//! | `TOLD` | the task that waits for readers to leave is to be woken: whoever gives the latch back does |
//!
//! `TOLD` is for readers that leave: they may be in a signal handler that has interrupted the latch's
//! holder, and must not wait for it.
//!
//! # Wakers
//! Cloning, calling and dropping one runs a runtime's code, which may come back to this very lock: a task's
//! last handle takes the task's own futures with it. So none of that happens under the latch or a waiter's
//! `waker`: wakers are cloned before, and taken out and called or dropped after ([`Queue::call_out`]). One
//! that panics there is counted and keeps nobody else from being woken.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::collections::VecDeque;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use owlet_percpu::{Hot, hot};
use owlet_sys::futex::{self, Reach, Woken};

use crate::held;

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reader,
    Writer,
    Upgradable,
}

const HELD: u32 = 1;
const SLEEPERS: u32 = 2;
const TOLD: u32 = 4;

/// What somebody who waited was given.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// What he waited for: the seat, or, a reader, to be counted in.
    Seat = 1,
    /// A writer: to be one of a group that is inside.
    Group = 2,
}

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) kind: Kind,
    /// When he came: the generation of a reader's hold.
    pub(super) hot: Hot,
    /// Of a task: the thread that polled it first.
    by: Option<usize>,
    /// 0, or a [`Grant`]; changes under the queue's latch.
    granted: AtomicU32,
    /// Of a task; a thread sleeps on `granted`.
    waker: Mutex<Option<Waker>>,
}

impl Waiter {
    /// A task's with its waker, a thread's without.
    pub(super) fn new(kind: Kind, waker: Option<&Waker>) -> Arc<Self> {
        let by = waker.map(|_| held::identity());
        let (granted, waker) = (AtomicU32::new(0), Mutex::new(waker.cloned()));
        Arc::new(Self { kind, hot: hot(), by, granted, waker })
    }

    pub(super) fn granted(&self) -> Option<Grant> {
        // Acquire: pairs with grant(): what the last owner wrote.
        match self.granted.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Grant::Seat),
            _ => Some(Grant::Group),
        }
    }

    pub(super) fn is_granted(&self) -> bool {
        self.granted().is_some()
    }

    /// True in a child that was forked since he came: he is in no queue, and what he was granted is over.
    pub(super) fn stayed_behind(&self) -> bool {
        self.hot.generation() != hot().generation()
    }

    pub(super) fn grant(&self, grant: Grant) {
        self.granted.store(grant as u32, Ordering::Release);
    }

    /// Another waker; the caller asks [`Waiter::is_granted`] afterwards.
    pub(super) fn set_waker(&self, waker: &Waker) {
        let waker = waker.clone();
        let before = self.waker.lock().unwrap_or_else(PoisonError::into_inner).replace(waker);
        drop(before);
    }

    /// After [`Waiter::grant`]: wakes the thread; the task is woken by the answer.
    fn wake(&self) -> Option<Waker> {
        futex::wake_all(&self.granted, Reach::Private);
        self.waker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sleeps until granted, or until the deadline.
    pub(super) fn sleep(&self, deadline: Option<Instant>) -> Option<Grant> {
        loop {
            if let Some(grant) = self.granted() {
                return Some(grant);
            }
            let time = time_left(deadline)?;
            if futex::wait(&self.granted, 0, Some(time), Reach::Private) == Woken::Unavailable {
                std::thread::sleep(time.min(Duration::from_millis(1)));
            }
        }
    }
}

/// How long to sleep at most; `None` if the deadline has passed.
pub(super) fn time_left(deadline: Option<Instant>) -> Option<Duration> {
    // Belt and braces: where futexes are filtered, waiting degrades to polling.
    const MOST: Duration = Duration::from_secs(1);
    let Some(deadline) = deadline else { return Some(MOST) };
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then(|| left.min(MOST))
}

/// What the latch protects.
#[derive(Debug)]
pub(super) struct Line {
    /// First come first.
    pub(super) waiters: VecDeque<Arc<Waiter>>,
    /// Writers inside, of a lock that several may have (`several`).
    pub(super) group: u32,
    /// How many may be; 0 of a lock that is not such a one.
    pub(super) limit: u32,
    /// The task that has the seat and waits for readers to leave, and the thread that polled it.
    pub(super) drainer: Option<(Waker, usize)>,
}

impl Line {
    const fn new() -> Self {
        Self { waiters: VecDeque::new(), group: 0, limit: 0, drainer: None }
    }

    /// A writer comes: whether he is one of the group that is inside now.
    pub(super) fn joins_group(&mut self) -> bool {
        let joins = (1..self.limit).contains(&self.group) && self.waiters.is_empty();
        self.group += u32::from(joins);
        joins
    }
}

/// Those who wait.
#[derive(Debug)]
pub(super) struct Queue {
    latch: AtomicU32,
    /// Wakers that have panicked.
    panics: AtomicU64,
    line: UnsafeCell<Line>,
}

// SAFETY: `line` is touched by whoever has the latch.
unsafe impl Sync for Queue {}

/// The latch, held.
pub(super) struct Held<'a>(&'a Queue);

impl Queue {
    pub(super) const fn new() -> Self {
        let line = UnsafeCell::new(Line::new());
        Self { latch: AtomicU32::new(0), panics: AtomicU64::new(0), line }
    }

    /// Calls or drops a waker, which may panic. Without the latch.
    fn call_out(&self, f: impl FnOnce()) {
        if let Err(thrown) = catch_unwind(AssertUnwindSafe(f)) {
            // It may panic again when dropped.
            core::mem::forget(thrown);
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wakers that have panicked.
    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Wakes those who have been served. Without the latch.
    pub(super) fn wake(&self, served: &[Arc<Waiter>]) {
        for waker in served.iter().filter_map(|waiter| waiter.wake()) {
            self.call_out(|| waker.wake());
        }
    }

    /// Puts down the task that waits for readers to leave, or that none does.
    pub(super) fn set_drainer(&self, waker: Option<Waker>) {
        let drainer = waker.map(|waker| (waker, held::identity()));
        let before = core::mem::replace(&mut self.lock().drainer, drainer);
        self.call_out(|| drop(before));
    }

    pub(super) fn lock(&self) -> Held<'_> {
        let taken = self.latch.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            self.lock_slow();
        }
        Held(self)
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..64 {
            core::hint::spin_loop();
            let taken = self.latch.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return;
            }
        }
        loop {
            let found = self.latch.fetch_or(HELD | SLEEPERS, Ordering::Acquire);
            if found & HELD == 0 {
                return;
            }
            let (second, now) = (Some(Duration::from_secs(1)), found | HELD | SLEEPERS);
            if futex::wait(&self.latch, now, second, Reach::Private) == Woken::Unavailable {
                std::thread::yield_now();
            }
        }
    }

    /// Wakes the task that waits for readers to leave, if one does. Waits for nobody: if somebody has the
    /// latch, he will.
    #[cold]
    pub(super) fn wake_drainer(&self) {
        let told = self.latch.fetch_update(Ordering::Acquire, Ordering::Relaxed, |latch| {
            Some(if latch & HELD == 0 { latch | HELD } else { latch | TOLD })
        });
        if told.is_ok_and(|latch| latch & HELD == 0) {
            let waker = Held(self).drainer.take();
            if let Some((waker, _)) = waker {
                self.call_out(|| waker.wake());
            }
        }
    }

    /// In a forked child, before anybody there waits: those who stayed behind, and whatever the one of
    /// them that had the latch was about to do, are forgotten (and leaked). How many are inside is not.
    /// The number of tasks among them that `me`, the forking thread, had polled, as far as it can be told.
    pub(super) fn forget(&self, me: usize) -> u64 {
        // SAFETY: nobody has the latch but, perhaps, a thread that stayed behind (caller: `repair`
        // runs on one thread before any other has used the lock in this process).
        let group = unsafe { (*self.line.get()).group };
        // SAFETY: as above.
        let limit = unsafe { (*self.line.get()).limit };
        let mut mine = 0;
        // Otherwise the list may be half-changed.
        if self.latch.load(Ordering::Acquire) & HELD == 0 {
            // SAFETY: as above.
            let line = unsafe { &*self.line.get() };
            mine = line.waiters.iter().filter(|waiter| waiter.by == Some(me)).count() as u64;
            mine += u64::from(line.drainer.as_ref().is_some_and(|(_, by)| *by == me));
        }
        // SAFETY: as above.
        unsafe { self.line.get().write(Line { group, limit, ..Line::new() }) };
        self.latch.store(0, Ordering::Release);
        mine
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let latch = self.0.latch.swap(0, Ordering::Release);
        if latch & SLEEPERS != 0 {
            futex::wake(&self.0.latch, 1, Reach::Private);
        }
        if latch & TOLD != 0 {
            self.0.wake_drainer();
        }
    }
}

impl Deref for Held<'_> {
    type Target = Line;

    fn deref(&self) -> &Self::Target {
        // SAFETY: the latch is held.
        unsafe { &*self.0.line.get() }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: the latch is held, by this one.
        unsafe { &mut *self.0.line.get() }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
