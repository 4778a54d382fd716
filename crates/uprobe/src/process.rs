//! The files a process runs code from.
//!
//! A file may be in another mount namespace, and may have been replaced or removed since it was mapped.
//! `/proc/PID/map_files` leads to what is mapped, whatever its name means now; where that is not allowed,
//! the name is looked up as the process sees it (`/proc/PID/root`), and must lead to the same inode.

use crate::error::{Error, ErrorKind, Result};
use crate::program::Namespace;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file that code runs from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFile {
    /// Its path as the process sees it.
    pub path: String,
    /// What it is called: the last part of its path; the program's name under which it was started
    /// first, when that leads to the same file.
    pub names: Vec<String>,
    /// Where we open it.
    pub open: PathBuf,
    /// It is the program itself.
    pub program: bool,
}

impl ObjectFile {
    /// What it is called in event names.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// A file that is not looked up in a process.
    pub(crate) fn at(path: &str) -> Self {
        let name = last(path).to_owned();
        Self { path: path.into(), names: vec![name], open: path.into(), program: true }
    }
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// One line of `/proc/PID/maps` that maps a file to be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapped {
    /// `START-END`, as in `map_files`.
    range: String,
    inode: u64,
    /// `MAJOR:MINOR`, which only tells files apart.
    device: String,
    path: String,
}

fn parse(maps: &str) -> impl Iterator<Item = Mapped> {
    maps.lines().filter_map(|line| {
        let mut rest = line;
        let mut field = || {
            let (field, after) = rest.split_once(' ')?;
            rest = after.trim_start_matches(' ');
            Some(field)
        };
        let (range, rights, _offset, device, inode) =
            (field()?, field()?, field()?, field()?, field()?);
        let path = rest;
        if !rights.contains('x') || !path.starts_with('/') {
            return None;
        }
        let inode = inode.parse().ok().filter(|&inode| inode != 0)?;
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        Some(Mapped { range: range.into(), inode, device: device.into(), path: unescape(path) })
    })
}

/// The kernel writes a line break in a path as `\012`.
fn unescape(path: &str) -> String {
    path.replace("\\012", "\n")
}

/// The files that process `pid` runs code from, the program first.
///
/// # Errors
/// When there is no such process, or we may not look into it.
pub fn object_files(pid: u32) -> Result<Vec<ObjectFile>> {
    let maps = fs::read(format!("/proc/{pid}/maps")).map_err(|error| failed(pid, &error))?;
    let maps = String::from_utf8_lossy(&maps);
    let exe = fs::metadata(format!("/proc/{pid}/exe")).ok();
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut seen = Vec::new();
    let mut files = Vec::new();
    for mapped in parse(&maps) {
        let key = (mapped.device.clone(), mapped.inode);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let program = exe.as_ref().is_some_and(|exe| exe.ino() == mapped.inode)
            && (files.iter().all(|file: &ObjectFile| !file.program));
        let mut names = vec![last(&mapped.path).to_owned()];
        if program && let Some(alias) = alias(pid, &mapped, comm.trim_end()) {
            names.insert(0, alias);
        }
        let open = opened(pid, &mapped, program);
        files.push(ObjectFile { path: mapped.path, names, open, program });
    }
    if files.is_empty() {
        return Err(match fs::metadata(format!("/proc/{pid}/exe")) {
            Ok(_) => Error::new(ErrorKind::NoMatch, format!("process {pid} runs no file")),
            Err(_) => Error::new(
                ErrorKind::NoProcess,
                format!("process {pid} has ended, or is a thread of the kernel: it has no program"),
            ),
        });
    }
    files.sort_by_key(|file| !file.program);
    Ok(files)
}

fn failed(pid: u32, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::new(ErrorKind::NoProcess, format!("no process {pid}")),
        // A process that is just ending.
        _ if error.raw_os_error() == Some(libc::ESRCH) => {
            Error::new(ErrorKind::NoProcess, format!("process {pid} has ended"))
        }
        _ => Error::io(format!("cannot see what process {pid} has mapped"), error)
            .hint("run this command as root"),
    }
}

/// The name the process has, when it stands for the same file beside it: a link.
fn alias(pid: u32, mapped: &Mapped, comm: &str) -> Option<String> {
    if comm.is_empty() || comm.contains('/') || comm == last(&mapped.path) {
        return None;
    }
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let beside = Path::new(&mapped.path).with_file_name(comm);
    let beside = root.join(beside.strip_prefix("/").ok()?);
    // An absolute link would lead out of the process' root into ours: only the last step is looked at.
    let target = fs::read_link(&beside).ok()?;
    let same = last(&mapped.path).as_bytes() == target.file_name()?.as_bytes();
    same.then(|| comm.to_owned())
}

/// Where to open what is mapped.
fn opened(pid: u32, mapped: &Mapped, program: bool) -> PathBuf {
    let exact = PathBuf::from(format!("/proc/{pid}/map_files/{}", mapped.range));
    if fs::metadata(&exact).is_ok() {
        return exact;
    }
    if program {
        return PathBuf::from(format!("/proc/{pid}/exe"));
    }
    PathBuf::from(format!("/proc/{pid}/root{}", mapped.path))
}

/// The PID namespace of a process, as the kernel's helper takes it.
pub(crate) fn namespace(pid: u32) -> Option<Namespace> {
    let meta = fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?;
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    // The kernel's own form of a device number (include/linux/kdev_t.h).
    let device = u64::from(major) << 20 | u64::from(minor);
    Some(Namespace { device, inode: meta.ino() })
}

/// What a process calls itself: its id in the innermost of its PID namespaces.
#[must_use]
pub fn inner_pid(pid: u32) -> u32 {
    let inner = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        line.split_ascii_whitespace().next_back()?.parse().ok()
    };
    inner().unwrap_or(pid)
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
