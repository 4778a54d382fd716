//! Walking the packets of one file: what is whole, what is not, and where whole packets end.

use crate::packet::{PacketHeader, RECORDS_START, StreamClass};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Where and why a walk stopped before the end of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) offset: u64,
    pub(crate) message: String,
}

/// What one step of a walk found.
pub(crate) enum Step {
    Packet(u64, PacketHeader),
    End,
    Stop(Stop),
}

/// A position between two packets.
#[derive(Debug)]
pub(crate) struct Walk {
    class: StreamClass,
    uuid: [u8; 16],
    /// The next packet's offset: everything before is whole packets.
    pub(crate) offset: u64,
    len: u64,
}

impl Walk {
    /// Walks the first `len` bytes of a file.
    pub(crate) fn new(class: StreamClass, uuid: [u8; 16], len: u64) -> Self {
        Self { class, uuid, offset: 0, len }
    }

    /// The next packet, whose records are not looked at.
    pub(crate) fn step(&mut self, file: &File) -> io::Result<Step> {
        let offset = self.offset;
        let left = self.len.saturating_sub(offset);
        if left == 0 {
            return Ok(Step::End);
        }
        let stop = |message: String| Ok(Step::Stop(Stop { offset, message }));
        if left < RECORDS_START as u64 {
            return stop(format!("partial packet of {left} bytes"));
        }
        let mut bytes = [0; RECORDS_START];
        match file.read_exact_at(&mut bytes, offset) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return stop("the file became shorter".to_owned());
            }
            Err(error) => return Err(error),
        }
        match PacketHeader::read(&bytes, &self.uuid, self.class) {
            Ok(header) if header.size > left => {
                stop(format!("partial packet, {left} of {} bytes", header.size))
            }
            Ok(header) => {
                self.offset += header.size;
                Ok(Step::Packet(offset, header))
            }
            Err(bad) => stop(format!("{bad}; {left} bytes are not read")),
        }
    }
}
