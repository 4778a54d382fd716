//! What every benchmark shares.
//!
//! A benchmark is a parent that measures and workers that are measured. Workers are processes of
//! their own (this program again, or a peer's), stay alive for the whole benchmark and serve runs
//! on request, so that the runs of all contenders can be interleaved: A B C A B C. The protocol is
//! lines of text ([`serve`]), simple enough for a peer written in C.
//!
//! Time is thread CPU time, taken by the measured thread itself around its loop. Instructions,
//! locked instructions and system calls are counted by single-stepping a worker ([`step`]), system
//! calls over long runs by a seccomp filter ([`syscalls`]).

pub(crate) mod contenders;
pub(crate) mod cycles;
pub(crate) mod inner;
pub(crate) mod machine;
pub(crate) mod report;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod stats;
pub(crate) mod step;
pub(crate) mod syscalls;
pub(crate) mod trace;
pub(crate) mod worker;
