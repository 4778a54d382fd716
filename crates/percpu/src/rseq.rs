//! What other crates need to write restartable sequences of their own (the ring's push).

pub use owlet_sys::rseq::{CPU_ID, CPU_ID_START, RSEQ_CS, SIGNATURE};

/// Bytes from the thread pointer to the rseq area, or 0 if the backend is not rseq.
///
/// A sequence must not run when this is 0: its stores would hit the thread control block.
#[doc(hidden)]
#[inline]
#[must_use]
pub fn area_offset() -> isize {
    crate::backend::rseq_offset().unwrap_or(0)
}
