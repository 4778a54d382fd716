//! The two ways of writing a per-CPU word.
//!
//! `rseq` is the machine's restartable sequences, or a stand-in that never commits; `portable` is
//! atomics and always there. Nobody outside `counters` chooses between them.

pub(crate) mod portable;

#[cfg(all(target_arch = "x86_64", not(owlet_portable)))]
#[path = "x86_64.rs"]
pub(crate) mod rseq;

#[cfg(not(all(target_arch = "x86_64", not(owlet_portable))))]
#[path = "none.rs"]
pub(crate) mod rseq;
