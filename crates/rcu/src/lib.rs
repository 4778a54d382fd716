//! User-space RCU on per-CPU counters.
//!
//! Readers mark the sections in which they use shared data; an updater unpublishes something, waits
//! for a *grace period* (every section that was running when it asked has ended) and then frees it.
//! Readers pay about a nanosecond, never block, and never register; updaters pay the rest.
//!
//! | flavour | type | readers | who may delay a grace period |
//! |---|---|---|---|
//! | SRCU | [`Srcu`] | any thread, any context; may sleep, move between threads, live across `.await` | sections of the same domain |
//!
//! The crate is useful alone and knows nothing of tracing.
//!
//! # Modules
//! - `srcu`: the domain (`srcu`), its memory (`srcu::block`), its grace periods (`srcu::grace`), and
//!   what happens to it in a forked child (`srcu::fork`).
//! - `protocol`: when is a grace period over? The algorithm, over a trait, so that the loom models
//!   run the very code that ships.
//! - `gate`: how a thread sleeps until another has finished something, likewise over a trait.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[doc(hidden)]
pub mod gate;
#[doc(hidden)]
pub mod protocol;
#[cfg(not(loom))]
mod srcu;

#[cfg(not(loom))]
pub use srcu::{Cookie, Srcu, SrcuGuard, SrcuStats};
