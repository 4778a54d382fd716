//! The socket's file: removing it when the program exits, and noticing that somebody else has.
//!
//! Nothing else is done at exit: what the agent and the tracepoints use is never taken down, so both
//! may run until the process is gone.

use crate::sync::ForkMutex;
use owlet_sys::process;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// The file, and the process it belongs to: a forked child must not remove its parent's.
static FILE: ForkMutex<Option<(u32, PathBuf)>> = ForkMutex::new(None);

/// Remembers the file to remove.
pub(super) fn set(path: &Path) {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        extern "C" fn at_exit() {
            unlink();
        }
        // SAFETY: the function lives as long as this object, which is pinned.
        unsafe { libc::atexit(at_exit) };
    });
    *FILE.lock() = Some((process::getpid(), path.to_owned()));
}

/// Calls `make` if the file belongs to this process and is gone, unless the process is exiting: what
/// would be made then would stay.
pub(super) fn if_gone<T>(make: impl FnOnce() -> Option<T>) -> Option<T> {
    let file = FILE.lock();
    let (pid, path) = file.as_ref()?;
    let gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let gone = path.symlink_metadata().as_ref().is_err_and(gone);
    // The lock is held meanwhile: an exit in between finds the file made, or removes nothing.
    if gone && *pid == process::getpid() { make() } else { None }
}

/// Removes it now. Does nothing when somebody is just setting it.
pub(super) fn unlink() {
    if let Some(mut file) = FILE.try_lock()
        && let Some((pid, path)) = file.take()
        && pid == process::getpid()
    {
        let _ = std::fs::remove_file(path);
    }
}

/// Before `fork`.
pub(super) fn hold() {
    FILE.hold();
}

/// After `fork`.
pub(super) fn release() {
    FILE.release();
}
