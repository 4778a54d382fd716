//! Signals that end a recording in order. One more than is waited for ends the command at once, as
//! if it had installed no handler: nobody must be forced to `kill -9`.
//!
//! | recording | the first | the second | the third |
//! |---|---|---|---|
//! | of processes | ends it | kills the recorder | |
//! | of a command | is passed on to the command, which is waited for | ends it | kills the recorder |

use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use signal_hook::{flag, low_level};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Those that end a recording.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// A signal that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Its number.
    pub(crate) signal: i32,
    /// It came from a terminal, which sends it to the whole foreground group: to the command, too.
    pub(crate) typed: bool,
}

/// The signals, caught as long as the process lives.
#[derive(Debug)]
pub(crate) struct Stop {
    delivery: SignalDelivery<UnixStream, WithRawSiginfo>,
}

impl Stop {
    /// Catches SIGINT, SIGTERM and SIGHUP; after `patience` of them the next one kills.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub(crate) fn new(patience: usize) -> io::Result<Self> {
        let seen = Arc::new(AtomicUsize::new(0));
        for signal in SIGNALS {
            let seen = Arc::clone(&seen);
            let count = move || {
                if seen.fetch_add(1, Ordering::Relaxed) >= patience {
                    // It ends the process one way or another.
                    let _ = low_level::emulate_default_handler(signal);
                }
            };
            // SAFETY: an atomic addition and a function that is made for handlers.
            unsafe { low_level::register(signal, count) }?;
        }
        let (read, write) = UnixStream::pair()?;
        let delivery = SignalDelivery::with_pipe(read, write, WithRawSiginfo, SIGNALS)?;
        // A file over the size limit is an error of the write, not the end of the recorder.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(Self { delivery })
    }

    /// What to poll for.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.delivery.get_read(), PollFlags::IN)
    }

    /// The signals that have come since the last call.
    pub(crate) fn received(&mut self) -> Vec<Received> {
        // Codes above 0 are the kernel's (sigaction(2)): here, of the terminal's driver.
        let pending = self.delivery.pending();
        pending.map(|info| Received { signal: info.si_signo, typed: info.si_code > 0 }).collect()
    }
}
