//! Tracepoints that are switched on from outside, in a running program.
//!
//! Declare them with [`tracepoint!`], emit them with [`trace!`], and call [`init()`] once. While nobody
//! records, a tracepoint costs one instruction.
//!
//! | module | owns |
//! |---|---|
//! | `site` | the places in the code, and switching them by one byte |
//! | `tracepoint` | what runs when an event happens |
//! | [`probe`](Probe) | probe lists under one SRCU domain |
//! | `fields`, `encoder` | values to bytes, on the stack |
//! | `sink`, [`session`] | recording into a segment |
//! | `functions` | what commands attach to traced functions |
//! | [`registry`] | tracepoints made at run time, for bridges |
//! | `agent` | the thread that answers the `owlet` command |
//! | [`attach`] | programs on traced functions: a crate of its own |
// Under loom only the protocols are compiled, by the models themselves.
#![cfg(not(loom))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod agent;
#[cfg(any(feature = "tracing", feature = "log"))]
mod bridge;
mod context;
mod control;
#[cfg(test)]
mod control_tests;
mod encoder;
#[cfg(test)]
mod encoder_tests;
mod error;
mod fields;
mod functions;
mod macros;
mod probe;
pub mod registry;
pub mod session;
mod sink;
pub mod site;
#[cfg(all(test, owlet_site = "toggle"))]
mod site_tests;
mod sync;
mod tracepoint;

pub use agent::{InitError, init, unreachable};
#[cfg(feature = "log")]
pub use bridge::log;
#[cfg(feature = "tracing")]
pub use bridge::tracing;
pub use encoder::{CSTR_MAX, Encoder, INLINE, PARTS, SCRATCH};
pub use error::{RegisterError, SynchronizeError, UnregisterError};
pub use fields::{BytesPtr, CStrPtr, FieldValue, ScalarValue};
/// Programs on functions with [`#[traced]`](macro@traced).
pub use owlet_attach as attach;
pub use owlet_macros::traced;
pub use owlet_wire::schema::{Kind, Level};
pub use probe::Probe;
pub use site::Refused;
pub use tracepoint::{Core, Hooks, Tracepoint};

/// Waits until no probe that was unregistered before the call can run any more. One grace period,
/// however many there were.
///
/// # Errors
/// [`SynchronizeError`]: inside a probe or a hook it would wait for itself; nothing was waited for.
pub fn synchronize() -> Result<(), SynchronizeError> {
    control::synchronize()
}

/// What the waits for probes have cost so far.
#[must_use]
pub fn grace_periods() -> owlet_rcu::Stats {
    probe::PROBES.stats()
}

/// Probes that panicked and were switched off.
#[must_use]
pub fn panicked_probes() -> u64 {
    probe::PANICS.load(sync::atomic::Ordering::Relaxed)
}

/// For the macros.
#[doc(hidden)]
pub mod __private {
    pub use crate::tracepoint::run;
    pub use owlet_wire::schema::{FieldRef, Kind, Level, SchemaRef, TypeRef};

    #[cold]
    const fn cold() {}

    /// `on`, expected to be false.
    #[inline(always)]
    #[must_use]
    pub const fn unlikely(on: bool) -> bool {
        if on {
            cold();
        }
        on
    }
}
