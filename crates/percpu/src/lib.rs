//! Per-CPU words, restartable sequences and asymmetric fences.
//!
//! A *restartable sequence* (rseq) computes on the slot of the CPU it runs on and commits with one
//! store. If the kernel preempts, migrates or signals the thread before that store, it restarts the
//! sequence. So a per-CPU counter costs a plain increment, no lock prefix and no registration of
//! threads, and `kill -9` at any instruction leaves the old value or the new one.
//!
//! An *asymmetric fence* is two halves: [`fence::light`], which is a compiler barrier, and
//! [`fence::heavy`], a `membarrier(2)` that makes every running thread execute a full barrier. Put
//! the light half where there is traffic, the heavy one where there is time.
//!
//! # Backends
//! Where rseq or membarrier is missing (musl, old kernels, sandboxes that answer `ENOSYS` or
//! `EPERM`, `GLIBC_TUNABLES=glibc.pthread.rseq=0`), everything works through atomics instead. The
//! choice is made once per process ([`backend`]); [`backend_why`] says why.
//!
//! # Invariants
//! 1. A word is written either by restartable sequences or by atomic instructions, never by both: a
//!    plain increment between the load and the store of an atomic one would be lost. Every slot has
//!    two banks of words, and readers of a counter add both.
//! 2. No sequence runs with an rseq offset that did not come from the C library's symbols.
//! 3. A sequence compares its CPU number with the number of slots *inside* the sequence, as unsigned
//!    numbers: a thread that is not registered (negative) and a CPU beyond the slots both leave
//!    without a store, for the atomic bank.
//!
//! # Signal safety and fork
//! Everything here is async-signal-safe, the first use included. Backend and registrations survive
//! fork. In a `vfork` child, which runs on its parent's TLS without a registration of its own,
//! per-CPU words may lose increments; do nothing there but exec.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(not(loom))]
mod arch;
pub mod atomic;
mod backend;
#[cfg(not(loom))]
mod counters;
pub mod fence;
#[doc(hidden)]
pub mod planted;
pub mod rseq;
pub mod testpoint;

pub use backend::{
    Backend, Hot, backend, backend_unknown, backend_why, cpus, current_cpu, hot, next_generation,
};
#[cfg(not(loom))]
pub use counters::{Entered, PerCpuCounters, SLOT_SIZE, Slots, WORDS, increment_own};
