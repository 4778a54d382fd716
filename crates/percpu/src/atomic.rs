//! The atomics of modelled code: the standard ones, or loom's under `cfg(loom)`.
//!
//! Code with a loom model takes its atomics from here and orders with fences rather than with
//! `SeqCst` accesses, which loom treats as `AcqRel`.

#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize, Ordering, compiler_fence, fence,
};
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize, Ordering, fence,
};

/// Under loom a compiler barrier orders nothing, and every access is in program order anyway.
#[cfg(loom)]
pub fn compiler_fence(_: Ordering) {}
