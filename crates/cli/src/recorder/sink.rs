//! From the rings into the trace directory.
//!
//! Each round drains every ring first and reads the segment's log after that: an event's schema is
//! in the log before the event is in a ring, so whatever a ring gave up has its schema by then.
//! Nothing that comes out of the segment is trusted. The ring's reader checks lengths, the trace
//! writer checks ids and fields, and an entry of the log that makes no sense is counted and left out.

use super::losses::Losses;
use crate::error::{Failure, Result, show};
use crate::text::{count, escape};
use owlet_ring::{Drained, LOSS_REASONS, LogCursor, Reader, RingReader, Segment};
use owlet_store::{
    CORRUPT, ClockInfo, ErrorKind, MALFORMED, NOT_WRITTEN, PacketInfo, REMOVED, Recorder,
    StoreError, StreamName, TraceMeta, TraceReader, TraceWriter,
};
use owlet_wire::entry::{self, Entry};
use owlet_wire::functions::RETURN;
use owlet_wire::record::RecordHeader;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Ring {
    reader: RingReader,
    stream: StreamName,
    cpu: u32,
    records: Vec<u8>,
    drained: Drained,
    /// Losses as the last packet told them.
    told: u64,
    /// Bytes that were no records, and how many times there were some.
    skipped: u64,
    skips: u64,
    /// Events in the directory.
    written: u64,
}

/// Drains one session into one directory.
pub(crate) struct Sink {
    segment: Arc<Segment>,
    rings: Vec<Ring>,
    cursor: LogCursor,
    /// Gone once ended.
    trace: Option<TraceWriter>,
    /// Writing has failed: what is drained from now on is only counted.
    broken: bool,
    /// Why what is drained from now on is lost: the directory takes no more, or somebody changed it.
    cause: &'static str,
    /// Something of what was written is gone, and has been counted.
    recounted: bool,
    dir: PathBuf,
    pub(crate) losses: Losses,
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    /// Entries of the log that are none.
    pub(crate) bad_entries: u64,
    /// Schemas learnt.
    pub(crate) schemas: u64,
    /// Processes learnt.
    pub(crate) processes: u64,
    /// Records by event, for those who ask for it.
    pub(crate) tally: Option<Tally>,
}

/// How many records of each event were written.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    names: HashMap<u32, String>,
    records: HashMap<u32, u64>,
}

impl Tally {
    fn count(&mut self, mut records: &[u8]) {
        while let Some(header) = RecordHeader::read(records) {
            *self.records.entry(header.id).or_default() += 1;
            records = records.get(header.advance().max(1)..).unwrap_or_default();
        }
    }

    /// The functions with the most calls, as the end of a line.
    pub(crate) fn top(&self) -> String {
        const SHOWN: usize = 3;
        let mut calls: Vec<_> = self.calls().into_iter().filter(|(_, n)| *n > 0).collect();
        calls.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
        let shown = calls.iter().take(SHOWN);
        shown.map(|(name, n)| format!("  {} {}", escape(name.as_bytes()), count(*n))).collect()
    }

    /// Calls by function: its records of one kind, of whichever there are most.
    pub(crate) fn calls(&self) -> BTreeMap<&str, u64> {
        let mut calls = BTreeMap::new();
        for (id, name) in &self.names {
            let function = name.strip_suffix(RETURN).unwrap_or(name);
            let known: &mut u64 = calls.entry(function).or_default();
            *known = self.records.get(id).copied().unwrap_or(0).max(*known);
        }
        calls
    }
}

impl Sink {
    /// Begins the trace directory.
    pub(crate) fn create(segment: &Arc<Segment>, dir: &Path, meta: &TraceMeta) -> Result<Self> {
        let mut trace = TraceWriter::create(dir, meta).map_err(|error| match error.kind {
            ErrorKind::Permission => {
                store_failure(error).hint("name a directory where you may write, with -o")
            }
            _ => store_failure(error),
        })?;
        let reader = Reader::new(Arc::clone(segment));
        let recorder = Recorder {
            pid: std::process::id(),
            rings: u32::try_from(reader.rings()).unwrap_or(u32::MAX),
            ring_bytes: segment.ring_bytes() as u64,
        };
        if let Err(error) = trace.set_recorder(recorder) {
            trace.discard();
            return Err(store_failure(error));
        }
        let rings =
            (0..reader.rings()).filter_map(|at| reader.ring(at).map(|r| Ring::new(r, segment)));
        Ok(Self {
            segment: Arc::clone(segment),
            rings: rings.collect(),
            cursor: LogCursor::default(),
            trace: Some(trace),
            broken: false,
            cause: NOT_WRITTEN,
            recounted: false,
            dir: dir.to_owned(),
            losses: Losses::default(),
            events: 0,
            bytes: 0,
            bad_entries: 0,
            schemas: 0,
            processes: 0,
            tally: None,
        })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes of ring content that were no records.
    pub(crate) fn corrupt(&self) -> u64 {
        self.rings.iter().fold(0, |sum, ring| sum.saturating_add(ring.drained.corrupt))
    }

    /// Moves everything that is in the rings now into the directory; `last` tells what was lost
    /// since the last packet of each stream, too.
    ///
    /// # Errors
    /// When the directory takes no more. What was drained and not written counts as lost, and so
    /// does what later rounds drain.
    pub(crate) fn drain(&mut self, last: bool) -> std::result::Result<(), StoreError> {
        for ring in &mut self.rings {
            ring.records.clear();
            ring.drained = ring.reader.drain(&mut ring.records);
            for reason in LOSS_REASONS {
                let lost = ring.drained.lost.get(reason.loss.index()).copied().unwrap_or(0);
                self.losses.set(ring.stream, reason.name, lost);
            }
            if ring.drained.corrupt > ring.skipped {
                // How many events were in there, nobody can tell: at least one.
                ring.skips += 1;
                ring.skipped = ring.drained.corrupt;
                self.losses.set(ring.stream, CORRUPT, ring.skips);
            }
        }
        if self.broken {
            self.forget(0);
            return Ok(());
        }
        let Some(mut trace) = self.trace.take() else { return Ok(()) };
        let written = self.read_log(&mut trace).and_then(|()| self.write(&mut trace, last));
        self.broken = written.is_err();
        self.bytes = trace.summary().bytes;
        self.trace = Some(trace);
        // Perhaps somebody took away what was written before, too.
        if self.broken { self.check(true).and(written) } else { written }
    }

    /// Removes the files of a trace without events, and the directory if it was made for them.
    pub(crate) fn discard(mut self) {
        if let Some(trace) = self.trace.take() {
            trace.discard();
        }
    }

    /// Stores a better measurement of the clock.
    pub(crate) fn set_clock(&mut self, clock: ClockInfo) -> std::result::Result<(), StoreError> {
        self.trace.as_mut().map_or(Ok(()), |trace| trace.set_clock(clock))
    }

    /// Stores what was lost so far, by cause. Writes nothing when nothing has changed.
    pub(crate) fn tell_losses(&mut self) -> std::result::Result<(), StoreError> {
        let losses = self.losses.to_store();
        let Some(trace) = &mut self.trace else { return Ok(()) };
        for ring in &self.rings {
            trace.set_skipped(ring.stream, ring.skipped)?;
        }
        trace.set_losses(&losses)
    }

    /// Whether the directory still has everything that was written; `all` looks at every packet. When
    /// it has not, what is gone counts as lost, and nothing more is written. A directory that was moved
    /// is followed.
    ///
    /// # Errors
    /// The first file that somebody removed, replaced, truncated or changed.
    pub(crate) fn check(&mut self, all: bool) -> std::result::Result<(), StoreError> {
        if self.recounted {
            return Ok(());
        }
        let checked = self.trace.as_mut().map_or(Ok(()), |trace| trace.check(all));
        if let Some(trace) = self.trace.as_ref().filter(|trace| trace.dir() != self.dir) {
            trace.dir().clone_into(&mut self.dir);
        }
        if checked.is_err() {
            (self.broken, self.recounted, self.cause) = (true, true, REMOVED);
            self.recount();
        }
        checked
    }

    /// Counts what is left of the events that were written.
    fn recount(&mut self) {
        let trace = TraceReader::open(&self.dir).ok();
        let left = |stream: StreamName| {
            let trace = trace.as_ref()?;
            let at = trace.streams().iter().position(|info| info.name == stream)?;
            let mut events = trace.events(at).ok()?;
            Some((0..).take_while(|_| events.advance()).count() as u64)
        };
        for ring in &mut self.rings {
            let gone = ring.written.saturating_sub(left(ring.stream).unwrap_or(0));
            ring.written -= gone;
            self.events = self.events.saturating_sub(gone);
            self.losses.add(ring.stream, REMOVED, gone);
        }
    }

    /// Ends the directory.
    pub(crate) fn finish(&mut self) -> std::result::Result<(), StoreError> {
        self.tell_losses()?;
        let Some(trace) = self.trace.take() else { return Ok(()) };
        self.bytes = trace.finish()?.bytes;
        Ok(())
    }

    fn write(
        &mut self,
        trace: &mut TraceWriter,
        last: bool,
    ) -> std::result::Result<(), StoreError> {
        for at in 0..self.rings.len() {
            if let Err(error) = self.write_ring(trace, at, last) {
                // A part may have been written.
                let written = trace.summary().events.saturating_sub(self.events);
                if let Some(ring) = self.rings.get_mut(at) {
                    ring.written += written;
                    ring.drained.events = ring.drained.events.saturating_sub(written);
                }
                self.events += written;
                self.blame(&error);
                self.forget(at);
                return Err(error);
            }
        }
        Ok(())
    }

    fn write_ring(
        &mut self,
        trace: &mut TraceWriter,
        at: usize,
        last: bool,
    ) -> std::result::Result<(), StoreError> {
        let Some(ring) = self.rings.get_mut(at) else { return Ok(()) };
        let discarded = ring.drained.lost.iter().fold(ring.skips, |sum, n| sum.saturating_add(*n));
        // A packet without records would bound the times of records that are just being written;
        // at the end there are none.
        if ring.records.is_empty() && !(last && discarded > ring.told) {
            return Ok(());
        }
        let now = self.segment.now();
        let (begin, end) = if ring.records.is_empty() {
            (now, now)
        } else {
            (ring.drained.first_time, ring.drained.last_time)
        };
        let packet = PacketInfo {
            cpu: ring.cpu,
            begin,
            end,
            discarded_total: discarded,
            records: &ring.records,
        };
        let appended = trace.append_packet(ring.stream, &packet)?;
        if let Some(tally) = &mut self.tally {
            tally.count(&ring.records);
        }
        ring.told = discarded;
        ring.written += appended.events;
        self.events += appended.events;
        self.losses.add(ring.stream, MALFORMED, appended.malformed);
        Ok(())
    }

    fn blame(&mut self, error: &StoreError) {
        if error.kind == ErrorKind::Changed {
            self.cause = REMOVED;
        }
    }

    /// Counts what rings from `from` on have given up and nobody will write.
    fn forget(&mut self, from: usize) {
        for ring in self.rings.iter_mut().skip(from) {
            self.losses.add(ring.stream, self.cause, ring.drained.events);
            ring.drained.events = 0;
        }
    }

    fn read_log(&mut self, trace: &mut TraceWriter) -> std::result::Result<(), StoreError> {
        while let Some(bytes) = self.segment.log_read(&mut self.cursor) {
            let Some(entry) = entry::decode(&bytes) else {
                self.bad_entries += 1;
                continue;
            };
            if let (Some(tally), Entry::Schema(id, schema)) = (&mut self.tally, &entry) {
                tally.names.insert(*id, schema.name.clone());
            }
            let counter = match entry {
                Entry::Schema(..) => Some(&mut self.schemas),
                Entry::Process(_) => Some(&mut self.processes),
                Entry::Thread(_) => None,
            };
            match trace.add_entry(self.segment.now(), entry) {
                Ok(()) => counter.map_or((), |counter| *counter += 1),
                Err(error) if error.kind == ErrorKind::Invalid => self.bad_entries += 1,
                Err(error) => {
                    self.blame(&error);
                    self.forget(0);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Ring {
    fn new(reader: RingReader, segment: &Segment) -> Self {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (stream, cpu) = match reader.cpu() {
            Some(cpu) => (StreamName::cpu(number(cpu)), number(cpu)),
            None => {
                let slot = number(reader.index().saturating_sub(segment.cpus()));
                (StreamName::portable(slot), slot)
            }
        };
        Self {
            reader,
            stream,
            cpu,
            records: Vec::new(),
            drained: Drained::default(),
            told: 0,
            skipped: 0,
            skips: 0,
            written: 0,
        }
    }
}

/// A failure of the trace directory as a failure of the command.
pub(crate) fn store_failure(error: StoreError) -> Failure {
    let source = error.source.as_ref().map(|source| format!(": {}", crate::error::reason(source)));
    let message = format!("{}: {}{}", show(&error.path), error.what, source.unwrap_or_default());
    let failure = Failure::new(message);
    match error.hint() {
        "" => failure,
        hint => failure.hint(hint),
    }
}
