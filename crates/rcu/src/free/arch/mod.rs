//! The two restartable sequences of deferred free, or a stand-in that never commits.

use super::block::Block;

#[cfg(all(target_arch = "x86_64", not(owlet_portable)))]
#[path = "x86_64.rs"]
mod imp;

#[cfg(not(all(target_arch = "x86_64", not(owlet_portable))))]
#[path = "none.rs"]
mod imp;

pub(crate) use imp::{push, swap};

/// What is put into a block: one word or two, by its kind.
pub(crate) type Words = [usize; 2];

/// What became of a new block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Swap {
    /// It is the CPU's open block; this one was (null: there was none), and is the caller's now.
    Done(*mut Block),
    /// The CPU has an open block with room.
    Room,
    /// No sequence may run here for the moment.
    Closed,
}
