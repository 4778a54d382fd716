//! Appending to a trace directory.

use crate::error::{ErrorKind, StoreError};
use crate::meta::{ClockInfo, Loss, StreamName, TraceMeta};
use owlet_wire::entry::{Entry, Process, Thread};
use owlet_wire::schema::Schema;
use std::path::{Path, PathBuf};

/// A run of records to append to one stream.
#[derive(Clone, Copy, Debug)]
pub struct PacketInfo<'a> {
    /// The CPU shown beside each event (of a portable ring: the ring's number).
    pub cpu: u32,
    /// Ticks: no record is earlier. Raised to the end of the packet before when that is later.
    pub begin: u64,
    /// Ticks: no record is later; one that is counts as malformed. The last record's time, or now.
    pub end: u64,
    /// Events lost on this stream since the session began, for all causes together.
    pub discarded_total: u64,
    /// Whole records, each padded to a multiple of 8 bytes as in the ring; may be empty.
    pub records: &'a [u8],
}

/// What became of a run of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Appended {
    /// Records written.
    pub events: u64,
    /// Records refused, because their id is unknown or their bytes do not fit their schema. They
    /// count as discarded in the trace.
    pub malformed: u64,
    /// Bytes written, headers included.
    pub bytes: u64,
}

/// What a whole trace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Records written.
    pub events: u64,
    /// Records refused as malformed.
    pub malformed: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Appends to one trace directory.
#[derive(Debug)]
pub struct TraceWriter {
    dir: PathBuf,
}

impl TraceWriter {
    /// Makes the directory (0700) or takes an empty one, and begins the trace.
    ///
    /// # Errors
    /// [`ErrorKind::NotEmpty`], `NotADirectory`, `NotFound` (the parent), `Permission`, `ReadOnly`,
    /// `NoSpace`, `Io`.
    pub fn create(dir: &Path, meta: &TraceMeta) -> Result<Self, StoreError> {
        let _ = meta;
        std::fs::create_dir(dir)
            .map_err(|e| StoreError::io(dir, "cannot make the directory", e))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stores one entry of the session's log; `time` is now, in ticks. The same as
    /// [`add_schema`](Self::add_schema), [`add_thread`](Self::add_thread) or
    /// [`add_process`](Self::add_process).
    ///
    /// # Errors
    /// As those.
    pub fn add_entry(&mut self, time: u64, entry: Entry) -> Result<(), StoreError> {
        match entry {
            Entry::Schema(id, schema) => self.add_schema(id, &schema),
            Entry::Thread(thread) => self.add_thread(time, &thread),
            Entry::Process(process) => self.add_process(time, &process),
        }
    }

    /// Stores what events of this id look like. Must precede their first packet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the id is taken by another schema or the schema is over a limit;
    /// those of the file system.
    pub fn add_schema(&mut self, id: u32, schema: &Schema) -> Result<(), StoreError> {
        let _ = (id, schema);
        Ok(())
    }

    /// Stores a thread's name; `time` is when it was learnt, in ticks.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn add_thread(&mut self, time: u64, thread: &Thread) -> Result<(), StoreError> {
        let _ = (time, thread);
        Ok(())
    }

    /// Stores a process; `time` is when it was learnt, in ticks.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn add_process(&mut self, time: u64, process: &Process) -> Result<(), StoreError> {
        let _ = (time, process);
        Ok(())
    }

    /// Appends records to a stream, as one packet or, when they are many, several.
    ///
    /// # Errors
    /// Those of the file system. The stream's file then ends where it ended before the packet that
    /// failed, and the writer stays usable.
    pub fn append_packet(
        &mut self,
        stream: StreamName,
        packet: &PacketInfo<'_>,
    ) -> Result<Appended, StoreError> {
        let _ = (stream, packet);
        Err(StoreError::new(ErrorKind::Io, &self.dir, "not written"))
    }

    /// Stores running totals of what was lost; the last value of each (stream, cause) counts.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn set_losses(&mut self, losses: &[Loss]) -> Result<(), StoreError> {
        let _ = losses;
        Ok(())
    }

    /// Refines the clock; the metadata is rewritten with the last one by [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a frequency of 0; those of the file system.
    pub fn set_clock(&mut self, clock: ClockInfo) -> Result<(), StoreError> {
        let _ = clock;
        Ok(())
    }

    /// Bytes, events and malformed records so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary::default()
    }

    /// Ends the trace: metadata with the refined clock, and a mark that the end was orderly.
    ///
    /// # Errors
    /// Those of the file system; everything appended before stays readable.
    pub fn finish(self) -> Result<Summary, StoreError> {
        Ok(self.summary())
    }
}
