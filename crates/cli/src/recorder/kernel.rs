//! Recording what the kernel's probes see: one ring of the kernel's, many streams of the trace.
//!
//! A hit goes to the stream of the CPU it happened on, in the order of time, so that the directory is like
//! one of a session: a stream a CPU, losses by stream and cause.

use super::losses::Losses;
use super::nap;
use super::progress::{Progress, Standing};
use super::sink::store_failure;
use super::stop::Stop;
use crate::error::{Failure, Result};
use owlet_ring::{LOSS_REASONS, Loss};
use owlet_store::{
    ErrorKind, MALFORMED, NOT_WRITTEN, PacketInfo, Recorder, StoreError, StreamName, TraceMeta,
    TraceWriter,
};
use owlet_uprobe::{Attachment, Events, Found, Hit, Moments, Scope, inner_pid};
use owlet_wire::entry::{Process, Thread};
use owlet_wire::filter::{Bound, Filter};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the trace is told what was lost.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Why a recording ended.
#[derive(Debug)]
pub(crate) enum End {
    /// SIGINT, SIGTERM or SIGHUP.
    Signal,
    /// The time asked for has passed.
    Duration,
    /// The process has ended.
    Target,
    /// The directory takes no more, or cannot be waited for.
    Failed(Failure),
}

/// Records of one CPU on their way.
#[derive(Default)]
struct Batch {
    records: Vec<u8>,
    events: u64,
    begin: u64,
    end: u64,
}

/// A recording under way.
pub(crate) struct Recording {
    attachment: Attachment,
    pub(crate) events: Events,
    trace: Option<TraceWriter>,
    pub(crate) dir: PathBuf,
    scope: Scope,
    /// The filter, by event id; empty without one.
    filters: HashMap<u32, Bound>,
    /// Hits that `--where` let not pass.
    pub(crate) filtered: u64,
    pub(crate) losses: Losses,
    pub(crate) written: u64,
    pub(crate) bytes: u64,
    hits: Vec<Hit>,
    scratch: Vec<u8>,
    batches: BTreeMap<u32, Batch>,
    /// Processes and threads that the trace knows.
    known: HashSet<(u32, u32)>,
    stop: Stop,
    target: Option<OwnedFd>,
    progress: Progress,
    told: Instant,
    broken: bool,
}

/// What a [`Recording`] is made of.
pub(crate) struct Parts<'a> {
    pub(crate) found: &'a Found,
    pub(crate) scope: Scope,
    pub(crate) moments: Moments,
    pub(crate) filter: Option<&'a Filter>,
    pub(crate) dir: &'a Path,
    pub(crate) meta: TraceMeta,
    pub(crate) ring_bytes: u64,
    pub(crate) stop: Stop,
    pub(crate) target: Option<OwnedFd>,
    pub(crate) progress: bool,
}

impl Recording {
    /// Begins the trace directory, then attaches by `attach`.
    pub(crate) fn begin(
        parts: Parts<'_>,
        attach: impl FnOnce() -> Result<Attachment>,
    ) -> Result<Self> {
        let Parts { found, scope, moments, dir, .. } = parts;
        let mut trace =
            TraceWriter::create(dir, &parts.meta).map_err(|error| match error.kind {
                ErrorKind::Permission => {
                    store_failure(error).hint("name a directory where you may write, with -o")
                }
                _ => store_failure(error),
            })?;
        let schemas = Events::schemas(&found.sites, moments);
        let recorder = Recorder { pid: std::process::id(), rings: 1, ring_bytes: parts.ring_bytes };
        let described = trace.set_recorder(recorder).and_then(|()| {
            schemas.iter().try_for_each(|(id, schema)| trace.add_schema(*id, schema))
        });
        if let Err(error) = described {
            trace.discard();
            return Err(store_failure(error));
        }
        let bind = |filter: &Filter| {
            schemas.iter().map(|(id, schema)| (*id, filter.bind(schema))).collect()
        };
        let filters = parts.filter.map(bind).unwrap_or_default();
        let attachment = match attach() {
            Ok(attachment) => attachment,
            Err(failure) => {
                trace.discard();
                return Err(failure);
            }
        };
        Ok(Self {
            events: Events::new(&found.sites, moments, attachment.since()),
            attachment,
            trace: Some(trace),
            dir: dir.to_owned(),
            scope,
            filters,
            filtered: 0,
            losses: Losses::default(),
            written: 0,
            bytes: 0,
            hits: Vec::new(),
            scratch: Vec::new(),
            batches: BTreeMap::new(),
            known: HashSet::new(),
            stop: parts.stop,
            target: parts.target,
            progress: Progress::new(parts.progress),
            told: Instant::now(),
            broken: false,
        })
    }

    pub(crate) fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Records until something ends it, detaches, and takes what is left.
    pub(crate) fn run(&mut self, deadline: Option<Instant>) -> End {
        let end = loop {
            match self.round(deadline) {
                Ok(None) => {}
                Ok(Some(end)) => break end,
                Err(failure) => break End::Failed(failure),
            }
        };
        self.progress.clear();
        end
    }

    /// Detaches, takes what is left and ends the directory. A failure of that becomes the end, unless
    /// there was one before.
    pub(crate) fn finish(&mut self, end: End) -> End {
        let mut hits = std::mem::take(&mut self.hits);
        self.attachment.finish(&mut hits);
        let mut failed = self.take(&hits, true).err();
        let losses = self.losses.to_store();
        if let Some(mut trace) = self.trace.take() {
            let ended = trace.set_losses(&losses).and_then(|()| trace.finish());
            match ended {
                Ok(summary) => self.bytes = summary.bytes,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match (failed, end) {
            (Some(error), end) if !matches!(end, End::Failed(_)) => {
                End::Failed(store_failure(error))
            }
            (_, end) => end,
        }
    }

    fn round(&mut self, deadline: Option<Instant>) -> Result<Option<End>> {
        let mut fds = vec![
            self.stop.poll_fd(),
            PollFd::from_borrowed_fd(self.attachment.wake_fd(), PollFlags::IN),
        ];
        fds.extend(self.target.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        nap(&mut fds, deadline)?;
        let mut hits = std::mem::take(&mut self.hits);
        self.attachment.read(&mut hits);
        let taken = self.take(&hits, false);
        hits.clear();
        self.hits = hits;
        taken.map_err(store_failure)?;
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            self.tell().map_err(store_failure)?;
        }
        self.progress.show(&Standing {
            events: self.written,
            lost: self.losses.total(),
            bytes: self.bytes,
            processes: self.processes(),
        });
        if !self.stop.received().is_empty() {
            return Ok(Some(End::Signal));
        }
        if self.target.as_ref().is_some_and(ended) {
            return Ok(Some(End::Target));
        }
        Ok(deadline.filter(|deadline| Instant::now() >= *deadline).map(|_| End::Duration))
    }

    fn processes(&self) -> usize {
        match self.scope {
            Scope::Process(_) => 1,
            Scope::Everyone => self.known.iter().filter(|(pid, tid)| pid == tid).count(),
        }
    }

    /// Whether the directory still has what was written, and what was lost so far.
    fn tell(&mut self) -> std::result::Result<(), StoreError> {
        let losses = self.losses.to_store();
        let Some(trace) = &mut self.trace else { return Ok(()) };
        trace.check(false)?;
        if trace.dir() != self.dir {
            trace.dir().clone_into(&mut self.dir);
        }
        trace.set_losses(&losses)
    }

    /// Writes hits, and counts what was lost; `last` when no more come.
    fn take(&mut self, hits: &[Hit], last: bool) -> std::result::Result<(), StoreError> {
        for hit in hits {
            self.introduce(hit)?;
            self.scratch.clear();
            self.events.push(hit, &mut self.scratch);
            self.sort_in(hit.cpu);
        }
        let full = LOSS_REASONS[Loss::Full.index()].name;
        let lost: BTreeMap<u32, u64> =
            self.attachment.lost().filter(|(_, lost)| *lost > 0).collect();
        for (cpu, lost) in &lost {
            self.losses.set(StreamName::cpu(*cpu), full, *lost);
        }
        // Asked for at the end only: it is a system call for each program.
        if last {
            let recursion = LOSS_REASONS[Loss::Recursion.index()].name;
            self.losses.set_outside(recursion, self.attachment.missed());
            for cpu in lost.keys() {
                self.batches.entry(*cpu).or_default();
            }
        }
        for (cpu, batch) in std::mem::take(&mut self.batches) {
            self.write(cpu, batch, lost.get(&cpu).copied().unwrap_or(0))?;
        }
        Ok(())
    }

    /// Appends the records in `scratch` that pass to those of the CPU.
    fn sort_in(&mut self, cpu: u32) {
        let mut rest = self.scratch.as_slice();
        while let Some(header) = RecordHeader::read(rest) {
            let Some((record, after)) = rest.split_at_checked(header.advance()) else { break };
            rest = after;
            let payload = record.get(RECORD_HEADER_LEN..header.len as usize).unwrap_or_default();
            let bound = self.filters.get(&header.id);
            if bound.is_some_and(|bound| !bound.matches(&header, payload)) {
                self.filtered += 1;
                continue;
            }
            let batch = self.batches.entry(cpu).or_default();
            if batch.events == 0 {
                batch.begin = header.time;
            }
            batch.end = header.time;
            batch.events += 1;
            batch.records.extend_from_slice(record);
        }
    }

    fn write(&mut self, cpu: u32, batch: Batch, lost: u64) -> std::result::Result<(), StoreError> {
        let stream = StreamName::cpu(cpu);
        let Some(trace) = self.trace.as_mut().filter(|_| !self.broken) else {
            self.losses.add(stream, NOT_WRITTEN, batch.events);
            return Ok(());
        };
        let before = trace.summary().events;
        let packet = PacketInfo {
            cpu,
            begin: batch.begin,
            end: batch.end,
            discarded_total: lost,
            records: &batch.records,
        };
        let appended = trace.append_packet(stream, &packet);
        let summary = trace.summary();
        let written = summary.events - before;
        self.written += written;
        self.bytes = summary.bytes;
        match appended {
            Ok(appended) => {
                self.losses.add(stream, MALFORMED, appended.malformed);
                Ok(())
            }
            Err(error) => {
                self.broken = true;
                self.losses.add(stream, NOT_WRITTEN, batch.events - written);
                Err(error)
            }
        }
    }

    /// Tells the trace of a process or thread when it is first met.
    fn introduce(&mut self, hit: &Hit) -> std::result::Result<(), StoreError> {
        if !self.known.insert((hit.pid, hit.tid)) {
            return Ok(());
        }
        let Some(trace) = &mut self.trace else { return Ok(()) };
        // As we call it, where that is known to be the same.
        let ours = match self.scope {
            Scope::Process(pid) => pid,
            Scope::Everyone => hit.pid,
        };
        if self.known.insert((hit.pid, 0)) {
            trace.add_process(hit.time, &process(ours, hit.pid))?;
        }
        let comm = hit.thread_name().to_vec();
        trace.add_thread(hit.time, &Thread { pid: hit.pid, tid: hit.tid, comm })
    }
}

/// Whether the process behind the descriptor has ended.
fn ended(target: &OwnedFd) -> bool {
    owlet_sys::process::pidfd_wait(target.as_fd(), Duration::ZERO).unwrap_or(false)
}

/// What the trace is told of a process that we call `pid` and that calls itself `inner`.
fn process(pid: u32, inner: u32) -> Process {
    use std::os::unix::ffi::OsStringExt as _;
    use std::os::unix::fs::MetadataExt as _;
    /// As much of a command line as Owlet's own processes tell.
    const ARGS_MAX: usize = 4096;
    let proc = |what: &str| format!("/proc/{pid}/{what}");
    let exe = std::fs::read_link(proc("exe"))
        .map(|path| path.into_os_string().into_vec())
        .unwrap_or_default();
    let mut args = std::fs::read(proc("cmdline")).unwrap_or_default();
    args.truncate(ARGS_MAX);
    let status = std::fs::read_to_string(proc("status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let ppid: u32 = parent.and_then(|ppid| ppid.trim().parse().ok()).unwrap_or(0);
    Process {
        pid: inner,
        ppid: if ppid == 0 { 0 } else { inner_pid(ppid) },
        pid_namespace: std::fs::metadata(proc("ns/pid")).map_or(0, |meta| meta.ino()),
        exe,
        args,
        backend: "kernel".into(),
    }
}
