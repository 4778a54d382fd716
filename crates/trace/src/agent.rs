//! The agent: one small thread that answers the `owlet` command over a Unix socket.
//!
//! | module | owns |
//! |---|---|
//! | this one | [`init`]: what happens once, in the caller's thread |
//! | `thread` | the thread and its poll loop |
//! | `conn` | one connection: bytes in, bytes out, never blocking |
//! | `serve` | requests to replies |
//! | `socket` | the listening socket, credentials, descriptors that come with messages |
//! | `exit` | the socket's file: at exit, and when somebody has removed it |
//! | `fork` | what a forked child does |
//!
//! # Promises to the program
//! - [`init`] waits for nobody: it opens files, binds a socket and starts a thread.
//! - Every descriptor is close-on-exec from its first moment; no child is waited for; every signal
//!   is blocked in the thread from its first instruction.
//! - The thread touches nothing that ends at `exit`.
//! - A fault of the agent's own ends the agent, not the program.
//!
//! # Locks
//! `INIT`, then the *gate*, then the control lock; `fork` takes all three in this order. The thread
//! holds the gate while it works, so that no child is made in the middle of a request, and lets go
//! of it while it polls and while it waits for a grace period (a probe that forks would otherwise
//! wait for us, and we for it).

mod conn;
mod exit;
mod fork;
mod serve;
mod socket;
mod thread;

use crate::session;
use crate::sync::ForkMutex;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Why the process cannot be attached to from outside. The program can go on, and its own probes
/// work.
///
/// `Debug` prints what `Display` does: it is what a `main` that returns the error shows.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitError {
    /// The socket could not be made.
    Socket {
        /// Where.
        path: String,
        /// Why, as an error number.
        errno: i32,
    },
    /// The thread could not be started, with its error number.
    Thread(i32),
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |errno: &i32| std::io::Error::from_raw_os_error(*errno).to_string();
        match self {
            Self::Socket { path, errno } => write!(
                f,
                "cannot make the owlet agent's socket in {path}: {}\n\
                 hint: that must be a directory of this user's which nobody else can enter (mode \
                 0700); XDG_RUNTIME_DIR chooses another place",
                why_no_socket(Path::new(path)).map_or_else(|| text(errno), str::to_owned)
            ),
            Self::Thread(errno) => write!(
                f,
                "cannot start the owlet agent's thread: {}\n\
                 hint: this user or container may have all the threads it is allowed",
                text(errno)
            ),
        }
    }
}

/// What is wrong with a socket directory that is there.
fn why_no_socket(dir: &Path) -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = std::fs::symlink_metadata(dir).ok()?;
    if !meta.is_dir() {
        Some("it is no directory")
    } else if meta.uid() != owlet_sys::process::geteuid() {
        Some("it belongs to another user")
    } else if meta.mode() & 0o077 != 0 {
        Some("others can enter it: its mode must be 0700")
    } else {
        None
    }
}

impl fmt::Debug for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for InitError {}

/// The outcome of the first call, for all others.
static INIT: ForkMutex<Option<Option<InitError>>> = ForkMutex::new(None);

/// Starts the agent, and joins the session that `OWLET_SESSION` names, so that the first event after
/// the return is recorded.
///
/// The first call does it; every other call, also from another thread at the same time, returns the
/// same answer after it is done. Never panics and waits for nobody. `OWLET_DISABLE=1`
/// switches the agent off; `OWLET_FOLLOW_FORK=0` leaves forked children without an agent of their own
/// (they go on recording into sessions they inherit).
///
/// Being switched off is no error. Neither is a session that cannot be joined, because its recorder
/// has ended or is of another version, say: the process is then not in it, as `owlet list` shows.
/// Nor is an agent that cannot start, since another user can bring that about by taking the name of
/// the socket directory: the program goes on, nobody can attach to it, [`unreachable()`] says why.
/// One line on standard error tells it, and one that `OWLET_BACKEND` names no backend; nothing else is
/// ever printed, and these are not with `OWLET_QUIET=1`.
///
/// # Errors
/// None at present; a program need not stop for one.
pub fn init() -> Result<(), InitError> {
    let mut done = INIT.lock();
    let _ = done.get_or_insert_with(first);
    Ok(())
}

/// Why nobody can attach to this process although [`init`] was called; `None` when somebody can, when
/// the agent is switched off, and before [`init`].
#[must_use]
pub fn unreachable() -> Option<InitError> {
    INIT.lock().clone().flatten()
}

/// Whether an environment variable switches something on.
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
}

/// A line on standard error, unless it is not wanted. Whether it arrives is not looked at.
fn warn(line: &str) {
    if !is_set("OWLET_QUIET") {
        let _ = std::io::stderr().write_all(format!("owlet: {line}\n").as_bytes());
    }
}

fn first() -> Option<InitError> {
    if is_set("OWLET_DISABLE") {
        return None;
    }
    // A thread will run here for as long as the process lives.
    owlet_attach::pin();
    // While there is one thread, each of these takes microseconds; with more, an RCU grace period of
    // the kernel's. Then they are left to whoever needs them first.
    if owlet_sys::process::thread_count() == Ok(1) {
        owlet_attach::patch::register();
        let _ = owlet_percpu::backend();
        let _ = owlet_percpu::fence::register_global();
    }
    if let Some(path) = std::env::var_os("OWLET_SESSION").filter(|path| !path.is_empty()) {
        join(Path::new(&path));
    }
    if std::env::var_os("OWLET_BACKEND").is_some() && owlet_percpu::backend_unknown() {
        let used = match owlet_percpu::backend() {
            owlet_percpu::Backend::Rseq => "rseq",
            owlet_percpu::Backend::Portable => "portable",
        };
        warn(&format!("{used} backend: {}", owlet_percpu::backend_why()));
    }
    // Its lock is taken inside ours, so its handlers are registered first.
    owlet_attach::prepare();
    fork::install();
    let failed = thread::start().err();
    if let Some(error) = &failed {
        let text = error.to_string();
        let why = text.lines().next().unwrap_or_default();
        warn(&format!("this process cannot be traced: {why}; `owlet doctor` tells more"));
    }
    failed
}

/// Joins an inherited session, if there is one: the variable outlives the recorder in every shell and
/// service that was started under it.
fn join(path: &Path) {
    // Non-blocking: whatever the path names, opening it waits for nobody.
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    if let Ok(file) = opened {
        // Whatever is wrong with it, there is nobody to tell: the program did not ask for it.
        let _ = session::attach(OwnedFd::from(file));
    }
}

/// Feature `auto`: [`init`] before `main`.
#[cfg(feature = "auto")]
mod auto {
    extern "C" fn start() {
        // There is nobody to tell; `owlet list` shows that the process is not there.
        let _ = super::init();
    }

    #[used]
    // SAFETY: the section holds addresses of functions that the C library calls once at start-up,
    // which is what this is.
    #[unsafe(link_section = ".init_array")]
    static START: extern "C" fn() = start;
}
