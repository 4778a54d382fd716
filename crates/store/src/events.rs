//! The events of one stream, packet by packet.

use crate::meta::StreamName;
use crate::packet::{PacketHeader, RECORDS_START, StreamClass};
use crate::reader::{Problem, Problems, RawEvent, StreamInfo, TraceReader};
use crate::walk::{Step, Walk};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::value::fits;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Unknown ids told of one stream at most, each for itself.
const UNKNOWN_MAX: usize = 16;

/// A position in one stream. Events come in the order of time, but for files that no recorder wrote
/// ([`problems`](Self::problems) says so then).
///
/// It lends: what [`current`](Self::current) returns lives until the next
/// [`advance`](Self::advance), so that memory is bounded by one packet a stream. To merge, keep one
/// reader per stream on its current event.
#[derive(Debug)]
pub struct EventReader<'t> {
    trace: &'t TraceReader,
    name: StreamName,
    file: Option<File>,
    walk: Walk,
    problems: Problems,
    /// The packet being read, from its first record to the end of its content.
    records: Vec<u8>,
    /// Where that packet starts in the file.
    offset: u64,
    cpu: u32,
    /// Where the record last looked at starts in `records`, and where the next one does.
    at: usize,
    next: usize,
    current: Option<(RecordHeader, Range<usize>)>,
    last_time: u64,
    /// The stream's running count up to this packet.
    discarded: u64,
    /// Records so far, and how many the recorder wrote, if it said so and all packets are there.
    read: u64,
    written: Option<u64>,
    /// The packet's own times.
    begin: u64,
    end: u64,
    /// Records whose time is outside their packet's, and where in the file the first one is.
    outside: u64,
    first_outside: Option<u64>,
    /// Records that do not fit their schema, and where in the file the first one is.
    misfits: u64,
    first_misfit: Option<u64>,
    /// Events that no schema describes, by id: how many, and where in the file the first is. Behind
    /// the bound, all ids together.
    unknown: BTreeMap<Option<u32>, (u64, u64)>,
    /// What the packet being read adds to it.
    behind: u64,
    /// What of the packets before no event has carried yet, and what the current event carries.
    pending: u64,
    carried: u64,
}

impl<'t> EventReader<'t> {
    pub(crate) fn new(trace: &'t TraceReader, info: &StreamInfo, file: Option<File>) -> Self {
        Self {
            trace,
            name: info.name,
            file,
            walk: Walk::new(StreamClass::Events, trace.meta().uuid, info.bytes),
            problems: Problems::default(),
            records: Vec::new(),
            offset: 0,
            cpu: 0,
            at: 0,
            next: 0,
            current: None,
            last_time: 0,
            discarded: 0,
            behind: 0,
            begin: 0,
            end: 0,
            outside: 0,
            first_outside: None,
            read: 0,
            written: trace.written(info),
            misfits: 0,
            first_misfit: None,
            unknown: BTreeMap::new(),
            pending: 0,
            carried: 0,
        }
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> StreamName {
        self.name
    }

    /// Moves to the next event; false at the end. Events whose id no schema has, or whose time is not
    /// within their packet's, are skipped and reported.
    pub fn advance(&mut self) -> bool {
        self.current = None;
        loop {
            if let Some((header, payload)) = self.record() {
                if header.time < self.begin || header.time > self.end {
                    // Its place in time is not known, and those behind it must not move there.
                    self.outside += 1;
                    self.first_outside.get_or_insert(self.position());
                    continue;
                }
                if header.time < self.last_time {
                    self.problem("time goes back");
                }
                let Some(schema) = self.trace.schemas().get(&header.id) else {
                    self.unknown(header.id);
                    continue;
                };
                if !self.records.get(payload.clone()).is_some_and(|p| fits(&schema.fields, p)) {
                    self.misfits += 1;
                    self.first_misfit.get_or_insert(self.position());
                }
                self.last_time = self.last_time.max(header.time);
                self.carried = std::mem::take(&mut self.pending);
                self.current = Some((header, payload));
                return true;
            }
            if !self.packet() {
                self.account();
                return false;
            }
        }
    }

    /// The event last advanced to.
    #[must_use]
    pub fn current(&self) -> Option<RawEvent<'_>> {
        let (header, payload) = self.current.as_ref()?;
        let payload = self.records.get(payload.clone())?;
        Some(RawEvent { header: *header, payload, cpu: self.cpu, discarded: self.carried })
    }

    /// `advance`, then `current`.
    pub fn next_event(&mut self) -> Option<RawEvent<'_>> {
        if self.advance() { self.current() } else { None }
    }

    /// Events lost after the last event. Complete once `advance` returned false.
    #[must_use]
    pub fn discarded_at_end(&self) -> u64 {
        self.pending
    }

    /// What was found in the records read so far (the packet headers' problems are in
    /// [`TraceReader::problems`]).
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems.list
    }

    /// At the end: whether every record fits its schema, as the recorder writes no other, and whether
    /// every one that was written has been met. One whose length has been made larger hides those behind
    /// it, and does not fit.
    fn account(&mut self) {
        let name = self.name.to_string();
        for (id, (events, at)) in std::mem::take(&mut self.unknown) {
            let of = match id {
                Some(id) => format!("of unknown id {id}"),
                None => "of other unknown ids".to_owned(),
            };
            let what = match events {
                1 => format!("event {of}"),
                n => format!("{n} events {of}, the first is here"),
            };
            self.problems.push(&name, at, what);
        }
        if let Some(at) = self.first_outside.take() {
            let what = match std::mem::take(&mut self.outside) {
                1 => "the time of an event is outside its packet's: it is left out".to_owned(),
                n => format!(
                    "the times of {n} events are outside their packets': they are left out, the \
                     first is here"
                ),
            };
            self.problems.push(&name, at, what);
        }
        let misfits = std::mem::take(&mut self.misfits);
        let at = self.first_misfit.take().unwrap_or_else(|| self.position());
        let hides = match self.written.take().filter(|written| self.read != *written) {
            Some(written) => {
                let why = if misfits > 0 { ": the record here hides others" } else { "" };
                self.problems.push(
                    &name,
                    at,
                    format!("{} of {written} events are there{why}", self.read),
                );
                true
            }
            None => false,
        };
        match misfits {
            0 => {}
            1 if hides => {}
            1 => self.problems.push(&name, at, "an event does not fit its description"),
            n => {
                let what = format!("{n} events do not fit their description, the first is here");
                self.problems.push(&name, at, what);
            }
        }
    }

    fn unknown(&mut self, id: u32) {
        let known = self.unknown.contains_key(&Some(id)) || self.unknown.len() < UNKNOWN_MAX;
        let at = self.position();
        self.unknown.entry(known.then_some(id)).or_insert((0, at)).0 += 1;
    }

    /// Where the record last looked at is in the file.
    fn position(&self) -> u64 {
        self.offset + (RECORDS_START + self.at) as u64
    }

    fn problem(&mut self, message: impl Into<String>) {
        self.problems.push(&self.name.to_string(), self.position(), message);
    }

    /// The next record of this packet.
    fn record(&mut self) -> Option<(RecordHeader, Range<usize>)> {
        let rest = self.records.get(self.next..).filter(|rest| !rest.is_empty())?;
        self.at = self.next;
        let header = RecordHeader::read(rest);
        let good = header.filter(|header| {
            let len = header.len as usize;
            len >= RECORD_HEADER_LEN && len <= rest.len()
        });
        let Some(header) = good else {
            let what = match header {
                Some(header) => {
                    format!("record of impossible length {} in {}", header.len, rest.len())
                }
                None => format!("{} bytes are no record", rest.len()),
            };
            self.problem(what);
            self.next = self.records.len();
            return None;
        };
        let payload = self.next + RECORD_HEADER_LEN..self.next + header.len as usize;
        self.next += header.advance();
        self.read += 1;
        Some((header, payload))
    }

    /// Loads the next packet; false at the end.
    fn packet(&mut self) -> bool {
        self.records.clear();
        (self.at, self.next) = (0, 0);
        let Some(file) = &self.file else { return false };
        let step = loop {
            match self.walk.step(file) {
                // Told at opening.
                Ok(Step::Gap(_)) => {}
                other => break other,
            }
        };
        match step {
            Ok(Step::Packet(offset, header)) => {
                self.offset = offset;
                self.load(header)
            }
            Ok(Step::End | Step::Gap(_)) => self.stop(),
            // The walk at opening had found whole packets here.
            Ok(Step::Stop(stop)) => {
                self.offset = stop.offset;
                self.problem(format!("changed while it was read: {}", stop.message));
                self.stop()
            }
            Err(error) => {
                self.problem(format!("cannot be read: {error}"));
                self.stop()
            }
        }
    }

    /// What a packet counts was lost up to its end, and behind its records: they had filled the ring.
    fn pass(&mut self) {
        self.pending = self.pending.saturating_add(std::mem::take(&mut self.behind));
    }

    fn stop(&mut self) -> bool {
        self.pass();
        self.file = None;
        false
    }

    fn load(&mut self, header: PacketHeader) -> bool {
        self.cpu = header.cpu;
        self.pass();
        self.behind = header.discarded.saturating_sub(self.discarded);
        self.discarded = self.discarded.max(header.discarded);
        (self.begin, self.end) = (header.begin, header.end);
        let wanted = header.content.saturating_sub(RECORDS_START as u64);
        let Some(file) = &self.file else { return false };
        let mut input = At { file, offset: self.offset + RECORDS_START as u64 }.take(wanted);
        match input.read_to_end(&mut self.records) {
            Ok(got) if got as u64 == wanted => true,
            Ok(_) => {
                self.records.clear();
                self.problem("the file became shorter");
                self.stop()
            }
            Err(error) => {
                self.records.clear();
                self.problem(format!("cannot be read: {error}"));
                self.stop()
            }
        }
    }
}

/// A file from an offset on: memory grows with what is really there.
struct At<'f> {
    file: &'f File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let got = self.file.read_at(buf, self.offset)?;
        self.offset += got as u64;
        Ok(got)
    }
}
