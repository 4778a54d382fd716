//! Packets on one sequence: the clock, interned names, time stamps, buffering.
//!
//! All packets belong to one packet sequence. Its first packet clears the incremental state, every
//! later one says that it needs it. Time stamps are differences to the packet before, on a clock of
//! the sequence; names are sent once and then referred to by number. Both may be relied on because
//! the file is written and read from its beginning.

use super::proto::field::{clocks, defaults, interned, packet, trace};
use super::proto::{self, bytes, message, uint};
use owlet_analyze::escape;
use std::collections::HashMap;
use std::io::{self, Write};

/// `BUILTIN_CLOCK_REALTIME`: nanoseconds since 1970.
const REALTIME: u64 = 1;
/// The sequence's own clock: each time stamp is the difference to the one before.
const INCREMENTAL: u64 = 64;
const SEQUENCE: u64 = 1;
const INCREMENTAL_STATE_CLEARED: u64 = 1;
const NEEDS_INCREMENTAL_STATE: u64 = 2;
/// Bytes collected before they are handed to the output.
const BUFFER: usize = 64 * 1024;

/// Which table of interned names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Names {
    Categories,
    Events,
    Annotations,
}

impl Names {
    const fn field(self) -> u32 {
        match self {
            Self::Categories => interned::CATEGORIES,
            Self::Events => interned::EVENT_NAMES,
            Self::Annotations => interned::ANNOTATION_NAMES,
        }
    }
}

/// Numbers for names, from 1; new ones wait in `fresh` for the next packet.
#[derive(Debug, Default)]
pub(super) struct Interner {
    known: [HashMap<String, u64>; 3],
    fresh: Vec<u8>,
}

impl Interner {
    /// The number of `name`.
    pub(super) fn id(&mut self, names: Names, name: &str) -> u64 {
        let known = &mut self.known[names as usize];
        if let Some(id) = known.get(name) {
            return *id;
        }
        let id = known.len() as u64 + 1;
        known.insert(name.to_owned(), id);
        let text = escape::escaped(name.as_bytes());
        message(&mut self.fresh, names.field(), |entry| {
            uint(entry, interned::IID, id);
            bytes(entry, interned::NAME, text.as_bytes());
        });
        id
    }
}

/// Writes packets to `out`.
pub(super) struct Packets<'w, W: Write> {
    out: &'w mut W,
    buffer: Vec<u8>,
    pub(super) names: Interner,
    /// The incremental clock: the time of the last packet that used it.
    now_ns: u64,
    written: u64,
}

impl<'w, W: Write> Packets<'w, W> {
    /// Begins the sequence, its clock at `begin_ns`.
    pub(super) fn begin(out: &'w mut W, begin_ns: u64) -> io::Result<Self> {
        let buffer = Vec::with_capacity(BUFFER * 2);
        let names = Interner::default();
        let mut packets = Self { out, buffer, names, now_ns: begin_ns, written: 0 };
        packets.packet(|packet| {
            uint(packet, packet::SEQUENCE_ID, SEQUENCE);
            uint(packet, packet::SEQUENCE_FLAGS, INCREMENTAL_STATE_CLEARED);
            uint(packet, packet::FIRST_ON_SEQUENCE, 1);
            message(packet, packet::DEFAULTS, |d| uint(d, defaults::TIMESTAMP_CLOCK_ID, 64));
            message(packet, packet::CLOCK_SNAPSHOT, |snapshot| {
                message(snapshot, clocks::CLOCK, |clock| {
                    uint(clock, clocks::ID, INCREMENTAL);
                    uint(clock, clocks::TIMESTAMP, begin_ns);
                    uint(clock, clocks::IS_INCREMENTAL, 1);
                });
                message(snapshot, clocks::CLOCK, |clock| {
                    uint(clock, clocks::ID, REALTIME);
                    uint(clock, clocks::TIMESTAMP, begin_ns);
                });
                uint(snapshot, clocks::PRIMARY, REALTIME);
            });
        })?;
        Ok(packets)
    }

    /// A track, described by `body`.
    pub(super) fn track(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.packet(|packet| {
            uint(packet, packet::SEQUENCE_ID, SEQUENCE);
            message(packet, packet::TRACK_DESCRIPTOR, body);
        })
    }

    /// A track event at `time_ns`.
    ///
    /// Times before the last one written cost an absolute time stamp; the reader sorts.
    pub(super) fn event(&mut self, time_ns: u64, body: &[u8]) -> io::Result<()> {
        let fresh = std::mem::take(&mut self.names.fresh);
        let delta = time_ns.checked_sub(self.now_ns);
        self.packet(|packet| {
            match delta {
                Some(delta) => uint(packet, packet::TIMESTAMP, delta),
                None => {
                    uint(packet, packet::TIMESTAMP, time_ns);
                    uint(packet, packet::TIMESTAMP_CLOCK_ID, REALTIME);
                }
            }
            uint(packet, packet::SEQUENCE_ID, SEQUENCE);
            uint(packet, packet::SEQUENCE_FLAGS, NEEDS_INCREMENTAL_STATE);
            if !fresh.is_empty() {
                bytes(packet, packet::INTERNED_DATA, &fresh);
            }
            bytes(packet, packet::TRACK_EVENT, body);
        })?;
        if delta.is_some() {
            self.now_ns = time_ns;
        }
        Ok(())
    }

    /// The time of the latest event.
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Hands everything to the output; the number of bytes in all.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        self.out.flush()?;
        Ok(self.written)
    }

    fn packet(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        proto::message(&mut self.buffer, trace::PACKET, body);
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}
