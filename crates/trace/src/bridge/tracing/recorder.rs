//! What subscriber, tee and layer have in common: spans and events of one subscriber, recorded.
//!
//! # Rules
//! 1. The user's code (`Debug` of a field) runs while the payload is built, before anything of ours
//!    is changed. A panic of it does not come further than the payload.
//! 2. A span that could not be entered into the table is not recorded at all.
//! 3. A span created while its tracepoints were off is never recorded, whatever is switched later. Of
//!    one created while they were on, what happens while they are off is missing, and nothing else.

use super::shape::Shape;
use super::site::{Points, Site, SpanPoints};
use super::spans::{Known, New, OURS, Spans};
use super::stack::{self, Entered};
use crate::bridge::payload::{Building, Payload};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use owlet_sys::clock::monotonic_ns;
use tracing_core::Event;
use tracing_core::span::{Attributes, Current, Id, Record};

/// Numbers of spans in traces; also the ids of spans that are ours alone.
static NEXT_SPAN: AtomicU64 = AtomicU64::new(1);
static NEXT_OWNER: AtomicU32 = AtomicU32::new(1);

/// A number that no span of this process had before.
pub(crate) fn next_span() -> u64 {
    NEXT_SPAN.fetch_add(1, Ordering::Relaxed)
}

/// The spans and events of one subscriber.
pub(crate) struct Recorder {
    pub(crate) spans: Spans,
    owner: u32,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { spans: Spans::new(), owner: NEXT_OWNER.fetch_add(1, Ordering::Relaxed) }
    }

    /// Records an event if its call site is on.
    #[inline]
    pub(crate) fn event(&self, site: &'static Site, event: &Event<'_>) {
        if let Points::Event(shape) = &site.points
            && shape.base.is_on()
            && !site.is_relayed()
        {
            self.event_on(shape, event);
        }
    }

    fn event_on(&self, shape: &'static Shape, event: &Event<'_>) {
        let Some(_building) = Building::enter() else { return shape.base.lose_slow() };
        let mut payload = Payload::new(shape.declared());
        payload.lead(self.context(event.parent(), event.is_contextual()));
        event.record(&mut payload);
        shape.emit(&mut payload);
    }

    /// The span something happens in; 0 when there is none.
    #[inline(always)]
    fn context(&self, explicit: Option<&Id>, contextual: bool) -> u64 {
        if contextual {
            return stack::top_span(self.owner);
        }
        explicit.map_or(0, |id| self.number_of(id))
    }

    /// What traces call a span; 0 when it is not recorded.
    #[inline(never)]
    fn number_of(&self, id: &Id) -> u64 {
        self.spans.find(id.into_u64()).map_or(0, |known| known.span)
    }

    /// Enters a span that the subscriber calls `id` into the table and records its creation, if its
    /// call site is on; otherwise, if it is [`OURS`], enters it as one that is not recorded.
    ///
    /// `number` is what traces call it. `false` when the table does not hold it.
    pub(crate) fn open(&self, id: &Id, number: u64, attrs: &Attributes<'_>, flags: u32) -> bool {
        let Some(site) = super::site::of(attrs.metadata()) else { return false };
        let id = id.into_u64();
        let Points::Span(points) = &site.points else { return false };
        if !site.is_on() {
            let new = New { span: 0, since: 0, site, flags };
            return flags & OURS != 0 && self.spans.insert(id, &new);
        }
        let since = monotonic_ns();
        let new = New { span: number, since, site, flags };
        if !points.new.base.is_on() {
            return self.spans.insert(id, &new);
        }
        let Some(_building) = Building::enter() else {
            points.new.base.lose_slow();
            return self.spans.insert(id, &new);
        };
        let mut payload = Payload::new(points.new.declared());
        payload.lead(number);
        payload.lead(self.context(attrs.parent(), attrs.is_contextual()));
        attrs.record(&mut payload);
        let held = self.spans.insert(id, &new);
        if held {
            points.new.emit(&mut payload);
        }
        held
    }

    pub(crate) fn record(&self, known: &Known<'_>, values: &Record<'_>) {
        let Some(points) = recorded(known) else { return };
        let shape = &points.record;
        shape.base.ensure();
        if !shape.base.is_on() {
            return;
        }
        let Some(_building) = Building::enter() else { return shape.base.lose_slow() };
        let mut payload = Payload::new(shape.declared());
        payload.lead(known.span);
        values.record(&mut payload);
        shape.emit(&mut payload);
    }

    /// `known` was caused by `cause`; nothing when one of them is not recorded.
    pub(crate) fn follows(&self, known: &Known<'_>, cause: &Known<'_>) {
        let Some(points) = recorded(known) else { return };
        points.follows.ensure();
        if cause.span != 0 && points.follows.is_on() {
            points.follows.emit_words([known.span, cause.span]);
        }
    }

    #[inline]
    pub(crate) fn enter(&self, id: &Id, known: &Known<'_>) {
        let Some(points) = recorded(known) else { return };
        let recorded = points.enter.is_on();
        if recorded {
            points.enter.emit_words([known.span]);
        }
        stack::push(Entered {
            owner: self.owner,
            recorded,
            id: id.into_u64(),
            span: known.span,
            site: known.site,
        });
    }

    #[inline]
    pub(crate) fn exit(&self, id: &Id, known: &Known<'_>) {
        let Some(points) = recorded(known) else { return };
        let Some(entered) = stack::pop(self.owner, id.into_u64()) else { return };
        if entered.recorded && entered.span == known.span && points.exit.is_on() {
            points.exit.emit_words([known.span]);
        }
    }

    /// One reference less; with the last one the span ends and is taken out. `true` when it ended.
    pub(crate) fn release(&self, known: &Known<'_>) -> bool {
        let last = known.release();
        if last {
            self.end(known);
        }
        last
    }

    /// Records the end of a span and takes it out.
    pub(crate) fn end(&self, known: &Known<'_>) {
        if let Some(points) = recorded(known)
            && points.close.is_on()
        {
            let duration = monotonic_ns().saturating_sub(known.since);
            points.close.emit_words([known.span, duration]);
        }
        known.remove();
    }

    /// The innermost span of this subscriber on this thread.
    pub(crate) fn current(&self) -> Current {
        match stack::top(self.owner) {
            Some(entered) => Current::new(Id::from_u64(entered.id), entered.site.metadata),
            None => Current::none(),
        }
    }

    /// The innermost span if it is [`OURS`], otherwise `other`.
    pub(crate) fn current_or(&self, other: Current) -> Current {
        let ours = |entered: &Entered| {
            self.spans.find(entered.id).is_some_and(|known| known.flags & OURS != 0)
        };
        if stack::top(self.owner).is_some_and(|entered| ours(&entered)) {
            self.current()
        } else {
            other
        }
    }
}

/// The tracepoints of a span that is recorded.
#[inline]
fn recorded(known: &Known<'_>) -> Option<&'static SpanPoints> {
    match &known.site.points {
        Points::Span(points) if known.span != 0 => Some(points),
        _ => None,
    }
}
