//! The streams of a trace as one sequence by time.
//!
//! A k-way merge over a heap of the streams' heads. Equal times come in the order of the streams,
//! and within a stream always in the order written: one thread's events on one CPU never swap.
//!
//! A stream whose time goes back (a writer on a broken clock) keeps its own order: a record is placed
//! as if it had the latest time seen in its stream, shows the time it has, and is counted in
//! [`Counts::time_went_back`].

use crate::event::Event;
use crate::source::Cursor;
use crate::trace::{Clock, Tables};
use owlet_store::RawEvent;
use owlet_wire::filter::{Bound, Filter};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// What a walk over the events has met so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records read, kept or not.
    pub read: u64,
    /// Events that passed the filter.
    pub kept: u64,
    /// Records whose time was before that of an earlier record of the same stream.
    pub time_went_back: u64,
    /// Records whose event id has no schema in the trace.
    pub unknown_event: u64,
}

/// One stream being merged.
struct Input<'t> {
    cursor: Box<dyn Cursor + 't>,
    last: u64,
}

/// The events of a trace in time order. See [`Trace::events`](crate::Trace::events).
///
/// Not an [`Iterator`]: each event borrows the buffer of its stream until the next call.
pub struct Events<'t> {
    tables: &'t Tables,
    clock: Clock,
    inputs: Vec<Input<'t>>,
    /// Time and index of each stream's head. The current event's stream is still at the top, with
    /// its cursor on the current record.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    started: bool,
    /// The filter bound to each schema.
    filter: Option<HashMap<u32, Bound>>,
    counts: Counts,
}

impl<'t> Events<'t> {
    pub(crate) fn new(tables: &'t Tables, cursors: Vec<Box<dyn Cursor + 't>>) -> Self {
        Self {
            tables,
            clock: tables.clock,
            heads: BinaryHeap::with_capacity(cursors.len()),
            inputs: cursors.into_iter().map(|cursor| Input { cursor, last: 0 }).collect(),
            started: false,
            filter: None,
            counts: Counts::default(),
        }
    }

    /// Keeps only the events that match. Events of unknown ids match nothing.
    #[must_use]
    pub fn with_filter(mut self, filter: &Filter) -> Self {
        let bind = |(id, info): (&u32, &crate::trace::SchemaInfo)| (*id, filter.bind(&info.schema));
        self.filter = Some(self.tables.schemas.iter().map(bind).collect());
        self
    }

    /// The next event, or `None` at the end.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        let at = loop {
            let at = self.step()?;
            if self.filter.is_none() || self.matches(at) {
                break at;
            }
        };
        self.counts.kept += 1;
        let raw = self.inputs[at].cursor.current()?;
        Some(Event {
            time_ns: self.clock.to_unix_ns(raw.header.time),
            stream: at,
            cpu: raw.cpu,
            lost_before: raw.discarded,
            header: raw.header,
            info: self.tables.schema_info(raw.header.id),
            payload: raw.payload,
            tables: self.tables,
        })
    }

    /// What has been met so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Events lost after the last record, in all streams. Complete at the end.
    #[must_use]
    pub fn lost_at_end(&self) -> u64 {
        self.inputs.iter().fold(0, |sum, input| sum.saturating_add(input.cursor.lost_at_end()))
    }

    /// What was found wrong in the records read so far, one line each. Complete at the end.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut all: Vec<_> =
            self.inputs.iter().flat_map(|input| input.cursor.problems()).collect();
        let counted = [
            (
                self.counts.time_went_back,
                "records are earlier than one before them in their stream",
            ),
            (self.counts.unknown_event, "records are of events that the trace does not describe"),
        ];
        for (count, what) in counted {
            if count > 0 {
                all.push(format!("{count} {what}"));
            }
        }
        all
    }

    /// Steps to the next record in time order; its stream's index.
    fn step(&mut self) -> Option<usize> {
        if !self.started {
            self.started = true;
            for at in 0..self.inputs.len() {
                if let Some(time) = self.advance(at) {
                    self.heads.push(Reverse((time, at)));
                }
            }
        } else if let Some(&Reverse((_, at))) = self.heads.peek() {
            match self.advance(at) {
                // Replaced in place: a run of events from one stream costs no sift.
                Some(time) => {
                    if let Some(mut top) = self.heads.peek_mut() {
                        *top = Reverse((time, at));
                    }
                }
                None => {
                    self.heads.pop();
                }
            }
        }
        let &Reverse((_, at)) = self.heads.peek()?;
        self.counts.read += 1;
        Some(at)
    }

    /// Steps one stream; the time to order its new head by.
    fn advance(&mut self, at: usize) -> Option<u64> {
        let input = self.inputs.get_mut(at)?;
        if !input.cursor.advance() {
            return None;
        }
        let RawEvent { header, .. } = input.cursor.current()?;
        if header.time < input.last {
            self.counts.time_went_back += 1;
        }
        if !self.tables.schemas.contains_key(&header.id) {
            self.counts.unknown_event += 1;
        }
        input.last = input.last.max(header.time);
        Some(input.last)
    }

    fn matches(&self, at: usize) -> bool {
        let Some(raw) = self.inputs[at].cursor.current() else { return false };
        let bound = self.filter.as_ref().and_then(|filter| filter.get(&raw.header.id));
        let header = &raw.header;
        let comm = self.tables.comm(header.pid, header.tid, header.time);
        bound.is_some_and(|bound| bound.matches_parts(header, &[raw.payload], Some(comm)))
    }
}
