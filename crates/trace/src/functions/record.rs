//! Calls into the rings of a session.
//!
//! # A call, in steps
//! 1. Entry: one level deeper in events (too deep is counted as lost to recursion), the gate, the time; the
//!    entry's event if it is wanted.
//! 2. Exit: the level, the time since, the gate if it waits for the exit; the exit's event.
//!
//! What is lost is counted as for tracepoints: by the ring (full), here (too large, recursion).
//!
//! # The number of a call
//! Entry and exit share one word, which is the call's span as well: nanoseconds since the recording began,
//! 46 bits, before the 18 low bits of the thread's number. Two calls of one thread do not begin in the same
//! nanosecond, since reading the clock takes longer; two threads whose numbers differ by a multiple of 2^18
//! may share a span. A call that lasts longer than 19.5 hours has a duration modulo that.

use super::fields::{
    self, FIELD_DURATION, FIELD_PARENT, FIELD_PHASE, FIELD_RET, FIELD_SPAN, put_args, put_end,
};
use super::gate::{Gate, put_late};
use super::{Counts, Refusal};
use crate::context::{self, Context, DEPTH};
use crate::encoder::Encoder;
use crate::session::{Session, describe_function};
use crate::sink::SinkPoint;
use owlet_attach::{AtExit, Call, Function, Program};
use owlet_ring::Loss;
use owlet_sys::clock::monotonic_ns;
use owlet_wire::filter::Filter;
use owlet_wire::functions::{Moments, RETURN};
use owlet_wire::schema::{FieldRef, Kind, Level, SchemaRef};
use std::sync::Arc;

/// Bits of a call's number that are its thread's.
const TID_BITS: u32 = 18;

/// The native program that records.
pub(super) struct Recorder {
    session: Arc<Session>,
    moments: Moments,
    /// The clock when the recording began.
    base: u64,
    points: Box<[Point]>,
    counts: Counts,
}

/// One function.
struct Point {
    gate: Gate,
    entry: Option<SinkPoint>,
    exit: Option<SinkPoint>,
}

/// One level of events; see `context`.
struct Inside<'c>(&'c Context);

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A program that records calls of `functions`, which find themselves by their number as cookie.
pub(super) fn program(
    session: Arc<Session>,
    functions: &[&'static Function],
    moments: Moments,
    filter: Option<&Filter>,
) -> Result<(Program, Arc<Recorder>), Refusal> {
    let mut points = Vec::with_capacity(functions.len());
    for function in functions {
        points.push(point(&session, function, moments, filter)?);
    }
    if points.iter().all(|point| point.entry.is_none() && point.exit.is_none()) {
        return Err(nothing_passes(functions));
    }
    let counts = Counts::new(functions.len())?;
    // So that no call has the number 0.
    let base = monotonic_ns().saturating_sub(1 << 30);
    let points = points.into_boxed_slice();
    let recorder = Arc::new(Recorder { session, moments, base, points, counts });
    let (of_entry, of_exit) = (Arc::clone(&recorder), Arc::clone(&recorder));
    let builder = if moments == Moments::Entry {
        Program::entry(move |call| {
            of_entry.enter(call);
        })
    } else {
        Program::session(move |call| of_entry.enter(call), move |call| of_exit.exit(call))
    };
    Ok((builder.reentrant().named("record").build(), recorder))
}

/// Why the filter leaves nothing.
pub(super) fn nothing_passes(functions: &[&'static Function]) -> Refusal {
    let mut names: Vec<_> = functions.iter().flat_map(|f| fields::names(f)).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(12);
    let message = "the filter can hold for no call of the functions that match";
    Refusal::new(
        message,
        format!("their fields are: {}; at the exit also ret, phase, duration_ns", names.join(", ")),
    )
}

fn point(
    session: &Arc<Session>,
    function: &'static Function,
    moments: Moments,
    filter: Option<&Filter>,
) -> Result<Point, Refusal> {
    let gate = Gate::new(function, filter);
    if matches!(gate, Gate::Shut) {
        return Ok(Point { gate, entry: None, exit: None });
    }
    if gate.is_late() && matches!(moments, Moments::Entry | Moments::Both) {
        let message =
            "the filter asks for what is known at the end of a call, and entries are wanted";
        return Err(Refusal::new(message, "use --exit or --latency with it"));
    }
    let names = fields::names(function);
    let params = || fields::params(&names);
    let returned = format!("{}{RETURN}", function.name());
    let sink = |name: &str, kind, fields: Vec<FieldRef<'_>>| {
        let (file, line) = function.place();
        let doc = "call of a traced function";
        let (level, fields) = (Level::Info, fields.as_slice());
        let schema = SchemaRef { name, kind, level, file, line, doc, fields };
        let full = || {
            let hint = "attach to fewer functions";
            Refusal::new("the session has no room for the descriptions of the functions", hint)
        };
        describe_function(session, schema).ok_or_else(full).map(Some)
    };
    let end = [FIELD_RET, FIELD_PHASE];
    let (entry, exit) = match moments {
        Moments::Latency => {
            let begin = [FIELD_SPAN, FIELD_PARENT].into_iter().chain(params()).collect();
            let close = [FIELD_SPAN, FIELD_DURATION].into_iter();
            let args = params().filter(|_| gate.is_late());
            let close = close.chain(args).chain(end).collect();
            let entry = match gate.is_late() {
                true => None,
                false => sink(function.name(), Kind::SpanNew, begin)?,
            };
            (entry, sink(function.name(), Kind::SpanClose, close)?)
        }
        _ => {
            let at_entry = moments != Moments::Exit;
            let at_exit = moments != Moments::Entry;
            let all = params().chain(end).chain([FIELD_DURATION]).collect();
            let entry = match at_entry {
                true => sink(function.name(), Kind::Event, params().collect())?,
                false => None,
            };
            (entry, if at_exit { sink(&returned, Kind::Event, all)? } else { None })
        }
    };
    Ok(Point { gate, entry, exit })
}

impl Recorder {
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts events that are too deep inside others.
    #[cold]
    fn too_deep_slow(&self, events: usize) {
        (0..events).for_each(|_| self.session.writer.count_loss(Loss::Recursion));
    }

    fn enter(&self, call: &Call<'_>) -> AtExit {
        let number = call.cookie() as usize;
        let Some(point) = self.points.get(number) else { return AtExit::Skip };
        context::with(|context| {
            let depth = context.enter();
            let _inside = Inside(context);
            if depth >= DEPTH {
                let both = [&point.entry, &point.exit];
                self.too_deep_slow(both.into_iter().flatten().count());
                return AtExit::Skip;
            }
            if !point.gate.enter(context, call) {
                return AtExit::Skip;
            }
            let word = if self.moments == Moments::Entry { 0 } else { self.begin(context) };
            call.set_session(word);
            if let Some(sink) = &point.entry {
                let mut payload = Encoder::new();
                if self.moments == Moments::Latency {
                    payload.put(word.to_le_bytes());
                    payload.put([0; 8]);
                }
                put_args(call, &mut payload);
                sink.record(context, &payload);
            }
            if !point.gate.is_late() {
                self.counts.add(number);
            }
            AtExit::Run
        })
    }

    fn exit(&self, call: &Call<'_>) {
        let number = call.cookie() as usize;
        let Some(Point { gate, exit: Some(sink), .. }) = self.points.get(number) else { return };
        context::with(|context| {
            let depth = context.enter();
            let _inside = Inside(context);
            if depth >= DEPTH {
                return self.too_deep_slow(1);
            }
            let duration = self.since(call.session());
            if !gate.exit(context, call, duration) {
                return;
            }
            if gate.is_late() {
                self.counts.add(number);
            }
            let mut payload = Encoder::new();
            match self.moments {
                Moments::Latency if gate.is_late() => {
                    put_late(call, call.session(), duration, &mut payload);
                }
                Moments::Latency => {
                    payload.put(call.session().to_le_bytes());
                    payload.put(duration.to_le_bytes());
                    put_end(call, &mut payload);
                }
                _ => {
                    put_args(call, &mut payload);
                    put_end(call, &mut payload);
                    payload.put(duration.to_le_bytes());
                }
            }
            sink.record(context, &payload);
        });
    }

    /// The number of a call that begins now.
    #[inline]
    fn begin(&self, context: &Context) -> u64 {
        let (_, tid) = context.ids();
        let now = monotonic_ns().wrapping_sub(self.base);
        now << TID_BITS | u64::from(tid) & ((1 << TID_BITS) - 1)
    }

    /// Nanoseconds since the call of that number began.
    #[inline]
    fn since(&self, word: u64) -> u64 {
        let now = monotonic_ns().wrapping_sub(self.base);
        now.wrapping_sub(word >> TID_BITS) & (u64::MAX >> TID_BITS)
    }
}
