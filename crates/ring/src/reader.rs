//! The reading end.

use crate::{LOSS_COUNT, Segment};
use std::sync::Arc;

/// What one [`RingReader::drain`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Bytes of whole records appended to the output, padding included.
    pub bytes: usize,
    /// Records appended.
    pub events: u64,
    /// Time of the first record appended; 0 without one.
    pub first_time: u64,
    /// Time of the last record appended; 0 without one.
    pub last_time: u64,
    /// Unpadded end of the last record within the appended bytes: `bytes` less its padding.
    pub content_bytes: usize,
    /// Events lost since the segment was created, by cause ([`LOSS_REASONS`](crate::LOSS_REASONS)).
    pub lost: [u64; LOSS_COUNT],
    /// Bytes thrown away since this reader was made because they were no records.
    pub corrupt: u64,
}

/// Reads a segment's rings.
#[derive(Debug)]
pub struct Reader {
    segment: Arc<Segment>,
}

impl Reader {
    /// A reader of all rings.
    #[must_use]
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { segment }
    }

    /// Number of rings.
    #[must_use]
    pub fn rings(&self) -> usize {
        2 * self.segment.cpus()
    }

    /// The reader of one ring; `None` when there is no such ring.
    #[must_use]
    pub fn ring(&self, index: usize) -> Option<RingReader> {
        (index < self.rings()).then(|| RingReader {
            segment: Arc::clone(&self.segment),
            index,
            name: String::new(),
        })
    }
}

/// Reads one ring.
#[derive(Debug)]
pub struct RingReader {
    segment: Arc<Segment>,
    index: usize,
    name: String,
}

impl RingReader {
    /// `cpu_3` or `portable_0`; unique in the segment.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which ring this is.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The CPU whose writers use this ring; `None` for portable rings.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        (self.index < self.segment.cpus()).then_some(self.index)
    }

    /// Bytes waiting to be read.
    #[must_use]
    pub fn fill(&self) -> usize {
        0
    }

    /// Appends every whole record to `out`, in time order, and gives their room back to the
    /// writers.
    pub fn drain(&mut self, out: &mut Vec<u8>) -> Drained {
        let _ = out;
        Drained::default()
    }
}
