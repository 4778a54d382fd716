//! Cutting what a killed recorder left half written, so that strict readers accept the trace again.
//!
//! Whole packets behind damage are kept, see `walk`. Nothing is thrown away: what is cut goes to
//! `.cut-NAME` first, and so does a metadata that is written anew. What is damaged in `.owlet` stays as
//! it is: readers go on behind it. Other readers ignore files whose names begin with a dot.

use crate::error::{ErrorKind, StoreError};
use crate::file::{regular, replace};
use crate::packet::StreamClass;
use crate::reader::{Problem, TraceReader, describe, open_plain};
use crate::sidecar::{self, FactRef, SIDECAR};
use crate::walk::{Gap, Step, Stop, Walk};
use crate::writer::{METADATA, THREADS, metadata_text};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes cut out of one file, and kept beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// File inside the directory.
    pub file: String,
    /// Where they were.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// They were the begin of a packet or record at the end of the file, which is what a killed
    /// recorder leaves; anything else is damage.
    pub torn: bool,
}

/// What [`recover`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// What was cut out.
    pub cut: Vec<Cut>,
    /// Whether the metadata was written anew.
    pub metadata_rewritten: bool,
    /// What remains and cannot be repaired.
    pub remaining: Vec<Problem>,
    /// The recording had ended in order: nothing is missing but what is told.
    pub finished: bool,
}

impl Recovered {
    /// Bytes cut that no killed recorder leaves: events may have been in them.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.cut.iter().filter(|cut| !cut.torn).map(|cut| cut.bytes).sum()
    }
}

/// Cuts partial packets, bytes that are no packets and a partial sidecar record, and writes the
/// metadata anew where it is not what the sidecar says, unless the sidecar is damaged and may say less.
/// A recording that did not end in order is
/// marked as recovered, which its readers are told for ever. Doing it again changes nothing. A stream of
/// another trace is left alone. Every event is read once, to name what remains.
///
/// # Errors
/// As [`TraceReader::open`]; [`ErrorKind::Busy`] while the trace is being recorded; those of the file
/// system. A link or device in the place of a file that needs repair is left as it is.
pub fn recover(dir: &Path) -> Result<Recovered, StoreError> {
    // Before any change: what is no trace, or is being recorded, is left alone.
    if TraceReader::open(dir)?.sidecar_missing {
        let what = "the trace's .owlet file is missing: it is left as it is";
        let error = StoreError::new(ErrorKind::NotATrace, dir, what);
        return Err(error.with_hint("`owlet report DIR` shows what metadata describes"));
    }
    let _lock = lock(dir)?;
    let trace = TraceReader::open_as(dir, true)?;
    let mut done = Recovered::default();
    for stream in trace.streams() {
        cut_stream(&trace, &stream.name.to_string(), StreamClass::Events, &mut done)?;
    }
    cut_stream(&trace, THREADS, StreamClass::Threads, &mut done)?;
    if trace.sidecar_torn {
        cut_tail(dir, SIDECAR, trace.sidecar_len, true, &mut done)?;
    }
    renew_metadata(&trace, &mut done)?;
    if !trace.finished() && !trace.recovered() && !trace.sidecar_damaged {
        mark(dir)?;
    }
    let trace = TraceReader::open_as(dir, true)?;
    done.remaining = trace.problems().to_vec();
    done.finished = trace.finished();
    // What is wrong inside packets that are whole: no cut helps, but it can be named.
    for at in 0..trace.streams().len() {
        let mut events = trace.events(at)?;
        while events.advance() {}
        done.remaining.extend_from_slice(events.problems());
    }
    Ok(done)
}

/// Writes the metadata anew where it is not what the sidecar says, and keeps the old one. Of a damaged
/// sidecar, the metadata may say more.
fn renew_metadata(trace: &TraceReader, done: &mut Recovered) -> Result<(), StoreError> {
    let path = trace.dir.join(METADATA);
    if trace.sidecar_damaged {
        let old = describe(&trace.dir);
        // Whole, or with something about events in it that would go.
        if old.whole || old.strange > 0 {
            return Ok(());
        }
    }
    let processes: Vec<_> = trace.processes().iter().map(|p| p.process.clone()).collect();
    let schemas = trace.schemas().iter().map(|(id, schema)| (*id, schema));
    let text = metadata_text(trace.meta(), trace.clock(), &processes, schemas);
    if is_content(&path, text.as_bytes()) {
        return Ok(());
    }
    regular(&path)?;
    if let Ok(file) = open_plain(&path) {
        let failed = |error| StoreError::io(&path, "cannot keep a copy", error);
        let len = file.metadata().map_err(failed)?.len();
        keep(&file, 0..len, &kept(&trace.dir, METADATA)).map_err(failed)?;
    }
    replace(&path, text.as_bytes())?;
    done.metadata_rewritten = true;
    Ok(())
}

/// Locks the sidecar as a recorder does. A reader holds it for a moment only.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(SIDECAR);
    let file = open_plain(&path).map_err(|error| StoreError::io(&path, "cannot open", error))?;
    for _ in 0..20 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            // File systems without locks go without.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(file),
        }
    }
    let trace = TraceReader::open(dir)?;
    let by = trace.recorder().map(|by| format!(" by process {}", by.pid)).unwrap_or_default();
    let what = format!("the trace is being recorded{by}: it is left as it is");
    Err(StoreError::new(ErrorKind::Busy, dir, what))
}

fn is_content(path: &Path, content: &[u8]) -> bool {
    let mut found = Vec::new();
    let read = open_plain(path)
        .and_then(|file| file.take(content.len() as u64 + 1).read_to_end(&mut found));
    read.is_ok() && found == content
}

/// Appends the mark to the sidecar, which is whole by now. A partial mark is cut the next time.
fn mark(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(SIDECAR);
    let bytes = sidecar::record(&FactRef::Recovered).unwrap_or_default();
    let write = || {
        let mut file = OpenOptions::new().append(true).open(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()
    };
    write().map_err(|error| StoreError::io(&path, "cannot mark as recovered", error))
}

fn cut_stream(
    trace: &TraceReader,
    name: &str,
    class: StreamClass,
    done: &mut Recovered,
) -> Result<(), StoreError> {
    let path = trace.dir.join(name);
    let failed = |error| StoreError::io(&path, "cannot read", error);
    let Ok(file) = open_plain(&path) else { return Ok(()) };
    let len = file.metadata().map_err(failed)?.len();
    let mut walk = Walk::new(class, trace.meta().uuid, len);
    let mut gaps = Vec::new();
    let tail = loop {
        match walk.step(&file).map_err(failed)? {
            Step::Packet(..) => {}
            Step::Gap(Gap { offset, end, .. }) => gaps.push(offset..end),
            Step::End => break None,
            // Somebody else's packets: the file belongs elsewhere.
            Step::Stop(Stop { foreign: true, .. }) => break None,
            Step::Stop(Stop { offset, torn, .. }) => break Some((offset, torn)),
        }
    };
    if let Some((offset, torn)) = tail {
        cut_tail(&trace.dir, name, offset, torn, done)?;
    }
    if gaps.is_empty() { Ok(()) } else { cut_gaps(&trace.dir, name, &gaps, done) }
}

/// Cuts a file to `len` bytes and keeps what follows beside it.
fn cut_tail(
    dir: &Path,
    name: &str,
    len: u64,
    torn: bool,
    done: &mut Recovered,
) -> Result<(), StoreError> {
    let path = dir.join(name);
    regular(&path)?;
    let failed = |error| StoreError::io(&path, "cannot cut", error);
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
    let old = file.metadata().map_err(failed)?.len();
    if old <= len {
        return Ok(());
    }
    keep(&file, len..old, &kept(dir, name)).map_err(failed)?;
    file.set_len(len).map_err(failed)?;
    done.cut.push(Cut { file: name.to_owned(), offset: len, bytes: old - len, torn });
    Ok(())
}

/// Writes a file anew without `gaps`, which are in order, and keeps them beside it.
fn cut_gaps(
    dir: &Path,
    name: &str,
    gaps: &[Range<u64>],
    done: &mut Recovered,
) -> Result<(), StoreError> {
    let path = dir.join(name);
    regular(&path)?;
    let new = dir.join(format!(".{name}.new"));
    let write = || {
        let file = File::open(&path)?;
        let len = file.metadata()?.len();
        for gap in gaps {
            keep(&file, gap.clone(), &kept(dir, name))?;
        }
        // What an interrupted recovery left.
        let _ = std::fs::remove_file(&new);
        let mut from = 0;
        for gap in gaps.iter().cloned().chain(std::iter::once(len..len)) {
            keep(&file, from..gap.start, &new)?;
            from = gap.end;
        }
        std::fs::rename(&new, &path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&new);
        StoreError::io(&path, "cannot cut", error)
    })?;
    done.cut.extend(gaps.iter().map(|gap| Cut {
        file: name.to_owned(),
        offset: gap.start,
        bytes: gap.end - gap.start,
        torn: false,
    }));
    Ok(())
}

fn kept(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".cut-{}", name.trim_start_matches('.')))
}

/// Appends a part of a file to another.
fn keep(mut file: &File, part: Range<u64>, path: &Path) -> io::Result<()> {
    file.seek(SeekFrom::Start(part.start))?;
    let mut out = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    io::copy(&mut file.take(part.end - part.start), &mut out)?;
    out.sync_all()
}
