//! Bridges: the call sites a program already has become tracepoints.
//!
//! | module | owns |
//! |---|---|
//! | [`tracing`] | spans and events of the `tracing` crate (features `tracing`, `layer`) |
//! | [`log`] | records of the `log` crate (feature `log`) |
//! | `point` | tracepoints made at run time |
//! | `payload` | one event's values, formatted into a bounded buffer on the stack |
//! | `table` | from a call site to its state, without a lock |
//! | `start` | the one line that starts a bridge, and why it may fail |
//! | `hub` | telling both worlds that something was switched |
//!
//! A bridge formats first, into memory of its own, and emits then: see the rules of
//! [`registry`](crate::registry).

mod hub;
#[cfg(feature = "log")]
pub mod log;
#[cfg_attr(
    not(feature = "tracing"),
    expect(dead_code, reason = "records of `log` have texts only")
)]
mod payload;
mod point;
mod start;
mod table;
#[cfg(feature = "tracing")]
pub mod tracing;

/// The innermost recorded span this thread is in; 0 when there is none.
#[cfg(feature = "log")]
fn current_span() -> u64 {
    #[cfg(feature = "tracing")]
    return tracing::innermost();
    #[cfg(not(feature = "tracing"))]
    return 0;
}
