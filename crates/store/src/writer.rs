//! Appending to a trace directory.
//!
//! # Order of writes
//! A fact goes to the sidecar first, then to the metadata, and only then may a packet rely on it
//! (invariant I1): whatever instant the recorder is killed at, every whole packet can be decoded by
//! our reader, and [`recover`](crate::recover()) can write the metadata anew.
//!
//! # Units
//! Every write appends one unit (a packet, a sidecar record, a line of metadata) and is taken back
//! when it fails (see `file.rs`), so that a full disk ends the trace at a whole unit (I2).
//!
//! # A directory that moves
//! The directory is held open, so that it is found again where somebody has moved it to (within its file
//! system; across them, moving is copying and removing). Its files are open or opened by name; before a
//! name is used, `TraceWriter::follow` looks where the directory is.

use crate::error::{ErrorKind, StoreError};
use crate::file::{AppendFile, GROWN, identity, replace};
use crate::meta::{ClockInfo, Loss, Recorder, StreamName, TraceMeta};
use crate::packet::StreamClass;
use crate::sidecar::{self, FactRef, SIDECAR, Total};
use crate::stream::Stream;
use crate::tsdl::{self, PROCESS_EVENT, THREAD_EVENT};
use owlet_wire::entry::{Entry, Process, Thread};
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::Schema;
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Name of the metadata file.
pub(crate) const METADATA: &str = "metadata";
/// Name of the stream of threads and processes.
pub(crate) const THREADS: &str = "threads";
/// Stream files open at the same time at most.
const OPEN_MAX: usize = 64;
/// The cause under which records are counted that do not fit their schema.
pub const MALFORMED: &str = "malformed";

/// A run of records to append to one stream.
#[derive(Clone, Copy, Debug)]
pub struct PacketInfo<'a> {
    /// The CPU shown beside each event (of a portable ring: the ring's number).
    pub cpu: u32,
    /// Ticks: where the packet's time begins; put between the packet before and the first record.
    pub begin: u64,
    /// Ticks: now, or the last record's time. A later record is malformed: one hostile clock value
    /// would otherwise push the time of all that follow.
    pub end: u64,
    /// Events lost on this stream since the session began, for all causes together.
    pub discarded_total: u64,
    /// Whole records, each padded to a multiple of 8 bytes as in the ring; may be empty.
    pub records: &'a [u8],
}

/// What became of a run of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Records written.
    pub events: u64,
    /// Records refused, because their id is unknown or their bytes do not fit their schema. They
    /// count as discarded in the trace.
    pub malformed: u64,
    /// Bytes written, headers included.
    pub bytes: u64,
}

/// What a whole trace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Records written.
    pub events: u64,
    /// Records refused as malformed.
    pub malformed: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// What the begin of a trace has made.
#[derive(Clone, Debug)]
struct Begun {
    made_dir: bool,
    files: Vec<PathBuf>,
}

impl Begun {
    /// Takes it away again. Whatever stays is an empty trace or an empty directory.
    fn remove(&self, dir: &Path) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
        if self.made_dir {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Appends to one trace directory.
#[derive(Debug)]
pub struct TraceWriter {
    dir: PathBuf,
    /// The directory itself, wherever it is, and what tells it from others.
    held: File,
    identity: (u64, u64),
    begun: Begun,
    meta: TraceMeta,
    clock: ClockInfo,
    sidecar: AppendFile,
    metadata: AppendFile,
    threads: Stream,
    streams: BTreeMap<StreamName, Stream>,
    schemas: HashMap<u32, Schema>,
    processes: Vec<Process>,
    losses: Vec<Loss>,
    skipped: BTreeMap<StreamName, u64>,
    events: u64,
    scratch: Vec<u8>,
    /// Counts appends: the age of a stream's last use.
    turn: u64,
}

impl TraceWriter {
    /// Makes the directory (0700) or takes an empty one, and begins the trace. Files are 0600. On
    /// failure nothing that was made stays.
    ///
    /// # Errors
    /// [`ErrorKind::NotEmpty`], `NotADirectory`, `NotFound` (the parent), `Permission`, `ReadOnly`,
    /// `NoSpace`, `Invalid` (a clock of frequency 0), `Io`.
    pub fn create(dir: &Path, meta: &TraceMeta) -> Result<Self, StoreError> {
        if meta.clock.freq_hz == 0 {
            return Err(StoreError::new(ErrorKind::Invalid, dir, "clock of frequency 0"));
        }
        let mut begun = Begun { made_dir: make_dir(dir)?, files: Vec::new() };
        Self::begin(dir, meta, &mut begun).inspect_err(|_| begun.remove(dir))
    }

    fn begin(dir: &Path, meta: &TraceMeta, begun: &mut Begun) -> Result<Self, StoreError> {
        let mut make = |name: &str| {
            let file = AppendFile::create(dir.join(name))?;
            begun.files.push(dir.join(name));
            Ok::<_, StoreError>(file)
        };
        let mut sidecar = make(SIDECAR)?;
        let failed = |error| StoreError::io(dir, "cannot open the trace directory", error);
        let held = File::open(dir).map_err(failed)?;
        let identity = identity(&held.metadata().map_err(failed)?);
        sidecar.lock();
        let first = sidecar::record(&FactRef::Meta(meta)).unwrap_or_default();
        sidecar.append(&[&sidecar::header()[..], &first].concat())?;
        let mut metadata = make(METADATA)?;
        metadata.append(tsdl::preamble(meta, &meta.clock, &[]).as_bytes())?;
        let threads = make(THREADS)?;
        Ok(Self {
            dir: dir.to_owned(),
            held,
            identity,
            begun: begun.clone(),
            meta: meta.clone(),
            clock: meta.clock,
            sidecar,
            metadata,
            threads: Stream::new(threads, StreamClass::Threads, 0),
            streams: BTreeMap::new(),
            schemas: HashMap::new(),
            processes: Vec::new(),
            losses: Vec::new(),
            skipped: BTreeMap::new(),
            events: 0,
            scratch: Vec::new(),
            turn: 0,
        })
    }

    /// Stores who records, and how much the rings hold that a killed recorder leaves behind.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn set_recorder(&mut self, recorder: Recorder) -> Result<(), StoreError> {
        self.fact(&FactRef::Recorder(recorder))
    }

    /// Stores how many bytes of a stream's ring were no records, in all. Their events are a loss of
    /// cause [`CORRUPT`](crate::CORRUPT), which the caller counts.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn set_skipped(&mut self, stream: StreamName, bytes: u64) -> Result<(), StoreError> {
        if self.skipped.get(&stream).copied().unwrap_or(0) == bytes {
            return Ok(());
        }
        self.fact(&FactRef::Skipped(stream, bytes))?;
        self.skipped.insert(stream, bytes);
        Ok(())
    }

    /// Whether every file is still there and has all that was written. One `stat` for each file; when
    /// somebody else has written to one, a read of what was appended to it last. `all` reads the headers
    /// of all packets of events, too.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] for the first file that somebody removed, replaced, truncated or changed.
    pub fn check(&mut self, all: bool) -> Result<(), StoreError> {
        if !self.follow() {
            let what = "the directory was removed while it was being recorded into";
            return Err(StoreError::new(ErrorKind::Changed, &self.dir, what));
        }
        self.sidecar.check()?;
        self.metadata.check()?;
        self.threads.file.check()?;
        self.streams.values().try_for_each(|stream| {
            stream.file.check()?;
            if all && !stream.is_whole(&self.meta.uuid) {
                return Err(StoreError::new(ErrorKind::Changed, stream.file.path(), GROWN));
            }
            Ok(())
        })
    }

    /// Looks where the directory is; [`dir`](Self::dir) says it afterwards. False when it is nowhere any
    /// more. One `stat` when it was not moved.
    fn follow(&mut self) -> bool {
        let ours = |dir: &Path| {
            std::fs::metadata(dir).is_ok_and(|found| identity(&found) == self.identity)
        };
        if ours(&self.dir) {
            return true;
        }
        // The kernel keeps the name of what is open (proc(5)).
        let link = format!("/proc/self/fd/{}", self.held.as_raw_fd());
        let Some(now) = std::fs::read_link(link).ok().filter(|now| ours(now)) else { return false };
        let files = [&mut self.sidecar, &mut self.metadata, &mut self.threads.file];
        let streams = self.streams.values_mut().map(|stream| &mut stream.file);
        files.into_iter().chain(streams).for_each(|file| file.moved(&now));
        self.dir = now;
        true
    }

    /// Takes away a trace without events: its files, and the directory unless it was there before.
    pub fn discard(self) {
        self.begun.remove(&self.dir);
    }

    /// The directory, as it was called when that was last looked at.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stores one entry of the session's log; `time` is now, in ticks. The same as
    /// [`add_schema`](Self::add_schema), [`add_thread`](Self::add_thread) or
    /// [`add_process`](Self::add_process).
    ///
    /// # Errors
    /// As those.
    pub fn add_entry(&mut self, time: u64, entry: Entry) -> Result<(), StoreError> {
        match entry {
            Entry::Schema(id, schema) => self.add_schema(id, &schema),
            Entry::Thread(thread) => self.add_thread(time, &thread),
            Entry::Process(process) => self.add_process(time, &process),
        }
    }

    fn fact(&mut self, fact: &FactRef<'_>) -> Result<(), StoreError> {
        match sidecar::record(fact) {
            Some(bytes) => self.sidecar.append(&bytes),
            None => {
                Err(StoreError::new(ErrorKind::Invalid, &self.dir, "record over the size limit"))
            }
        }
    }

    /// Stores what events of this id look like. Must precede their first packet. The same schema
    /// again is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the id is taken by another schema or the schema is over a limit
    /// ([`Schema::check`]): nothing was stored, its events will count as malformed. Those of the
    /// file system.
    pub fn add_schema(&mut self, id: u32, schema: &Schema) -> Result<(), StoreError> {
        match self.schemas.get(&id) {
            Some(known) if known == schema => return Ok(()),
            Some(known) => {
                let what = format!("event id {id} is {} already, not {}", known.name, schema.name);
                return Err(StoreError::new(ErrorKind::Invalid, &self.dir, what));
            }
            None => {}
        }
        if let Err(what) = schema.check() {
            let what = format!("event {}: {what}", schema.name.escape_debug());
            return Err(StoreError::new(ErrorKind::Invalid, &self.dir, what));
        }
        self.fact(&FactRef::Schema(id, schema))?;
        self.metadata.append(tsdl::event(id, schema).as_bytes())?;
        self.schemas.insert(id, schema.clone());
        Ok(())
    }

    /// Stores a thread's name; `time` is when it was learnt, in ticks.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn add_thread(&mut self, time: u64, thread: &Thread) -> Result<(), StoreError> {
        self.fact(&FactRef::Thread(time, thread))?;
        let mut payload = Vec::new();
        put_text(&mut payload, &thread.comm);
        self.own_event(time, THREAD_EVENT, thread.pid, thread.tid, &payload)
    }

    /// Stores a process; `time` is when it was learnt, in ticks. The same process again is no error.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn add_process(&mut self, time: u64, process: &Process) -> Result<(), StoreError> {
        if self.processes.contains(process) {
            return Ok(());
        }
        self.fact(&FactRef::Process(time, process))?;
        let mut payload = process.ppid.to_le_bytes().to_vec();
        payload.extend(process.pid_namespace.to_le_bytes());
        put_text(&mut payload, &process.exe);
        put_text(&mut payload, &tsdl::spaced(&process.args));
        put_text(&mut payload, process.backend.as_bytes());
        self.own_event(time, PROCESS_EVENT, process.pid, process.pid, &payload)?;
        self.processes.push(process.clone());
        Ok(())
    }

    fn own_event(
        &mut self,
        time: u64,
        id: u32,
        pid: u32,
        tid: u32,
        payload: &[u8],
    ) -> Result<(), StoreError> {
        let header = RecordHeader { time, id, len: 0, pid, tid };
        self.threads.append_own(&self.meta.uuid, header, payload).map(|_| ())
    }

    /// Appends records to a stream, as one packet or, when they are many, several. Nothing is
    /// written when there are no records and no news of losses.
    ///
    /// Cost: one walk and one copy of the records, one `write` for each MiB.
    ///
    /// # Errors
    /// Those of the file system. The stream's file then ends with a whole packet, and the writer
    /// stays usable. [`summary`](Self::summary) says how much was written; when there is no more
    /// room, that is all that fits.
    pub fn append_packet(
        &mut self,
        stream: StreamName,
        packet: &PacketInfo<'_>,
    ) -> Result<Appended, StoreError> {
        self.turn += 1;
        if !self.streams.get(&stream).is_some_and(|stream| stream.file.is_open()) {
            self.follow();
        }
        self.bound_open(stream);
        let news = !packet.records.is_empty() || packet.discarded_total > 0;
        if news && !self.streams.contains_key(&stream) {
            // Before the file: a stream that is missing later can be told from one that never was.
            self.fact(&FactRef::Stream(stream))?;
        }
        let entry = match self.streams.entry(stream) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                if !news {
                    return Ok(Appended::default());
                }
                let file = AppendFile::create(self.dir.join(stream.to_string()))?;
                entry.insert(Stream::new(file, StreamClass::Events, stream.instance()))
            }
        };
        entry.used = self.turn;
        let mut done = Appended::default();
        let result =
            entry.append(&self.meta.uuid, &self.schemas, packet, &mut self.scratch, &mut done);
        // Whole packets before one that failed count, too.
        self.events += done.events;
        result.map(|()| done)
    }

    /// Closes the stream unused for longest when another is about to be opened over the limit.
    fn bound_open(&mut self, next: StreamName) {
        if self.streams.get(&next).is_some_and(|stream| stream.file.is_open()) {
            return;
        }
        let open = self.streams.values_mut().filter(|stream| stream.file.is_open());
        let (count, oldest) =
            open.fold((0, None::<&mut Stream>), |(count, oldest), stream| match oldest {
                Some(oldest) if oldest.used <= stream.used => (count + 1, Some(oldest)),
                _ => (count + 1, Some(stream)),
            });
        if count >= OPEN_MAX
            && let Some(oldest) = oldest
        {
            oldest.file.close();
        }
    }

    /// Stores running totals of what was lost; the last value of each (stream, cause) counts.
    /// Records refused as malformed are counted by the writer itself, under [`MALFORMED`].
    ///
    /// # Errors
    /// Those of the file system.
    pub fn set_losses(&mut self, losses: &[Loss]) -> Result<(), StoreError> {
        let mut all: Vec<Loss> = losses.to_vec();
        all.extend(self.streams.iter().filter(|(_, stream)| stream.malformed > 0).map(
            |(name, stream)| Loss {
                stream: Some(*name),
                cause: MALFORMED.to_owned(),
                events: stream.malformed,
            },
        ));
        if all == self.losses {
            return Ok(());
        }
        self.fact(&FactRef::Losses(&all))?;
        self.losses = all;
        Ok(())
    }

    /// Refines the clock. The sidecar has it at once; the metadata is rewritten with the last one by
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a frequency of 0; those of the file system.
    pub fn set_clock(&mut self, clock: ClockInfo) -> Result<(), StoreError> {
        if clock.freq_hz == 0 {
            return Err(StoreError::new(ErrorKind::Invalid, &self.dir, "clock of frequency 0"));
        }
        self.fact(&FactRef::Clock(&clock))?;
        self.clock = clock;
        Ok(())
    }

    /// Bytes, events and malformed records so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let streams = self.streams.values().map(|stream| stream.file.len()).sum::<u64>();
        Summary {
            events: self.events,
            malformed: self.streams.values().map(|stream| stream.malformed).sum(),
            bytes: streams + self.sidecar.len() + self.metadata.len() + self.threads.file.len(),
        }
    }

    /// Ends the trace: metadata with the refined clock and the processes, what each file holds, and
    /// a mark that the end was orderly.
    ///
    /// # Errors
    /// Those of the file system; everything appended before stays readable.
    pub fn finish(mut self) -> Result<Summary, StoreError> {
        self.follow();
        let losses: Vec<Loss> =
            self.losses.iter().filter(|loss| loss.cause != MALFORMED).cloned().collect();
        self.set_losses(&losses)?;
        let text = metadata_text(
            &self.meta,
            &self.clock,
            &self.processes,
            self.schemas.iter().map(|(id, schema)| (*id, schema)),
        );
        replace(&self.dir.join(METADATA), text.as_bytes())?;
        let total = |stream, of: &Stream| Total {
            stream,
            packets: of.seq,
            events: of.events,
            bytes: of.file.len(),
        };
        let mut totals = vec![total(None, &self.threads)];
        totals.extend(self.streams.iter().map(|(name, of)| total(Some(*name), of)));
        self.fact(&FactRef::Totals(&totals))?;
        self.fact(&FactRef::Finished(self.events))?;
        self.sidecar.sync()?;
        let mut summary = self.summary();
        summary.bytes = summary.bytes - self.metadata.len() + text.len() as u64;
        Ok(summary)
    }
}

/// The whole metadata of a finished trace.
pub(crate) fn metadata_text<'s>(
    meta: &TraceMeta,
    clock: &ClockInfo,
    processes: &[Process],
    schemas: impl Iterator<Item = (u32, &'s Schema)>,
) -> String {
    let mut text = tsdl::preamble(meta, clock, processes);
    let by_id: BTreeMap<u32, &Schema> = schemas.collect();
    for (id, schema) in by_id {
        text.push_str(&tsdl::event(id, schema));
    }
    text
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    // Names and arguments come from the session's log, whose entries are far below 4 GiB.
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text);
}

/// Whether the directory was made; otherwise it was there, and is empty.
fn make_dir(dir: &Path) -> Result<bool, StoreError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => return Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(StoreError::io(dir, "cannot make the trace directory", error)),
    }
    let is_dir = std::fs::metadata(dir).map(|found| found.is_dir());
    if !is_dir.map_err(|error| StoreError::io(dir, "cannot use the trace directory", error))? {
        return Err(StoreError::new(ErrorKind::NotADirectory, dir, "exists and is no directory"));
    }
    let mut entries = std::fs::read_dir(dir)
        .map_err(|error| StoreError::io(dir, "cannot read the trace directory", error))?;
    match entries.next() {
        None => Ok(false),
        Some(_) => Err(StoreError::new(ErrorKind::NotEmpty, dir, "exists and is not empty")),
    }
}
