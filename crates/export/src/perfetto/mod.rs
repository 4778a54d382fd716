//! The protobuf trace format of Perfetto, written by hand.
//!
//! | in the trace | in Perfetto |
//! |---|---|
//! | process, thread | a track each, with name and command line |
//! | a span that nests on its thread | a slice on the thread's track, from entry to exit |
//! | any other span | one slice on a track of its own below the process, from creation to end |
//! | an event | an instant on its thread's track |
//! | fields | debug annotations; those recorded later are on the slice as well |
//! | `follows_from` | a flow from the cause's slice to the effect's |
//! | a span still open at the end | ends with the trace, annotated `owlet: still open` |
//! | a span begun before the trace | begins with it, annotated `owlet: began before the trace` |
//! | losses | instants on the track `owlet: lost events`: where a stream lost some, and the sum |
//!
//! Two walks over the events: the first ([`Shapes`]) finds out which spans nest and keeps one bit a
//! span; the second writes. Memory is that bit, the names, and the spans open at one time.
//!
//! # Invariants
//! 1. Every `SLICE_BEGIN` is followed by exactly one `SLICE_END` on its track, not earlier.
//! 2. On a thread's track, slices end in the reverse order of their begin ([`Shapes`] gives that).
//! 3. Times written for events never go back, but for the begin of a span that is first heard of
//!    when it ends.

mod args;
mod packets;
mod proto;
mod tracks;

use args::Args;
use owlet_analyze::spans::shapes::Shapes;
use owlet_analyze::spans::{Closed, Step, StillOpen, Tracker};
use owlet_analyze::{Event, Events, Trace};
use owlet_wire::filter::Filter;
use owlet_wire::value::Value;
use packets::{Names, Packets};
use proto::field::event as track_event;
use proto::{fixed64, uint};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Write};
use tracks::Tracks;

/// What has been written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events as instants.
    pub instants: u64,
    /// Spans as slices on their threads.
    pub thread_slices: u64,
    /// Spans as slices on tracks of their own.
    pub async_slices: u64,
    /// Of the slices, those that were still open at the end of the trace.
    pub still_open: u64,
    /// Bytes.
    pub bytes: u64,
    /// What could not be read of the events; see also [`Trace::problems`].
    pub problems: Vec<String>,
}

/// Why an export failed.
#[derive(Debug)]
pub enum Error {
    /// The trace cannot be read.
    Read(owlet_analyze::Error),
    /// The output cannot be written.
    Write(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::Write(error) => write!(f, "cannot write the export: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read(error) => Some(error),
            Self::Write(error) => Some(error),
        }
    }
}

impl From<owlet_analyze::Error> for Error {
    fn from(error: owlet_analyze::Error) -> Self {
        Self::Read(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

/// Writes the trace, or the events of it that match `filter`.
///
/// # Errors
/// When a stream cannot be opened or `out` fails.
pub fn write<W: Write>(
    trace: &Trace,
    filter: Option<&Filter>,
    out: &mut W,
) -> Result<Summary, Error> {
    let walk = || -> Result<Events<'_>, Error> {
        let events = trace.events()?;
        Ok(match filter {
            Some(filter) => events.with_filter(filter),
            None => events,
        })
    };
    let shapes = Shapes::scan(trace, &mut walk()?);
    let mut events = walk()?;
    let mut exporter = Exporter::new(trace, &shapes, out)?;
    while let Some(event) = events.next_event() {
        exporter.feed(&event)?;
    }
    let summary = exporter.finish(events.lost_at_end())?;
    Ok(Summary { problems: events.problems(), ..summary })
}

/// A span heard of and not ended.
struct Span {
    name_id: u32,
    /// Annotations that wait for the slice's begin, then those that wait for its end.
    args: Args,
    /// Where its slice has begun.
    begun: Option<Begun>,
}

#[derive(Clone, Copy)]
struct Begun {
    track: u64,
    on_thread: bool,
    /// Begins are numbered; ends in the reverse order respect every nesting.
    order: u64,
}

const BEFORE_TRACE: &str = "owlet: began before the trace";
const FROM_PARENT: &str = "owlet: entered by the parent process";
const END_LOST: &str = "owlet: end not recorded";
const STILL_OPEN: &str = "owlet: still open";

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;

struct Exporter<'t, 'w, W: Write> {
    trace: &'t Trace,
    shapes: &'t Shapes,
    tracker: Tracker<'t>,
    packets: Packets<'w, W>,
    tracks: Tracks,
    spans: HashMap<u64, Span>,
    /// Event and category names by event id.
    names: HashMap<u32, (u64, u64)>,
    /// Body of the event being written.
    body: Vec<u8>,
    begins: u64,
    summary: Summary,
}

impl<'t, 'w, W: Write> Exporter<'t, 'w, W> {
    fn new(trace: &'t Trace, shapes: &'t Shapes, out: &'w mut W) -> io::Result<Self> {
        let begin = shapes.range_ns().map_or(0, |(begin, _)| begin);
        Ok(Self {
            trace,
            shapes,
            tracker: Tracker::new(trace),
            packets: Packets::begin(out, begin)?,
            tracks: Tracks::default(),
            spans: HashMap::new(),
            names: HashMap::new(),
            body: Vec::new(),
            begins: 0,
            summary: Summary::default(),
        })
    }

    fn feed(&mut self, event: &Event<'_>) -> io::Result<()> {
        // Invariant 3: a stream whose clock went back is moved up to where the merge placed it.
        let now = event.time_ns.max(self.packets.now_ns());
        if event.lost_before > 0 {
            self.lost_here(now, event)?;
        }
        match self.tracker.feed(event) {
            Step::None => self.instant(now, event),
            Step::Unknown => Ok(()),
            Step::Open { span, replaced } => {
                if let Some(replaced) = replaced {
                    self.end(replaced.span, now, Some(END_LOST))?;
                }
                self.open(span, now, event)
            }
            Step::Enter { span, first } => self.enter(span, first, now, event),
            Step::Exit { span } => self.exit(span, now),
            Step::Record { span } => {
                self.annotate_later(span, event);
                Ok(())
            }
            Step::Follows { .. } => Ok(()),
            Step::Close(closed) => self.close(&closed, now, event),
        }
    }

    fn instant(&mut self, now: u64, event: &Event<'_>) -> io::Result<()> {
        let thread = (event.pid(), event.tid());
        let track = self.tracks.thread(self.trace, &mut self.packets, thread)?;
        self.begin_body(INSTANT, track, Some(event.id()));
        for field in event.fields() {
            args::push_field(&mut self.body, &mut self.packets.names, &field);
        }
        self.summary.instants += 1;
        self.packets.event(now, &self.body)
    }

    fn open(&mut self, span: u64, now: u64, event: &Event<'_>) -> io::Result<()> {
        let mut args = Args::default();
        for field in event.fields() {
            args.field(&mut self.packets.names, &field);
        }
        self.spans.insert(span, Span { name_id: event.id(), args, begun: None });
        if self.shapes.is_nested(span) {
            return Ok(());
        }
        self.begin_on_own_track(span, event.pid(), now)
    }

    fn enter(&mut self, span: u64, first: bool, now: u64, event: &Event<'_>) -> io::Result<()> {
        if !self.spans.contains_key(&span) {
            // Known to the tracker but not here: a child process goes on with its parent's span.
            self.hear_of(span, event, if first { BEFORE_TRACE } else { FROM_PARENT });
        }
        let begun = self.spans.get(&span).is_some_and(|state| state.begun.is_some());
        if begun {
            return Ok(());
        }
        if !self.shapes.is_nested(span) {
            return self.begin_on_own_track(span, event.pid(), now);
        }
        let thread = (event.pid(), event.tid());
        let track = self.tracks.thread(self.trace, &mut self.packets, thread)?;
        self.summary.thread_slices += 1;
        self.begin(span, track, true, now)
    }

    /// Makes up for a creation that is not in the trace.
    fn hear_of(&mut self, span: u64, event: &Event<'_>, mark: &str) {
        let known = event.span().and_then(|id| self.tracker.get(event.pid(), id));
        let name_id = known.map_or(event.id(), |known: StillOpen| known.name_id);
        let mut args = Args::default();
        if let Some(id) = event.span() {
            args.named(&mut self.packets.names, "span", &Value::U64(id));
        }
        args.named(&mut self.packets.names, mark, &Value::Bool(true));
        self.spans.insert(span, Span { name_id, args, begun: None });
    }

    fn exit(&mut self, span: u64, now: u64) -> io::Result<()> {
        let begun = self.spans.get(&span).and_then(|state| state.begun);
        match begun {
            Some(Begun { on_thread: true, .. }) => self.end(span, now, None),
            _ => Ok(()),
        }
    }

    fn close(&mut self, closed: &Closed, now: u64, event: &Event<'_>) -> io::Result<()> {
        if closed.first {
            self.hear_of(closed.span, event, BEFORE_TRACE);
            let (first, _) = self.shapes.range_ns().unwrap_or((now, now));
            let began = closed.began_ns.unwrap_or(now).clamp(first.min(now), now);
            self.begin_on_own_track(closed.span, closed.pid, began)?;
        }
        self.annotate_later(closed.span, event);
        self.end(closed.span, now, None)?;
        self.spans.remove(&closed.span);
        Ok(())
    }

    fn annotate_later(&mut self, span: u64, event: &Event<'_>) {
        let Some(state) = self.spans.get_mut(&span) else { return };
        for field in event.fields().filter(|field| !field.leading) {
            state.args.field(&mut self.packets.names, &field);
        }
    }

    fn begin_on_own_track(&mut self, span: u64, pid: u32, at: u64) -> io::Result<()> {
        let Some(state) = self.spans.get(&span) else { return Ok(()) };
        let (schema, _) = self.trace.schema_and_kind(state.name_id);
        let track = self.tracks.span(self.trace, &mut self.packets, pid, &schema.name)?;
        self.summary.async_slices += 1;
        self.begin(span, track, false, at)
    }

    fn begin(&mut self, span: u64, track: u64, on_thread: bool, at: u64) -> io::Result<()> {
        let Some(state) = self.spans.get_mut(&span) else { return Ok(()) };
        self.begins += 1;
        state.begun = Some(Begun { track, on_thread, order: self.begins });
        let args = std::mem::take(&mut state.args);
        let name_id = state.name_id;
        self.begin_body(SLICE_BEGIN, track, Some(name_id));
        args.append_to(&mut self.body);
        for flow in self.shapes.flows(span) {
            fixed64(&mut self.body, track_event::FLOW_IDS, *flow);
        }
        self.packets.event(at, &self.body)
    }

    /// Ends the span's slice, if it has begun and not ended.
    fn end(&mut self, span: u64, now: u64, mark: Option<&str>) -> io::Result<()> {
        let Some(state) = self.spans.get_mut(&span) else { return Ok(()) };
        let Some(begun) = state.begun.take() else { return Ok(()) };
        let args = std::mem::take(&mut state.args);
        self.begin_body(SLICE_END, begun.track, None);
        args.append_to(&mut self.body);
        if let Some(mark) = mark {
            args::push(&mut self.body, &mut self.packets.names, mark, &Value::Bool(true));
        }
        self.packets.event(now, &self.body)
    }

    /// An instant where a stream lost events.
    fn lost_here(&mut self, now: u64, event: &Event<'_>) -> io::Result<()> {
        let track = self.tracks.lost(&mut self.packets)?;
        self.begin_own_instant(track, "lost");
        let names = &mut self.packets.names;
        args::push(&mut self.body, names, "events", &Value::U64(event.lost_before));
        let stream = self.trace.streams().get(event.stream).map_or("", String::as_str);
        args::push(&mut self.body, names, "stream", &Value::Str(stream.as_bytes()));
        self.packets.event(now, &self.body)
    }

    /// The sum of all losses, as an instant at the end.
    fn lost_total(&mut self, at_end: u64) -> io::Result<()> {
        let total = self.trace.lost_total().max(at_end);
        if total == 0 {
            return Ok(());
        }
        let track = self.tracks.lost(&mut self.packets)?;
        self.begin_own_instant(track, "lost in all");
        let names = &mut self.packets.names;
        args::push(&mut self.body, names, "events", &Value::U64(total));
        for lost in self.trace.lost() {
            let cause = format!("cause {}", lost.cause);
            args::push(&mut self.body, names, &cause, &Value::U64(lost.events));
        }
        if at_end > 0 {
            args::push(&mut self.body, names, "after the last event", &Value::U64(at_end));
        }
        self.packets.event(self.packets.now_ns(), &self.body)
    }

    /// Ends what is still open, tells the losses, hands everything to the output.
    fn finish(mut self, lost_at_end: u64) -> io::Result<Summary> {
        let order = |(span, state): (&u64, &Span)| state.begun.map(|begun| (begun.order, *span));
        let open: BTreeMap<_, _> = self.spans.iter().filter_map(order).collect();
        let now = self.packets.now_ns();
        for span in open.into_values().rev() {
            self.summary.still_open += 1;
            self.end(span, now, Some(STILL_OPEN))?;
        }
        self.lost_total(lost_at_end)?;
        self.summary.bytes = self.packets.finish()?;
        Ok(self.summary)
    }

    fn begin_own_instant(&mut self, track: u64, name: &str) {
        self.begin_body(INSTANT, track, None);
        let names = &mut self.packets.names;
        uint(&mut self.body, track_event::NAME_IID, names.id(Names::Events, name));
        uint(&mut self.body, track_event::CATEGORY_IIDS, names.id(Names::Categories, "owlet"));
    }

    /// The fields that every track event has.
    fn begin_body(&mut self, kind: u64, track: u64, name_id: Option<u32>) {
        self.body.clear();
        uint(&mut self.body, track_event::TYPE, kind);
        uint(&mut self.body, track_event::TRACK_UUID, track);
        let Some(id) = name_id else { return };
        let names = &mut self.packets.names;
        let (event, category) = *self.names.entry(id).or_insert_with(|| {
            let name = &self.trace.schema_and_kind(id).0.name;
            (names.id(Names::Events, name), names.id(Names::Categories, provider(name)))
        });
        uint(&mut self.body, track_event::NAME_IID, event);
        uint(&mut self.body, track_event::CATEGORY_IIDS, category);
    }
}

/// `provider` of `provider:event`; the provider may hold `::`.
fn provider(name: &str) -> &str {
    let bytes = name.as_bytes();
    let colon = |at: usize| bytes.get(at) == Some(&b':');
    let alone = |at: &usize| colon(*at) && !colon(at + 1) && !(*at > 0 && colon(at - 1));
    let end = (0..bytes.len()).find(alone).unwrap_or(bytes.len());
    name.get(..end).unwrap_or(name)
}
