//! One stream's file: records in, packets out.
//!
//! # What a record must be
//! The ring's content comes from other processes and may be hostile, and a strict reader refuses a
//! whole trace for one bad record. So every record is walked once before it is written:
//!
//! | finding | what happens |
//! |---|---|
//! | length under 24, or over what is left | it and the rest of the run are refused, one count |
//! | unknown id; payload does not fit its schema; time after the run's end | refused, counted |
//! | time before the record in front of it | set to that one's time (readers stop when time goes back) |
//! | anything else | written as it is |

use crate::error::{ErrorKind, StoreError};
use crate::file::AppendFile;
use crate::packet::{
    CONTEXT_END, PACKET_MAX, PACKET_SPLIT, PacketHeader, RECORDS_START, StreamClass, TIME_MAX,
};
use crate::reader::open_plain;
use crate::walk::{Step, Walk};
use crate::writer::{Appended, PacketInfo};
use owlet_wire::record::{RECORD_ALIGN, RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::schema::Schema;
use owlet_wire::value::fits;
use std::collections::HashMap;

/// Bytes of one record at most: one must fit in a packet.
const RECORD_MAX: usize = PACKET_MAX as usize - RECORDS_START - RECORD_ALIGN;

/// A stream being written.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) file: AppendFile,
    class: StreamClass,
    instance: u64,
    /// Packets written so far: the number of the next.
    pub(crate) seq: u64,
    /// End of the last packet; no record may be earlier.
    end: u64,
    /// The caller's running count.
    lost: u64,
    /// Records written so far.
    pub(crate) events: u64,
    /// Records refused so far.
    pub(crate) malformed: u64,
    /// For the bound on open descriptors: when it was last written.
    pub(crate) used: u64,
}

/// What all packets of one run have in common.
#[derive(Clone, Copy)]
struct Context<'a> {
    uuid: &'a [u8; 16],
    cpu: u32,
    begin: u64,
}

/// A packet being put together.
struct Draft {
    bytes: Vec<u8>,
    /// End of the last record, without padding.
    content: usize,
    events: u64,
    first: Option<u64>,
    last: u64,
}

impl Draft {
    fn start(mut bytes: Vec<u8>, last: u64) -> Self {
        bytes.clear();
        bytes.resize(RECORDS_START, 0);
        Self { bytes, content: CONTEXT_END, events: 0, first: None, last }
    }

    fn push(&mut self, mut header: RecordHeader, record: &[u8]) {
        header.time = header.time.max(self.last);
        self.last = header.time;
        self.first.get_or_insert(header.time);
        self.bytes.extend_from_slice(&header.to_bytes());
        self.bytes.extend_from_slice(&record[RECORD_HEADER_LEN..]);
        self.content = self.bytes.len();
        self.bytes.resize(self.content.next_multiple_of(RECORD_ALIGN), 0);
        self.events += 1;
    }
}

/// The next record of a run, or how it is broken.
enum Next<'r> {
    Record(RecordHeader, &'r [u8]),
    Broken,
    End,
}

fn next_record<'r>(run: &mut &'r [u8]) -> Next<'r> {
    if run.is_empty() {
        return Next::End;
    }
    let Some(header) = RecordHeader::read(run) else { return Next::Broken };
    let len = header.len as usize;
    if !(RECORD_HEADER_LEN..=RECORD_MAX).contains(&len) {
        return Next::Broken;
    }
    let Some(record) = run.get(..len) else { return Next::Broken };
    // The last record's padding may be missing.
    *run = run.get(header.advance()..).unwrap_or_default();
    Next::Record(header, record)
}

impl Stream {
    pub(crate) fn new(file: AppendFile, class: StreamClass, instance: u64) -> Self {
        Self { file, class, instance, seq: 0, end: 0, lost: 0, events: 0, malformed: 0, used: 0 }
    }

    /// Whether the file has our packets and nothing else, from their headers. One it cannot read counts
    /// as whole.
    pub(crate) fn is_whole(&self, uuid: &[u8; 16]) -> bool {
        let Ok(file) = open_plain(self.file.path()) else { return true };
        let mut walk = Walk::new(self.class, *uuid, self.file.len());
        let mut packets = 0;
        loop {
            match walk.step(&file) {
                Ok(Step::Packet(_, header)) if header.seq == packets => packets += 1,
                Ok(Step::End) => return packets == self.seq,
                Ok(_) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Appends a run of records as packets. On failure, `done` has what was written before it; when
    /// there is no more room, that is all that fits.
    pub(crate) fn append(
        &mut self,
        uuid: &[u8; 16],
        schemas: &HashMap<u32, Schema>,
        packet: &PacketInfo<'_>,
        scratch: &mut Vec<u8>,
        done: &mut Appended,
    ) -> Result<(), StoreError> {
        // Clamped, because the count may come from memory that a hostile process writes.
        let lost = packet.discarded_total.min(u64::MAX / 2).max(self.lost);
        let latest = packet.end.min(TIME_MAX);
        let mut run = packet.records;
        let mut malformed = 0;
        // Records of one kind come in rows.
        let mut last: Option<(u32, &Schema)> = None;
        let mut draft = Draft::start(std::mem::take(scratch), self.end);
        loop {
            match next_record(&mut run) {
                Next::Record(header, record) => {
                    if last.is_none_or(|(id, _)| id != header.id) {
                        last = schemas.get(&header.id).map(|schema| (header.id, schema));
                    }
                    let good = header.time <= latest
                        && last.is_some_and(|(_, schema)| {
                            fits(&schema.fields, &record[RECORD_HEADER_LEN..])
                        });
                    if !good {
                        malformed += 1;
                        continue;
                    }
                    if draft.events > 0 && draft.bytes.len() + record.len() > PACKET_SPLIT {
                        // The run's losses are behind its last record.
                        let discarded = self.lost + self.malformed + malformed;
                        let full = std::mem::replace(&mut draft, Draft::start(Vec::new(), 0));
                        draft.last = full.last;
                        let context = Context { uuid, cpu: packet.cpu, begin: packet.begin };
                        let before = done.events;
                        let put = self.put(context, discarded, full, scratch, done);
                        if put.is_ok() || done.events > before {
                            self.count(self.lost, &mut malformed, done);
                        }
                        put?;
                    }
                    draft.push(header, record);
                }
                Next::Broken => {
                    malformed += 1;
                    break;
                }
                Next::End => break,
            }
        }
        let discarded = lost + self.malformed + malformed;
        if draft.events > 0 || discarded > self.lost + self.malformed {
            let context = Context { uuid, cpu: packet.cpu, begin: packet.begin };
            let before = done.events;
            let put = self.put(context, discarded, draft, scratch, done);
            if put.is_ok() || done.events > before {
                self.count(lost, &mut malformed, done);
            }
            put?;
        } else {
            *scratch = draft.bytes;
        }
        Ok(())
    }

    /// What the packet just written says was lost.
    fn count(&mut self, lost: u64, malformed: &mut u64, done: &mut Appended) {
        self.lost = lost;
        self.malformed += *malformed;
        done.malformed += std::mem::take(malformed);
    }

    /// Writes a packet; where that needs more room than there is, as many of its records as fit.
    fn put(
        &mut self,
        context: Context<'_>,
        discarded: u64,
        draft: Draft,
        scratch: &mut Vec<u8>,
        done: &mut Appended,
    ) -> Result<(), StoreError> {
        let (content, events) = (draft.content, draft.events);
        let written = self.write(context, discarded, draft, scratch, done);
        if let Err(error) = &written
            && error.kind == ErrorKind::NoSpace
            && events > 1
        {
            let whole = std::mem::take(scratch);
            let all = self.put_parts(context, discarded, &whole[RECORDS_START..content], done);
            *scratch = whole;
            if all {
                return Ok(());
            }
        }
        written
    }

    /// Writes packets of half the records, a quarter, and so on, until not one more fits; whether all
    /// did.
    fn put_parts(
        &mut self,
        context: Context<'_>,
        discarded: u64,
        mut run: &[u8],
        done: &mut Appended,
    ) -> bool {
        let mut records = Vec::new();
        while let Next::Record(header, record) = next_record(&mut run) {
            records.push((header, record));
        }
        let mut rest = records.as_slice();
        let mut step = rest.len() / 2;
        while step > 0 && !rest.is_empty() {
            step = step.min(rest.len());
            let (part, later) = rest.split_at(step);
            let mut draft = Draft::start(Vec::new(), self.end);
            part.iter().for_each(|(header, record)| draft.push(*header, record));
            match self.write(context, discarded, draft, &mut Vec::new(), done) {
                Ok(()) => rest = later,
                Err(error) if error.kind == ErrorKind::NoSpace => step /= 2,
                Err(_) => return false,
            }
        }
        rest.is_empty()
    }

    fn write(
        &mut self,
        context: Context<'_>,
        discarded: u64,
        mut draft: Draft,
        scratch: &mut Vec<u8>,
        done: &mut Appended,
    ) -> Result<(), StoreError> {
        let Context { uuid, cpu, begin } = context;
        // Without records, no later than the packet before: a record still to come may be older
        // than now.
        let end = draft.last;
        let begin = begin.max(self.end).min(draft.first.unwrap_or(end));
        if self.seq == 0 && discarded > 0 {
            // Readers take a first packet's count as "may have lost"; from an empty packet on, they
            // can tell how many.
            let opening = Draft::start(Vec::new(), begin);
            let context = Context { begin, ..context };
            if let Err(error) = self.write(context, 0, opening, &mut Vec::new(), done) {
                *scratch = draft.bytes;
                return Err(error);
            }
        }
        let header = PacketHeader {
            class: self.class,
            instance: self.instance,
            begin,
            end,
            content: draft.content as u64,
            size: draft.bytes.len() as u64,
            seq: self.seq,
            discarded,
            cpu,
        };
        draft.bytes[..RECORDS_START].copy_from_slice(&header.to_bytes(uuid));
        let result = self.file.append(&draft.bytes);
        if result.is_ok() {
            self.seq += 1;
            self.end = end;
            self.events += draft.events;
            done.events += draft.events;
            done.bytes += draft.bytes.len() as u64;
        }
        *scratch = draft.bytes;
        result
    }

    /// Appends one record that we made ourselves as a packet of its own; its time is raised to the
    /// stream's end.
    pub(crate) fn append_own(
        &mut self,
        uuid: &[u8; 16],
        header: RecordHeader,
        payload: &[u8],
    ) -> Result<u64, StoreError> {
        let mut draft = Draft::start(Vec::new(), self.end);
        let len = RECORD_HEADER_LEN + payload.len();
        let header = RecordHeader { len: len as u32, time: header.time.min(TIME_MAX), ..header };
        let mut record = header.to_bytes().to_vec();
        record.extend_from_slice(payload);
        draft.push(header, &record);
        let mut done = Appended::default();
        let begin = header.time;
        let context = Context { uuid, cpu: 0, begin };
        self.write(context, 0, draft, &mut Vec::new(), &mut done)?;
        Ok(done.bytes)
    }
}
