//! Waiting for data.

use crate::Segment;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// As late as possible without losing events.
    pub const FULL: Self = Self(100);

    /// So many percent of the ring; more than 100 is 100.
    #[must_use]
    pub const fn percent(percent: u8) -> Self {
        Self(if percent > 100 { 100 } else { percent })
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// A ring of the set is as full as asked.
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
}

impl Waiter {
    /// A waiter; any number of them may wait at once, in any process.
    #[must_use]
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { segment }
    }

    /// Sleeps until a ring of `set` is filled to `watermark`, or one of the other outcomes.
    pub fn wait(
        &mut self,
        set: RingSet,
        watermark: Watermark,
        deadline: Option<Instant>,
    ) -> WaitOutcome {
        let _ = (set, watermark, deadline);
        WaitOutcome::Stopped
    }

    /// The same without any help from writers or notifier: looks, sleeps `every`, looks again.
    pub fn wait_polling(
        &mut self,
        set: RingSet,
        watermark: Watermark,
        every: Duration,
        deadline: Option<Instant>,
    ) -> WaitOutcome {
        let _ = every;
        self.wait(set, watermark, deadline)
    }

    /// A descriptor for `poll` and `epoll` that is readable while the condition may hold.
    ///
    /// # Errors
    /// When the kernel refuses the descriptor or its thread.
    pub fn wake_fd(&self, set: RingSet, watermark: Watermark) -> io::Result<WakeFd> {
        let _ = (set, watermark, &self.segment);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A descriptor that becomes readable when a wait would end.
#[derive(Debug)]
pub struct WakeFd {
    fd: OwnedFd,
}

impl WakeFd {
    /// Makes the descriptor unreadable and waits anew; call it before draining.
    pub fn rearm(&self) {}
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How the notifier thread runs.
#[derive(Clone, Debug, Default)]
pub struct NotifierOptions {
    /// CPUs it may run on; empty = wherever the process may.
    pub cpus: Vec<usize>,
}

/// The thread of the recorder that turns marks left by writers into wakeups, at most one per
/// deferral. Stops when dropped; writers then wake readers themselves.
#[derive(Debug)]
pub struct Notifier {}

impl Notifier {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(segment: &Arc<Segment>, options: &NotifierOptions) -> io::Result<Self> {
        let _ = (segment, options);
        Err(io::ErrorKind::Unsupported.into())
    }
}
