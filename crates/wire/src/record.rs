//! The fixed header of every event record.
//!
//! A record in the ring is the event on disk, byte for byte. Little endian:
//!
//! | offset | size | field | note |
//! |---|---|---|---|
//! | 0 | 8 | `time` | clock ticks (TSC or nanoseconds), written at commit |
//! | 8 | 4 | `id` | event id, unique in its session |
//! | 12 | 4 | `len` | bytes from offset 0 to the end of the payload, without padding |
//! | 16 | 4 | `pid` | process, in its own PID namespace |
//! | 20 | 4 | `tid` | thread, in its own PID namespace |
//! | 24 | .. | payload | fields, packed without padding |
//!
//! The next record starts at the next multiple of [`RECORD_ALIGN`].

/// Bytes before the payload.
pub const RECORD_HEADER_LEN: usize = 24;
/// Alignment of the first byte of every record.
pub const RECORD_ALIGN: usize = 8;

/// The header of one record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    /// Clock ticks.
    pub time: u64,
    /// Event id, unique in its session.
    pub id: u32,
    /// Bytes of header and payload, without padding.
    pub len: u32,
    /// Process id as the process itself sees it.
    pub pid: u32,
    /// Thread id as the process itself sees it.
    pub tid: u32,
}

impl RecordHeader {
    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; RECORD_HEADER_LEN] {
        let mut out = [0; RECORD_HEADER_LEN];
        let words =
            [self.time as u32, (self.time >> 32) as u32, self.id, self.len, self.pid, self.tid];
        for (at, word) in out.chunks_exact_mut(4).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads a header from the front of `bytes`; `None` when they are too few.
    ///
    /// Nothing is checked but the number of bytes: `len` is the writer's word.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (header, _) = bytes.split_first_chunk::<RECORD_HEADER_LEN>()?;
        let [t0, t1, t2, t3, t4, t5, t6, t7, rest @ ..] = *header;
        let [i0, i1, i2, i3, l0, l1, l2, l3, p0, p1, p2, p3, d0, d1, d2, d3] = rest;
        Some(Self {
            time: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            pid: u32::from_le_bytes([p0, p1, p2, p3]),
            tid: u32::from_le_bytes([d0, d1, d2, d3]),
        })
    }

    /// Where the next record starts, counted from this record's start.
    #[must_use]
    pub fn advance(&self) -> usize {
        (self.len as usize).next_multiple_of(RECORD_ALIGN)
    }
}
