//! The processor's part: the push as a restartable sequence, where there is one.

#[cfg(any(not(target_arch = "x86_64"), owlet_portable))]
#[path = "none.rs"]
mod imp;
#[cfg(all(target_arch = "x86_64", not(owlet_portable)))]
#[path = "x86_64.rs"]
mod imp;

pub(crate) use imp::{Part, SEQUENCES, push_parts, push_words};

/// What a section needs to know of the rings. Made once; the fields' offsets go into the assembly.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Rings {
    /// The thread's rseq area, counted from the thread pointer.
    pub(crate) area: isize,
    /// Control block of ring 0.
    pub(crate) controls: *mut u8,
    /// Data of ring 0.
    pub(crate) data: *mut u8,
    /// Rings there are.
    pub(crate) cpus: usize,
    /// From one ring's data to the next's: twice the ring size, since each is mapped twice.
    pub(crate) stride: usize,
    /// Ring size, a power of two.
    pub(crate) size: usize,
}

/// How a section ended.
#[cfg_attr(
    any(not(target_arch = "x86_64"), owlet_portable),
    expect(dead_code, reason = "without sequences there is one outcome")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The record is there.
    Committed {
        /// Address of the ring's control block.
        control: usize,
        /// Position after the record.
        head: u64,
    },
    /// The ring has no room.
    Full {
        /// Address of the ring's control block.
        control: usize,
    },
    /// This thread has no registered area, or runs on a CPU the segment has no ring for.
    NoCpu,
}
