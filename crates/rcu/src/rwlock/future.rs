//! Waiting for a lock without blocking a thread; of any runtime or none.
//!
//! | stage of a writer | has | dropped then |
//! |---|---|---|
//! | start | nothing | nothing |
//! | queue | a place in the queue, or the seat if it was granted meanwhile | leaves the queue; hands the seat over |
//! | seat | the seat; the grace period that it waited for has panicked | hands it over |
//! | drain | the seat; readers wait | lets them in; hands the seat over |
//!
//! A task is woken by whoever hands it what it waits for, so it waits in line with threads, and what it
//! was handed is handed on if it is dropped before it is polled again.
//!
//! # Fork
//! A task that waits when the process is forked is woken in the parent only: in the child nobody calls a
//! waker of before, since its runtime's other threads are not there, and may have had its locks. There, a
//! future that is polled takes its place in line anew, also if it was granted what it waited for and was
//! not polled since; one that had the seat goes on if it was the forking thread that polled it (until it is
//! polled or dropped, readers wait), and begins anew if not. [`LockStats::forgotten`](super::LockStats) counts
//! those of the forking thread, and builds with the checks say so on the standard error stream.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use super::Policy;
use super::guard::{ReadGuard, WriteGuard};
use super::lock::PerCpuRwLock;
use super::protocol;
use super::queue::{Kind, Waiter};
use super::raw::{RawRwLock, Stage};
use super::write::Patience;

/// [`PerCpuRwLock::read_async`].
#[must_use = "futures do nothing unless awaited"]
pub struct ReadFuture<'a, T: ?Sized> {
    lock: &'a PerCpuRwLock<T>,
    waiter: Option<Arc<Waiter>>,
}

/// [`PerCpuRwLock::write_async`].
#[must_use = "futures do nothing unless awaited"]
pub struct WriteFuture<'a, T: ?Sized> {
    lock: &'a PerCpuRwLock<T>,
    stage: At,
    /// Of the seat, once it has it.
    turn: u64,
}

enum At {
    Start,
    Queue(Arc<Waiter>),
    Seat,
    Drain,
    Done,
}

impl<T: ?Sized> PerCpuRwLock<T> {
    /// Takes it shared; waits without blocking the thread. Dropping the future gives up.
    ///
    /// The guard may live across `.await` and end on another thread.
    pub fn read_async(&self) -> ReadFuture<'_, T> {
        ReadFuture { lock: self, waiter: None }
    }

    /// Takes it exclusively; waits without blocking the thread for its turn and for readers to leave.
    /// Dropping the future gives up.
    ///
    /// The first writer after a while blocks for a membarrier (some microseconds), and for as long as
    /// they take if the lock was given other grace periods.
    pub fn write_async(&self) -> WriteFuture<'_, T> {
        WriteFuture { lock: self, stage: At::Start, turn: 0 }
    }
}

impl<'a, T: ?Sized> Future for ReadFuture<'a, T> {
    type Output = ReadGuard<'a, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let lock = self.lock;
        let raw = lock.raw();
        if self.waiter.is_some() {
            raw.after_fork();
        }
        // In a forked child, from the start.
        drop(self.waiter.take_if(|waiter| waiter.stayed_behind()));
        if let Some(waiter) = &self.waiter {
            waiter.set_waker(cx.waker());
            if !waiter.is_granted() {
                return Poll::Pending;
            }
            // Before the waiter's waker is dropped, which may panic.
            let guard = ReadGuard::new(lock, raw.granted_hold(waiter));
            self.waiter = None;
            return Poll::Ready(guard);
        }
        loop {
            if let Some(hold) = raw.try_read() {
                return Poll::Ready(ReadGuard::new(lock, hold));
            }
            raw.after_fork();
            if let Some(waiter) = raw.join_readers(true, Some(cx.waker())) {
                self.waiter = Some(waiter);
                return Poll::Pending;
            }
        }
    }
}

impl<T: ?Sized> Drop for ReadFuture<'_, T> {
    fn drop(&mut self) {
        let raw = self.lock.raw();
        let Some(waiter) = self.waiter.take() else { return };
        raw.after_fork();
        if !waiter.stayed_behind() && raw.leave_queue(&waiter).is_some() {
            let hold = raw.granted_hold(&waiter);
            // SAFETY: it was granted, and no guard has been made of it.
            unsafe { raw.unlock_read(hold) };
        }
    }
}

impl<'a, T: ?Sized> Future for WriteFuture<'a, T> {
    type Output = WriteGuard<'a, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let lock = self.lock;
        let raw = lock.raw();
        self.forget_what_is_over();
        match &self.stage {
            At::Start => match raw.sit_async(cx) {
                None => {}
                Some(waiter) => {
                    self.stage = At::Queue(waiter);
                    return Poll::Pending;
                }
            },
            At::Queue(waiter) => {
                waiter.set_waker(cx.waker());
                if !waiter.is_granted() {
                    return Poll::Pending;
                }
                raw.seated();
            }
            At::Seat => {}
            At::Drain => return self.drain(cx),
            At::Done => return Poll::Pending,
        }
        self.turn = raw.turn();
        self.stage = At::Seat;
        if !raw.begin_phase(Patience::Endless) {
            return Poll::Pending;
        }
        self.stage = At::Drain;
        self.drain(cx)
    }
}

impl<'a, T: ?Sized> WriteFuture<'a, T> {
    /// In a forked child: begins anew if it waited in line when that was forked, or had the seat and was
    /// another thread's.
    fn forget_what_is_over(&mut self) {
        let raw = self.lock.raw();
        let over = match &self.stage {
            At::Start | At::Done => false,
            At::Queue(waiter) => {
                raw.after_fork();
                waiter.stayed_behind()
            }
            At::Seat | At::Drain => !raw.is_still(self.turn),
        };
        if over {
            self.stage = At::Start;
        }
    }

    /// Has the seat, and has entered the `rcu_sync`.
    fn drain(&mut self, cx: &Context<'_>) -> Poll<WriteGuard<'a, T>> {
        let raw = self.lock.raw();
        // Another thread may have polled it before.
        raw.own();
        if raw.drained_async(cx) {
            raw.stop_draining();
            raw.stage(Stage::Inside);
            raw.check.enter();
            self.stage = At::Done;
            return Poll::Ready(WriteGuard::new(self.lock));
        }
        Poll::Pending
    }
}

impl<T: ?Sized> Drop for WriteFuture<'_, T> {
    fn drop(&mut self) {
        self.forget_what_is_over();
        let raw = self.lock.raw();
        match core::mem::replace(&mut self.stage, At::Done) {
            At::Start | At::Done => {}
            At::Queue(waiter) => {
                if raw.leave_queue(&waiter).is_some() {
                    raw.give_seat_up();
                }
            }
            At::Seat => raw.give_seat_up(),
            At::Drain => {
                raw.stop_draining();
                raw.stop_write();
                raw.give_seat_up();
            }
        }
    }
}

impl RawRwLock {
    /// Takes the seat, or a place in the queue with the task's waker.
    fn sit_async(&self, cx: &Context<'_>) -> Option<Arc<Waiter>> {
        self.after_fork();
        if !self.seat.take(false)
            && let Some(waiter) = self.join_writers(Kind::Writer, Some(cx.waker()))
        {
            return Some(waiter);
        }
        self.seated();
        None
    }

    /// True if no reader is inside, and readers wait. Otherwise the task is woken when it is worth while
    /// to ask again.
    fn drained_async(&self, cx: &Context<'_>) -> bool {
        let place = self.place();
        protocol::block(&place, &self.words);
        if protocol::is_drained(&place) {
            return true;
        }
        self.queue.set_drainer(Some(cx.waker().clone()));
        protocol::want(&place, &self.words, protocol::BY_TASK);
        let lets_in = self.settings.policy == Policy::ReaderPreferring;
        if lets_in {
            self.open();
        }
        let drained = protocol::is_drained(&place);
        if drained && lets_in {
            // There is a gap, but the door is open.
            cx.waker().wake_by_ref();
        }
        drained && !lets_in
    }

    /// The task waits for readers no longer.
    fn stop_draining(&self) {
        protocol::unwant(&self.words);
        self.queue.set_drainer(None);
    }
}

impl<T: ?Sized> fmt::Debug for ReadFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadFuture").field("waits", &self.waiter.is_some()).finish_non_exhaustive()
    }
}

impl<T: ?Sized> fmt::Debug for WriteFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            At::Start => "start",
            At::Queue(_) => "queue",
            At::Seat => "seat",
            At::Drain => "drain",
            At::Done => "done",
        };
        f.debug_struct("WriteFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
