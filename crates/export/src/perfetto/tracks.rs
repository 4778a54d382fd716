//! Tracks: one for each process and thread, described when first needed, and the one of losses.

use super::packets::Packets;
use super::proto::field::track;
use super::proto::{bytes, int, message, uint};
use owlet_analyze::{Trace, escape};
use owlet_wire::entry::Process;
use std::collections::HashMap;
use std::io::{self, Write};

/// Numbers for tracks, from 1: 0 would be the sequence's default track.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    last: u64,
    processes: HashMap<u32, u64>,
    threads: HashMap<(u32, u32), u64>,
    lost: Option<u64>,
}

impl Tracks {
    /// The thread's track.
    pub(super) fn thread<W: Write>(
        &mut self,
        trace: &Trace,
        packets: &mut Packets<'_, W>,
        (pid, tid): (u32, u32),
    ) -> io::Result<u64> {
        if let Some(uuid) = self.threads.get(&(pid, tid)) {
            return Ok(*uuid);
        }
        self.process(trace, packets, pid)?;
        let uuid = self.number();
        self.threads.insert((pid, tid), uuid);
        let name = escape::escaped(trace.comm(pid, tid));
        packets.track(|out| {
            uint(out, track::UUID, uuid);
            message(out, track::THREAD, |out| {
                int(out, track::THREAD_PID, as_int32(pid));
                int(out, track::THREAD_TID, as_int32(tid));
                if !name.is_empty() {
                    bytes(out, track::THREAD_NAME, name.as_bytes());
                }
            });
        })?;
        Ok(uuid)
    }

    /// A new track below the process, for one span.
    pub(super) fn span<W: Write>(
        &mut self,
        trace: &Trace,
        packets: &mut Packets<'_, W>,
        pid: u32,
        name: &str,
    ) -> io::Result<u64> {
        let parent = self.process(trace, packets, pid)?;
        let uuid = self.number();
        let name = escape::escaped(name.as_bytes());
        packets.track(|out| {
            uint(out, track::UUID, uuid);
            uint(out, track::PARENT_UUID, parent);
            bytes(out, track::NAME, name.as_bytes());
        })?;
        Ok(uuid)
    }

    /// The track of losses.
    pub(super) fn lost<W: Write>(&mut self, packets: &mut Packets<'_, W>) -> io::Result<u64> {
        if let Some(uuid) = self.lost {
            return Ok(uuid);
        }
        let uuid = self.number();
        self.lost = Some(uuid);
        packets.track(|out| {
            uint(out, track::UUID, uuid);
            bytes(out, track::NAME, b"owlet: lost events");
        })?;
        Ok(uuid)
    }

    fn process<W: Write>(
        &mut self,
        trace: &Trace,
        packets: &mut Packets<'_, W>,
        pid: u32,
    ) -> io::Result<u64> {
        if let Some(uuid) = self.processes.get(&pid) {
            return Ok(*uuid);
        }
        let uuid = self.number();
        self.processes.insert(pid, uuid);
        let process = trace.process(pid);
        packets.track(|out| {
            uint(out, track::UUID, uuid);
            message(out, track::PROCESS, |out| {
                int(out, track::PROCESS_PID, as_int32(pid));
                if let Some(process) = process {
                    describe(out, process);
                }
            });
        })?;
        Ok(uuid)
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

fn describe(out: &mut Vec<u8>, process: &Process) {
    let base = process.exe.rsplit(|b| *b == b'/').next().unwrap_or(&[]);
    if !base.is_empty() {
        bytes(out, track::PROCESS_NAME, escape::escaped(base).as_bytes());
    }
    let args = process.args.strip_suffix(&[0]).unwrap_or(&process.args);
    if !args.is_empty() {
        for arg in args.split(|b| *b == 0) {
            bytes(out, track::PROCESS_CMDLINE, escape::escaped(arg).as_bytes());
        }
    }
}

/// Ids are `int32` in the format. No kernel gives out larger ones.
fn as_int32(id: u32) -> i64 {
    id.cast_signed().into()
}
