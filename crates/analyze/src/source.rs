//! Where records come from.
//!
//! The merge knows a stream only as a cursor over records in the order they were written. The
//! store's directory is one such source; [`Memory`] is another, for tests, examples and anyone who
//! has records at hand.

use owlet_store::{EventReader, RawEvent};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};

/// A cursor over one stream's records, in the order they were written.
pub trait Cursor {
    /// Steps to the next record; `false` at the end, and ever after.
    fn advance(&mut self) -> bool;
    /// The record the cursor is on; `None` before the first step and after the end.
    fn current(&self) -> Option<RawEvent<'_>>;
    /// Events lost after the last record. Complete at the end.
    fn lost_at_end(&self) -> u64 {
        0
    }
    /// What was found wrong so far, one line each.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Cursor for EventReader<'_> {
    fn advance(&mut self) -> bool {
        EventReader::advance(self)
    }

    fn current(&self) -> Option<RawEvent<'_>> {
        EventReader::current(self)
    }

    fn lost_at_end(&self) -> u64 {
        self.discarded_at_end()
    }

    fn problems(&self) -> Vec<String> {
        EventReader::problems(self).iter().map(ToString::to_string).collect()
    }
}

/// A stream held in memory: whole records as a ring holds them.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The stream's name.
    pub name: String,
    /// The stream's CPU.
    pub cpu: u32,
    bytes: Vec<u8>,
}

impl Memory {
    /// An empty stream.
    #[must_use]
    pub fn new(name: &str, cpu: u32) -> Self {
        Self { name: name.to_owned(), cpu, bytes: Vec::new() }
    }

    /// Appends one record. `header.len` is set from the payload.
    pub fn push(&mut self, header: RecordHeader, payload: &[u8]) {
        let len = RECORD_HEADER_LEN + payload.len();
        let header = RecordHeader { len: u32::try_from(len).unwrap_or(u32::MAX), ..header };
        self.bytes.extend_from_slice(&header.to_bytes());
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    /// A cursor before the first record.
    #[must_use]
    pub fn cursor(&self) -> MemoryCursor<'_> {
        MemoryCursor { cpu: self.cpu, rest: &self.bytes, current: None }
    }
}

/// A cursor over a [`Memory`] stream.
#[derive(Clone, Debug)]
pub struct MemoryCursor<'a> {
    cpu: u32,
    rest: &'a [u8],
    current: Option<RawEvent<'a>>,
}

impl Cursor for MemoryCursor<'_> {
    fn advance(&mut self) -> bool {
        self.current = RecordHeader::read(self.rest).and_then(|header| {
            let payload = self.rest.get(RECORD_HEADER_LEN..header.len as usize)?;
            Some(RawEvent { header, payload, cpu: self.cpu, discarded: 0 })
        });
        let used = self.current.map_or(usize::MAX, |event| event.header.advance());
        self.rest = self.rest.get(used..).unwrap_or(&[]);
        self.current.is_some()
    }

    fn current(&self) -> Option<RawEvent<'_>> {
        self.current
    }
}
