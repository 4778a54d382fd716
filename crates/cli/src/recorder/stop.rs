//! Signals that end a recording in order. A second one ends the command at once, as if it had
//! installed no handler: nobody must be forced to `kill -9`.

use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{flag, low_level::pipe};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The signals, caught as long as the process lives.
#[derive(Debug)]
pub(crate) struct Stop {
    pipe: UnixStream,
}

impl Stop {
    /// Catches SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        let seen = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds the flag unset and only sets it.
            flag::register_conditional_default(signal, Arc::clone(&seen))?;
            flag::register(signal, Arc::clone(&seen))?;
            pipe::register(signal, write.try_clone()?)?;
        }
        // A file over the size limit is an error of the write, not the end of the recorder.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(Self { pipe: read })
    }

    /// What to poll for.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.pipe, PollFlags::IN)
    }

    /// Whether a signal has come since the last call.
    pub(crate) fn requested(&self) -> bool {
        let mut bytes = [0; 16];
        matches!((&self.pipe).read(&mut bytes), Ok(n) if n > 0)
    }
}
