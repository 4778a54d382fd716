//! Cutting what a killed recorder left half written, so that strict readers accept the trace again.
//!
//! Nothing is thrown away: what is cut goes to `.cut-NAME` first, since the bytes behind one damaged
//! length may be whole packets. Other readers ignore files whose names begin with a dot.

use crate::error::StoreError;
use crate::file::replace;
use crate::packet::StreamClass;
use crate::reader::{Problem, TraceReader, open_plain};
use crate::sidecar::{self, FactRef, SIDECAR};
use crate::walk::{Step, Stop, Walk};
use crate::writer::{METADATA, THREADS, metadata_text};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What [`recover`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Bytes cut off, by file.
    pub cut: Vec<(String, u64)>,
    /// Whether the metadata was written anew.
    pub metadata_rewritten: bool,
    /// What remains and cannot be repaired.
    pub remaining: Vec<Problem>,
}

/// Cuts partial packets and partial sidecar records, and writes the metadata anew where it is not
/// what the sidecar says. A recording that did not end in order is marked as recovered: it is no
/// longer a [`Problem`] that it did not. Doing it again changes nothing. Not for a trace still being recorded.
///
/// # Errors
/// As [`TraceReader::open`]; those of the file system.
pub fn recover(dir: &Path) -> Result<Recovered, StoreError> {
    let trace = TraceReader::open(dir)?;
    let mut done = Recovered::default();
    for stream in trace.streams() {
        cut_stream(&trace, &stream.name.to_string(), StreamClass::Events, &mut done)?;
    }
    cut_stream(&trace, THREADS, StreamClass::Threads, &mut done)?;
    cut(dir, SIDECAR, trace.sidecar_len, &mut done)?;

    let processes: Vec<_> = trace.processes().iter().map(|p| p.process.clone()).collect();
    let schemas = trace.schemas().iter().map(|(id, schema)| (*id, schema));
    let text = metadata_text(trace.meta(), trace.clock(), &processes, schemas);
    let path = dir.join(METADATA);
    if std::fs::read(&path).ok().as_deref() != Some(text.as_bytes()) {
        replace(&path, text.as_bytes())?;
        done.metadata_rewritten = true;
    }
    if !trace.finished() && !trace.recovered() {
        mark(dir)?;
    }
    done.remaining = TraceReader::open(dir)?.problems().to_vec();
    Ok(done)
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
    loop {
        match walk.step(&file).map_err(failed)? {
            Step::Packet(..) => {}
            Step::End => return Ok(()),
            Step::Stop(Stop { offset, .. }) => return cut(&trace.dir, name, offset, done),
        }
    }
}

/// Cuts a file to `len` bytes and keeps what follows beside it.
fn cut(dir: &Path, name: &str, len: u64, done: &mut Recovered) -> Result<(), StoreError> {
    let path = dir.join(name);
    let failed = |error| StoreError::io(&path, "cannot cut", error);
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
    let old = file.metadata().map_err(failed)?.len();
    if old <= len {
        return Ok(());
    }
    let kept = format!(".cut-{}", name.trim_start_matches('.'));
    keep(&file, len, &dir.join(kept)).map_err(failed)?;
    file.set_len(len).map_err(failed)?;
    done.cut.push((name.to_owned(), old - len));
    Ok(())
}

fn keep(mut file: &File, from: u64, path: &Path) -> io::Result<()> {
    file.seek(SeekFrom::Start(from))?;
    let mut out = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    io::copy(&mut file, &mut out)?;
    out.sync_all()
}
