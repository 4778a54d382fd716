//! A trace built in memory, record by record: for tests, examples and benchmarks of readers.

use crate::source::Memory;
use crate::trace::{Parts, Trace};
use owlet_store::{Loss, ProcessRecord, StreamName, ThreadRecord};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};

/// Where and when a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Index of the stream.
    pub cpu: usize,
    /// Nanoseconds.
    pub time: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
}

/// At this time on CPU 0, by thread 11 of process 10.
#[must_use]
pub fn at(time: u64) -> At {
    At { cpu: 0, time, pid: 10, tid: 11 }
}

impl At {
    /// The same on another CPU.
    #[must_use]
    pub fn cpu(self, cpu: usize) -> Self {
        Self { cpu, ..self }
    }

    /// The same by another thread.
    #[must_use]
    pub fn tid(self, tid: u32) -> Self {
        Self { tid, ..self }
    }

    /// The same by the main thread of another process.
    #[must_use]
    pub fn pid(self, pid: u32) -> Self {
        Self { pid, tid: pid, ..self }
    }
}

/// Encodes a payload field by field.
#[derive(Clone, Debug, Default)]
pub struct Payload(pub Vec<u8>);

impl Payload {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The little-endian bytes of a number, as they are.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A `u64`.
    #[must_use]
    pub fn u64(self, n: u64) -> Self {
        self.raw(&n.to_le_bytes())
    }

    /// A `u32`: a number, or the length of what follows.
    #[must_use]
    pub fn u32(self, n: u32) -> Self {
        self.raw(&n.to_le_bytes())
    }

    /// Text or bytes, counted.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX)).raw(bytes)
    }
}

/// A trace in the making.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    parts: Parts,
}

impl Builder {
    /// With streams `cpu_0` to `cpu_N-1`, and a clock of nanoseconds since 1970.
    #[must_use]
    pub fn new(cpus: u32) -> Self {
        let stream = |cpu| Memory::new(&StreamName::cpu(cpu).to_string(), cpu);
        Self { parts: Parts { streams: (0..cpus).map(stream).collect(), ..Parts::default() } }
    }

    /// Everything so far, to change what has no method here.
    pub fn parts(&mut self) -> &mut Parts {
        &mut self.parts
    }

    /// Describes an event; its id. The fields that the kind prescribes are put before `fields`.
    pub fn schema(&mut self, name: &str, kind: Kind, fields: &[(&str, Type)]) -> u32 {
        let leading: &[&str] = match kind {
            Kind::Event => &[],
            Kind::SpanNew => &["span", "parent"],
            Kind::SpanClose => &["span", "duration_ns"],
            Kind::SpanFollows => &["span", "follows"],
            _ => &["span"],
        };
        let leading = leading.iter().map(|name| (*name, Type::Scalar(Scalar::U64)));
        let field = |(name, ty): (&str, Type)| Field { name: name.to_owned(), ty };
        let schema = Schema {
            name: name.to_owned(),
            kind,
            level: Level::Info,
            file: "src/main.rs".to_owned(),
            line: 1,
            doc: String::new(),
            fields: leading.chain(fields.iter().cloned()).map(field).collect(),
        };
        let id = u32::try_from(self.parts.schemas.len() + 1).unwrap_or(u32::MAX);
        self.parts.schemas.push((id, schema));
        id
    }

    /// Names a thread.
    pub fn thread(&mut self, pid: u32, tid: u32, comm: &[u8]) {
        let thread = Thread { pid, tid, comm: comm.to_vec() };
        self.parts.threads.push(ThreadRecord { time: 0, thread });
    }

    /// Describes a process.
    pub fn process(&mut self, pid: u32, ppid: u32, exe: &[u8], args: &[u8]) {
        let (exe, args) = (exe.to_vec(), args.to_vec());
        let process =
            Process { pid, ppid, pid_namespace: 0, exe, args, backend: "rseq".to_owned() };
        self.parts.processes.push(ProcessRecord { time: 0, process });
    }

    /// Counts a loss.
    pub fn lose(&mut self, cause: &str, events: u64) {
        let loss = Loss { stream: Some(StreamName::cpu(0)), cause: cause.to_owned(), events };
        self.parts.losses.push(loss);
    }

    /// Appends a record to its stream. Records for a stream that is not there are dropped.
    pub fn event(&mut self, at: At, id: u32, payload: &Payload) {
        let At { cpu, time, pid, tid } = at;
        if let Some(stream) = self.parts.streams.get_mut(cpu) {
            stream.push(RecordHeader { time, id, len: 0, pid, tid }, &payload.0);
        }
    }

    /// The trace.
    #[must_use]
    pub fn trace(self) -> Trace {
        Trace::from_parts(self.parts)
    }
}
