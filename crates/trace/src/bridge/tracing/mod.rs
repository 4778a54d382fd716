//! Records the spans and events of the [`tracing`](https://docs.rs/tracing) crate.
//!
//! # One line
//! | the program has | add |
//! |---|---|
//! | no subscriber | `owlet::tracing::init()?;` |
//! | one it builds itself, of any kind | `owlet::tracing::init_with(subscriber)?;` instead of setting it |
//! | a stack of `tracing-subscriber` 0.3 layers | `.with(owlet::tracing::layer())` and `owlet::init()?;` (feature `layer`) |
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! owlet::tracing::init()?;
//! tracing::info!(answer = 42, "ready");
//! # Ok(()) }
//! ```
//!
//! This stands on `tracing-core` 0.1, so it works beside `tracing-subscriber` 0.2 and 0.3 and anything
//! else that implements its `Subscriber`. With `tracing-subscriber`, build with `.finish()` what was
//! set with `.init()`, and hand it to [`init_with`]. `.init()` also turned `log` records into events:
//! with the feature `log`, `owlet::log::init_with(Box::new(tracing_log::LogTracer::new()), level)`
//! does that and records each under its own target; `tracing_log::LogTracer::init()` alone has
//! all of them recorded as `log:log event`.
//!
//! # What things are called
//! | `tracing` | tracepoint | kind |
//! |---|---|---|
//! | an event | `TARGET:FILE.rs:LINE`, such as `mini_redis::server:server.rs:151` | `SpanEvent` |
//! | an event with a name of its own | `TARGET:NAME` | `SpanEvent` |
//! | a span | `TARGET:SPAN`, such as `mini_redis::server:run` | one name for `SpanNew`, `SpanEnter`, `SpanExit`, `SpanClose`, `SpanRecord` and `SpanFollows` |
//!
//! So `mini_redis::*` matches everything below a module, and one name switches a span as a whole.
//! An event carries the number of the innermost recorded span it happens in, or of its explicit
//! parent; 0 when there is none. Numbers of spans are never used twice in a process, whatever the
//! subscriber's own ids do. `SpanClose` comes when the last handle is dropped (of a layer: when the
//! registry closes the span, after its children) and says how long the span lived.
//!
//! # Types
//! | value | recorded as |
//! |---|---|
//! | `u8`..`u64`, `usize` | `u64` |
//! | `i8`..`i64`, `isize` | `i64` |
//! | `f32`, `f64` | `f64` |
//! | `bool`, `str`, bytes | the same |
//! | `u128`, `i128` | decimal text |
//! | errors, `%display`, `?debug`, the message | text |
//! | nothing (`Empty`, `None`) | left out |
//!
//! The first event with a new combination of types costs some microseconds and memory, for its
//! description; a call site has four typed descriptions, then one for all other combinations, whose
//! fields say their type each time. All values of one event have 4 KiB together: text beyond is cut and
//! ends with an ellipsis. Fields after the 64th are left out.
//!
//! # What is on, and what it costs
//! While nobody records, a call site's interest is `never` (or what the inner subscriber says): one
//! load and a branch, no call. Switching makes `tracing` ask every call site again. On an AMD Zen 4 VM,
//! 2026-11-30, one thread: instructions of the whole call, `tracing`'s own dispatch included (145 for an
//! event of one field), by `examples/bridge_count` under callgrind, as in
//! `bench/results/bridge-instructions-2026-11-30.txt`; nanoseconds of CPU time by
//! `cargo run --release -p owlet --features tracing,log --example bridge_cost`, least and most of five runs
//! while the machine was busy with other work:
//!
//! | | instructions | ns |
//! |---|---|---|
//! | event or span, off | 11 | 1 |
//! | event recorded, one `u64` | 495 | 43 |
//! | event recorded, two `u64` and a text of 9 characters | 669 | |
//! | event recorded, a message | 683 | 57 to 72 |
//! | event recorded, `u64`, `bool`, short text and a message | 902 | 78 to 102 |
//! | span: new | 635 | |
//! | span: enter / exit | 312 / 325 | |
//! | span: close | 346 | |
//! | span recorded: new, enter, exit and close, four events in all | 1618 | 206 to 219 |
//! | the same, of a [`tee`] whose inner subscriber does not want them | | 219 to 260 |
//!
//! New and close read the monotonic clock besides, some 25 ns each, whose instructions are not counted.
//! A `Debug` implementation costs what it costs: a struct of three fields takes 2076 instructions to
//! format into a `String`, and an event of it 2492.
//!
//! Call sites become known when they are reached for the first time, recorded or not, so that they can
//! be listed and matched. For this the maximum level stays `TRACE` while nobody records;
//! [`Subscriber::discover`] trades that for 0.3 ns.
//!
//! # Switched in the middle
//! A span that was created while its tracepoint was off is not recorded afterwards either. A
//! `SpanExit` is recorded only when its `SpanEnter` was. Nothing is ever paired with what it does not
//! belong to.
//!
//! # Fields that do something
//! A `Debug` implementation may emit events, lock, allocate, block and panic: nothing of ours is held
//! while it runs. Events inside events inside events are recorded four deep, further ones are counted
//! as lost to recursion. A panic ends in the record: the text so far, then `<panicked>`, and the other
//! fields follow. The program goes on as if nobody recorded, but its panic hook has run, and nothing can
//! be done where panics abort (`panic = "abort"`). An inner subscriber that formats the field as well
//! panics as it does without us. Neither `tracing` nor this is to be used in signal handlers;
//! [`trace!`](crate::trace) is.
//!
//! # Different from `tracing-subscriber`
//! - No filter of its own: sessions switch by pattern and level, from outside.
//! - The disabled cost is the static one, also with a dynamic filter in an inner subscriber that is
//!   not asked about what it never wants.
//! - A [`Tee`] shows the inner subscriber what it would see without us and nothing else;
//!   `Span::current()` is the inner subscriber's current span if it has one.
//! - A [`layer`] goes into a stack whose other layers have their own filters (`with_filter`): a filter
//!   that is a layer itself (`registry().with(EnvFilter)..`) filters for us too. Use [`tee`] then.

#[cfg(feature = "layer")]
mod layer;
mod live;
mod recorder;
mod shape;
mod site;
mod spans;
mod stack;
mod subscriber;
mod tee;
mod visit;

#[cfg(test)]
mod tests;

pub use super::start::{InitError, Seat};
#[cfg(feature = "layer")]
pub use layer::{OwletLayer, Recording, Switch};
pub use subscriber::Subscriber;
pub use tee::Tee;

use super::start::start;
use crate::registry::Change;
use crate::sync::atomic::{AtomicUsize, Ordering};
use tracing_core::dispatcher::{self, Dispatch};
use tracing_core::metadata::LevelFilter;

#[cfg(feature = "log")]
pub(crate) use stack::innermost;

/// A subscriber that records into Owlet sessions and does nothing else.
///
/// Ids of spans are never used twice. Memory: 40 bytes a span, while it is alive.
#[must_use]
pub fn subscriber() -> Subscriber {
    Subscriber::new()
}

/// `inner`, and recording beside it. See [`Tee`] and the module.
#[must_use]
pub fn tee<S: tracing_core::Subscriber>(inner: S) -> Tee<S> {
    Tee::new(inner)
}

/// A layer that records, for a `tracing-subscriber` 0.3 registry whose other layers have filters of
/// their own.
#[cfg(feature = "layer")]
#[must_use]
pub fn layer<S>() -> OwletLayer<S>
where
    S: tracing_core::Subscriber + for<'span> tracing_subscriber::registry::LookupSpan<'span>,
{
    layer::new()
}

/// [`owlet::init`](crate::init()), and [`subscriber`] as the global default, whether the agent started
/// or is switched off.
///
/// # Errors
/// [`InitError`]; the program can go on.
pub fn init() -> Result<(), InitError> {
    set_global(Dispatch::new(subscriber()))
}

/// [`owlet::init`](crate::init()), and [`tee`] around `inner` as the global default, whether the agent
/// started or is switched off: `inner` gets what it would get without us.
///
/// # Errors
/// [`InitError`]; the program can go on. When it is [`InitError::Taken`], `inner` is dropped.
pub fn init_with(
    inner: impl tracing_core::Subscriber + Send + Sync + 'static,
) -> Result<(), InitError> {
    set_global(Dispatch::new(tee(inner)))
}

fn set_global(dispatch: Dispatch) -> Result<(), InitError> {
    start(Seat::Subscriber, || dispatcher::set_global_default(dispatch).is_ok())
}

/// Subscribers in use that do not discover.
static HIDING: AtomicUsize = AtomicUsize::new(0);

/// What one of our subscribers says of the maximum level.
#[derive(Debug)]
pub(crate) struct Discover(bool);

impl Discover {
    fn new(discover: bool) -> Self {
        let mut new = Self(true);
        new.set(discover);
        new
    }

    fn set(&mut self, discover: bool) {
        match (self.0, discover) {
            (true, false) => HIDING.fetch_add(1, Ordering::Relaxed),
            (false, true) => HIDING.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        self.0 = discover;
    }

    /// `OFF` only when call sites need not become known and nobody records: a call site that has not
    /// been reached yet may be wanted as well.
    fn level(&self) -> LevelFilter {
        if self.0 || site::any() || crate::session::count() > 0 {
            LevelFilter::TRACE
        } else {
            LevelFilter::OFF
        }
    }
}

impl Drop for Discover {
    fn drop(&mut self) {
        self.set(true);
    }
}

/// Something was switched, or a session came or went.
pub(crate) fn changed(change: Change) {
    if change.dynamic > 0 || HIDING.load(Ordering::Relaxed) > 0 {
        live::rebuild();
    }
}
