//! User-space RCU on per-CPU counters.
//!
//! ```
//! use owlet_rcu::{PerCpuRwLock, Rcu, Srcu};
//!
//! static CONFIG: Srcu = Srcu::named("config"); // a domain: what sections belong to
//! static NAMES: PerCpuRwLock<Vec<&str>> = PerCpuRwLock::new(Vec::new());
//!
//! let limit = Rcu::with_domain(10, &CONFIG);
//! let section = CONFIG.read(); // never waits
//! let seen = limit.read(&section); // lives as long as the section
//! limit.replace(20).retire(); // never waits for `section`: the old value is freed later
//! assert_eq!((*seen, *limit.read(&section)), (10, 20));
//! drop(section);
//!
//! NAMES.write().push("first"); // waits for readers, as any lock
//! assert_eq!(NAMES.read().len(), 1);
//! ```
//!
//! Readers mark the *sections* in which they use shared data. An updater unpublishes something, waits
//! for a *grace period* (every section that was running when it asked has ended) and then frees it, or
//! leaves both to the library (`retire`). Readers pay a few nanoseconds and never block; updaters pay the
//! rest.
//!
//! `docs/guide.md` is the guide: which flavour, how to wait, how to free later, what is allowed where.
//! `examples` has short programs to copy from: `cargo run -p owlet-rcu --example cell`.
//!
//! # Flavours
//! | flavour | type | readers | who may delay a grace period |
//! |---|---|---|---|
//! | SRCU | [`Srcu`] | any thread, any context; may sleep, move between threads, live across `.await` | sections of the same domain |
//! | classic SRCU | [`ClassicSrcu`] | the same, and sections begin and end with full barriers | sections of the same domain |
//! | QSBR | [`Qsbr`] | registered threads; reading is free, but they must say when they are between two uses | online threads |
//! | Tasks | [`Tasks`] | registered threads, wherever they are in their code between two voluntary points | online threads |
//! | Tasks-Trace | [`TasksTrace`] | any thread; may sleep; nested sections count in a thread-local word | sections of the same domain |
//!
//! The crate is useful alone and knows nothing of tracing.
//!
//! # Where to look
//! | you want | see |
//! |---|---|
//! | a shared value that is replaced as a whole | [`Rcu`], [`Retired`], [`domain!`] |
//! | to wait, to be told later, statistics | [`Domain`], [`Cookie`], [`wait_all`], [`Synchronize`] |
//! | something freed later, in bounded memory | [`Srcu::retire`], [`free`] |
//! | something done later | [`Srcu::call`], [`callback`] |
//! | a read-mostly lock | [`PerCpuRwLock`], [`rwlock`]; what it is made of: [`RcuSync`] |
//! | to find out who is in the way | [`stall`], [`check`] |
//!
//! # Modules
//! - `engine`: every flavour's grace periods: who runs them, who waits how, what is counted. `turns`:
//!   sequence number and leader. [`expedite`], [`stall`]: two switches, and reports.
//! - `protocol`: when is an SRCU grace period over? Over a trait, so that the loom models run the
//!   very code that ships. `gate`: how a thread sleeps until another has finished something.
//! - `seq`: sequence numbers and cookies. `held`: whose sections, for forks. `sections`: whose, for
//!   reports.
//! - `worker`: the thread that brings about what nobody waits for. `link`: how work gets to it.
//!   `future`: grace periods to `.await`.
//! - [`callback`]: what is to be done after a grace period, by the worker. [`cell`]: a value tied to a
//!   domain.
//! - [`free`]: objects that are freed together, after a grace period.
//! - `srcu`: the domain (`srcu`), its memory (`srcu::block`), its part of grace periods
//!   (`srcu::grace`).
//! - `qsbr`, `tasks`: flavours whose threads register. `quiescent`: when is their grace period over?
//!   `registry`: the threads. `roster`: a domain of theirs.
//! - [`rcu_sync`]: readers that are fast until somebody needs them slow. [`rwlock`]: a reader-writer lock
//!   of such readers.
//! - [`check`]: waits that could never end, in debug builds.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

// The code in the guide is tested.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide.md")]
struct Guide;

// By the name that the tests outside use.
#[cfg(all(test, not(loom)))]
extern crate self as owlet_rcu;

pub mod callback;
#[cfg(not(loom))]
pub mod cell;
#[cfg(not(loom))]
pub mod check;
#[cfg(all(test, not(loom)))]
#[path = "../tests/common/mod.rs"]
mod common;
#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
pub mod expedite;
pub mod free;
#[cfg(not(loom))]
mod future;
#[doc(hidden)]
pub mod gate;
#[cfg(not(loom))]
mod held;
#[doc(hidden)]
pub mod link;
#[doc(hidden)]
pub mod protocol;
#[cfg(not(loom))]
mod qsbr;
#[doc(hidden)]
pub mod quiescent;
pub mod rcu_sync;
#[doc(hidden)]
pub mod registry;
#[cfg(not(loom))]
mod roster;
pub mod rwlock;
#[cfg(not(loom))]
mod sections;
#[doc(hidden)]
pub mod seq;
#[cfg(not(loom))]
mod srcu;
#[cfg(not(loom))]
pub mod stall;
#[cfg(not(loom))]
pub mod tasks;
#[doc(hidden)]
pub mod turns;
#[cfg(not(loom))]
mod worker;

pub use callback::{Callback, CallbackStats, Head};
#[cfg(not(loom))]
pub use cell::{Rcu, Retired, Section, StaticDomain};
#[cfg(not(loom))]
pub use domain::Domain;
#[cfg(not(loom))]
pub use engine::{EngineRef, Holder, Stats, heavy_fences, wait_all, wait_all_expedited};
#[cfg(not(loom))]
pub use future::Synchronize;
#[cfg(not(loom))]
pub use qsbr::{Online, Qsbr, QsbrGuard, Reader};
#[cfg(not(loom))]
pub use rcu_sync::RcuSync;
#[cfg(not(loom))]
pub use rwlock::PerCpuRwLock;
pub use seq::{Cookie, FullCookie};
#[cfg(not(loom))]
pub use srcu::{
    ClassicGuard, ClassicSrcu, RawSection, Srcu, SrcuGuard, after_lock_fence, after_unlock_fence,
};
#[cfg(not(loom))]
pub use tasks::{Task, Tasks, TasksTrace, TraceGuard};
