//! Where agents' sockets are. [`owlet_sys::runtime_dir`] has the rule both sides follow; but a
//! service often runs without the `XDG_RUNTIME_DIR` that a login shell has, so the command looks into
//! both places the rule can give, and for a process named by pid also where that process sees them.

use crate::error::{Failure, Result, reason, show};
use crate::procfs::{self, Process};
use owlet_sys::SysError;
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

/// What a socket directory must be, and what to do when it is not.
const CLOSED: &str = "it must be a directory of yours that nobody else can enter (mode 0700); \
                      XDG_RUNTIME_DIR, for this command and the program, chooses another place";

/// What the system said, without the call's name, which the message has in better words.
fn why(error: SysError) -> String {
    reason(&io::Error::from_raw_os_error(error.errno))
}

/// The sockets of this user's processes, those of dead ones left out.
///
/// # Errors
/// When the first place cannot be trusted or read. The other one, in /tmp, may be somebody else's,
/// who must not keep us from our own.
pub(crate) fn own() -> Result<Vec<Socket>> {
    let mut found = Vec::new();
    for (at, dir) in own_dirs().iter().enumerate() {
        match inside(dir) {
            Ok(sockets) => found.extend(sockets),
            Err(failure) if at == 0 => return Err(failure),
            Err(_) => {}
        }
    }
    Ok(found)
}

fn inside(dir: &Path) -> Result<Vec<Socket>> {
    if dir.symlink_metadata().is_err() {
        return Ok(Vec::new());
    }
    runtime_dir::check(dir).map_err(|error| {
        Failure::at("cannot trust the socket directory", dir, why(error)).hint(CLOSED)
    })?;
    let sockets =
        runtime_dir::list(dir).map_err(|error| Failure::at("cannot read", dir, why(error)))?;
    Ok(sockets.into_iter().filter(|(name, _)| !name.is_stale()).map(Socket::from).collect())
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

/// Sockets as one process sees them: in its own file system, under its own user, with its own
/// environment.
pub(crate) fn elsewhere(pid: u32) -> Vec<Socket> {
    let Some(process) = Process::read(pid) else { return Vec::new() };
    let uid = process.uid;
    let root = procfs::root(pid);
    let inside = |place: &Path| {
        let mut whole = root.clone().into_os_string();
        whole.push(place);
        PathBuf::from(whole)
    };
    let mut places = vec![
        inside(Path::new(&format!("/tmp/owlet-{uid}"))),
        inside(Path::new(&format!("/run/user/{uid}/owlet"))),
    ];
    let own = procfs::variable(pid, "XDG_RUNTIME_DIR").map(PathBuf::from);
    places.extend(own.filter(|dir| dir.is_absolute()).map(|dir| inside(&dir.join("owlet"))));
    places.dedup();
    let list = |place: &PathBuf| runtime_dir::list(place).unwrap_or_default();
    places.iter().flat_map(list).map(Socket::from).collect()
}

/// Why a process of this user could not make its socket, when its directory says so.
pub(crate) fn in_the_way(pid: u32) -> Option<Failure> {
    let variable = procfs::variable(pid, "XDG_RUNTIME_DIR");
    let dir = runtime_dir::choose(variable.as_deref(), owlet_sys::process::geteuid());
    let mut seen = procfs::root(pid).into_os_string();
    seen.push(&dir);
    let seen = PathBuf::from(seen);
    seen.symlink_metadata().ok()?;
    let error = runtime_dir::check(&seen).err()?;
    let why = why(error);
    Some(
        Failure::new(format!("its socket directory {} cannot be used: {why}", show(&dir)))
            .hint(CLOSED),
    )
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
        Failure::new(format!("cannot use the socket directory {}: {}", show(&dir), why(error)))
            .hint(CLOSED)
    })
}
