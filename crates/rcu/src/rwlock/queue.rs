//! Who waits for a lock, in order, and how they sleep.
//!
//! A futex lock around a list. Its holders do nothing but put in and take out; nobody is woken under it.
//!
//! | latch | state |
//! |---|---|
//! | 0 | free |
//! | 1 | held |
//! | 2 | held, and somebody may sleep |

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use owlet_sys::futex::{self, Reach, Woken};

use super::place::FORKS;

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reader,
    Writer,
    Upgradable,
}

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) kind: Kind,
    /// Forks that the process had behind it when he came.
    pub(super) forks: u32,
    /// 1 once he has what he waits for; changes under the queue's latch.
    granted: AtomicU32,
    /// Of a task; a thread sleeps on `granted`.
    waker: Mutex<Option<Waker>>,
}

impl Waiter {
    /// A task's with its waker, a thread's without.
    pub(super) fn new(kind: Kind, waker: Option<&Waker>) -> Arc<Self> {
        let (granted, waker) = (AtomicU32::new(0), Mutex::new(waker.cloned()));
        Arc::new(Self { kind, forks: FORKS.load(Ordering::Relaxed), granted, waker })
    }

    pub(super) fn is_granted(&self) -> bool {
        // Acquire: pairs with grant(): what the last owner wrote.
        self.granted.load(Ordering::Acquire) != 0
    }

    pub(super) fn grant(&self) {
        self.granted.store(1, Ordering::Release);
    }

    /// Another waker; the caller asks [`Waiter::is_granted`] afterwards.
    pub(super) fn set_waker(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    /// After [`Waiter::grant`], without the latch.
    pub(super) fn wake(&self) {
        futex::wake_all(&self.granted, Reach::Private);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Sleeps until granted, or until the deadline. True if granted.
    pub(super) fn sleep(&self, deadline: Option<Instant>) -> bool {
        while !self.is_granted() {
            let Some(time) = time_left(deadline) else { return false };
            if futex::wait(&self.granted, 0, Some(time), Reach::Private) == Woken::Unavailable {
                std::thread::sleep(time.min(Duration::from_millis(1)));
            }
        }
        true
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
    /// The task that has the seat and waits for readers to leave.
    pub(super) drainer: Option<Waker>,
}

impl Line {
    const fn new() -> Self {
        Self { waiters: VecDeque::new(), drainer: None }
    }
}

/// Those who wait.
#[derive(Debug)]
pub(super) struct Queue {
    latch: AtomicU32,
    line: UnsafeCell<Line>,
}

// SAFETY: `line` is touched by whoever has the latch.
unsafe impl Sync for Queue {}

/// The latch, held.
pub(super) struct Held<'a>(&'a Queue);

impl Queue {
    pub(super) const fn new() -> Self {
        Self { latch: AtomicU32::new(0), line: UnsafeCell::new(Line::new()) }
    }

    pub(super) fn lock(&self) -> Held<'_> {
        let taken = self.latch.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            self.lock_slow();
        }
        Held(self)
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..64 {
            core::hint::spin_loop();
            let taken = self.latch.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return;
            }
        }
        while self.latch.swap(2, Ordering::Acquire) != 0 {
            let second = Some(Duration::from_secs(1));
            if futex::wait(&self.latch, 2, second, Reach::Private) == Woken::Unavailable {
                std::thread::yield_now();
            }
        }
    }

    /// In a forked child, before anybody there waits: those who stayed behind, and whatever the one of
    /// them that had the latch was about to do, are forgotten (and leaked).
    pub(super) fn forget(&self) {
        // SAFETY: nobody has the latch but, perhaps, a thread that stayed behind (caller: `repair`
        // runs on one thread before any other has used the lock in this process).
        unsafe { self.line.get().write(Line::new()) };
        self.latch.store(0, Ordering::Release);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.latch.swap(0, Ordering::Release) == 2 {
            futex::wake(&self.0.latch, 1, Reach::Private);
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
