//! Where agents' sockets are. [`owlet_sys::runtime_dir`] has the rule both sides follow; but a
//! service often runs without the `XDG_RUNTIME_DIR` that a login shell has, so the command looks into
//! both places the rule can give, and for a process named by pid also where that process sees them.

use crate::error::{Failure, Result, reason, show};
use crate::procfs::Process;
use owlet_sys::runtime_dir::{self, SocketName};
use std::io;
use std::path::{Path, PathBuf};

/// A socket that may have an agent behind it.
#[derive(Debug)]
pub(crate) struct Socket {
    /// The pid it claims, in its own PID namespace.
    pub(crate) pid: u32,
    pub(crate) path: PathBuf,
}

/// The sockets of this user's processes, those of dead ones left out.
///
/// # Errors
/// When a directory is there that cannot be trusted or read.
pub(crate) fn own() -> Result<Vec<Socket>> {
    let mut found = Vec::new();
    for dir in own_dirs() {
        if !dir.exists() {
            continue;
        }
        runtime_dir::check(&dir).map_err(|error| {
            Failure::at("cannot trust the socket directory", &dir, reason(&io::Error::from(error)))
                .hint("it must be a directory of yours that nobody else can enter (mode 0700)")
        })?;
        let sockets = runtime_dir::list(&dir)
            .map_err(|error| Failure::at("cannot read", &dir, reason(&io::Error::from(error))))?;
        found.extend(sockets.into_iter().filter(|(name, _)| !name.is_stale()).map(Socket::from));
    }
    Ok(found)
}

/// The directories where agents of this user listen.
pub(crate) fn own_dirs() -> Vec<PathBuf> {
    let mut dirs = vec![runtime_dir::path()];
    let fallback = runtime_dir::choose(None, owlet_sys::process::geteuid());
    if !dirs.contains(&fallback) {
        dirs.push(fallback);
    }
    dirs
}

/// Sockets as one process sees them: in its own file system, under its own user.
pub(crate) fn elsewhere(pid: u32) -> Vec<Socket> {
    let Some(process) = Process::read(pid) else { return Vec::new() };
    let root = format!("/proc/{pid}/root");
    let uid = process.uid;
    let places = [format!("{root}/tmp/owlet-{uid}"), format!("{root}/run/user/{uid}/owlet")];
    let list = |place: &String| runtime_dir::list(Path::new(place)).unwrap_or_default();
    places.iter().flat_map(list).map(Socket::from).collect()
}

impl From<(SocketName, PathBuf)> for Socket {
    fn from((name, path): (SocketName, PathBuf)) -> Self {
        Self { pid: name.pid, path }
    }
}

/// The directory for sockets of this command's own.
pub(crate) fn make_own_dir() -> Result<PathBuf> {
    runtime_dir::open().map_err(|error| {
        let dir = runtime_dir::path();
        Failure::new(format!(
            "cannot use the socket directory {}: {}",
            show(&dir),
            reason(&io::Error::from(error))
        ))
    })
}
