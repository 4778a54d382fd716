//! One event, borrowed from the stream it came from, and its fields decoded on demand.
//!
//! Nothing is decoded before it is asked for: a count by name touches 24 bytes of each record.

use crate::trace::{SchemaInfo, Tables};
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::{Kind, Schema};
use owlet_wire::value::{self, Value};

/// One event of a trace.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub time_ns: u64,
    /// Index into [`Trace::streams`](crate::Trace::streams).
    pub stream: usize,
    /// CPU of the ring the record was in: where the event happened, or for `portable_N` streams the
    /// slot its writer used.
    pub cpu: u32,
    /// Events its stream lost just before this one.
    pub lost_before: u64,
    pub(crate) header: RecordHeader,
    pub(crate) info: &'a SchemaInfo,
    pub(crate) payload: &'a [u8],
    pub(crate) tables: &'a Tables,
}

/// One field of an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Field<'a> {
    /// The name as the program wrote it; made unique within the event by a suffix `#2`, `#3`, ..
    pub name: &'a str,
    /// Whether the field is one that the event's kind prescribes (`span`, `parent`, ..).
    pub leading: bool,
    /// The value; `None` when the payload does not hold one, and then it is the last field.
    pub value: Option<Value<'a>>,
}

impl<'a> Event<'a> {
    /// The event's id, unique in the trace.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.header.id
    }

    /// Process id as the process itself saw it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    /// Thread id as the process itself saw it.
    #[must_use]
    pub fn tid(&self) -> u32 {
        self.header.tid
    }

    /// The clock's ticks as recorded.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.header.time
    }

    /// The thread's name at that time, empty when the trace does not say. Any bytes.
    #[must_use]
    pub fn comm(&self) -> &'a [u8] {
        self.tables.comm(self.header.pid, self.header.tid, self.header.time)
    }

    /// The event's description.
    #[must_use]
    pub fn schema(&self) -> &'a Schema {
        &self.info.schema
    }

    /// What the event means. [`Kind::Event`] when the leading fields of the declared kind are not
    /// there.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.info.kind
    }

    /// The full name, `provider:event`.
    #[must_use]
    pub fn name(&self) -> &'a str {
        &self.info.schema.name
    }

    /// The payload's bytes, undecoded.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The record's header as recorded.
    #[must_use]
    pub fn header(&self) -> &RecordHeader {
        &self.header
    }

    /// The fields in order, decoded one by one.
    #[must_use]
    pub fn fields(&self) -> Fields<'a> {
        Fields { info: self.info, next: 0, bytes: self.payload }
    }

    /// The first field called `name`, decoded.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Value<'a>> {
        self.fields().find(|field| field.name == name)?.value
    }

    /// The span this event is about; `None` for plain events, short payloads and id 0.
    #[must_use]
    pub fn span(&self) -> Option<u64> {
        if self.info.leading == 0 { None } else { self.leading_word(0).filter(|id| *id != 0) }
    }

    /// The second leading word: a new span's parent, a closed span's duration, a span's cause.
    #[must_use]
    pub fn second(&self) -> Option<u64> {
        if self.info.leading < 2 { None } else { self.leading_word(8) }
    }

    fn leading_word(&self, at: usize) -> Option<u64> {
        let (word, _) = self.payload.get(at..)?.split_first_chunk::<8>()?;
        Some(u64::from_le_bytes(*word))
    }
}

impl std::fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event")
            .field("time_ns", &self.time_ns)
            .field("stream", &self.stream)
            .field("header", &self.header)
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// Iterator over the fields of one event. See [`Event::fields`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    info: &'a SchemaInfo,
    next: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let at = self.next;
        let field = self.info.schema.fields.get(at)?;
        let name = self.info.names.get(at)?;
        let value = value::take(&field.ty, &mut self.bytes);
        self.next = if value.is_some() { at + 1 } else { usize::MAX };
        Some(Field { name, leading: at < self.info.leading, value })
    }
}

impl Fields<'_> {
    /// Bytes that no field has used yet.
    #[must_use]
    pub fn rest(&self) -> usize {
        self.bytes.len()
    }
}
