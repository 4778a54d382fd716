//! Reading a trace directory. Every byte is taken as hostile.

use crate::error::{ErrorKind, StoreError};
use crate::meta::{ClockInfo, Loss, StreamName, TraceMeta};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::Schema;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Something about a trace that is not as an orderly recording leaves it. What can be read is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File inside the directory.
    pub file: String,
    /// Byte offset in it.
    pub offset: u64,
    /// What, as a lower-case fragment.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.file, self.offset, self.message)
    }
}

/// A thread's name and when it was learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRecord {
    /// Ticks.
    pub time: u64,
    /// Who.
    pub thread: Thread,
}

/// A process and when it was learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// Ticks.
    pub time: u64,
    /// Who.
    pub process: Process,
}

/// One stream, from its packet headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its name.
    pub name: StreamName,
    /// Whole packets.
    pub packets: u64,
    /// Bytes of whole packets.
    pub bytes: u64,
    /// Begin of the first packet, in ticks.
    pub begin: u64,
    /// End of the last packet, in ticks.
    pub end: u64,
    /// Events discarded in all.
    pub discarded: u64,
}

/// One event as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEvent<'a> {
    /// Time, id, pid, tid.
    pub header: RecordHeader,
    /// The fields' bytes. Not yet checked against the schema.
    pub payload: &'a [u8],
    /// The packet's CPU.
    pub cpu: u32,
    /// Events that this stream lost between the event before and this one.
    pub discarded: u64,
}

/// An open trace.
#[derive(Debug)]
pub struct TraceReader {
    meta: TraceMeta,
    schemas: BTreeMap<u32, Schema>,
    threads: Vec<ThreadRecord>,
    processes: Vec<ProcessRecord>,
    losses: Vec<Loss>,
    streams: Vec<StreamInfo>,
    problems: Vec<Problem>,
    finished: bool,
}

impl TraceReader {
    /// Opens a trace, reads its sidecar and checks every packet header.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], `NotADirectory`, `NotATrace` (with what it looks like instead),
    /// `Version`, `Permission`, `Corrupt`, `Io`.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Err(StoreError::new(ErrorKind::NotATrace, dir, "not an owlet trace"))
    }

    /// What the trace says of itself; its clock is the refined one.
    #[must_use]
    pub fn meta(&self) -> &TraceMeta {
        &self.meta
    }

    /// The clock, refined as far as the recording got.
    #[must_use]
    pub fn clock(&self) -> &ClockInfo {
        &self.meta.clock
    }

    /// All schemas by event id.
    #[must_use]
    pub fn schemas(&self) -> &BTreeMap<u32, Schema> {
        &self.schemas
    }

    /// Threads in the order they were learnt; a (pid, tid) may come again with another name.
    #[must_use]
    pub fn threads(&self) -> &[ThreadRecord] {
        &self.threads
    }

    /// Processes in the order they were learnt.
    #[must_use]
    pub fn processes(&self) -> &[ProcessRecord] {
        &self.processes
    }

    /// Name of a thread as it was at `time` (or first known as, when that is earlier).
    #[must_use]
    pub fn comm(&self, pid: u32, tid: u32, time: u64) -> Option<&[u8]> {
        let _ = (pid, tid, time);
        None
    }

    /// What was lost, by stream and cause; zero counts are left out.
    #[must_use]
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// The streams, in the order of their names.
    #[must_use]
    pub fn streams(&self) -> &[StreamInfo] {
        &self.streams
    }

    /// What is not as an orderly recording leaves it.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether the recording ended in order.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// The events of `streams()[stream]`, from the first. Holds one packet in memory.
    ///
    /// # Errors
    /// When the stream's file cannot be opened, or there is no such stream.
    pub fn events(&self, stream: usize) -> Result<EventReader<'_>, StoreError> {
        let _ = stream;
        Ok(EventReader { trace: self, problems: Vec::new() })
    }
}

/// A position in one stream. Events come in the order of time.
///
/// It lends: what [`current`](Self::current) returns lives until the next
/// [`advance`](Self::advance), so that memory is bounded by one packet a stream. To merge, keep one
/// reader per stream on its current event.
#[derive(Debug)]
pub struct EventReader<'t> {
    trace: &'t TraceReader,
    problems: Vec<Problem>,
}

impl EventReader<'_> {
    /// Moves to the next event; false at the end.
    pub fn advance(&mut self) -> bool {
        false
    }

    /// The event last advanced to.
    #[must_use]
    pub fn current(&self) -> Option<RawEvent<'_>> {
        let _ = self.trace;
        None
    }

    /// `advance`, then `current`.
    pub fn next_event(&mut self) -> Option<RawEvent<'_>> {
        if self.advance() { self.current() } else { None }
    }

    /// Events lost after the last event. Complete once `advance` returned false.
    #[must_use]
    pub fn discarded_at_end(&self) -> u64 {
        0
    }

    /// What was found in the records read so far (the packet headers' problems are in
    /// [`TraceReader::problems`]).
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}
