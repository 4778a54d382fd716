//! Exporters of a recorded trace.
//!
//! Each takes an open [`Trace`](owlet_analyze::Trace) and writes one file's bytes to any
//! [`Write`](std::io::Write), as a stream: memory does not grow with the number of events.
//!
//! | module | writes |
//! |---|---|
//! | [`perfetto`] | the protobuf trace format of Perfetto |

pub mod perfetto;
