//! `rcu_sync`: readers are fast until somebody needs them slow, and again some time after.
//!
//! A reader asks, inside a reader of some kind of grace periods, whether the state is *idle*; if so it
//! may take a short cut that nobody can exclude. Who has to exclude the short cut enters: if the state
//! was idle, a grace period passes, and from then on every reader finds that it is not. The last to exit
//! does not wait: some time after, when a grace period has passed in which nobody entered, readers are
//! fast again. So writers that follow each other closely wait for one grace period in all.
//!
//! The kernel's is kernel/rcu/sync.c (Oleg Nesterov, 2015, "Add rcu_sync infrastructure to avoid
//! `_expedited()` in percpu-rwsem"). Here the grace period at the end has no callback: its cookie is
//! polled by whoever finds the state not idle. So nothing refers to an [`RcuSync`] but its users, it can
//! be moved and be a constant, and there is one cookie however many writers there were.
//!
//! # Modules
//! - `machine`: the states, as functions of a value.
//! - `word`: the word and the cookie, and waiting (modelled).
//! - `grace`: which grace periods.
//!
//! # What is proved where
//! Every interleaving of the transitions of three threads that enter and exit twice, with grace periods
//! that end at any time: `machine_tests.rs`. Memory order, with three threads: `tests/loom.rs`. Real
//! readers, membarriers and signals: `owlet-torture rwlock`.

#[cfg(not(loom))]
mod enter;
pub mod grace;
#[doc(hidden)]
pub mod machine;
#[cfg(not(loom))]
mod sync;
#[doc(hidden)]
pub mod word;

#[cfg(not(loom))]
pub use enter::{Enter, Slow};
#[cfg(not(loom))]
pub use sync::{RcuSync, SyncStats};
