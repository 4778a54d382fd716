//! Spans paired by id.
//!
//! A span is one value of the program from its creation to its end; while it lives, threads may
//! enter and leave it any number of times, several at once. Span ids are unique within their
//! process, so the key is (pid, id). A forked child goes on with its parent's ids: when a process is
//! first seen and its parent is known, the parent's open spans are copied as *inherited*. What the
//! child does to them is shown under the child; their duration counts once, for the parent.
//!
//! Every span met gets a number ([`Step`]'s `span`), given in the order of first mention. Two walks
//! over the same events give the same numbers, which is how an exporter can look ahead without
//! holding the trace in memory.
//!
//! # States of a span
//! | state | left by |
//! |---|---|
//! | unknown | `SpanNew` -> open; `SpanEnter` -> open without start; `SpanClose` -> closed; others are counted as unmatched |
//! | open | `SpanClose` -> closed; `SpanNew` of the same id -> abandoned, and a new one is open |
//! | closed, abandoned | never: forgotten |
//!
//! # What cannot be paired
//! A recording may begin and end in the middle of a span, and may have lost any event. Such spans
//! are counted in [`Problems`], their unknown durations are left out of every statistic, and no
//! duration is ever negative: one that would be is counted as a clock problem instead.

pub mod shapes;

use crate::event::Event;
use crate::trace::Trace;
use owlet_wire::schema::Kind;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// What could not be paired, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Problems {
    /// Spans that were entered or closed without having been seen created.
    pub without_begin: u64,
    /// Spans that were created and not closed, up to the end of the trace or the reuse of their id.
    pub without_end: u64,
    /// Exits of a thread that had not entered.
    pub unmatched_exits: u64,
    /// Entries that were never left before the span ended.
    pub unmatched_enters: u64,
    /// Values and causes recorded for spans that are not known.
    pub unmatched_others: u64,
    /// Durations that would be negative, and spans whose end is recorded before their begin.
    pub clock: u64,
}

impl Problems {
    /// Whether everything was paired.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Problems {
    /// `2 without begin, 1 exit unmatched`; nothing when everything was paired.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.without_begin, "without begin"),
            (self.without_end, "without end"),
            (self.unmatched_enters, "entered and not left"),
            (self.unmatched_exits, "left and not entered"),
            (self.unmatched_others, "values or causes of spans not known"),
            (self.clock, "with a clock that went back"),
        ];
        let mut separator = "";
        for (count, what) in all.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {what}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// What one event did to a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The event is about no span.
    None,
    /// The event is about a span that is not known, and does not make it known.
    Unknown,
    /// The span was created.
    Open {
        /// The span.
        span: u64,
        /// The span that had this id and was never closed.
        replaced: Option<Closed>,
    },
    /// The thread entered the span.
    Enter {
        /// The span.
        span: u64,
        /// Whether this is the first that is heard of it.
        first: bool,
    },
    /// The thread left the span it had entered.
    Exit {
        /// The span.
        span: u64,
    },
    /// A field of the span got a value.
    Record {
        /// The span.
        span: u64,
    },
    /// The span has another as its cause.
    Follows {
        /// The span.
        span: u64,
        /// The cause.
        cause: u64,
    },
    /// The span ended.
    Close(Closed),
}

/// A span that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The span.
    pub span: u64,
    /// Process.
    pub pid: u32,
    /// Event id whose schema names the span: the one that created it, or the first one heard of.
    pub name_id: u32,
    /// When it was created; computed from the recorded duration when the creation was not seen.
    pub began_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: u64,
    /// From creation to end; `None` when unknown, negative, or counted for another process.
    pub total_ns: Option<u64>,
    /// Time threads spent inside, summed over threads; `None` when an entry or exit is missing.
    pub busy_ns: Option<u64>,
    /// Whether the end is the first that is heard of it.
    pub first: bool,
}

/// A span heard of and not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillOpen {
    /// The span.
    pub span: u64,
    /// Process.
    pub pid: u32,
    /// As in [`Closed`].
    pub name_id: u32,
}

#[derive(Clone, Copy, Debug)]
struct Inside {
    tid: u32,
    since_ns: u64,
    depth: u32,
}

#[derive(Clone, Debug)]
struct Open {
    span: u64,
    name_id: u32,
    began_ns: Option<u64>,
    busy_ns: u64,
    busy_known: bool,
    inherited: bool,
    inside: Vec<Inside>,
}

/// Process and span id.
type Key = (u32, u64);

/// Clocks of two CPUs may differ by this much before a close and a creation count as two spans.
const MAX_SKEW_NS: u64 = 1_000_000;
/// Closes without creation that are remembered, to recognise a creation that comes too late.
const MAX_EARLY: usize = 1024;

/// Pairs the span records of a trace, fed in time order.
#[derive(Debug)]
pub struct Tracker<'t> {
    trace: &'t Trace,
    open: BTreeMap<Key, Open>,
    /// When spans closed without creation must have been created.
    early: BTreeMap<Key, u64>,
    seen: HashSet<u32>,
    next: u64,
    problems: Problems,
}

impl<'t> Tracker<'t> {
    /// Nothing fed yet.
    #[must_use]
    pub fn new(trace: &'t Trace) -> Self {
        Self {
            trace,
            open: BTreeMap::new(),
            early: BTreeMap::new(),
            seen: HashSet::new(),
            next: 0,
            problems: Problems::default(),
        }
    }

    /// Takes the next event.
    pub fn feed(&mut self, event: &Event<'_>) -> Step {
        let kind = event.kind();
        if matches!(kind, Kind::Event | Kind::SpanEvent) {
            return Step::None;
        }
        if self.seen.insert(event.pid()) {
            self.inherit(event.pid());
        }
        let Some(id) = event.span() else { return self.unmatched() };
        let key = (event.pid(), id);
        match kind {
            Kind::SpanNew => self.create(key, event),
            Kind::SpanEnter => self.enter(key, event),
            Kind::SpanExit => self.exit(key, event),
            Kind::SpanClose => self.close(key, event),
            Kind::SpanFollows => self.follows(key, event),
            _ => match self.open.get(&key) {
                Some(open) => Step::Record { span: open.span },
                None => self.unmatched(),
            },
        }
    }

    /// The span with this id, if it is open.
    #[must_use]
    pub fn get(&self, pid: u32, id: u64) -> Option<StillOpen> {
        let open = self.open.get(&(pid, id))?;
        Some(StillOpen { span: open.span, pid, name_id: open.name_id })
    }

    /// What could not be paired so far, open spans not included.
    #[must_use]
    pub fn problems(&self) -> Problems {
        self.problems
    }

    /// The end of the trace: what could not be paired, and the spans still open in the order of
    /// their numbers, inherited ones left out unless somebody is inside.
    #[must_use]
    pub fn finish(mut self) -> (Problems, Vec<StillOpen>) {
        let mut left = Vec::new();
        for ((pid, _), open) in &self.open {
            self.problems.without_end += u64::from(!open.inherited);
            if !open.inherited || !open.inside.is_empty() {
                left.push(StillOpen { span: open.span, pid: *pid, name_id: open.name_id });
            }
        }
        left.sort_by_key(|open| open.span);
        (self.problems, left)
    }

    fn unmatched(&mut self) -> Step {
        self.problems.unmatched_others += 1;
        Step::Unknown
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Copies the open spans of the parent of a process seen for the first time.
    fn inherit(&mut self, pid: u32) {
        let Some(parent) = self.trace.process(pid).map(|process| process.ppid) else { return };
        if parent == pid {
            return;
        }
        let of_parent = self.open.range((parent, 0)..=(parent, u64::MAX));
        let copies: Vec<_> = of_parent.map(|((_, id), open)| (*id, open.clone())).collect();
        for (id, open) in copies {
            let span = self.number();
            let copy =
                Open { span, inherited: true, busy_known: false, inside: Vec::new(), ..open };
            self.open.insert((pid, id), copy);
        }
    }

    fn create(&mut self, key: Key, event: &Event<'_>) -> Step {
        let now = event.time_ns;
        if let Some(began) = self.early.remove(&key)
            && now.abs_diff(began) <= MAX_SKEW_NS
        {
            // Its end has been seen, and its duration is known from there.
            self.problems.clock += 1;
            self.problems.without_begin -= 1;
            return Step::Unknown;
        }
        let replaced = self.open.remove(&key).filter(|open| !open.inherited).map(|open| {
            self.problems.without_end += 1;
            ended(open, key.0, now)
        });
        let span = self.number();
        let open = Open {
            span,
            name_id: event.id(),
            began_ns: Some(now),
            busy_ns: 0,
            busy_known: true,
            inherited: false,
            inside: Vec::new(),
        };
        self.open.insert(key, open);
        Step::Open { span, replaced }
    }

    fn enter(&mut self, key: Key, event: &Event<'_>) -> Step {
        let first = !self.open.contains_key(&key);
        if first {
            self.problems.without_begin += 1;
            let span = self.number();
            let open = Open {
                span,
                name_id: event.id(),
                began_ns: None,
                busy_ns: 0,
                busy_known: false,
                inherited: false,
                inside: Vec::new(),
            };
            self.open.insert(key, open);
        }
        let Some(open) = self.open.get_mut(&key) else { return Step::Unknown };
        match open.inside.iter_mut().find(|inside| inside.tid == event.tid()) {
            Some(inside) => inside.depth = inside.depth.saturating_add(1),
            None => {
                let inside = Inside { tid: event.tid(), since_ns: event.time_ns, depth: 1 };
                open.inside.push(inside);
            }
        }
        Step::Enter { span: open.span, first }
    }

    fn exit(&mut self, key: Key, event: &Event<'_>) -> Step {
        let open = self.open.get_mut(&key);
        let at = open
            .as_ref()
            .and_then(|open| open.inside.iter().position(|inside| inside.tid == event.tid()));
        let (Some(open), Some(at)) = (open, at) else {
            // A forked child leaves what its parent's thread had entered: nothing is missing.
            let expected = self.open.get(&key).is_some_and(|open| open.inherited);
            self.problems.unmatched_exits += u64::from(!expected);
            if let Some(open) = self.open.get_mut(&key) {
                open.busy_known = false;
            }
            return Step::Unknown;
        };
        let inside = &mut open.inside[at];
        inside.depth -= 1;
        if inside.depth == 0 {
            let since = inside.since_ns;
            open.inside.swap_remove(at);
            match event.time_ns.checked_sub(since) {
                Some(busy) => open.busy_ns = open.busy_ns.saturating_add(busy),
                None => {
                    self.problems.clock += 1;
                    open.busy_known = false;
                }
            }
        }
        Step::Exit { span: open.span }
    }

    fn follows(&mut self, key: Key, event: &Event<'_>) -> Step {
        let cause = event.second().and_then(|id| self.get(key.0, id));
        match (self.get(key.0, key.1), cause) {
            (Some(open), Some(cause)) => Step::Follows { span: open.span, cause: cause.span },
            _ => self.unmatched(),
        }
    }

    fn close(&mut self, key: Key, event: &Event<'_>) -> Step {
        let now = event.time_ns;
        let Some(open) = self.open.remove(&key) else { return self.close_unknown(key, event) };
        self.problems.unmatched_enters += open.inside.len() as u64;
        let counts = !open.inherited;
        let began = open.began_ns;
        let mut closed = ended(open, key.0, now);
        if counts {
            closed.total_ns = match began {
                Some(began) => {
                    let total = now.checked_sub(began);
                    self.problems.clock += u64::from(total.is_none());
                    total
                }
                None => event.second(),
            };
        }
        if closed.began_ns.is_none() {
            closed.began_ns = event.second().map(|total| now.saturating_sub(total));
        }
        Step::Close(closed)
    }

    fn close_unknown(&mut self, key: Key, event: &Event<'_>) -> Step {
        self.problems.without_begin += 1;
        let now = event.time_ns;
        let began_ns = event.second().map(|total| now.saturating_sub(total));
        if let Some(began) = began_ns {
            if self.early.len() >= MAX_EARLY {
                self.early.clear();
            }
            self.early.insert(key, began);
        }
        Step::Close(Closed {
            span: self.number(),
            pid: key.0,
            name_id: event.id(),
            began_ns,
            ended_ns: now,
            total_ns: event.second(),
            busy_ns: None,
            first: true,
        })
    }
}

/// A span that ends now, its total not yet known.
fn ended(open: Open, pid: u32, now: u64) -> Closed {
    let whole = open.busy_known && open.inside.is_empty();
    Closed {
        span: open.span,
        pid,
        name_id: open.name_id,
        began_ns: open.began_ns,
        ended_ns: now,
        total_ns: None,
        busy_ns: whole.then_some(open.busy_ns),
        first: false,
    }
}
