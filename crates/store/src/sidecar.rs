//! `.owlet`: the facts of a trace for our own reader, so that it needs no TSDL.
//!
//! 8 bytes of magic, u32 version, then records: u32 length, u32 CRC-32 of what follows, and a
//! postcard [`Fact`]. Appended whole, like everything: a kill leaves at most one partial record. Bytes
//! that are no record cost themselves only: the next whole record is looked for behind them.

use crate::error::{ErrorKind, StoreError};
use crate::meta::{ClockInfo, Loss, Recorder, StreamName, TraceMeta};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::schema::Schema;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Name of the file.
pub(crate) const SIDECAR: &str = ".owlet";
/// The first bytes.
const MAGIC: [u8; 8] = *b"OWLTRACE";
/// Version of the sidecar and of the packets. Readers refuse others.
pub(crate) const VERSION: u32 = 1;
/// Longer records are taken as damage.
const RECORD_MAX: u32 = 16 << 20;
/// How many kinds of records there are: each begins with its number.
const VARIANTS: u8 = 12;

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
    /// The file begins with the description of the trace, whole.
    pub(crate) begun: bool,
    /// Where the last whole record ends.
    pub(crate) len: u64,
    /// A record that was being written follows.
    pub(crate) torn: bool,
    /// Where bytes are that are no records, and why.
    pub(crate) damage: Vec<(u64, String)>,
}

/// How far a whole record is looked for behind damage.
const RESYNC_MAX: u64 = RECORD_MAX as u64 + 8;
/// Bytes checked at most while looking: in a hostile file, every position may look like a record.
const RESYNC_WORK: u64 = 1 << 28;
/// Bytes read at once while looking.
const CHUNK: usize = 64 << 10;

/// Why there is no record.
struct Bad {
    message: String,
    /// The file ends inside it.
    cut: bool,
    /// Where the next record would be.
    next: Option<u64>,
}

/// The file's records, by position.
struct Records {
    file: File,
    len: u64,
    /// What is left of [`RESYNC_WORK`].
    work: u64,
}

impl Records {
    /// The record at `at`, and where it ends.
    fn at(&self, at: u64) -> io::Result<Result<(Fact, u64), Bad>> {
        let bad =
            |message: &str, cut, next| Ok(Err(Bad { message: message.to_owned(), cut, next }));
        let left = self.len.saturating_sub(at);
        let mut head = [0; 8];
        if left < 8 {
            return bad("record cut short", true, None);
        }
        self.file.read_exact_at(&mut head, at)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let (len, crc) = (word(0), word(4));
        if len > RECORD_MAX {
            return bad(&format!("record of impossible length {len}"), false, None);
        }
        if u64::from(len) > left - 8 {
            return bad("record cut short", true, None);
        }
        let mut body = vec![0; len as usize];
        self.file.read_exact_at(&mut body, at + 8)?;
        let next = at + 8 + u64::from(len);
        if crc32fast::hash(&body) != crc {
            return bad("record damaged", false, Some(next));
        }
        match postcard::take_from_bytes::<Fact>(&body) {
            Ok((fact, [])) => Ok(Ok((fact, next))),
            _ => bad("record does not decode", false, Some(next)),
        }
    }

    /// Whether a record is at `at`.
    fn is_one(&mut self, at: u64) -> io::Result<bool> {
        self.work = self.work.saturating_sub(16);
        let found = self.at(at)?;
        let seen = match &found {
            Ok((_, next)) | Err(Bad { next: Some(next), .. }) => next - at,
            Err(_) => 0,
        };
        self.work = self.work.saturating_sub(seen);
        Ok(found.is_ok())
    }

    /// The first whole record behind the bad one at `from`.
    fn find(&mut self, from: u64, next: Option<u64>) -> io::Result<Option<u64>> {
        // Mostly its length is right.
        if let Some(next) = next
            && self.is_one(next)?
        {
            return Ok(Some(next));
        }
        let last = self.len.min(from.saturating_add(RESYNC_MAX));
        let mut at = from + 1;
        let mut chunk = vec![0; CHUNK];
        while at + 9 <= last && self.work > 0 {
            let want = usize::try_from(self.len - at).unwrap_or(CHUNK).min(CHUNK);
            let got = self.file.read_at(&mut chunk[..want], at)?;
            if got < 9 {
                return Ok(None);
            }
            for (start, bytes) in chunk[..got].windows(9).enumerate() {
                let here = at + start as u64;
                let len = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                let may = (1..=RECORD_MAX).contains(&len)
                    && u64::from(len) <= self.len - here - 8
                    && bytes[8] < VARIANTS;
                if may && self.is_one(here)? {
                    return Ok(Some(here));
                }
                if self.work == 0 {
                    return Ok(None);
                }
            }
            // A head may lie across two chunks.
            at += (got - 8) as u64;
        }
        Ok(None)
    }
}

/// Reads all whole records; those behind damage, too.
pub(crate) fn read(path: &Path, file: File) -> Result<Facts, StoreError> {
    let failed = |error| StoreError::io(path, "cannot read", error);
    let len = file.metadata().map_err(failed)?.len();
    let mut records = Records { file, len, work: RESYNC_WORK };
    let mut facts = Facts { len: 12, ..Facts::default() };
    if !head(&mut records, path, &mut facts).map_err(failed)?? {
        return Ok(facts);
    }
    let mut at = 12;
    while at < len {
        let bad = match records.at(at).map_err(failed)? {
            Ok((fact, next)) => {
                facts.begun |= at == 12 && matches!(fact, Fact::Meta(_));
                facts.facts.push(fact);
                (at, facts.len) = (next, next);
                continue;
            }
            Err(bad) => bad,
        };
        let Some(next) = records.find(at, bad.next).map_err(failed)? else {
            facts.torn = bad.cut;
            if !bad.cut {
                facts.damage.push((at, bad.message));
            }
            break;
        };
        // A hostile file has millions.
        if facts.damage.len() < 100 {
            facts.damage.push((at, format!("{}; {} bytes are not read", bad.message, next - at)));
        }
        at = next;
    }
    Ok(facts)
}

/// Checks the first 12 bytes; false when nothing can follow them.
fn head(
    records: &mut Records,
    path: &Path,
    facts: &mut Facts,
) -> io::Result<Result<bool, StoreError>> {
    let mut head = vec![0; usize::try_from(records.len).unwrap_or(12).min(12)];
    records.file.read_exact_at(&mut head, 0)?;
    let magic = head.len().min(8);
    if head[..magic] != MAGIC[..magic] && !records.is_one(12)? {
        return Ok(Err(StoreError::new(ErrorKind::NotATrace, path, "not written by owlet")));
    }
    match head.get(8..12).map(|v| u32::from_le_bytes([v[0], v[1], v[2], v[3]])) {
        Some(VERSION) => {
            if head[..8] != MAGIC {
                facts.damage.push((0, "does not begin as it was written".to_owned()));
            }
            Ok(Ok(true))
        }
        Some(version) => {
            let what = format!("trace of format {version}; this owlet reads {VERSION}");
            Ok(Err(StoreError::new(ErrorKind::Version, path, what)))
        }
        None => {
            facts.len = 0;
            facts.damage.push((records.len, "cut before its first record".to_owned()));
            Ok(Ok(false))
        }
    }
}
