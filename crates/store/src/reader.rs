//! Reading a trace directory. Every byte is taken as hostile.
//!
//! Opening reads the sidecar (where that is damaged, the metadata, too) and walks the packet headers; events are read later, one packet in
//! memory for each stream that is being read. Whatever is damaged is reported as a [`Problem`] and
//! what is whole before it is read. No length is believed before it is compared with what is there.

use crate::described::{self, Described};
use crate::error::{ErrorKind, StoreError};
use crate::file::is_locked;
use crate::loss;
use crate::meta::{ClockInfo, Loss, Recorder, StreamName, TraceMeta};
use crate::packet::{PacketHeader, RECORDS_START, StreamClass};
use crate::sidecar::{self, Fact, SIDECAR, Total};
use crate::walk::{Step, Stop, Walk};
use crate::writer::{METADATA, THREADS};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::schema::Schema;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use crate::events::EventReader;

/// Something about a trace that is not as an orderly recording leaves it. What can be read is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File inside the directory; empty for what is said of the trace as a whole.
    pub file: String,
    /// Byte offset in it.
    pub offset: u64,
    /// What, as a lower-case fragment.
    pub message: String,
    /// Whether [`recover`](crate::recover()) makes it go away.
    pub repairable: bool,
    /// It says how the recording ended, or that it goes on; no file is damaged by that.
    pub notice: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.file.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{} at byte {}: {}", self.file, self.offset, self.message)
    }
}

/// Problems up to a bound: a hostile file has millions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problems {
    pub(crate) list: Vec<Problem>,
}

/// Problems kept of one file.
const PROBLEMS_MAX: usize = 100;

impl Problems {
    /// Something that stays as it is.
    pub(crate) fn push(&mut self, file: &str, offset: u64, message: impl Into<String>) {
        self.add(file, offset, message, false, false);
    }

    /// Something that can be repaired.
    pub(crate) fn push_repairable(&mut self, file: &str, at: u64, message: impl Into<String>) {
        self.add(file, at, message, true, false);
    }

    /// Something that a stopped or running recorder leaves.
    pub(crate) fn push_notice(
        &mut self,
        file: &str,
        at: u64,
        message: impl Into<String>,
        repairable: bool,
    ) {
        self.add(file, at, message, repairable, true);
    }

    fn add(
        &mut self,
        file: &str,
        offset: u64,
        message: impl Into<String>,
        repairable: bool,
        notice: bool,
    ) {
        let message = match self.list.len() {
            0..PROBLEMS_MAX => message.into(),
            PROBLEMS_MAX => "more problems, not listed".to_owned(),
            _ => return,
        };
        self.list.push(Problem { file: file.to_owned(), offset, message, repairable, notice });
    }
}

/// A thread's name and when it was learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRecord {
    /// Ticks.
    pub time: u64,
    /// Who.
    pub thread: Thread,
}

/// A process and when it was learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// Ticks.
    pub time: u64,
    /// Who.
    pub process: Process,
}

/// One stream, from its packet headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its name.
    pub name: StreamName,
    /// Whole packets.
    pub packets: u64,
    /// Where the last whole packet ends in its file.
    pub bytes: u64,
    /// Begin of the first packet, in ticks.
    pub begin: u64,
    /// End of the last packet, in ticks.
    pub end: u64,
    /// Events discarded in all.
    pub discarded: u64,
}

/// One event as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEvent<'a> {
    /// Time, id, pid, tid.
    pub header: RecordHeader,
    /// The fields' bytes. One that does not fit the schema is counted in the stream's problems, and is
    /// here as it is.
    pub payload: &'a [u8],
    /// The packet's CPU.
    pub cpu: u32,
    /// Events that this stream lost between the event before and this one, as far as packets tell: what
    /// was lost up to a packet's end stands at the first event behind it.
    pub discarded: u64,
}

/// An open trace.
#[derive(Debug)]
pub struct TraceReader {
    pub(crate) dir: PathBuf,
    meta: TraceMeta,
    schemas: BTreeMap<u32, Schema>,
    threads: Vec<ThreadRecord>,
    /// Positions in `threads`, by time, of each (pid, tid).
    by_thread: HashMap<(u32, u32), Vec<usize>>,
    processes: Vec<ProcessRecord>,
    losses: Vec<Loss>,
    streams: Vec<StreamInfo>,
    problems: Vec<Problem>,
    finished: bool,
    recovered: bool,
    /// It is locked: somebody writes it.
    live: bool,
    recorder: Option<Recorder>,
    skipped: BTreeMap<StreamName, u64>,
    totals: Vec<Total>,
    /// Streams that the recorder has begun.
    begun: BTreeSet<StreamName>,
    pub(crate) sidecar_len: u64,
    /// What follows in the sidecar is a record that was being written.
    pub(crate) sidecar_torn: bool,
    /// Something else in the sidecar is no record: what it said is not known.
    pub(crate) sidecar_damaged: bool,
    /// There is none.
    pub(crate) sidecar_missing: bool,
}

impl TraceReader {
    /// Opens a trace, reads its sidecar and checks every packet header.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], `NotADirectory`, `NotATrace` (with what it looks like instead),
    /// `Version`, `Permission`, `Corrupt` (nothing usable in the sidecar and the metadata), `Io`.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_as(dir, false)
    }

    /// As [`open`](Self::open); `ours` says that a lock on it is this process's own.
    pub(crate) fn open_as(dir: &Path, ours: bool) -> Result<Self, StoreError> {
        let is_dir = std::fs::metadata(dir).map(|found| found.is_dir());
        let failed = |error| {
            StoreError::io(dir, "cannot open the trace", error)
                .with_hint_if_missing("check the path")
        };
        if !is_dir.map_err(failed)? {
            return Err(StoreError::new(ErrorKind::NotADirectory, dir, "is no directory"));
        }
        let path = dir.join(SIDECAR);
        let mut trace = match open_plain(&path) {
            Ok(file) => {
                let live = !ours && is_locked(&file);
                let facts = sidecar::read(&path, file)?;
                Self::from_facts(dir, &path, facts, live)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::without_sidecar(dir)?,
            Err(error) => return Err(StoreError::io(&path, "cannot open", error)),
        };
        trace.walk_streams()?;
        let unexplained = loss::unexplained(&trace.losses, &trace.streams);
        trace.losses.extend(unexplained);
        Ok(trace)
    }

    fn from_facts(
        dir: &Path,
        path: &Path,
        facts: sidecar::Facts,
        live: bool,
    ) -> Result<Self, StoreError> {
        let mut problems = Problems::default();
        if facts.torn && !live {
            problems.push_notice(SIDECAR, facts.len, "record cut short", true);
        }
        for (at, message) in &facts.damage {
            problems.push(SIDECAR, *at, message.as_str());
        }
        let damaged = !facts.damage.is_empty() || !facts.begun;
        let mut all = facts.facts.into_iter();
        let meta = if facts.begun { all.next() } else { None };
        let (meta, described) = match meta.filter(|f| clock_of(f).is_none_or(valid)) {
            Some(Fact::Meta(meta)) => (Some(meta), None),
            _ => {
                let described = describe(dir);
                (described.meta.clone(), Some(described))
            }
        };
        let Some(meta) = meta else {
            let what = "does not begin with a description of the trace, and metadata has none";
            let error = StoreError::new(ErrorKind::Corrupt, path, what);
            return Err(error.with_hint("only a copy of one of these files can tell what is in it"));
        };
        let mut trace = Self::empty(dir, meta, live);
        (trace.sidecar_len, trace.sidecar_torn) = (facts.len, facts.torn);
        trace.sidecar_damaged = damaged;
        for fact in all {
            if let Err(message) = trace.learn(fact) {
                problems.push(SIDECAR, facts.len, message);
            }
        }
        // A description is in the sidecar first: what metadata has more is missing here.
        if damaged || !trace.finished && !live {
            trace.learn_described(described.unwrap_or_else(|| describe(dir)), &mut problems);
        }
        Ok(trace.complete(problems))
    }

    /// What can be read of a trace whose sidecar is gone.
    fn without_sidecar(dir: &Path) -> Result<Self, StoreError> {
        let described = describe(dir);
        let Some(meta) = described.meta.clone() else { return Err(stranger(dir)) };
        let mut trace = Self::empty(dir, meta, false);
        (trace.sidecar_damaged, trace.sidecar_missing) = (true, true);
        let mut problems = Problems::default();
        problems.push(
            SIDECAR,
            0,
            "the file is missing: how the recording ended, why events were lost, and the names of \
             processes and threads are not known",
        );
        trace.learn_described(described, &mut problems);
        Ok(trace.complete(problems))
    }

    /// Takes descriptions of events that the sidecar should have from the metadata.
    fn learn_described(&mut self, described: Described, problems: &mut Problems) {
        let mut learnt = 0;
        for (id, schema) in described.events {
            if let std::collections::btree_map::Entry::Vacant(entry) = self.schemas.entry(id) {
                entry.insert(schema);
                learnt += 1;
            }
        }
        if learnt > 0 {
            let what = match learnt {
                1 => "1 event's description is missing; metadata has it".to_owned(),
                n => format!("{n} events' descriptions are missing; metadata has them"),
            };
            let what = format!("{what}, without its kind and place in the source");
            problems.push(SIDECAR, self.sidecar_len, what);
        }
    }

    /// A trace of which nothing is known yet.
    fn empty(dir: &Path, meta: TraceMeta, live: bool) -> Self {
        Self {
            dir: dir.to_owned(),
            meta,
            schemas: BTreeMap::new(),
            threads: Vec::new(),
            by_thread: HashMap::new(),
            processes: Vec::new(),
            losses: Vec::new(),
            streams: Vec::new(),
            problems: Vec::new(),
            finished: false,
            recovered: false,
            live,
            recorder: None,
            skipped: BTreeMap::new(),
            totals: Vec::new(),
            begun: BTreeSet::new(),
            sidecar_len: 0,
            sidecar_torn: false,
            sidecar_damaged: false,
            sidecar_missing: false,
        }
    }

    fn complete(mut self, mut problems: Problems) -> Self {
        for positions in self.by_thread.values_mut() {
            positions.sort_by_key(|at| self.threads.get(*at).map(|record| record.time));
        }
        self.losses.retain(|loss| loss.events > 0);
        if let Some((message, repairable)) = self.ending() {
            problems.push_notice("", 0, message, repairable);
        }
        self.problems = problems.list;
        self
    }

    /// What is to be said of a recording without an orderly end, and whether that can be repaired.
    fn ending(&self) -> Option<(String, bool)> {
        if self.finished || self.sidecar_missing {
            return None;
        }
        if self.live {
            let by = self.recorder.map(|by| format!(" by process {}", by.pid)).unwrap_or_default();
            let what = format!("the trace is being recorded{by}; this is what is written so far");
            return Some((what, false));
        }
        let rings = match self.recorder {
            Some(by) => {
                let most = u64::from(by.rings).saturating_mul(by.ring_bytes);
                format!("what was in its {} rings then, at most {most} bytes,", by.rings)
            }
            None => "what was in its rings then".to_owned(),
        };
        if self.sidecar_damaged && !self.recovered {
            let what = "whether the recording ended in order is not known: .owlet is damaged";
            return Some((what.to_owned(), false));
        }
        let repaired = if self.recovered { ", and the trace was recovered later" } else { "" };
        let what = format!(
            "the recording was not ended in order{repaired}: {rings} is not here and not counted"
        );
        Some((what, !self.recovered))
    }

    fn learn(&mut self, fact: Fact) -> Result<(), &'static str> {
        match fact {
            Fact::Meta(_) => return Err("a second description of the trace is ignored"),
            Fact::Clock(clock) if clock.freq_hz == 0 => return Err("clock of frequency 0"),
            Fact::Clock(clock) => self.meta.clock = clock,
            Fact::Schema(_, schema) if schema.check().is_err() => {
                return Err("schema over a limit");
            }
            Fact::Schema(id, schema) => {
                // The first one counts: the writer takes no other for the same id.
                self.schemas.entry(id).or_insert(schema);
            }
            Fact::Thread(time, thread) => {
                let at = self.threads.len();
                self.by_thread.entry((thread.pid, thread.tid)).or_default().push(at);
                self.threads.push(ThreadRecord { time, thread });
            }
            Fact::Process(time, process) => self.processes.push(ProcessRecord { time, process }),
            Fact::Losses(losses) => {
                for loss in losses {
                    let known = self
                        .losses
                        .iter_mut()
                        .find(|known| known.stream == loss.stream && known.cause == loss.cause);
                    match known {
                        Some(known) => known.events = loss.events,
                        None => self.losses.push(loss),
                    }
                }
            }
            Fact::Finished(_) => self.finished = true,
            Fact::Recovered => self.recovered = true,
            Fact::Stream(name) => {
                self.begun.insert(name);
            }
            Fact::Totals(totals) => self.totals = totals,
            Fact::Recorder(recorder) => self.recorder = Some(recorder),
            Fact::Skipped(name, bytes) => {
                self.skipped.insert(name, bytes);
            }
        }
        Ok(())
    }

    fn walk_streams(&mut self) -> Result<(), StoreError> {
        let failed = |error| StoreError::io(&self.dir, "cannot list the trace", error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().and_then(StreamName::parse));
        }
        names.sort_unstable();
        let mut missing = Problems::default();
        let total = |name: Option<StreamName>| self.totals.iter().find(|t| t.stream == name);
        for name in self.begun.iter().filter(|name| !names.contains(name)) {
            let what = match total(Some(*name)) {
                Some(total) => {
                    format!("the file is missing, and its {} events with it", total.events)
                }
                None => "the file is missing, and its events with it".to_owned(),
            };
            missing.push(&name.to_string(), 0, what);
        }
        match std::fs::metadata(self.dir.join(THREADS)) {
            Err(_) => missing.push(THREADS, 0, "the file is missing; only other readers need it"),
            Ok(now) => {
                if let Some(total) = total(None).filter(|total| now.len() < total.bytes) {
                    let gone = total.bytes - now.len();
                    let what = format!("{gone} bytes are missing; only other readers need them");
                    missing.push(THREADS, now.len(), what);
                }
            }
        }
        if !self.dir.join(METADATA).exists() {
            missing.push_repairable(METADATA, 0, "the file is missing; only other readers need it");
        }
        self.problems.extend(missing.list);
        for name in &names {
            let (info, problems) = self.walk(*name, &names)?;
            self.streams.push(info);
            self.problems.extend(problems.list);
        }
        Ok(())
    }

    /// Checks the packet headers of one stream.
    fn walk(
        &self,
        name: StreamName,
        names: &[StreamName],
    ) -> Result<(StreamInfo, Problems), StoreError> {
        let text = name.to_string();
        let path = self.dir.join(&text);
        let failed = |error| StoreError::io(&path, "cannot read", error);
        let mut info = StreamInfo { name, packets: 0, bytes: 0, begin: 0, end: 0, discarded: 0 };
        let mut problems = Problems::default();
        let file = match open_plain(&path) {
            Ok(file) => file,
            Err(error) => {
                problems.push(&text, 0, format!("cannot be opened: {error}"));
                return Ok((info, problems));
            }
        };
        let len = file.metadata().map_err(failed)?.len();
        let mut walk = Walk::new(StreamClass::Events, self.meta.uuid, len);
        let mut next_seq = 0;
        // Packets of other streams, and where the first is.
        let mut strange = (0, None);
        loop {
            match walk.step(&file).map_err(failed)? {
                Step::End => break,
                Step::Gap(gap) => problems.push_repairable(&text, gap.offset, gap.message),
                Step::Stop(stop) => {
                    match stop {
                        // Being written this moment.
                        Stop { torn: true, .. } if self.live => {}
                        Stop { torn: true, .. } if !self.finished => {
                            problems.push_notice(&text, stop.offset, stop.message, true);
                        }
                        Stop { foreign: true, .. } => {
                            problems.push(&text, stop.offset, stop.message);
                        }
                        _ => problems.push_repairable(&text, stop.offset, stop.message),
                    }
                    break;
                }
                Step::Packet(offset, packet) => {
                    if packet.instance != name.instance() {
                        strange.0 += 1;
                        strange.1.get_or_insert((offset, packet));
                    }
                    if packet.seq != next_seq {
                        let what = format!("packet {} where {next_seq} belongs", packet.seq);
                        problems.push(&text, offset, what);
                    }
                    if packet.begin < info.end {
                        problems.push(&text, offset, "packet begins before the last one ended");
                    }
                    if packet.discarded < info.discarded {
                        problems.push(&text, offset, "count of discarded events went back");
                    }
                    if info.packets == 0 {
                        info.begin = packet.begin;
                    }
                    next_seq = packet.seq.wrapping_add(1);
                    info.packets += 1;
                    info.end = info.end.max(packet.end);
                    info.discarded = info.discarded.max(packet.discarded);
                }
            }
        }
        info.bytes = walk.offset;
        if let (count, Some((at, first))) = strange {
            let other = names.iter().find(|other| other.instance() == first.instance);
            match other.filter(|_| count == info.packets) {
                Some(other) if !self.begun.contains(&name) || self.begins_with(*other, first) => {
                    info =
                        StreamInfo { name, packets: 0, bytes: 0, begin: 0, end: 0, discarded: 0 };
                    problems.push(&text, 0, format!("a copy of {other}: it is not read"));
                }
                _ => {
                    let what = format!("{count} packets are of another stream, the first is here");
                    problems.push(&text, at, what);
                }
            }
        }
        if let Some(total) = self.totals.iter().find(|total| total.stream == Some(name))
            && info.packets < total.packets
        {
            let there = count_events(&file, self.meta.uuid, info.bytes).map_err(failed)?;
            let (packets, events) = (info.packets, total.events.saturating_sub(there));
            let what = format!(
                "{} of {} packets are missing, with {events} of {} events",
                total.packets - packets,
                total.packets,
                total.events
            );
            problems.push(&text, info.bytes, what);
        }
        Ok((info, problems))
    }

    /// Whether a stream's file begins with this packet.
    fn begins_with(&self, name: StreamName, packet: PacketHeader) -> bool {
        let Ok(file) = open_plain(&self.dir.join(name.to_string())) else { return false };
        let mut bytes = [0; RECORDS_START];
        file.read_exact_at(&mut bytes, 0).is_ok()
            && PacketHeader::read(&bytes, &self.meta.uuid, StreamClass::Events) == Ok(packet)
    }

    /// How many events the recorder says it wrote into the stream, if all of its packets are there.
    pub(crate) fn written(&self, info: &StreamInfo) -> Option<u64> {
        let total = self.totals.iter().find(|total| total.stream == Some(info.name))?;
        (total.packets == info.packets).then_some(total.events)
    }

    /// What the trace says of itself; its clock is the refined one.
    #[must_use]
    pub fn meta(&self) -> &TraceMeta {
        &self.meta
    }

    /// The clock, refined as far as the recording got.
    #[must_use]
    pub fn clock(&self) -> &ClockInfo {
        &self.meta.clock
    }

    /// All schemas by event id.
    #[must_use]
    pub fn schemas(&self) -> &BTreeMap<u32, Schema> {
        &self.schemas
    }

    /// Threads in the order they were learnt; a (pid, tid) may come again with another name.
    #[must_use]
    pub fn threads(&self) -> &[ThreadRecord] {
        &self.threads
    }

    /// Processes in the order they were learnt.
    #[must_use]
    pub fn processes(&self) -> &[ProcessRecord] {
        &self.processes
    }

    /// Name of a thread as it was at `time` (or first known as, when that is earlier).
    #[must_use]
    pub fn comm(&self, pid: u32, tid: u32, time: u64) -> Option<&[u8]> {
        let positions = self.by_thread.get(&(pid, tid))?;
        let later = positions
            .partition_point(|at| self.threads.get(*at).is_some_and(|known| known.time <= time));
        let at = positions.get(later.saturating_sub(1))?;
        self.threads.get(*at).map(|record| record.thread.comm.as_slice())
    }

    /// What was lost, by stream and cause; zero counts are left out. What only the packets count has
    /// the cause [`UNKNOWN_CAUSE`](crate::UNKNOWN_CAUSE), so that the sum is right while the trace is
    /// being recorded and after its recorder was killed.
    #[must_use]
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// The streams, in the order of their names.
    #[must_use]
    pub fn streams(&self) -> &[StreamInfo] {
        &self.streams
    }

    /// What is not as an orderly recording leaves it.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether the recording ended in order.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Whether [`recover`](crate::recover()) has been run on a recording that did not end in order.
    #[must_use]
    pub fn recovered(&self) -> bool {
        self.recovered
    }

    /// Whether the trace is being recorded now: what is read is what was written so far.
    #[must_use]
    pub fn live(&self) -> bool {
        self.live
    }

    /// Who recorded, and from how large rings, if the trace says so.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Bytes of the rings that were no records. Events in them are lost for the cause
    /// [`CORRUPT`](crate::CORRUPT), counted as one for each run of bytes.
    #[must_use]
    pub fn skipped_bytes(&self) -> u64 {
        self.skipped.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The events of `streams()[stream]`, from the first. Holds one packet in memory.
    ///
    /// # Errors
    /// When the stream's file cannot be opened, or there is no such stream.
    pub fn events(&self, stream: usize) -> Result<EventReader<'_>, StoreError> {
        let Some(info) = self.streams.get(stream) else {
            let what = format!("has no stream number {stream}");
            return Err(StoreError::new(ErrorKind::Invalid, &self.dir, what));
        };
        let path = self.dir.join(info.name.to_string());
        if info.bytes == 0 {
            return Ok(EventReader::new(self, info, None));
        }
        let file =
            open_plain(&path).map_err(|error| StoreError::io(&path, "cannot open", error))?;
        Ok(EventReader::new(self, info, Some(file)))
    }
}

fn clock_of(fact: &Fact) -> Option<&ClockInfo> {
    match fact {
        Fact::Meta(meta) => Some(&meta.clock),
        _ => None,
    }
}

fn valid(clock: &ClockInfo) -> bool {
    clock.freq_hz > 0
}

/// Opens a regular file and nothing else: a FIFO of that name would block for ever.
pub(crate) fn open_plain(path: &Path) -> io::Result<File> {
    const O_NONBLOCK: i32 = 0o4000;
    let file = File::options().read(true).custom_flags(O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// Counts the records of all whole packets.
fn count_events(file: &File, uuid: [u8; 16], len: u64) -> io::Result<u64> {
    let mut walk = Walk::new(StreamClass::Events, uuid, len);
    let mut events = 0;
    let mut records = Vec::new();
    loop {
        match walk.step(file)? {
            Step::Packet(offset, header) => {
                let len = header.content.saturating_sub(RECORDS_START as u64);
                // No longer than the file, and than the longest packet.
                records.resize(usize::try_from(len).unwrap_or(0), 0);
                file.read_exact_at(&mut records, offset + RECORDS_START as u64)?;
                let mut rest = records.as_slice();
                while let Some(record) = RecordHeader::read(rest) {
                    if (record.len as usize) < RECORD_HEADER_LEN {
                        break;
                    }
                    events += 1;
                    rest = rest.get(record.advance()..).unwrap_or_default();
                }
            }
            Step::Gap(_) => {}
            Step::End | Step::Stop(_) => return Ok(events),
        }
    }
}

/// What the trace's metadata says; nothing when it cannot be read.
pub(crate) fn describe(dir: &Path) -> Described {
    let mut bytes = Vec::new();
    let read = open_plain(&dir.join(METADATA))
        .and_then(|file| file.take(described::TEXT_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => described::read(&String::from_utf8_lossy(&bytes)),
        Err(_) => Described::default(),
    }
}

/// Says what a directory without our sidecar looks like.
fn stranger(dir: &Path) -> StoreError {
    let mut start = Vec::new();
    if let Ok(file) = open_plain(&dir.join(METADATA)) {
        let _ = file.take(8192).read_to_end(&mut start);
    }
    let has = |part: &[u8]| start.windows(part.len()).any(|window| window == part);
    let lttng = ["ust/uid", "ust/pid"].iter().any(|sub| dir.join(sub).is_dir())
        || dir.join("kernel").join(METADATA).is_file();
    let (what, hint) = if has(b"tracer_name = \"owlet\"") {
        (
            "an owlet trace whose .owlet file is missing, and metadata is damaged",
            "nothing says what its streams hold; babeltrace2 may still read some of it",
        )
    } else if start.starts_with(&[0x57, 0x1d, 0xd1, 0x75]) || start.starts_with(b"/* CTF") {
        ("a CTF trace of another tracer", "read it with babeltrace2")
    } else if lttng {
        ("looks like an LTTng session, not an owlet trace", "read it with babeltrace2")
    } else {
        ("not an owlet trace", "only directories made by `owlet record` can be read")
    };
    StoreError::new(ErrorKind::NotATrace, dir, what).with_hint(hint)
}
