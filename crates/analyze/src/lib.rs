//! Merge, spans and statistics over a recorded trace.
//!
//! Everything here is a function of the recorded bytes: no clock is read, nothing is written, no
//! thread is started. A [`Trace`] holds what does not change while reading (schemas, threads,
//! processes, clock, losses); [`Trace::events`] walks the events of all streams in time order and
//! borrows every byte of them, so that a trace of any size is read in the memory of one packet per
//! stream.
//!
//! ```no_run
//! # fn main() -> Result<(), owlet_analyze::Error> {
//! let trace = owlet_analyze::Trace::open("trace-dir".as_ref())?;
//! let mut line = owlet_analyze::text::Line::default();
//! let mut events = trace.events()?;
//! while let Some(event) = events.next_event() {
//!     print!("{}", line.render(&event));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | module | owns |
//! |---|---|
//! | [`trace`] | a trace opened: what does not change while reading, the clock, losses, problems |
//! | [`source`] | where records come from: the store's directory, or memory |
//! | [`build`] | a trace built in memory, record by record |
//! | [`merge`] | the streams as one sequence by time |
//! | [`event`] | one event and its decoded fields |
//! | [`escape`] | text of the target made safe for a terminal |
//! | [`text`], [`json`] | one event as a line of text, as aligned fields, as one JSON object |
//! | [`spans`] | spans paired by id, their durations, and whether they nest on one thread |
//! | [`stats`] | counts, rates and latency percentiles by name |
//!
//! Text that came from the target is never trusted: it may hold any byte. Lengths are checked by
//! [`owlet_wire::value`]; what does not decode is shown as malformed and counted, never guessed.

pub mod build;
pub mod escape;
pub mod event;
pub mod json;
pub mod merge;
pub mod source;
pub mod spans;
pub mod stats;
pub mod text;
pub mod trace;

pub use event::Event;
pub use merge::Events;
pub use stats::Stats;
pub use trace::{Error, Trace};
