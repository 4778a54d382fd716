//! What the macros must refuse. Only `cargo test --doc` compiles this.
//!
//! The same without a mistake, so that what fails below fails for the mistake's sake:
//!
//! ```
//! owlet::event_enum! { pub enum State: u8 { Idle = 0 } }
//! owlet::tracepoint! { pub mod demo { #[level(Debug)] tick(seq: u64, note: &str, now: State); } }
//! fn main() { owlet::trace!(demo::tick, 1, "two", State::Idle); }
//! ```
//!
//! A type that is no field's: "`Instant` cannot be a field of a tracepoint", and which types can.
//! ```compile_fail,E0277
//! owlet::tracepoint! { pub mod demo { tick(at: std::time::Instant); } }
//! ```
//!
//! An enum that `event_enum!` does not know: the same words, and how it is declared.
//! ```compile_fail,E0277
//! #[derive(Clone, Copy)]
//! pub enum State { Idle }
//! owlet::tracepoint! { pub mod demo { tick(now: State); } }
//! fn main() {}
//! ```
//!
//! A value of another enum than the field's: "mismatched types", at the argument.
//! ```compile_fail,E0308
//! owlet::event_enum! { pub enum State: u8 { Idle = 0 } }
//! owlet::event_enum! { pub enum Colour: u8 { Red = 0 } }
//! owlet::tracepoint! { pub mod demo { tick(now: State); } }
//! fn main() { owlet::trace!(demo::tick, Colour::Red); }
//! ```
//!
//! An argument of another type than its field: "mismatched types", at the argument.
//! ```compile_fail,E0308
//! owlet::tracepoint! { pub mod demo { tick(seq: u64, note: &str); } }
//! owlet::trace!(demo::tick, "one", "two");
//! ```
//!
//! A field without an argument: "this function takes 2 arguments but 1 argument was supplied".
//! ```compile_fail,E0061
//! owlet::tracepoint! { pub mod demo { tick(seq: u64, note: &str); } }
//! owlet::trace!(demo::tick, 1);
//! ```
//!
//! A tracepoint that was not declared: "cannot find `tock` in `demo`".
//! ```compile_fail,E0433
//! owlet::tracepoint! { pub mod demo { tick(seq: u64); } }
//! owlet::trace!(demo::tock, 1);
//! ```
//!
//! A level that does not exist: "no variant or associated item named `Loud`".
//! ```compile_fail,E0599
//! owlet::tracepoint! { pub mod demo { #[level(Loud)] tick(seq: u64); } }
//! ```
