//! The directory of the sockets, and the names in it.
//!
//! `$XDG_RUNTIME_DIR/owlet` if that variable names a directory we own; otherwise `/tmp/owlet-UID`.
//! Either way the directory is ours (owner), closed (mode 0700) and no symbolic link: anything else
//! is refused, because whoever owns the directory could put a socket of his own in our way.
//!
//! A socket's name is `PID-STARTTIME-PIDNS-INSTANCE.sock`. The start time tells a reused pid from
//! the dead process, the namespace tells pid 7 of one container from pid 7 of another that shares
//! the directory, and the instance tells two copies of the library in one process apart.
//!
//! Everything here allocates; nothing is for signal handlers.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::choke::{Family, io};
use crate::process;
use crate::{Result, SysError};

/// Longest path of a Unix socket, without the NUL (`sun_path`).
pub const SOCKET_PATH_MAX: usize = 107;

/// The directory for this user, made if missing and checked.
///
/// # Errors
/// `EACCES` if it exists and is not ours or not closed, `ENOTDIR` if it is something else or a
/// symbolic link, or what `mkdir` answers.
pub fn open() -> Result<PathBuf> {
    let dir = path();
    prepare(&dir)?;
    Ok(dir)
}

/// Where the directory is (or would be), without touching it.
#[must_use]
pub fn path() -> PathBuf {
    choose(std::env::var_os("XDG_RUNTIME_DIR").as_deref(), process::geteuid())
}

/// The choice of [`path`], as a function of the variable and the user.
#[must_use]
pub fn choose(xdg: Option<&OsStr>, uid: u32) -> PathBuf {
    let ours = xdg.map(Path::new).filter(|dir| {
        dir.is_absolute()
            && std::fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == uid)
    });
    ours.map_or_else(|| PathBuf::from(format!("/tmp/owlet-{uid}")), |dir| dir.join("owlet"))
}

/// Makes `dir` (mode 0700) if it is missing, and checks it.
///
/// # Errors
/// As [`open`].
pub fn prepare(dir: &Path) -> Result<()> {
    let made =
        io(Family::RuntimeDir, "mkdir", || std::fs::DirBuilder::new().mode(0o700).create(dir));
    match made {
        Err(e) if e.errno != libc::EEXIST => return Err(e),
        _ => {}
    }
    check(dir)
}

/// Checks that `dir` is a directory, ours, closed to others, and no symbolic link.
///
/// # Errors
/// As [`open`].
pub fn check(dir: &Path) -> Result<()> {
    let call = "check of the socket directory";
    let meta = io(Family::RuntimeDir, call, || std::fs::symlink_metadata(dir))?;
    if !meta.is_dir() {
        return Err(SysError { call, errno: libc::ENOTDIR });
    }
    if meta.uid() != process::geteuid() || meta.mode() & 0o077 != 0 {
        return Err(SysError { call, errno: libc::EACCES });
    }
    Ok(())
}

/// The name of an agent's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketName {
    /// Process id, in the PID namespace `pid_ns`.
    pub pid: u32,
    /// Start of the process in clock ticks since boot.
    pub start_time: u64,
    /// Inode number of the PID namespace.
    pub pid_ns: u64,
    /// Which agent of the process.
    pub instance: u32,
}

/// Why a file name is no socket's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotASocketName;

impl SocketName {
    /// The name of this process's agent number `instance`. Without /proc, start time and namespace
    /// are 0.
    #[must_use]
    pub fn own(instance: u32) -> Self {
        let pid = process::getpid();
        Self {
            pid,
            start_time: process::start_time(pid).unwrap_or(0),
            pid_ns: process::pid_namespace().unwrap_or(0),
            instance,
        }
    }

    /// True if the process is certainly gone: it is (or was) in our PID namespace, and its pid is
    /// free or belongs to a process that started at another time. A socket of another namespace
    /// is never called stale from here.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        if self.pid_ns == 0 || process::pid_namespace() != Ok(self.pid_ns) {
            return false;
        }
        match process::start_time(self.pid) {
            Ok(start) => self.start_time != 0 && start != self.start_time,
            Err(e) => e.errno == libc::ENOENT || e.errno == libc::ESRCH,
        }
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}.sock", self.pid, self.start_time, self.pid_ns, self.instance)
    }
}

impl FromStr for SocketName {
    type Err = NotASocketName;

    fn from_str(name: &str) -> core::result::Result<Self, NotASocketName> {
        fn number<T: FromStr>(part: Option<&str>) -> core::result::Result<T, NotASocketName> {
            let digits = part.filter(|p| p.bytes().all(|b| b.is_ascii_digit()));
            digits.and_then(|p| p.parse().ok()).ok_or(NotASocketName)
        }
        let mut parts = name.strip_suffix(".sock").ok_or(NotASocketName)?.split('-');
        let parsed = Self {
            pid: number(parts.next())?,
            start_time: number(parts.next())?,
            pid_ns: number(parts.next())?,
            instance: number(parts.next())?,
        };
        if parts.next().is_some() { Err(NotASocketName) } else { Ok(parsed) }
    }
}

/// The agents' sockets in `dir`, in no particular order. A missing directory is an empty one.
///
/// # Errors
/// What `opendir` answers.
pub fn list(dir: &Path) -> Result<Vec<(SocketName, PathBuf)>> {
    let entries = match io(Family::RuntimeDir, "opendir", || std::fs::read_dir(dir)) {
        Ok(entries) => entries,
        Err(e) if e.errno == libc::ENOENT => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let named = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().to_str()?.parse().ok()?;
        Some((name, entry.path()))
    });
    Ok(named.collect())
}
