//! The restartable sequences of deferred free, or stand-ins that never commit.

use super::block::Block;

#[cfg(all(target_arch = "x86_64", not(owlet_portable)))]
#[path = "x86_64.rs"]
mod imp;

#[cfg(not(all(target_arch = "x86_64", not(owlet_portable))))]
#[path = "none.rs"]
mod imp;

pub(crate) use imp::{offer, pull, push, swap};

/// What is put into a block: one word or two, by its kind.
pub(crate) type Words = [usize; 2];

/// What became of a new block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Swap {
    /// It is in its place; this one was (null: there was none), and is the caller's now.
    Done(*mut Block),
    /// What is there is not used up.
    Room,
    /// No sequence may run here for the moment.
    Closed,
}
