//! `.owlet`: the facts of a trace for our own reader, so that it never parses TSDL.
//!
//! 8 bytes of magic, u32 version, then records: u32 length, u32 CRC-32 of what follows, and a
//! postcard [`Fact`]. Appended whole, like everything: a kill leaves at most one partial record.

use crate::error::{ErrorKind, StoreError};
use crate::meta::{ClockInfo, Loss, Recorder, StreamName, TraceMeta};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::schema::Schema;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Name of the file.
pub(crate) const SIDECAR: &str = ".owlet";
/// The first bytes.
const MAGIC: [u8; 8] = *b"OWLTRACE";
/// Version of the sidecar and of the packets. Readers refuse others.
pub(crate) const VERSION: u32 = 1;
/// Longer records are taken as damage.
const RECORD_MAX: u32 = 16 << 20;

/// One record, as it is written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) enum FactRef<'a> {
    Meta(&'a TraceMeta),
    Clock(&'a ClockInfo),
    Schema(u32, &'a Schema),
    Thread(u64, &'a Thread),
    Process(u64, &'a Process),
    /// Running totals.
    Losses(&'a [Loss]),
    /// The recording ended in order, with so many events.
    Finished(u64),
    /// It did not, and what was left half written has been cut.
    Recovered,
    /// A stream's file is about to be made.
    Stream(StreamName),
    /// What each file holds at the orderly end: what is missing later can be told.
    Totals(&'a [Total]),
    /// Who records, and how much its rings hold.
    Recorder(Recorder),
    /// Running totals of ring content that was no records.
    Skipped(StreamName, u64),
}

/// What one file of packets holds in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Total {
    /// `None` for the file of threads and processes.
    pub(crate) stream: Option<StreamName>,
    pub(crate) packets: u64,
    pub(crate) events: u64,
    pub(crate) bytes: u64,
}

/// One record, as it is read. The order of both enums' variants is the format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Fact {
    Meta(TraceMeta),
    Clock(ClockInfo),
    Schema(u32, Schema),
    Thread(u64, Thread),
    Process(u64, Process),
    Losses(Vec<Loss>),
    Finished(u64),
    Recovered,
    Stream(StreamName),
    Totals(Vec<Total>),
    Recorder(Recorder),
    Skipped(StreamName, u64),
}

/// The file's first bytes.
pub(crate) fn header() -> [u8; 12] {
    let mut out = [0; 12];
    out[..8].copy_from_slice(&MAGIC);
    out[8..].copy_from_slice(&VERSION.to_le_bytes());
    out
}

/// One record's bytes; `None` when it is over the limit.
pub(crate) fn record(fact: &FactRef<'_>) -> Option<Vec<u8>> {
    let mut out = postcard::to_extend(fact, vec![0; 8]).ok()?;
    let len = u32::try_from(out.len() - 8).ok().filter(|len| *len <= RECORD_MAX)?;
    let crc = crc32fast::hash(&out[8..]);
    out[..4].copy_from_slice(&len.to_le_bytes());
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    Some(out)
}

/// What a sidecar says.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) facts: Vec<Fact>,
    /// Bytes of whole records, header included.
    pub(crate) len: u64,
    /// What follows those, if anything does.
    pub(crate) problem: Option<String>,
    /// It is a record that was being written.
    pub(crate) torn: bool,
}

/// Reads all whole records.
pub(crate) fn read(path: &Path, file: File) -> Result<Facts, StoreError> {
    let failed = |error| StoreError::io(path, "cannot read", error);
    let mut input = BufReader::new(file);
    let mut head = Vec::new();
    input.by_ref().take(12).read_to_end(&mut head).map_err(failed)?;
    if head.get(..8) != Some(&MAGIC[..]) {
        return Err(StoreError::new(ErrorKind::NotATrace, path, "not written by owlet"));
    }
    match head.get(8..12).map(|v| u32::from_le_bytes([v[0], v[1], v[2], v[3]])) {
        Some(VERSION) => {}
        Some(version) => {
            let what = format!("trace of format {version}; this owlet reads {VERSION}");
            return Err(StoreError::new(ErrorKind::Version, path, what));
        }
        None => return Err(StoreError::new(ErrorKind::Corrupt, path, "cut before its version")),
    }
    let mut facts = Facts { len: 12, ..Facts::default() };
    loop {
        let mut head = Vec::new();
        input.by_ref().take(8).read_to_end(&mut head).map_err(failed)?;
        let Some(head) = head.first_chunk::<8>() else {
            facts.torn = !head.is_empty();
            facts.problem = facts.torn.then(|| "record cut short".to_owned());
            return Ok(facts);
        };
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let (len, crc) = (word(0), word(4));
        if len > RECORD_MAX {
            facts.problem = Some(format!("record of impossible length {len}"));
            return Ok(facts);
        }
        let mut body = Vec::new();
        let got = input.by_ref().take(len.into()).read_to_end(&mut body).map_err(failed)?;
        if got < len as usize {
            facts.torn = true;
            facts.problem = Some("record cut short".to_owned());
            return Ok(facts);
        }
        if crc32fast::hash(&body) != crc {
            facts.problem = Some("record damaged".to_owned());
            return Ok(facts);
        }
        match postcard::take_from_bytes::<Fact>(&body) {
            Ok((fact, [])) => facts.facts.push(fact),
            _ => {
                facts.problem = Some("record does not decode".to_owned());
                return Ok(facts);
            }
        }
        facts.len += 8 + u64::from(len);
    }
}
