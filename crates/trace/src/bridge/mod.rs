//! Bridges: the call sites a program already has become tracepoints.
//!
//! | module | owns |
//! |---|---|
//! | `tracing` | spans and events of the `tracing` crate (feature `tracing`, `layer`) |
//! | `log` | records of the `log` crate (feature `log`) |
//! | `shape` | one call site's tracepoints: typed variants, and one for everything else |
//! | `payload` | one event's values, formatted into a bounded buffer on the stack |
//! | `table` | call site to its state, without a lock |
//! | `stack` | the spans a thread is in |
//! | `hub` | telling both worlds that something was switched |
//!
//! A bridge formats first, into memory of its own, and emits then: see the rules of
//! [`registry`](crate::registry).

mod hub;
#[cfg(feature = "log")]
pub mod log;
mod payload;
mod shape;
mod stack;
mod table;
#[cfg(feature = "tracing")]
pub mod tracing;
