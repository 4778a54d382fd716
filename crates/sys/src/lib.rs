//! System calls behind one fakeable choke point per family.
//!
//! Everything the product asks of the kernel goes through this crate, one module per family of
//! calls. Each call passes the function `choke::call`, which
//!
//! 1. asks the fake (in tests and with the feature `fake`) whether this call is to fail,
//! 2. makes the call,
//! 3. turns a failure into a [`SysError`] that names the call, and
//! 4. leaves the caller's `errno` as it was.
//!
//! Point 4 matters because much of this runs inside somebody else's program, also in its signal
//! handlers: an `errno` that changes between a failed call and its `perror` is a bug we would have
//! planted there.
//!
//! Unless a function says otherwise it neither allocates nor locks and is async-signal-safe.
//!
//! | module | family |
//! |---|---|
//! | [`membarrier`] | the heavy half of asymmetric fences |
//! | [`rseq`] | where the C library put this thread's restartable-sequence area |
//! | [`event`] | eventfd: a counter that `poll` can see |
//! | [`futex`] | sleeping and waking, private and shared |
//! | [`executable`] | memory for machine code, never writable and executable at once |
//! | [`memory`] | memfd, seals, mappings (single, mirrored), memory wiped in a forked child |
//! | [`clock`] | monotonic and real time, TSC, its usability and calibration |
//! | [`topology`] | possible CPUs |
//! | [`process`] | ids, thread names, pidfd, start time, PID namespace |
//! | [`fork`] | has this process been forked since? |
//! | [`lock`] | a mutex that a forked child finds consistent |
//! | [`runtime_dir`] | the socket directory and the names in it |
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod choke;
pub mod clock;
mod error;
pub mod event;
pub mod executable;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod fork;
pub mod futex;
pub mod lock;
pub mod membarrier;
pub mod memory;
pub mod process;
pub mod rseq;
pub mod runtime_dir;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod topology;

pub use choke::Family;
pub use error::{Result, SysError};
