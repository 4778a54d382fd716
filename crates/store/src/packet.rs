//! The header and context of one packet: 84 bytes, then 4 of padding, then the first record.
//!
//! | offset | size | field | note |
//! |---|---|---|---|
//! | 0 | 4 | magic | 0xC1FC1FC1 |
//! | 4 | 16 | uuid | the trace's |
//! | 20 | 4 | stream_id | 0: events, 1: threads and processes |
//! | 24 | 8 | stream_instance_id | CPU; portable ring N is 2^32 + N |
//! | 32 | 8 | timestamp_begin | ticks |
//! | 40 | 8 | timestamp_end | ticks, time of the last record |
//! | 48 | 8 | content_size | bits, exactly to the end of the last record |
//! | 56 | 8 | packet_size | bits, a multiple of 64 |
//! | 64 | 8 | packet_seq_num | from 0, without gaps |
//! | 72 | 8 | events_discarded | running count of the stream |
//! | 80 | 4 | cpu_id | |
//!
//! babeltrace2 decodes one more event as long as a bit of content is left, so a packet without
//! records has 84 bytes of content, not 88.

use std::fmt;

/// Bytes of header and context.
pub(crate) const CONTEXT_END: usize = 84;
/// Where the first record starts.
pub(crate) const RECORDS_START: usize = 88;
/// Packets longer than this are refused by the reader.
pub(crate) const PACKET_MAX: u64 = 64 << 20;
/// The writer begins a new packet when one is longer than this.
pub(crate) const PACKET_SPLIT: usize = 1 << 20;
/// Later times are refused: with any clock they are decades away, and readers compute in i64.
pub(crate) const TIME_MAX: u64 = 1 << 62;

/// The first bytes of a packet.
pub(crate) const MAGIC: u32 = 0xC1FC_1FC1;

/// CTF's `stream_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamClass {
    Events = 0,
    Threads = 1,
}

/// Everything a packet says before its records. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketHeader {
    pub(crate) class: StreamClass,
    pub(crate) instance: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) content: u64,
    pub(crate) size: u64,
    pub(crate) seq: u64,
    pub(crate) discarded: u64,
    pub(crate) cpu: u32,
}

/// Why 88 bytes are no packet header of this trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadPacket {
    Magic,
    Uuid,
    Class(u32),
    Sizes { content_bits: u64, size_bits: u64 },
    Times { begin: u64, end: u64 },
}

impl fmt::Display for BadPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("no packet begins here"),
            Self::Uuid => f.write_str("packet of another trace"),
            Self::Class(class) => {
                write!(f, "packet of stream class {class}, which is not this file's")
            }
            Self::Sizes { content_bits, size_bits } => {
                write!(f, "impossible packet of {content_bits} bits in {size_bits}")
            }
            Self::Times { begin, end } => write!(f, "impossible times {begin} to {end}"),
        }
    }
}

impl PacketHeader {
    /// The bytes up to the first record.
    pub(crate) fn to_bytes(self, uuid: &[u8; 16]) -> [u8; RECORDS_START] {
        let mut out = [0; RECORDS_START];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC.to_le_bytes());
        put(uuid);
        put(&(self.class as u32).to_le_bytes());
        put(&self.instance.to_le_bytes());
        put(&self.begin.to_le_bytes());
        put(&self.end.to_le_bytes());
        put(&(self.content * 8).to_le_bytes());
        put(&(self.size * 8).to_le_bytes());
        put(&self.seq.to_le_bytes());
        put(&self.discarded.to_le_bytes());
        put(&self.cpu.to_le_bytes());
        out
    }

    /// Reads and checks everything that can be checked without the rest of the packet.
    pub(crate) fn read(
        bytes: &[u8; RECORDS_START],
        uuid: &[u8; 16],
        class: StreamClass,
    ) -> Result<Self, BadPacket> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if u32_at(0) != MAGIC {
            return Err(BadPacket::Magic);
        }
        if bytes[4..20] != uuid[..] {
            return Err(BadPacket::Uuid);
        }
        if u32_at(20) != class as u32 {
            return Err(BadPacket::Class(u32_at(20)));
        }
        let (content_bits, size_bits) = (u64_at(48), u64_at(56));
        let (content, size) = (content_bits / 8, size_bits / 8);
        let fits = content_bits.is_multiple_of(8)
            && size_bits.is_multiple_of(64)
            && size >= RECORDS_START as u64
            && size <= PACKET_MAX
            && content >= CONTEXT_END as u64
            && content <= size;
        if !fits {
            return Err(BadPacket::Sizes { content_bits, size_bits });
        }
        let (begin, end) = (u64_at(32), u64_at(40));
        if begin > end || end > TIME_MAX {
            return Err(BadPacket::Times { begin, end });
        }
        Ok(Self {
            class,
            instance: u64_at(24),
            begin,
            end,
            content,
            size,
            seq: u64_at(64),
            discarded: u64_at(72),
            cpu: u32_at(80),
        })
    }
}
