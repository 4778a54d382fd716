//! The trace directory: CTF 1.8, append and read.
//!
//! A trace is a directory:
//!
//! | file | holds |
//! |---|---|
//! | `metadata` | the CTF description (TSDL text), for other readers |
//! | `cpu_N`, `portable_N` | one stream of packets for each ring |
//! | `threads` | thread and process records as CTF events, for other readers |
//! | `.owlet` | the same facts for our own reader: schemas, threads, processes, clock, losses |
//!
//! Everything is appended, whole packets and whole records only; a killed recorder leaves at most
//! one partial packet at the end of each stream, which [`TraceReader`] tolerates and reports and
//! [`recover()`] cuts off. Of a damaged stream, whole packets behind the damage are read and kept. Our
//! reader needs no TSDL as long as the sidecar is whole. The orderly end notes what each file holds, so that what is missing later
//! is told, and while a trace is being recorded its `.owlet` is locked (`flock`).
//!
//! | module | owns |
//! |---|---|
//! | [`meta`] | what a trace says of itself: clock, host, stream names, losses |
//! | [`error`] | what can go wrong, where, and what to do |
//! | [`writer`] | appending |
//! | [`reader`] | reading |
//! | `recover` | cutting what a killed recorder left |
//! | `packet`, `stream`, `walk` | the packet's bytes; records into packets; packets out of files |
//! | `tsdl`, `described` | the metadata text; what can be learnt from it when the sidecar is damaged |
//! | `sidecar` | `.owlet` |
//! | `file` | appending whole units |

mod described;
pub mod error;
mod events;
mod file;
mod loss;
pub mod meta;
mod packet;
pub mod reader;
mod recover;
mod sidecar;
mod stream;
#[cfg(test)]
mod tests;
mod tsdl;
mod walk;
pub mod writer;

pub use error::{ErrorKind, StoreError};
pub use loss::{CORRUPT, NOT_WRITTEN, REMOVED, UNKNOWN_CAUSE, cause_text};
pub use meta::{ClockInfo, ClockKind, Loss, Recorder, StreamKind, StreamName, TraceMeta};
pub use reader::{
    EventReader, Problem, ProcessRecord, RawEvent, StreamInfo, ThreadRecord, TraceReader,
};
pub use recover::{Cut, Recovered, recover};
pub use writer::{Appended, MALFORMED, PacketInfo, Summary, TraceWriter};
