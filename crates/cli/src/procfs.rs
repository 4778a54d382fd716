//! What `/proc` says of other processes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

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

/// What a variable was when the process began; `None` when it was not set, or we may not look.
pub(crate) fn variable(pid: u32, name: &str) -> Option<OsString> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment
        .split(|&b| b == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    value.filter(|value| !value.is_empty()).map(|value| OsString::from_vec(value.to_vec()))
}

/// What to put in front of an absolute path as the process sees it: nothing when it sees what we see,
/// since a socket's path must be short.
pub(crate) fn root(pid: u32) -> PathBuf {
    let link = |path: String| fs::read_link(path).ok();
    let same = |what: &str| {
        let theirs = link(format!("/proc/{pid}/{what}"));
        theirs.is_some() && theirs == link(format!("/proc/self/{what}"))
    };
    if same("ns/mnt") && same("root") {
        PathBuf::new()
    } else {
        PathBuf::from(format!("/proc/{pid}/root"))
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
