//! Callbacks: what is to be done after a grace period, by somebody else.
//!
//! - `head`: what is queued, and that it is queued once.
//! - `queue`: posting without a lock, collecting, segments by cookie, barriers; modelled.
#[doc(hidden)]
pub mod head;
#[doc(hidden)]
pub mod queue;
