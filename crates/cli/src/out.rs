//! stdout: data only, buffered, coloured only on a terminal and without `NO_COLOR`; a reader that
//! goes away is no failure.

use crate::error::{Failure, Result};
use std::fmt::Arguments;
use std::io::{BufWriter, StdoutLock, Write};

/// The one writer of stdout.
pub(crate) struct Out {
    inner: BufWriter<anstream::AutoStream<StdoutLock<'static>>>,
    color: bool,
}

impl Out {
    /// Locks stdout.
    pub(crate) fn new() -> Self {
        let stdout = std::io::stdout();
        let choice = anstream::AutoStream::choice(&stdout);
        let color = choice != anstream::ColorChoice::Never;
        let stream = anstream::AutoStream::new(stdout.lock(), choice);
        Self { inner: BufWriter::with_capacity(64 << 10, stream), color }
    }

    /// Whether escape sequences for colour reach the reader.
    pub(crate) fn color(&self) -> bool {
        self.color
    }

    /// One line.
    pub(crate) fn line(&mut self, line: Arguments<'_>) -> Result<()> {
        self.inner
            .write_fmt(line)
            .and_then(|()| self.inner.write_all(b"\n"))
            .map_err(|e| Failure::stdout(&e))
    }

    /// One JSON value on a line of its own.
    pub(crate) fn json(&mut self, value: &serde_json::Value) -> Result<()> {
        self.line(format_args!("{value}"))
    }

    /// Bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.write_all(bytes).map_err(|e| Failure::stdout(&e))
    }

    /// Must be called at the end: what is still buffered may fail too.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.inner.flush().map_err(|e| Failure::stdout(&e))
    }
}

/// A line on stderr. Nobody is left to tell when stderr is closed.
macro_rules! note {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}
pub(crate) use note;
