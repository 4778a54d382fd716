//! Walking the packets of one file: what is whole, what is not, and where whole packets end.
//!
//! | found at a position | step | then |
//! |---|---|---|
//! | a whole packet | `Packet` | behind it |
//! | anything else, a whole packet within `RESYNC_MAX` bytes after it | `Gap` | at that packet |
//! | anything else | `Stop` | nowhere |

use crate::packet::{BadPacket, MAGIC, PacketHeader, RECORDS_START, StreamClass};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// How far a whole packet is looked for behind damage: as long as the longest packet.
const RESYNC_MAX: u64 = crate::packet::PACKET_MAX;
/// Bytes read at once while looking.
const CHUNK: usize = 64 << 10;

/// Where and why a walk stopped before the end of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) offset: u64,
    pub(crate) message: String,
    /// The rest of the file may be a packet that was being written: what a killed recorder leaves.
    pub(crate) torn: bool,
    /// The rest of the file is of another trace: nothing that can be repaired here.
    pub(crate) foreign: bool,
}

/// Bytes that are no packets, with whole packets after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) offset: u64,
    pub(crate) end: u64,
    pub(crate) message: String,
}

/// What one step of a walk found.
pub(crate) enum Step {
    Packet(u64, PacketHeader),
    Gap(Gap),
    End,
    Stop(Stop),
}

/// A position between two packets.
#[derive(Debug)]
pub(crate) struct Walk {
    class: StreamClass,
    uuid: [u8; 16],
    /// The next packet's offset: everything before is whole packets and gaps.
    pub(crate) offset: u64,
    len: u64,
}

impl Walk {
    /// Walks the first `len` bytes of a file.
    pub(crate) fn new(class: StreamClass, uuid: [u8; 16], len: u64) -> Self {
        Self { class, uuid, offset: 0, len }
    }

    /// The next packet, whose records are not looked at, or what is in its place.
    pub(crate) fn step(&mut self, file: &File) -> io::Result<Step> {
        let offset = self.offset;
        let left = self.len.saturating_sub(offset);
        if left == 0 {
            return Ok(Step::End);
        }
        if left < RECORDS_START as u64 {
            let message = format!("partial packet of {left} bytes");
            return Ok(Step::Stop(Stop { offset, message, torn: true, foreign: false }));
        }
        let mut bytes = [0; RECORDS_START];
        match file.read_exact_at(&mut bytes, offset) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let message = "the file became shorter".to_owned();
                return Ok(Step::Stop(Stop { offset, message, torn: false, foreign: false }));
            }
            Err(error) => return Err(error),
        }
        let (message, torn, foreign) = match PacketHeader::read(&bytes, &self.uuid, self.class) {
            Ok(header) if header.size > left => {
                (format!("partial packet, {left} of {} bytes", header.size), true, false)
            }
            Ok(header) => {
                self.offset += header.size;
                return Ok(Step::Packet(offset, header));
            }
            Err(bad) => (bad.to_string(), false, bad == BadPacket::Uuid),
        };
        if let Some(end) = self.find(file, offset + 1)? {
            self.offset = end;
            let message = format!("{message}; {} bytes are not read", end - offset);
            return Ok(Step::Gap(Gap { offset, end, message }));
        }
        let message = if torn { message } else { format!("{message}; {left} bytes are not read") };
        Ok(Step::Stop(Stop { offset, message, torn, foreign }))
    }

    /// The first whole packet that begins at `from` or not too far behind it.
    fn find(&self, file: &File, from: u64) -> io::Result<Option<u64>> {
        let mut begin = [0; 20];
        begin[..4].copy_from_slice(&MAGIC.to_le_bytes());
        begin[4..].copy_from_slice(&self.uuid);
        let last = self.len.min(from.saturating_add(RESYNC_MAX));
        let mut at = from;
        let mut chunk = vec![0; CHUNK];
        while at + RECORDS_START as u64 <= last {
            let want = usize::try_from(self.len - at).unwrap_or(CHUNK).min(CHUNK);
            let got = file.read_at(&mut chunk[..want], at)?;
            if got < RECORDS_START {
                return Ok(None);
            }
            for (start, bytes) in chunk[..got].windows(RECORDS_START).enumerate() {
                if bytes[0] != begin[0] || bytes[..20] != begin {
                    continue;
                }
                let offset = at + start as u64;
                let header = bytes
                    .first_chunk()
                    .and_then(|bytes| PacketHeader::read(bytes, &self.uuid, self.class).ok());
                if header.is_some_and(|header| header.size <= self.len - offset) {
                    return Ok(Some(offset));
                }
            }
            // A header may lie across two chunks.
            at += (got - RECORDS_START + 1) as u64;
        }
        Ok(None)
    }
}
