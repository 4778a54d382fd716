//! A lock that several writers may have at once.
//!
//! The seat belongs to the group of writers that are inside: the first of them takes it as a writer of any
//! lock does, and the last gives it up. Who comes while a group is inside joins it if it is not full and
//! nobody waits; otherwise he waits in line. So readers that wait see the group end. Whether he joins is looked
//! at once more under the latch as he lines up: the group may have begun since, and calls who waits only
//! then and when somebody leaves.
//!
//! | `Line::group` | state | next |
//! |---|---|---|
//! | 0 | no group inside | the owner of the seat begins to write: 1, and calls writers at the head of the queue |
//! | 1 to k | that many write | one joins, or is called; one leaves, and calls; the last gives the seat up |

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::Deref;
use std::time::Instant;

use super::Options;
use super::queue::{Grant, Kind, Line};
use super::raw::RawRwLock;
use super::read::ReadHold;
use super::write::Patience;

/// A lock whose writers exclude readers, and of whom up to a limit write at once: a [`PerCpuRwLock`] with
/// "shared by many" and "shared by some" in place of "shared" and "exclusive".
///
/// For work of two kinds that do not go together, one of them limited: requests, and up to four
/// concurrent compactions. Both kinds of guards give `&T`, so what writers write is behind atomics, a
/// lock, or elsewhere. With a limit of 1 it is a reader-writer lock, whose exclusive hold gives `&T`.
///
/// [`PerCpuRwLock`]: super::PerCpuRwLock
///
/// ```
/// use owlet_rcu::rwlock::{Options, SeveralWriters};
///
/// let lock = SeveralWriters::new(Options::new(), 2, ());
/// let (first, second) = (lock.write(), lock.write());
/// assert!(lock.try_write().is_none() && lock.try_read().is_none());
/// drop((first, second));
/// assert!(lock.try_read().is_some());
/// ```
pub struct SeveralWriters<T: ?Sized> {
    raw: RawRwLock,
    limit: u32,
    value: UnsafeCell<T>,
}

// SAFETY: the value goes where the lock goes.
unsafe impl<T: ?Sized + Send> Send for SeveralWriters<T> {}
// SAFETY: all holds give `&T`, to many threads.
unsafe impl<T: ?Sized + Send + Sync> Sync for SeveralWriters<T> {}

/// The hold of a reader of [`SeveralWriters`], ended when dropped.
#[must_use = "the hold ends when this is dropped"]
pub struct ManyGuard<'a, T: ?Sized> {
    lock: &'a SeveralWriters<T>,
    hold: ReadHold,
}

/// The hold of one of the writers of [`SeveralWriters`], ended when dropped.
#[must_use = "the hold ends when this is dropped"]
pub struct SomeGuard<'a, T: ?Sized> {
    lock: &'a SeveralWriters<T>,
}

impl<T> SeveralWriters<T> {
    /// A lock that at most `limit` writers have at once (1 at least).
    #[must_use]
    pub const fn new(options: Options, limit: u32, value: T) -> Self {
        let limit = if limit == 0 { 1 } else { limit };
        Self { raw: options.build_raw(), limit, value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> SeveralWriters<T> {
    /// Takes it as a reader; waits while writers have it.
    #[inline]
    pub fn read(&self) -> ManyGuard<'_, T> {
        ManyGuard { lock: self, hold: self.raw.read() }
    }

    /// Takes it as a reader if no writer has it or waits for it. Never waits.
    #[inline]
    pub fn try_read(&self) -> Option<ManyGuard<'_, T>> {
        self.raw.try_read().map(|hold| ManyGuard { lock: self, hold })
    }

    /// Takes it as a writer; waits for readers to leave, and while the group of writers is full or others
    /// wait.
    pub fn write(&self) -> SomeGuard<'_, T> {
        while !self.raw.join_group(self.limit, Patience::Endless) {}
        SomeGuard { lock: self }
    }

    /// [`SeveralWriters::write`] without waiting for others.
    pub fn try_write(&self) -> Option<SomeGuard<'_, T>> {
        self.raw.join_group(self.limit, Patience::None).then(|| SomeGuard { lock: self })
    }

    /// [`SeveralWriters::write`] up to a deadline.
    pub fn try_write_until(&self, deadline: Instant) -> Option<SomeGuard<'_, T>> {
        let joined = self.raw.join_group(self.limit, Patience::Until(deadline));
        joined.then(|| SomeGuard { lock: self })
    }

    /// How many writers may have it at once.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// True if somebody waits for it, at the moment.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.raw.has_waiters()
    }

    /// How many have it, at the moment.
    #[must_use]
    pub fn writers(&self) -> u32 {
        self.raw.after_fork();
        self.raw.queue.lock().group
    }
}

impl RawRwLock {
    /// Becomes one of the group of writers.
    fn join_group(&self, limit: u32, patience: Patience) -> bool {
        self.after_fork();
        if self.join_at_once(limit) {
            return true;
        }
        match self.write_as(patience) {
            None => false,
            Some(Grant::Group) => true,
            Some(Grant::Seat) => {
                let mut line = self.queue.lock();
                line.group = 1;
                self.call_group(line);
                true
            }
        }
    }

    fn join_at_once(&self, limit: u32) -> bool {
        let mut line = self.queue.lock();
        line.limit = limit;
        line.joins_group()
    }

    /// Calls the writers at the head of the queue, as many as there is room for.
    fn call_group(&self, mut line: super::queue::Held<'_>) {
        let mut called = Vec::new();
        let next = |line: &mut Line| line.waiters.pop_front_if(|w| w.kind == Kind::Writer);
        while line.group < line.limit
            && let Some(writer) = next(&mut line)
        {
            line.group += 1;
            writer.grant(Grant::Group);
            called.push(writer);
        }
        if line.waiters.is_empty() {
            self.seat.no_queue();
        }
        drop(line);
        self.queue.wake(&called);
    }

    /// One of the group leaves.
    fn leave_group(&self) {
        self.after_fork();
        let mut line = self.queue.lock();
        line.group = line.group.saturating_sub(1);
        if line.group != 0 {
            self.call_group(line);
            return;
        }
        drop(line);
        // The seat is the group's, whose last this was.
        self.end_write();
        self.give_seat_up();
    }
}

impl<T: ?Sized> Deref for ManyGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: nobody gets `&mut`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for SomeGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: nobody gets `&mut`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for ManyGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the hold is this guard's, which is gone now.
        unsafe { self.lock.raw.unlock_read(self.hold) };
    }
}

impl<T: ?Sized> Drop for SomeGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.leave_group();
    }
}

impl<T: ?Sized> fmt::Debug for SeveralWriters<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeveralWriters")
            .field("limit", &self.limit)
            .field("writers", &self.writers())
            .finish_non_exhaustive()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for ManyGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for SomeGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
