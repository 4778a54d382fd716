//! Whether a call is wanted. A filter is about a call as a whole, and is asked once: at the entry if the
//! arguments decide, else at the exit, where everything is known.
//!
//! At the exit, arguments of text that the function took over are gone and count as absent.

use super::fields::{self, FIELD_DURATION, FIELD_PHASE, FIELD_RET, FIELD_SPAN};
use crate::context::Context;
use crate::encoder::Encoder;
use owlet_attach::{Call, Function};
use owlet_wire::filter::{Bound, Filter, Verdict};
use owlet_wire::functions::{DURATION, PHASE, RET};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::schema::{FieldRef, Kind, Level, SchemaRef};

/// The gate of one function.
#[derive(Debug)]
pub(super) enum Gate {
    /// Every call is wanted.
    Open,
    /// None is.
    Shut,
    /// The arguments decide.
    AtEntry(Bound),
    /// What is known at the exit decides.
    AtExit(Bound),
}

impl Gate {
    pub(super) fn new(function: &'static Function, filter: Option<&Filter>) -> Self {
        let Some(filter) = filter else { return Self::Open };
        let names = fields::names(function);
        let params: Vec<_> = fields::params(&names).collect();
        let (file, line) = function.place();
        let schema = |kind, fields: &[FieldRef<'_>]| {
            let (name, level, doc) = (function.name(), Level::Info, "");
            filter.bind_ref(&SchemaRef { name, kind, level, file, line, doc, fields })
        };
        let early = schema(Kind::Event, &params);
        let ours = |name: &String| [RET, PHASE, DURATION].contains(&name.as_str());
        let late = filter.asks_duration() || early.missing().iter().any(ours);
        let bound = if late {
            let mut all = vec![FIELD_SPAN, FIELD_DURATION];
            all.extend(params);
            all.extend([FIELD_RET, FIELD_PHASE]);
            schema(Kind::SpanClose, &all)
        } else {
            early
        };
        match bound.verdict() {
            Verdict::Always => Self::Open,
            Verdict::Never => Self::Shut,
            Verdict::Depends if late => Self::AtExit(bound),
            Verdict::Depends => Self::AtEntry(bound),
        }
    }

    /// Whether it is decided at the exit.
    pub(super) const fn is_late(&self) -> bool {
        matches!(self, Self::AtExit(_))
    }

    /// At the entry: whether the call may be wanted.
    #[inline]
    pub(super) fn enter(&self, context: &Context, call: &Call<'_>) -> bool {
        match self {
            Self::Open | Self::AtExit(_) => true,
            Self::Shut => false,
            Self::AtEntry(bound) => {
                let mut payload = Encoder::new();
                fields::put_args(call, &mut payload);
                holds(bound, context, &payload)
            }
        }
    }

    /// At the exit of a call that was let in: whether it is wanted.
    #[inline]
    pub(super) fn exit(&self, context: &Context, call: &Call<'_>, duration: u64) -> bool {
        let Self::AtExit(bound) = self else { return true };
        let mut payload = Encoder::new();
        put_late(call, 0, duration, &mut payload);
        holds(bound, context, &payload)
    }
}

/// All that is known at the exit, as a span's end.
#[inline]
pub(super) fn put_late<'a>(call: &'a Call<'_>, span: u64, duration: u64, out: &mut Encoder<'a>) {
    out.put(span.to_le_bytes());
    out.put(duration.to_le_bytes());
    fields::put_args(call, out);
    fields::put_end(call, out);
}

#[inline(never)]
fn holds(bound: &Bound, context: &Context, payload: &Encoder<'_>) -> bool {
    let (pid, tid) = context.ids();
    let len = u32::try_from(RECORD_HEADER_LEN.saturating_add(payload.len())).unwrap_or(u32::MAX);
    let header = RecordHeader { time: 0, id: 0, len, pid, tid };
    payload.with_parts(|parts| bound.matches_parts(&header, parts, None))
}
