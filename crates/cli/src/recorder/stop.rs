//! Signals that end a recording in order. However they come, the last line is printed and the trace is
//! ended; only a recorder that hangs is killed, so that nobody is forced to `kill -9`.
//!
//! One Ctrl-C is often several signals: a wrapper passes on what the terminal sends as well, `timeout`
//! sends another. What comes within a second of a *request* belongs to it.
//!
//! | recording | the first request | the second | more |
//! |---|---|---|---|
//! | of processes | ends it | nothing more to ask for | |
//! | of a command | is passed on to the command, which is waited for | ends it | nothing more |
//!
//! Whoever asks for more than there is, and does so [`STUCK`] after the last request, gets what he would
//! without a handler: the recorder dies.
//!
//! The handlers keep the count in one word, since they interrupt each other and run in any thread:
//!
//! | bits | what |
//! |---|---|
//! | 0..8 | requests so far |
//! | 8..16 | the signal of the last one |
//! | 16..64 | when it came, in milliseconds of CLOCK_MONOTONIC |

use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use signal_hook::{flag, low_level};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Those that end a recording.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// What comes this soon after a request is the same one; in milliseconds.
const SAME: u64 = 1_000;
/// A recorder that has not ended by then, in milliseconds, may be killed.
const STUCK: u64 = 10_000;

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
    requests: Arc<AtomicU64>,
}

/// What one more signal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
enum Step {
    /// It belongs to the last request, or asks for nothing more.
    Same,
    /// It is a request; the word becomes this.
    Request(u64),
    /// The recorder hangs.
    Kill,
}

/// `patience` is how many requests there are to make.
fn step(word: u64, patience: u64, signal: i32, now: u64) -> Step {
    let (count, since) = (word & 0xff, now.saturating_sub(word >> 16));
    if count == 0 || (count < patience && since >= SAME) {
        let signal = u64::from(signal.unsigned_abs()) & 0xff;
        Step::Request(now << 16 | signal << 8 | (count + 1))
    } else if count >= patience && since >= STUCK {
        Step::Kill
    } else {
        Step::Same
    }
}

impl Stop {
    /// Catches SIGINT, SIGTERM and SIGHUP; `patience` is how many requests to end there are to make.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub(crate) fn new(patience: u64) -> io::Result<Self> {
        let requests = Arc::new(AtomicU64::new(0));
        for signal in SIGNALS {
            let requests = Arc::clone(&requests);
            let count = move || {
                let mut word = requests.load(Ordering::Relaxed);
                // The time after the word: one that was read before can only be older.
                let now = || owlet_sys::clock::monotonic_ns() / 1_000_000;
                loop {
                    match step(word, patience, signal, now()) {
                        Step::Same => return,
                        Step::Request(next) => {
                            let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
                            match requests.compare_exchange(word, next, set, failed) {
                                Ok(_) => return,
                                Err(other) => word = other,
                            }
                        }
                        Step::Kill => {
                            // It ends the process one way or another.
                            let _ = low_level::emulate_default_handler(signal);
                            return;
                        }
                    }
                }
            };
            // SAFETY: atomics, the clock (clock_gettime is on the list of signal-safety(7)) and a
            // function that is made for handlers.
            unsafe { low_level::register(signal, count) }?;
        }
        let (read, write) = UnixStream::pair()?;
        let delivery = SignalDelivery::with_pipe(read, write, WithRawSiginfo, SIGNALS)?;
        // A file over the size limit is an error of the write, not the end of the recorder.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(Self { delivery, requests })
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

    /// The signal of the last request, when it is not the first.
    pub(crate) fn insisted(&self) -> Option<i32> {
        let word = self.requests.load(Ordering::Relaxed);
        (word & 0xff > 1).then(|| i32::from((word >> 8) as u8))
    }
}

#[cfg(test)]
#[path = "stop_tests.rs"]
mod tests;
