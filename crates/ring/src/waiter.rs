//! Waiting for data: the waiter's side of `wake.rs`.
//!
//! A wait never misses data; it may look around for nothing (somebody else's threshold, a signal).
//! Guarantees by front end:
//!
//! | front end | wakes within | trigger |
//! |---|---|---|
//! | [`Waiter::wait`] | the session's deferral and the scheduler's slack | condition checked again before it returns |
//! | [`WakeFd`] | the same | level: readable until [`WakeFd::rearm`], and again at once if the condition still holds |
//! | [`Waiter::wait_polling`] | the interval given | looks by itself; writers and notifier know nothing of it |
//!
//! Without a notifier in any process the writers wake at once instead of after the deferral.

use crate::sync::{AtomicBool, Ordering};
use crate::wake::{self, Words};
use crate::{Loss, Segment, layout};
use owlet_sys::futex::{self, Reach, Woken};
use owlet_sys::{clock, event, process};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A sleeping waiter looks by itself this often. Covers a writer that was killed or stopped
/// between its commit and its wakeup.
const RESCUE: Duration = Duration::from_millis(100);
/// A notifier that has not looked for this long, and 10 deferrals, is taken for dead.
const NOTIFIER_STALE: Duration = Duration::from_millis(50);
/// The shortest nap where nobody can be relied on for a wakeup.
const NAP: Duration = Duration::from_millis(1);

/// Which rings a waiter looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingSet {
    /// All of them.
    All,
    /// One, by index.
    One(usize),
}

/// How full a ring must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark(u8);

impl Watermark {
    /// Any data.
    pub const ANY: Self = Self(0);
    /// As late as possible without losing events: 15/16 of the ring, or the first event that found
    /// no room.
    pub const FULL: Self = Self(100);

    /// So many percent of the ring; more than 100 is 100.
    #[must_use]
    pub const fn percent(percent: u8) -> Self {
        Self(if percent > 100 { 100 } else { percent })
    }

    /// In bytes of a ring of `size`; at least 1.
    fn bytes(self, size: usize) -> u64 {
        let size = size as u64;
        (size * u64::from(self.0) / 100).clamp(1, size - size / 16)
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// A ring of the set is as full as asked, or events find no room in it.
    Ready,
    /// The deadline has passed.
    TimedOut,
    /// Somebody called [`Segment::kick`]; look around and wait again.
    Kicked,
    /// The session is over; drain once more, then leave.
    Stopped,
}

/// Waits for data in a segment's rings.
#[derive(Debug)]
pub struct Waiter {
    segment: Arc<Segment>,
    kicks: u32,
    rescued: u64,
}

impl Waiter {
    /// A waiter; any number of them may wait at once, in any process.
    #[must_use]
    pub fn new(segment: Arc<Segment>) -> Self {
        let kicks = segment.kicks();
        Self { segment, kicks, rescued: 0 }
    }

    /// How often data were found by looking again after a long sleep and not by a wakeup: 0 unless
    /// a writer or a notifier was killed or stopped at the wrong moment.
    #[must_use]
    pub fn rescued(&self) -> u64 {
        self.rescued
    }

    /// Sleeps until a ring of `set` is filled to `watermark`, or one of the other outcomes.
    pub fn wait(
        &mut self,
        set: RingSet,
        watermark: Watermark,
        deadline: Option<Instant>,
    ) -> WaitOutcome {
        let segment = Arc::clone(&self.segment);
        let view = View::new(&segment, set, watermark);
        if let Some(outcome) = self.look(&view) {
            return outcome;
        }
        let words = segment.wake_words();
        let _waiting = Waiting::enter(words);
        let mut overslept = false;
        loop {
            let token = words.token();
            view.arm();
            let sure = wake::heavy();
            if let Some(outcome) = self.look(&view) {
                // With a mark pending, the notifier is late and the wakeup is not lost.
                let late = words.pending.load(Ordering::Relaxed) != 0;
                self.rescued += u64::from(overslept && !late && outcome == WaitOutcome::Ready);
                return outcome;
            }
            let slice = if sure { RESCUE } else { segment.deferral().max(NAP) };
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return WaitOutcome::TimedOut;
            }
            let nap = left.map_or(slice, |left| left.min(slice));
            match futex::wait(words.seq, token, Some(nap), Reach::Shared) {
                Woken::TimedOut if nap == slice => {
                    overslept = sure;
                    retire_dead_notifier(&words, segment.deferral());
                }
                Woken::Unavailable => thread::sleep(nap.min(segment.deferral().max(NAP))),
                _ => overslept = false,
            }
        }
    }

    /// The same without any help from writers or notifier: looks, sleeps `every`, looks again.
    pub fn wait_polling(
        &mut self,
        set: RingSet,
        watermark: Watermark,
        every: Duration,
        deadline: Option<Instant>,
    ) -> WaitOutcome {
        let segment = Arc::clone(&self.segment);
        let view = View::new(&segment, set, watermark);
        loop {
            if let Some(outcome) = self.look(&view) {
                return outcome;
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return WaitOutcome::TimedOut;
            }
            thread::sleep(left.map_or(every, |left| left.min(every)));
        }
    }

    /// A descriptor for `poll` and `epoll` that is readable while the condition may hold. Costs a
    /// thread of this process.
    ///
    /// # Errors
    /// When the kernel refuses the descriptor or the thread.
    pub fn wake_fd(&self, set: RingSet, watermark: Watermark) -> io::Result<WakeFd> {
        WakeFd::start(Arc::clone(&self.segment), set, watermark)
    }

    fn look(&mut self, view: &View<'_>) -> Option<WaitOutcome> {
        if self.segment.is_stopped() {
            return Some(WaitOutcome::Stopped);
        }
        let kicks = self.segment.kicks();
        if kicks != self.kicks {
            self.kicks = kicks;
            return Some(WaitOutcome::Kicked);
        }
        view.is_ready().then_some(WaitOutcome::Ready)
    }
}

/// What one wait looks at.
struct View<'a> {
    segment: &'a Segment,
    rings: core::ops::Range<usize>,
    /// Bytes a ring must hold.
    need: u64,
    /// Events that had found no room when the wait began.
    full: u64,
}

impl<'a> View<'a> {
    fn new(segment: &'a Segment, set: RingSet, watermark: Watermark) -> Self {
        let rings = match set {
            RingSet::All => 0..segment.geometry().rings(),
            RingSet::One(index) => index..index.saturating_add(1),
        };
        let need = watermark.bytes(segment.ring_bytes());
        let mut view = Self { segment, rings, need, full: 0 };
        view.full = view.found_no_room();
        view
    }

    fn found_no_room(&self) -> u64 {
        let rings = self.rings.clone().filter(|&index| index < self.segment.geometry().rings());
        let counters = rings.map(|index| {
            let lost = self.segment.lost_at(layout::CONTROLS + index * layout::CONTROL_LEN);
            lost.get(Loss::Full.index()).map_or(0, |counter| counter.load(Ordering::Relaxed))
        });
        counters.fold(0, u64::wrapping_add)
    }

    fn is_ready(&self) -> bool {
        let filled = self.rings.clone().any(|index| {
            self.segment.control(index).is_some_and(|control| {
                let tail = control.tail_for_reader();
                control.head_for_reader().wrapping_sub(tail) >= self.need
            })
        });
        filled || (self.need > 1 && self.found_no_room() != self.full)
    }

    fn arm(&self) {
        for control in self.rings.clone().map_while(|index| self.segment.control(index)) {
            wake::arm(control.wake_at, control.tail_for_reader().saturating_add(self.need));
        }
    }
}

/// A thread inside a wait, counted in the header so that the notifier knows when to look.
struct Waiting<'a>(Words<'a>);

impl<'a> Waiting<'a> {
    fn enter(words: Words<'a>) -> Self {
        if words.waiters.fetch_add(1, Ordering::AcqRel) == 0 {
            futex::wake_all(words.waiters, Reach::Shared);
        }
        Self(words)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Lets writers wake by themselves if the notifier has died without saying so.
fn retire_dead_notifier(words: &Words<'_>, deferral: Duration) {
    let last = words.notifier.load(Ordering::Relaxed);
    let age = Duration::from_nanos(clock::monotonic_ns().saturating_sub(last));
    if last != 0 && age > NOTIFIER_STALE + 10 * deferral {
        // Only if it has not looked since; one that was merely stopped registers itself again.
        let _ = words.notifier.compare_exchange(last, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// A descriptor that becomes readable when a wait would end, whatever the outcome.
///
/// Level-triggered: it stays readable until [`rearm`](Self::rearm). The order "rearm, then drain"
/// misses nothing.
#[derive(Debug)]
pub struct WakeFd {
    shared: Arc<Pump>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Pump {
    segment: Arc<Segment>,
    fd: OwnedFd,
    armed: Mutex<bool>,
    changed: Condvar,
    closing: AtomicBool,
}

impl WakeFd {
    fn start(segment: Arc<Segment>, set: RingSet, watermark: Watermark) -> io::Result<Self> {
        let shared = Arc::new(Pump {
            segment,
            fd: event::eventfd()?,
            armed: Mutex::new(true),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
        });
        let pump = Arc::clone(&shared);
        let run = move || {
            process::block_signals();
            pump.run(set, watermark);
        };
        let thread = Some(thread::Builder::new().name("owlet-wakefd".into()).spawn(run)?);
        Ok(Self { shared, thread })
    }

    /// Makes the descriptor unreadable and waits anew; call it before draining.
    pub fn rearm(&self) {
        let mut armed = self.shared.armed.lock().unwrap_or_else(PoisonError::into_inner);
        event::clear(&self.shared.fd);
        *armed = true;
        self.shared.changed.notify_one();
    }
}

impl Pump {
    fn run(&self, set: RingSet, watermark: Watermark) {
        let mut waiter = Waiter::new(Arc::clone(&self.segment));
        loop {
            let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
            while !*armed && !self.closing.load(Ordering::Acquire) {
                armed = self.changed.wait(armed).unwrap_or_else(PoisonError::into_inner);
            }
            drop(armed);
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            let outcome = waiter.wait(set, watermark, None);
            let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
            if outcome == WaitOutcome::Kicked && self.closing.load(Ordering::Acquire) {
                return;
            }
            *armed = false;
            let _ = event::raise(&self.fd);
        }
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }
}

impl Drop for WakeFd {
    fn drop(&mut self) {
        {
            let _armed = self.shared.armed.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.closing.store(true, Ordering::Release);
            self.shared.changed.notify_all();
        }
        self.shared.segment.kick();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[path = "waiter_tests.rs"]
mod tests;
