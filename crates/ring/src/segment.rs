//! The shared segment: created by the recorder, opened by every traced process.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// What an event's time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Cycles of the invariant time stamp counter.
    Tsc,
    /// Nanoseconds of `CLOCK_MONOTONIC`; all writers then use the portable rings.
    Monotonic,
}

/// What [`Segment::create`] makes.
#[derive(Clone, Debug)]
pub struct SegmentOptions {
    /// Data bytes of each ring; rounded up to a power of two of at least a page.
    pub ring_bytes: usize,
    /// Possible CPUs; there are this many rseq rings and as many portable ones.
    pub cpus: usize,
    /// What an event's time counts.
    pub clock: Clock,
    /// Bytes of the append-only log; rounded up to pages.
    pub log_bytes: usize,
    /// Any bytes; every process that opens the segment reads them.
    pub config: Vec<u8>,
    /// How long a wakeup may be put off so that one serves many events, in microseconds.
    pub deferral_us: u32,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 1 << 20,
            cpus: 1,
            clock: Clock::Tsc,
            log_bytes: 1 << 20,
            config: Vec::new(),
            deferral_us: 2000,
        }
    }
}

/// Why a segment could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum SegmentError {
    /// A system call failed.
    Io(io::Error),
    /// The descriptor is not a segment, or one that cannot be trusted.
    Invalid(&'static str),
    /// A segment of another version of the layout.
    Version {
        /// The segment's version.
        found: u32,
        /// The version this build speaks.
        expected: u32,
    },
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "cannot map the segment: {error}"),
            Self::Invalid(what) => write!(f, "not a usable segment: {what}"),
            Self::Version { found, expected } => write!(
                f,
                "segment has layout version {found}, this build speaks version {expected}"
            ),
        }
    }
}

impl std::error::Error for SegmentError {}

/// The log has no room for the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFull;

impl fmt::Display for LogFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the segment's log is full")
    }
}

impl std::error::Error for LogFull {}

/// Where a reader of the log stands. Start with `LogCursor::default()`.
#[derive(Clone, Debug, Default)]
pub struct LogCursor {}

/// The shared segment, mapped.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    config: Vec<u8>,
}

impl Segment {
    /// Creates and maps a segment.
    ///
    /// # Errors
    /// When the kernel refuses the memory or the seals.
    pub fn create(options: &SegmentOptions) -> io::Result<Self> {
        let _ = options;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Maps the segment behind `fd`, checking every field of its header.
    ///
    /// # Errors
    /// When it is no segment, one of another version, or one whose size is not sealed.
    pub fn open(fd: OwnedFd) -> Result<Self, SegmentError> {
        let _ = fd;
        Err(SegmentError::Io(io::ErrorKind::Unsupported.into()))
    }

    /// The memory file, for handing to another process.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The creator's configuration, as it was when this process opened the segment.
    #[must_use]
    pub fn config(&self) -> &[u8] {
        &self.config
    }

    /// What an event's time counts.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::Tsc
    }

    /// CPUs the segment has rings for.
    #[must_use]
    pub fn cpus(&self) -> usize {
        1
    }

    /// Data bytes of each ring.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        0
    }

    /// Longest record (header, payload, padding) a ring takes.
    #[must_use]
    pub fn max_record(&self) -> usize {
        0
    }

    /// How long a wakeup may be put off.
    #[must_use]
    pub fn deferral(&self) -> Duration {
        Duration::ZERO
    }

    /// The session clock's value now.
    #[must_use]
    pub fn now(&self) -> u64 {
        0
    }

    /// Claims `n` event ids nobody else has; the first of them. Ids start at 1.
    ///
    /// Async-signal-safe. `None` when the numbers have run out.
    #[must_use]
    pub fn claim_ids(&self, n: u32) -> Option<u32> {
        let _ = n;
        None
    }

    /// Appends one entry to the log.
    ///
    /// Lock-free and async-signal-safe; a writer killed in the middle holds nobody up.
    ///
    /// # Errors
    /// When the log is full.
    pub fn log_append(&self, entry: &[u8]) -> Result<(), LogFull> {
        let _ = entry;
        Err(LogFull)
    }

    /// The next entry for `cursor`, or `None` when there is none yet.
    pub fn log_read(&self, cursor: &mut LogCursor) -> Option<Vec<u8>> {
        let _ = cursor;
        None
    }

    /// Marks the session as over, for good, and wakes every waiter.
    pub fn stop(&self) {}

    /// Whether [`stop`](Self::stop) was called by any process.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        false
    }

    /// Makes every waiter of this process return [`WaitOutcome::Kicked`](crate::WaitOutcome::Kicked)
    /// from its present or else its next wait. For example when a traced process has ended.
    pub fn kick(&self) {}
}
