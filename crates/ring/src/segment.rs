//! The shared segment: created by the recorder, opened by every traced process.
//!
//! One sealed memfd holds all of a session: header, configuration, control blocks, log and data
//! (`layout.rs`). It is mapped once per process, in one piece of address space: everything before
//! the data as it is, then the data of each ring twice in a row, so that no record wraps.
//!
//! Memory is allocated before it is mapped, so that a machine without memory is an error here and
//! never a SIGBUS in a traced program: everything up to the portable rings by the creator (and
//! again by each opener, who cannot know), the portable rings by whoever first needs them. memfd
//! memory does not come from `/dev/shm`; a container's 64 MB there do not matter.
//!
//! # Invariants
//! 1. A `Segment` exists only for a file whose size is sealed and equals `geometry.total()`, and
//!    `map` covers `geometry.mapped()` bytes. So every offset below is mapped for the segment's life.
//! 2. Words of the header and the control blocks are only accessed as atomics; log and data only
//!    by `shm::copy`, by the writers' sections, and by the owner of a portable ring.

use crate::layout::{self, Geometry, Refused};
use crate::log::{Log, LogCursor, LogFull};
use crate::positions::Control;
use crate::shm;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use owlet_sys::SysError;
use owlet_sys::memory::{self, Mapping};
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
    /// Possible CPUs; there are this many rseq rings and as many portable ones, but at least 4.
    /// The portable ones take memory only when the first process needs them.
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
    /// 1 MiB per ring, 1 MiB of log, one CPU, TSC, wakeups put off for 2 ms.
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
                "segment has layout version {found}, this build speaks version {expected}\n\
                 hint: use the same release of owlet in the recorder and in the program"
            ),
        }
    }
}

impl std::error::Error for SegmentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SysError> for SegmentError {
    fn from(error: SysError) -> Self {
        Self::Io(error.into())
    }
}

impl From<Refused> for SegmentError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Invalid(what) => Self::Invalid(what),
            Refused::Version(found) => Self::Version { found, expected: layout::VERSION },
        }
    }
}

/// The shared segment, mapped. Unmapped when dropped: whoever writes or reads holds an `Arc`.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    map: Mapping,
    geometry: Geometry,
    config: Vec<u8>,
    /// This process has made sure that the portable rings have memory.
    portable: AtomicBool,
    /// Kicks of this process.
    kicks: AtomicU32,
}

impl Segment {
    /// Creates and maps a segment.
    ///
    /// # Errors
    /// When a number is out of range (at most 8192 CPUs, 1 GiB for each ring, the log and the
    /// configuration) or the kernel refuses memory, descriptor or seals.
    pub fn create(options: &SegmentOptions) -> io::Result<Self> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let ring_bytes = options.ring_bytes.clamp(layout::PAGE, 2 * layout::MAX_RING);
        let log_bytes = options.log_bytes.clamp(1, 2 * layout::MAX_SIDE);
        let geometry = Geometry {
            cpus: options.cpus,
            ring_bytes: ring_bytes.next_power_of_two(),
            config_len: options.config.len(),
            log_len: log_bytes.next_multiple_of(layout::PAGE),
            clock: options.clock,
            deferral_us: options.deferral_us,
        };
        geometry.check().map_err(invalid)?;
        let fd = memory::memfd_create(c"owlet")?;
        memory::set_len(&fd, geometry.total())?;
        let needed = geometry.portable_off();
        memory::allocate_range(&fd, 0, needed).map_err(|error| no_memory(error, needed))?;
        let segment = Self::map(fd, geometry, options.config.clone())?;
        segment.put(0, &geometry.encode());
        segment.put(geometry.config_off(), &options.config);
        for index in 0..geometry.rings() {
            if let Some(control) = segment.control(index) {
                control.wake_at.store(u64::MAX, Ordering::Relaxed);
            }
        }
        memory::seal_size(&segment.fd)?;
        Ok(segment)
    }

    /// Maps the segment behind `fd`, checking every field of its header.
    ///
    /// # Errors
    /// When it is no segment, one of another version, or one whose size is not sealed; or when the
    /// kernel refuses memory.
    pub fn open(fd: OwnedFd) -> Result<Self, SegmentError> {
        if !memory::is_size_sealed(&fd).unwrap_or(false) {
            return Err(SegmentError::Invalid("no memory file of sealed size"));
        }
        let len = memory::len(&fd)?;
        if len < layout::HEADER_LEN {
            return Err(SegmentError::Invalid("shorter than a header"));
        }
        let page = Mapping::shared(&fd, 0, layout::HEADER_LEN)?;
        let mut constants = [0; layout::CONSTANTS_LEN];
        // SAFETY: the first page of a file of sealed size is mapped; the target is private.
        unsafe { shm::copy(page.as_ptr(), constants.as_mut_ptr(), constants.len()) };
        drop(page);
        let geometry = Geometry::decode(&constants, len as u64)?;
        memory::allocate_range(&fd, 0, geometry.portable_off())?;
        let mut segment = Self::map(fd, geometry, Vec::new())?;
        let mut config = Vec::new();
        let from = segment.at(geometry.config_off());
        // SAFETY: inside the mapping by invariant 1; the target is private.
        unsafe { shm::append(from, geometry.config_len, &mut config) };
        segment.config = config;
        Ok(segment)
    }

    fn map(fd: OwnedFd, geometry: Geometry, config: Vec<u8>) -> Result<Self, SysError> {
        let front = core::iter::once((0, geometry.data_off()));
        let twice = (0..geometry.rings()).flat_map(move |index| {
            let ring = (geometry.ring_off(index), geometry.ring_bytes);
            [ring, ring]
        });
        let map = Mapping::pieces(&fd, front.chain(twice))?;
        debug_assert_eq!(map.len(), geometry.mapped());
        let (portable, kicks) = (AtomicBool::new(false), AtomicU32::new(0));
        Ok(Self { fd, map, geometry, config, portable, kicks })
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
        self.geometry.clock
    }

    /// CPUs the segment has rings for.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.geometry.cpus
    }

    /// Data bytes of each ring.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        self.geometry.ring_bytes
    }

    /// Longest record (header, payload, padding) a ring takes: the ring, or 64 KiB.
    #[must_use]
    pub fn max_record(&self) -> usize {
        self.geometry.max_record()
    }

    /// How long a wakeup may be put off.
    #[must_use]
    pub fn deferral(&self) -> Duration {
        Duration::from_micros(self.geometry.deferral_us.into())
    }

    /// The session clock's value now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        match self.geometry.clock {
            Clock::Tsc => owlet_sys::clock::rdtsc(),
            Clock::Monotonic => owlet_sys::clock::monotonic_ns(),
        }
    }

    /// Claims `n` event ids nobody else has; the first of them. Ids start at 1.
    ///
    /// Lock-free and async-signal-safe. `None` when the numbers have run out, or for `n` = 0.
    #[must_use]
    pub fn claim_ids(&self, n: u32) -> Option<u32> {
        if n == 0 {
            return None;
        }
        let next = self.word32(layout::NEXT_ID);
        let add = |last: u32| last.checked_add(n);
        next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok().map(|last| last + 1)
    }

    /// Appends one entry to the log.
    ///
    /// Lock-free and async-signal-safe; a writer killed in the middle holds nobody up. An entry
    /// appended before an event is pushed is there for whoever has drained the event.
    ///
    /// # Errors
    /// When the log is full.
    pub fn log_append(&self, entry: &[u8]) -> Result<(), LogFull> {
        self.log().append(entry)
    }

    /// The next entry for `cursor`, or `None` when there is none yet. Entries come in the order in
    /// which they were claimed, except that one not finished in time comes when it is.
    pub fn log_read(&self, cursor: &mut LogCursor) -> Option<Vec<u8>> {
        self.log().read(cursor)
    }

    /// Marks the session as over, for good, and wakes every waiter in every process.
    pub fn stop(&self) {
        self.word32(layout::STATE).store(layout::STATE_STOPPED, Ordering::Release);
        self.wake_words().wake_everybody();
    }

    /// Whether any process has called [`stop`](Self::stop).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.word32(layout::STATE).load(Ordering::Acquire) != layout::STATE_OPEN
    }

    /// Makes every waiter of this process return [`WaitOutcome::Kicked`](crate::WaitOutcome::Kicked)
    /// from its present or else its next wait. For example when a traced process has ended.
    pub fn kick(&self) {
        self.kicks.fetch_add(1, Ordering::Release);
        self.wake_words().wake_everybody();
    }

    /// Wakeups of sleeping waiters so far, by the notifier and by writers: not part of any
    /// protocol, for benchmarks and tests.
    #[must_use]
    pub fn wakeups(&self) -> u64 {
        let words = self.wake_words();
        let by_writers = words.direct_wakes.load(Ordering::Relaxed);
        words.wakes.load(Ordering::Relaxed).wrapping_add(by_writers)
    }

    pub(crate) fn kicks(&self) -> u32 {
        self.kicks.load(Ordering::Acquire)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Gives the portable rings their memory, once per process. Async-signal-safe.
    #[inline]
    pub(crate) fn ensure_portable(&self) -> Result<(), SysError> {
        if self.portable.load(Ordering::Acquire) {
            return Ok(());
        }
        let from = self.geometry.portable_off();
        memory::allocate_range(&self.fd, from, self.geometry.total() - from)?;
        self.portable.store(true, Ordering::Release);
        Ok(())
    }

    /// The same with an error for people.
    pub(crate) fn reserve_portable(&self) -> io::Result<()> {
        let len = self.geometry.total() - self.geometry.portable_off();
        self.ensure_portable().map_err(|error| no_memory(error, len))
    }

    /// Makes this process's page-table entries of the rings from `first` on, `count` of them; a
    /// kernel that cannot makes them one fault at a time.
    pub(crate) fn populate(&self, first: usize, count: usize) {
        let stride = 2 * self.geometry.ring_bytes;
        let from = self.geometry.data_off() + first * stride;
        let _ = self.map.populate(layout::CONTROLS, self.geometry.rings() * layout::CONTROL_LEN);
        let _ = self.map.populate(from, count * stride);
    }

    /// The address of the mapping.
    pub(crate) fn base(&self) -> usize {
        self.map.as_ptr().addr()
    }

    /// The address of a byte of the mapping; `offset` beyond its end gives its end.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.map.as_ptr().wrapping_add(offset.min(self.map.len()))
    }

    /// Where the data of a ring are mapped, twice.
    pub(crate) fn data(&self, index: usize) -> *mut u8 {
        self.at(self.geometry.data_off() + index * 2 * self.geometry.ring_bytes)
    }

    /// The control block of a ring.
    #[inline]
    pub(crate) fn control(&self, index: usize) -> Option<Control<'_>> {
        (index < self.geometry.rings())
            .then(|| self.control_at(layout::CONTROLS + index * layout::CONTROL_LEN))
    }

    /// The control block at an offset, which must be one of a control block.
    #[inline]
    pub(crate) fn control_at(&self, offset: usize) -> Control<'_> {
        Control {
            head: self.word64(offset + layout::HEAD),
            tail: self.word64(offset + layout::TAIL),
            wake_at: self.word64(offset + layout::WAKE_AT),
            last_time: self.word64(offset + layout::LAST_TIME),
            owner: self.word64(offset + layout::OWNER),
        }
    }

    /// The counters of lost events in the control block at an offset.
    pub(crate) fn lost_at(&self, offset: usize) -> &[AtomicU64; layout::LOST_SLOTS] {
        debug_assert!(offset + layout::CONTROL_LEN <= self.geometry.config_off());
        let lost = self.at(offset + layout::LOST).cast::<[AtomicU64; layout::LOST_SLOTS]>();
        // SAFETY: as for `word64`: control blocks are aligned and inside the mapping.
        unsafe { &*lost }
    }

    /// Counts one lost event in the control block at an offset. One locked add.
    pub(crate) fn count_at(&self, offset: usize, loss: crate::Loss) {
        if let Some(counter) = self.lost_at(offset).get(loss.index()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The words of the wakeup protocol that are not in control blocks.
    #[inline]
    pub(crate) fn wake_words(&self) -> crate::wake::Words<'_> {
        crate::wake::Words {
            seq: self.word32(layout::WAKE_SEQ),
            pending: self.word32(layout::PENDING),
            notifier: self.word64(layout::NOTIFIER),
            waiters: self.word32(layout::WAITERS),
            wakes: self.word64(layout::WAKES),
            direct_wakes: self.word64(layout::DIRECT_WAKES),
        }
    }

    pub(crate) fn writer_fences(&self) -> &AtomicU32 {
        self.word32(layout::WRITER_FENCES)
    }

    fn log(&self) -> Log<'_> {
        Log {
            base: self.at(self.geometry.log_off()),
            len: self.geometry.log_len,
            hint: self.word64(layout::LOG_HINT),
        }
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= self.geometry.config_off());
        // SAFETY: the offsets of `layout.rs` are aligned and inside the mapping (invariant 1), and
        // the word is only accessed as an atomic (invariant 2).
        unsafe { &*self.at(offset).cast::<AtomicU32>() }
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.geometry.config_off());
        // SAFETY: as for `word32`.
        unsafe { &*self.at(offset).cast::<AtomicU64>() }
    }

    /// Writes bytes that nobody else can see yet.
    fn put(&self, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= self.map.len());
        // SAFETY: `create` calls this with offsets and lengths of its own geometry.
        unsafe { shm::copy(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }
}

#[cold]
fn no_memory(error: SysError, bytes: usize) -> io::Error {
    let kind = io::Error::from(error).kind();
    io::Error::new(kind, format!("cannot allocate {} KiB for the rings: {error}", bytes / 1024))
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
