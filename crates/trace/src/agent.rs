//! The agent: one small thread that answers the `owlet` command over a Unix socket.
//!
//! | module | owns |
//! |---|---|
//! | this one | [`init`]: what happens once, in the caller's thread |
//! | `thread` | the thread and its poll loop |
//! | `conn` | one connection: bytes in, bytes out, never blocking |
//! | `serve` | requests to replies |
//! | `socket` | the listening socket, credentials, descriptors that come with messages |
//! | `exit` | the socket's file at exit |
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

use crate::session::{self, AttachError};
use crate::site;
use crate::sync::ForkMutex;
use std::fmt;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

/// Why the process cannot be attached to from outside, or did not join the session it inherited. The
/// program can go on, and its own probes work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitError {
    /// `OWLET_DISABLE` is set to something else than `0`.
    Disabled,
    /// The socket could not be made.
    Socket {
        /// Where.
        path: String,
        /// Why, as an error number.
        errno: i32,
    },
    /// The thread could not be started, with its error number.
    Thread(i32),
    /// The session named by `OWLET_SESSION` could not be joined. The agent runs.
    Session {
        /// What the variable says.
        path: String,
        /// Why.
        message: String,
        /// What to do, or empty.
        hint: String,
    },
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |errno: &i32| std::io::Error::from_raw_os_error(*errno);
        match self {
            Self::Disabled => f.write_str("the owlet agent is switched off by OWLET_DISABLE"),
            Self::Socket { path, errno } => {
                write!(f, "cannot make the owlet agent's socket in {path}: {}", text(errno))
            }
            Self::Thread(errno) => write!(f, "cannot start the owlet agent: {}", text(errno)),
            Self::Session { path, message, .. } => {
                write!(f, "cannot join the owlet session at {path}: {message}")
            }
        }
    }
}

impl std::error::Error for InitError {}

/// The outcome of the first call, for all others.
static INIT: ForkMutex<Option<Result<(), InitError>>> = ForkMutex::new(None);

/// Starts the agent, and joins the session that `OWLET_SESSION` names, so that the first event after
/// the return is recorded.
///
/// The first call does it; every other call, also from another thread at the same time, returns the
/// same answer after it is done. Never panics, and waits for nobody. `OWLET_DISABLE=1` switches the
/// agent off; `OWLET_FOLLOW_FORK=0` leaves forked children without an agent of their own (they go on
/// recording into sessions they inherit).
///
/// # Errors
/// [`InitError`]; the program can go on.
pub fn init() -> Result<(), InitError> {
    let mut done = INIT.lock();
    done.get_or_insert_with(first).clone()
}

fn first() -> Result<(), InitError> {
    if std::env::var_os("OWLET_DISABLE").is_some_and(|value| !value.is_empty() && value != "0") {
        return Err(InitError::Disabled);
    }
    pin();
    // While there is one thread, each of these takes microseconds; with more, an RCU grace period of
    // the kernel's. Then they are left to whoever needs them first.
    if owlet_sys::process::thread_count() == Ok(1) {
        site::register();
        let _ = owlet_percpu::backend();
        let _ = owlet_percpu::fence::register_global();
    }
    let joined = match std::env::var("OWLET_SESSION") {
        Ok(path) if !path.is_empty() => join(&path),
        _ => Ok(()),
    };
    fork::install();
    thread::start()?;
    joined
}

/// Joins an inherited session.
fn join(path: &str) -> Result<(), InitError> {
    let failed = |message: String, hint: &str| InitError::Session {
        path: path.to_owned(),
        message,
        hint: hint.to_owned(),
    };
    // Non-blocking: whatever the path names, opening it waits for nobody.
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| {
        failed(error.to_string(), "the recording that started this program may have ended")
    })?;
    match session::attach(OwnedFd::from(file)) {
        Ok(_) => Ok(()),
        // `auto` and an explicit call in two copies of this crate.
        Err(AttachError::Twice) => Ok(()),
        Err(error) => Err(failed(error.to_string(), error.hint())),
    }
}

/// Keeps the shared object this code is in: a thread will run here for as long as the process lives.
fn pin() {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let here: fn() = pin;
    // SAFETY: `info` is room for the answer; the address is one of our own functions.
    let found = unsafe { libc::dladdr(here as *const libc::c_void, info.as_mut_ptr()) };
    if found == 0 {
        return; // a static executable
    }
    // SAFETY: `dladdr` succeeded and filled `info`.
    let name = unsafe { info.assume_init() }.dli_fname;
    // The executable itself cannot be closed, and its name need not be a path that can be opened.
    // SAFETY: the name is a string of the dynamic linker's; NOLOAD runs no constructor.
    unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
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
