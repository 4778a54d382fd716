//! What `/proc` says of other processes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// A process as `/proc/PID` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// The name of its first thread; any bytes.
    pub(crate) comm: Vec<u8>,
    /// One letter of proc(5): `R`, `S`, `D`, `T`, `t`, `Z`, ..
    pub(crate) state: char,
    /// Owner.
    pub(crate) uid: u32,
    /// The process this id is a thread of; the id itself for a process.
    pub(crate) tgid: u32,
}

impl Process {
    /// `None` when there is no such process.
    pub(crate) fn read(pid: u32) -> Option<Self> {
        let status = fs::read(format!("/proc/{pid}/status")).ok()?;
        let mut process = Self::parse(&status)?;
        if process.uid == u32::MAX {
            process.uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        }
        Some(process)
    }

    fn parse(status: &[u8]) -> Option<Self> {
        let field = |name: &[u8]| {
            let line = status.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(name));
            line.map(<[u8]>::trim_ascii)
        };
        let number = |bytes: &[u8]| {
            let word = bytes.split(u8::is_ascii_whitespace).next()?;
            str::from_utf8(word).ok()?.parse().ok()
        };
        Some(Self {
            comm: field(b"Name:")?.to_vec(),
            state: field(b"State:")?.first().copied()?.into(),
            tgid: number(field(b"Tgid:")?)?,
            uid: field(b"Uid:").and_then(number).unwrap_or(u32::MAX),
        })
    }

    /// Stopped by a signal or a debugger: nothing in it runs.
    pub(crate) fn stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

/// Name of a user, or its number.
pub(crate) fn user(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_string())
    });
    name.unwrap_or_else(|| format!("with uid {uid}"))
}

#[cfg(test)]
#[path = "procfs_tests.rs"]
mod tests;
