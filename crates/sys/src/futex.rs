//! `futex(2)`: sleep until a word changes.
//!
//! Private futexes are for words only this process maps, shared ones for words in a memfd. A wait
//! may always return early (a signal, a wake meant for another): callers re-check and loop.

use core::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::choke::{Family, call};

/// Who may be on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Threads of this process.
    Private,
    /// Every process that maps the word.
    Shared,
}

impl Reach {
    fn flag(self) -> i32 {
        match self {
            Self::Private => libc::FUTEX_PRIVATE_FLAG,
            Self::Shared => 0,
        }
    }
}

/// Why a wait ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A wake, or a spurious return.
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// The time was up.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
    /// The call does not work here (a filter); the caller must not rely on sleeping.
    Unavailable,
}

/// Sleeps while `word` holds `expected`, at most for `timeout` (monotonic clock).
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>, reach: Reach) -> Woken {
    let spec = timeout.map(|t| libc::timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: libc::c_long::from(t.subsec_nanos()),
    });
    let spec_at = spec.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let op = libc::FUTEX_WAIT | reach.flag();
    let answer = call(Family::Futex, "futex", || {
        // SAFETY: `word` is a valid aligned word for the call, `spec_at` null or a valid timespec.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, spec_at, 0, 0) }
    });
    match answer {
        Ok(_) => Woken::Woken,
        Err(e) => match e.errno {
            libc::EAGAIN => Woken::Changed,
            libc::ETIMEDOUT => Woken::TimedOut,
            libc::EINTR => Woken::Interrupted,
            _ => Woken::Unavailable,
        },
    }
}

/// Wakes at most `count` sleepers and says how many. Leaves `errno` alone.
pub fn wake(word: &AtomicU32, count: u32, reach: Reach) -> usize {
    let op = libc::FUTEX_WAKE | reach.flag();
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    call(Family::Futex, "futex", || {
        // SAFETY: `word` is a valid aligned word; FUTEX_WAKE reads none of the other arguments.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, count, 0, 0, 0) }
    })
    .map_or(0, |n| usize::try_from(n).unwrap_or(0))
}

/// Wakes every sleeper.
pub fn wake_all(word: &AtomicU32, reach: Reach) -> usize {
    wake(word, u32::MAX, reach)
}
