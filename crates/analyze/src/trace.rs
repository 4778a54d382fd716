//! A trace opened: what does not change while its events are read.

use crate::merge::Events;
use crate::source::{Cursor, Memory};
use owlet_store::{ClockInfo, ClockKind, Loss, ProcessRecord, StoreError, ThreadRecord};
use owlet_store::{TraceMeta, TraceReader};
use owlet_wire::entry::Process;
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Why a trace cannot be read.
pub type Error = StoreError;

/// How ticks become time: [`ClockInfo`] with its origin computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    info: ClockInfo,
    origin_unix_ns: i128,
}

impl Clock {
    /// Prepares a clock.
    #[must_use]
    pub fn new(info: ClockInfo) -> Self {
        Self { info, origin_unix_ns: info.origin_unix_ns() }
    }

    /// The clock as the trace tells it.
    #[must_use]
    pub fn info(&self) -> &ClockInfo {
        &self.info
    }

    /// Nanoseconds since 1970-01-01 00:00 UTC: [`ClockInfo::unix_ns`], with times before 1970 as 0.
    #[must_use]
    pub fn to_unix_ns(&self, ticks: u64) -> u64 {
        let ns = self.origin_unix_ns + i128::from(self.info.ns_of(ticks));
        i64::try_from(ns).unwrap_or(if ns < 0 { 0 } else { i64::MAX }).max(0).cast_unsigned()
    }
}

/// A schema with what readers need of it beside.
#[derive(Clone, Debug)]
pub(crate) struct SchemaInfo {
    pub(crate) schema: Schema,
    pub(crate) kind: Kind,
    /// Number of fields that the kind prescribes.
    pub(crate) leading: usize,
    /// Field names, unique.
    pub(crate) names: Vec<String>,
}

impl SchemaInfo {
    fn new(schema: Schema) -> Self {
        let wanted = match schema.kind {
            Kind::Event => 0,
            Kind::SpanNew | Kind::SpanClose | Kind::SpanFollows => 2,
            Kind::SpanEnter | Kind::SpanExit | Kind::SpanRecord | Kind::SpanEvent => 1,
        };
        let word = |field: &Field| field.ty == Type::Scalar(Scalar::U64);
        let there = schema.fields.iter().take(wanted).filter(|field| word(field)).count() == wanted;
        let (kind, leading) = if there { (schema.kind, wanted) } else { (Kind::Event, 0) };
        let names = unique_names(&schema.fields);
        Self { schema, kind, leading, names }
    }

    fn unknown() -> Self {
        Self::new(Schema {
            name: "owlet:unknown_event".to_owned(),
            kind: Kind::Event,
            level: Level::Warn,
            file: String::new(),
            line: 0,
            doc: "a record whose event id has no schema in the trace".to_owned(),
            fields: Vec::new(),
        })
    }
}

fn unique_names(fields: &[Field]) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut names = Vec::with_capacity(fields.len());
    for field in fields {
        let mut name = field.name.clone();
        let mut n = 2_u32;
        while !seen.insert(name.clone()) {
            name = format!("{}#{n}", field.name);
            n += 1;
        }
        names.push(name);
    }
    names
}

/// The tick a thread's name was learnt at, and the name.
type Name = (u64, Vec<u8>);

/// What does not change while events are read.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) schemas: HashMap<u32, SchemaInfo>,
    unknown: SchemaInfo,
    /// Names by (pid, tid), each with the tick it was learnt at, in that order.
    threads: HashMap<(u32, u32), Vec<Name>>,
    /// The last record of each pid.
    processes: BTreeMap<u32, Process>,
    pub(crate) clock: Clock,
}

impl Tables {
    fn new(
        schemas: impl Iterator<Item = (u32, Schema)>,
        threads: &[ThreadRecord],
        processes: &[ProcessRecord],
        clock: ClockInfo,
    ) -> Self {
        let mut names: HashMap<_, Vec<_>> = HashMap::new();
        for ThreadRecord { time, thread } in threads {
            let known = names.entry((thread.pid, thread.tid)).or_default();
            known.push((*time, thread.comm.clone()));
        }
        for known in names.values_mut() {
            known.sort_by_key(|(time, _)| *time);
        }
        let by_pid = processes.iter().map(|p| (p.process.pid, p.process.clone())).collect();
        Self {
            schemas: schemas.map(|(id, schema)| (id, SchemaInfo::new(schema))).collect(),
            unknown: SchemaInfo::unknown(),
            threads: names,
            processes: by_pid,
            clock: Clock::new(clock),
        }
    }

    pub(crate) fn schema_info(&self, id: u32) -> &SchemaInfo {
        self.schemas.get(&id).unwrap_or(&self.unknown)
    }

    /// The name at `time`; before the first record, the first.
    pub(crate) fn comm(&self, pid: u32, tid: u32, time: u64) -> &[u8] {
        let known = self.threads.get(&(pid, tid)).map_or(&[][..], Vec::as_slice);
        let at = known.partition_point(|(since, _)| *since <= time).saturating_sub(1);
        known.get(at).map_or(&[], |(_, comm)| comm.as_slice())
    }
}

/// Events lost for one cause.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Lost {
    /// The cause, as the ring's table of loss reasons names it; `unknown` for what is counted in
    /// packets, cause not recorded: the recorder was killed or still runs.
    pub cause: String,
    /// How many.
    pub events: u64,
}

/// Everything a trace is made of, for [`Trace::from_parts`].
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each is what the store's reader returns under that name")]
pub struct Parts {
    pub meta: TraceMeta,
    pub schemas: Vec<(u32, Schema)>,
    pub threads: Vec<ThreadRecord>,
    pub processes: Vec<ProcessRecord>,
    pub streams: Vec<Memory>,
    pub losses: Vec<Loss>,
}

impl Default for Parts {
    /// No events; a clock of nanoseconds since 1970.
    fn default() -> Self {
        let meta = TraceMeta {
            uuid: [0; 16],
            hostname: String::new(),
            clock: ClockInfo::nanoseconds(ClockKind::Monotonic, 0),
            tracer_version: String::new(),
            description: String::new(),
        };
        Self {
            meta,
            schemas: Vec::new(),
            threads: Vec::new(),
            processes: Vec::new(),
            streams: Vec::new(),
            losses: Vec::new(),
        }
    }
}

/// A trace opened for reading.
#[derive(Debug)]
pub struct Trace {
    tables: Tables,
    meta: TraceMeta,
    streams: Vec<String>,
    lost: Vec<Lost>,
    problems: Vec<String>,
    repairable: bool,
    damaged: bool,
    skipped_bytes: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Memory(Vec<Memory>),
    Store(Box<TraceReader>),
}

/// Sums by cause, the most frequent first.
fn by_cause(losses: &[Loss]) -> Vec<Lost> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for loss in losses.iter().filter(|loss| loss.events > 0) {
        let sum = sums.entry(&loss.cause).or_default();
        *sum = sum.saturating_add(loss.events);
    }
    let lost = |(cause, events): (&str, u64)| Lost { cause: cause.to_owned(), events };
    let mut all: Vec<_> = sums.into_iter().map(lost).collect();
    all.sort_by_key(|lost| std::cmp::Reverse(lost.events));
    all
}

impl Trace {
    /// Opens a trace directory. A trace that was cut short opens, and says so in
    /// [`Trace::problems`].
    ///
    /// # Errors
    /// Those of [`TraceReader::open`].
    pub fn open(dir: &Path) -> Result<Self, Error> {
        Ok(Self::from_reader(TraceReader::open(dir)?))
    }

    /// A trace from an open reader.
    #[must_use]
    pub fn from_reader(reader: TraceReader) -> Self {
        let schemas = reader.schemas().iter().map(|(id, schema)| (*id, schema.clone()));
        let clock = *reader.clock();
        let problems = reader.problems().iter().map(ToString::to_string).collect();
        Self {
            tables: Tables::new(schemas, reader.threads(), reader.processes(), clock),
            meta: reader.meta().clone(),
            streams: reader.streams().iter().map(|s| s.name.to_string()).collect(),
            lost: by_cause(reader.losses()),
            problems,
            repairable: reader.problems().iter().any(|problem| problem.repairable),
            damaged: reader.problems().iter().any(|problem| !problem.notice)
                || !(reader.finished() || reader.live()),
            skipped_bytes: reader.skipped_bytes(),
            source: Source::Store(Box::new(reader)),
        }
    }

    /// A trace from what it is made of.
    #[must_use]
    pub fn from_parts(parts: Parts) -> Self {
        let Parts { meta, schemas, threads, processes, streams, losses } = parts;
        Self {
            tables: Tables::new(schemas.into_iter(), &threads, &processes, meta.clock),
            meta,
            streams: streams.iter().map(|stream| stream.name.clone()).collect(),
            lost: by_cause(&losses),
            problems: Vec::new(),
            repairable: false,
            damaged: false,
            skipped_bytes: 0,
            source: Source::Memory(streams),
        }
    }

    /// The events of all streams in time order. Each call starts from the beginning.
    ///
    /// # Errors
    /// When a stream's file cannot be opened.
    pub fn events(&self) -> Result<Events<'_>, Error> {
        let mut cursors: Vec<Box<dyn Cursor + '_>> = Vec::with_capacity(self.streams.len());
        for at in 0..self.streams.len() {
            cursors.push(match &self.source {
                Source::Memory(streams) => Box::new(streams[at].cursor()),
                Source::Store(reader) => Box::new(reader.events(at)?),
            });
        }
        Ok(Events::new(&self.tables, cursors))
    }

    /// What the trace says of itself: uuid, host, clock, version of the recorder.
    #[must_use]
    pub fn meta(&self) -> &TraceMeta {
        &self.meta
    }

    /// Names of the streams; [`Event::stream`](crate::Event::stream) is an index into them.
    #[must_use]
    pub fn streams(&self) -> &[String] {
        &self.streams
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.tables.clock
    }

    /// Ids and schemas, in the order of the ids.
    #[must_use]
    pub fn schemas(&self) -> Vec<(u32, &Schema)> {
        let mut all: Vec<_> = self.tables.schemas.iter().map(|(id, i)| (*id, &i.schema)).collect();
        all.sort_by_key(|(id, _)| *id);
        all
    }

    /// The schema of an event id and what its events mean. An id without schema has that of
    /// `owlet:unknown_event`.
    #[must_use]
    pub fn schema_and_kind(&self, id: u32) -> (&Schema, Kind) {
        let info = self.tables.schema_info(id);
        (&info.schema, info.kind)
    }

    /// The processes that joined the session, in the order of their pids. Of several records for
    /// one pid the last.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.tables.processes.values()
    }

    /// One process.
    #[must_use]
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.tables.processes.get(&pid)
    }

    /// The last name of a thread, empty when the trace does not say. Any bytes.
    #[must_use]
    pub fn comm(&self, pid: u32, tid: u32) -> &[u8] {
        self.tables.comm(pid, tid, u64::MAX)
    }

    /// What was lost, by cause, the most frequent first, causes without loss left out.
    #[must_use]
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// Events lost for any cause.
    #[must_use]
    pub fn lost_total(&self) -> u64 {
        self.lost.iter().fold(0, |sum, lost| sum.saturating_add(lost.events))
    }

    /// What is wrong with the trace's files, one line each, or nothing.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Whether something of the trace is missing or cannot be read. So it is when the
    /// recording was not ended in order; one that goes on is no damage.
    #[must_use]
    pub fn damaged(&self) -> bool {
        self.damaged
    }

    /// Bytes of the rings that were no records; their events are lost for the cause `corrupt`.
    #[must_use]
    pub fn skipped_bytes(&self) -> u64 {
        self.skipped_bytes
    }

    /// Whether [`owlet_store::recover()`] can make one of the problems go away.
    #[must_use]
    pub fn repairable(&self) -> bool {
        self.repairable
    }
}
