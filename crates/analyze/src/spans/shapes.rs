//! Which spans nest on one thread, found before anything is written.
//!
//! A timeline shows a thread's spans as a stack, so a span may be drawn on its thread only if it was
//! entered once, on one thread, and everything entered after it was left before it. All others
//! (entered again after an `.await`, entered on several threads, overlapping, never entered) are
//! drawn on a track of their own from creation to end.
//!
//! # Why the remaining spans nest
//! A stack per thread holds the spans entered and not yet left. Leaving the top pops it. Leaving a
//! span below the top takes *that* span out and calls it asynchronous. So when a span that stays
//! synchronous is left, everything above it has already been taken out: what remains is a sequence
//! of pushes and pops of the top.

use super::{Closed, Step, Tracker};
use crate::event::Event;
use crate::merge::Events;
use crate::trace::Trace;
use std::collections::HashMap;

/// What a first walk over the events found out about the spans.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    /// One bit a span: whether it nests on its thread.
    nested: Vec<u64>,
    flows: HashMap<u64, Vec<u64>>,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Shapes {
    /// Walks over `events` to their end.
    #[must_use]
    pub fn scan(trace: &Trace, events: &mut Events<'_>) -> Self {
        let mut shapes = Self::default();
        let mut tracker = Tracker::new(trace);
        let mut nesting = Nesting::default();
        let mut flow = 0;
        while let Some(event) = events.next_event() {
            shapes.first_ns = Some(shapes.first_ns.unwrap_or(u64::MAX).min(event.time_ns));
            shapes.last_ns = shapes.last_ns.max(event.time_ns);
            let step = tracker.feed(&event);
            if let Step::Follows { span, cause } = step {
                flow += 1;
                shapes.flows.entry(cause).or_default().push(flow);
                shapes.flows.entry(span).or_default().push(flow);
            }
            if let Some(span) = nesting.feed(&event, &step) {
                shapes.set_nested(span);
            }
        }
        for span in nesting.finish() {
            shapes.set_nested(span);
        }
        shapes
    }

    /// Whether the span nests on its thread.
    #[must_use]
    pub fn is_nested(&self, span: u64) -> bool {
        let word = usize::try_from(span / 64).ok().and_then(|at| self.nested.get(at));
        word.is_some_and(|word| word >> (span % 64) & 1 == 1)
    }

    /// Numbers of the cause-to-effect links that begin or end at the span.
    #[must_use]
    pub fn flows(&self, span: u64) -> &[u64] {
        self.flows.get(&span).map_or(&[], Vec::as_slice)
    }

    /// Times of the earliest and the latest event; `None` for no events.
    #[must_use]
    pub fn range_ns(&self) -> Option<(u64, u64)> {
        self.first_ns.map(|first| (first, self.last_ns))
    }

    fn set_nested(&mut self, span: u64) {
        let Ok(at) = usize::try_from(span / 64) else { return };
        if self.nested.len() <= at {
            self.nested.resize(at + 1, 0);
        }
        self.nested[at] |= 1 << (span % 64);
    }
}

/// Process and thread.
type Thread = (u32, u32);

#[derive(Debug, Default)]
struct Nesting {
    /// Per open span: the thread whose stack it is or was on; `None` once it is asynchronous.
    spans: HashMap<u64, Option<Thread>>,
    stacks: HashMap<Thread, Vec<u64>>,
}

impl Nesting {
    /// Takes the next step; a span that has ended and nested.
    fn feed(&mut self, event: &Event<'_>, step: &Step) -> Option<u64> {
        let thread = (event.pid(), event.tid());
        match *step {
            Step::Enter { span, .. } => self.enter(span, thread),
            Step::Exit { span } => self.exit(span, thread),
            Step::Open { replaced: Some(Closed { span, .. }), .. }
            | Step::Close(Closed { span, .. }) => return self.close(span),
            _ => {}
        }
        None
    }

    /// The spans still open that nest so far.
    fn finish(self) -> impl Iterator<Item = u64> {
        self.spans.into_iter().filter_map(|(span, thread)| thread.map(|_| span))
    }

    fn enter(&mut self, span: u64, thread: Thread) {
        match self.spans.get(&span).copied() {
            None => {
                self.spans.insert(span, Some(thread));
                self.stacks.entry(thread).or_default().push(span);
            }
            Some(Some(on)) => {
                self.take_out(span, on);
                self.spans.insert(span, None);
            }
            Some(None) => {}
        }
    }

    fn exit(&mut self, span: u64, thread: Thread) {
        let Some(Some(on)) = self.spans.get(&span).copied() else { return };
        let top = self.take_out(span, on);
        if on != thread || top == Some(false) {
            self.spans.insert(span, None);
        }
    }

    fn close(&mut self, span: u64) -> Option<u64> {
        // An entry that was never left ends with its span.
        let on = self.spans.remove(&span)??;
        (self.take_out(span, on) != Some(false)).then_some(span)
    }

    /// Takes a span off its thread's stack; whether it was the top, `None` if it was not there.
    fn take_out(&mut self, span: u64, thread: Thread) -> Option<bool> {
        let stack = self.stacks.get_mut(&thread)?;
        let at = stack.iter().rposition(|on| *on == span)?;
        stack.remove(at);
        let top = at == stack.len();
        if stack.is_empty() {
            self.stacks.remove(&thread);
        }
        Some(top)
    }
}
