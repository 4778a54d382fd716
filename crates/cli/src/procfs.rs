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

/// Whether there is such a process, and it has not ended.
pub(crate) fn runs(pid: u32) -> bool {
    Process::read(pid).is_some_and(|process| !matches!(process.state, 'Z' | 'X'))
}

/// Whether a process has a thread of that name.
pub(crate) fn has_thread(pid: u32, name: &[u8]) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        fs::read(thread.path().join("comm")).is_ok_and(|comm| comm.trim_ascii_end() == name)
    })
}

/// The limit on open files of a process that has reached it.
pub(crate) fn files_used_up(pid: u32) -> Option<usize> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let limit = limit.split_whitespace().next()?.parse().ok()?;
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    (open >= limit).then_some(limit)
}

/// What the memory of a process looks like that only `exec` changes: where its code and its stack begin.
/// `None` when there is no such process, or we may not look.
pub(crate) fn image(pid: u32) -> Option<[u64; 3]> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_image(&stat)
}

/// Fields 26 to 28 of proc(5); the name, which may hold anything, ends at the last parenthesis, and
/// field 3 follows.
fn parse_image(stat: &[u8]) -> Option<[u64; 3]> {
    let name = stat.iter().rposition(|&b| b == b')')?;
    let fields = str::from_utf8(stat.get(name + 1..)?).ok()?;
    let mut fields = fields.split_whitespace().skip(26 - 3);
    let mut number = || fields.next()?.parse().ok();
    let image = [number()?, number()?, number()?];
    // Hidden from others, they are 0 or 1.
    image.iter().all(|&at| at > 1).then_some(image)
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
