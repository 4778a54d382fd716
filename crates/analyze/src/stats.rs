//! Counts, rates and latency percentiles by name, with the losses beside them.
//!
//! [`Stats`] is the shape of `--json`; field names and units are part of the tool's interface.

use crate::event::Event;
use crate::json;
use crate::merge::Events;
use crate::spans::{Closed, Problems, Step, Tracker};
use crate::text;
use crate::trace::{Lost, Trace};
use hdrhistogram::Histogram;
use owlet_wire::schema::Level;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Statistics of one trace.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// The machine the trace was recorded on.
    pub hostname: String,
    /// Time of the first event, nanoseconds since 1970; 0 without events.
    pub begin_ns: u64,
    /// Time of the last event, nanoseconds since 1970; 0 without events.
    pub end_ns: u64,
    /// Events counted here, after the filter.
    pub events: u64,
    /// Events lost in all, filter or not.
    pub lost: u64,
    /// Events lost by cause.
    pub lost_by_cause: Vec<Lost>,
    /// Bytes of the rings that were no records: what the cause `corrupt` is about.
    pub corrupt_bytes: u64,
    /// Whether something of the trace is missing or cannot be read; `problems` says what.
    pub damaged: bool,
    /// By event name, kind and level, the most frequent first.
    pub by_event: Vec<EventStats>,
    /// By span name, the longest in sum first.
    pub by_span: Vec<SpanStats>,
    /// By process, in the order of the pids.
    pub by_process: Vec<ProcessStats>,
    /// By thread, in the order of pid and tid.
    pub by_thread: Vec<ThreadStats>,
    /// Span records that could not be paired.
    pub span_problems: Problems,
    /// What is wrong with the trace, one line each.
    pub problems: Vec<String>,
}

/// One event name of one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventStats {
    /// Full name.
    pub name: String,
    /// `event`, `span_new`, ..
    pub kind: &'static str,
    /// `error`, `warn`, ..
    pub level: &'static str,
    /// How many.
    pub count: u64,
    /// How many a second, over the whole trace; 0 when the trace has no length.
    pub rate_per_s: f64,
    /// The first, nanoseconds since 1970.
    pub first_ns: u64,
    /// The last, nanoseconds since 1970.
    pub last_ns: u64,
}

/// One span name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpanStats {
    /// Name of the event that creates the span.
    pub name: String,
    /// Spans that ended.
    pub ended: u64,
    /// Spans that did not.
    pub open: u64,
    /// From creation to end, of the spans whose both ends are known.
    pub total: Latency,
    /// Time threads spent inside, of the spans whose entries and exits are all known.
    pub busy: Latency,
}

/// A distribution of durations. The percentiles are exact to three digits, the rest
/// to the nanosecond; all are 0 when nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub count: u64,
    pub sum_ns: u64,
    pub min_ns: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    /// Process id as the process saw it.
    pub pid: u32,
    /// Its executable, lossily; empty when the trace does not say.
    pub exe: String,
    /// Events it emitted.
    pub events: u64,
    /// Threads that emitted them.
    pub threads: u64,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadStats {
    /// Process id as the process saw it.
    pub pid: u32,
    /// Thread id as the process saw it.
    pub tid: u32,
    /// The thread's last name, lossily.
    pub comm: String,
    /// Events it emitted.
    pub events: u64,
}

impl Stats {
    /// Walks over `events` to their end.
    #[must_use]
    pub fn collect(trace: &Trace, events: &mut Events<'_>) -> Self {
        let mut walk = Walk::new(trace);
        while let Some(event) = events.next_event() {
            walk.feed(&event);
        }
        let mut problems = trace.problems().to_vec();
        let unread = events.problems();
        let damaged = trace.damaged() || !unread.is_empty();
        problems.extend(unread);
        walk.finish(problems, damaged)
    }
}

#[derive(Clone, Copy, Debug)]
struct Count {
    count: u64,
    first_ns: u64,
    last_ns: u64,
}

#[derive(Debug, Default)]
struct Spans {
    ended: u64,
    open: u64,
    total: Durations,
    busy: Durations,
}

#[derive(Debug)]
struct Durations {
    /// Made at the first value: a histogram is some ten kilobytes.
    histogram: Option<Histogram<u64>>,
    sum_ns: u64,
    /// Exact, which the histogram's are not.
    min_ns: u64,
    max_ns: u64,
}

impl Default for Durations {
    fn default() -> Self {
        Self { histogram: None, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

impl Durations {
    fn add(&mut self, ns: u64) {
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        let histogram = match &mut self.histogram {
            Some(histogram) => histogram,
            // Three digits are always valid, so this is always `Some`.
            None => match Histogram::new(3) {
                Ok(histogram) => self.histogram.insert(histogram),
                Err(_) => return,
            },
        };
        // It grows by itself up to the highest value there is.
        let _ = histogram.record(ns);
    }

    fn merge(&mut self, other: Self) {
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        match (&mut self.histogram, other.histogram) {
            // Both grow by themselves and have three digits: adding cannot fail.
            (Some(all), Some(one)) => {
                let _ = all.add(one);
            }
            (all @ None, one) => *all = one,
            (Some(_), None) => {}
        }
    }

    fn latency(&self) -> Latency {
        let Some(histogram) = &self.histogram else { return Latency::default() };
        // The histogram answers with the upper end of a class, which may be above the maximum.
        let at = |quantile| histogram.value_at_quantile(quantile).min(self.max_ns);
        Latency {
            count: histogram.len(),
            sum_ns: self.sum_ns,
            min_ns: self.min_ns,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.max_ns,
        }
    }
}

struct Walk<'t> {
    trace: &'t Trace,
    tracker: Tracker<'t>,
    by_id: HashMap<u32, Count>,
    by_thread: HashMap<(u32, u32), u64>,
    /// By the event id that names the span.
    spans: HashMap<u32, Spans>,
}

impl<'t> Walk<'t> {
    fn new(trace: &'t Trace) -> Self {
        Self {
            trace,
            tracker: Tracker::new(trace),
            by_id: HashMap::new(),
            by_thread: HashMap::new(),
            spans: HashMap::new(),
        }
    }

    fn feed(&mut self, event: &Event<'_>) {
        let now = event.time_ns;
        let count = Count { count: 0, first_ns: now, last_ns: now };
        let count = self.by_id.entry(event.id()).or_insert(count);
        count.count += 1;
        count.first_ns = count.first_ns.min(now);
        count.last_ns = count.last_ns.max(now);
        *self.by_thread.entry((event.pid(), event.tid())).or_default() += 1;
        match self.tracker.feed(event) {
            Step::Open { replaced: Some(closed), .. } => {
                self.spans.entry(closed.name_id).or_default().open += 1;
            }
            Step::Close(closed) => self.close(&closed),
            _ => {}
        }
    }

    fn close(&mut self, closed: &Closed) {
        let spans = self.spans.entry(closed.name_id).or_default();
        spans.ended += 1;
        if let Some(total) = closed.total_ns {
            spans.total.add(total);
        }
        if let Some(busy) = closed.busy_ns {
            spans.busy.add(busy);
        }
    }

    fn finish(self, mut problems: Vec<String>, damaged: bool) -> Stats {
        let Self { trace, tracker, by_id, by_thread, mut spans, .. } = self;
        let (span_problems, still_open) = tracker.finish();
        if span_problems.clock > 0 {
            let count = span_problems.clock;
            problems.push(format!("{count} durations are left out: the clock went back"));
        }
        for open in still_open {
            spans.entry(open.name_id).or_default().open += 1;
        }
        let begin_ns = by_id.values().map(|count| count.first_ns).min().unwrap_or(0);
        let end_ns = by_id.values().map(|count| count.last_ns).max().unwrap_or(0);
        Stats {
            hostname: trace.meta().hostname.clone(),
            begin_ns,
            end_ns,
            events: by_id.values().map(|count| count.count).sum(),
            lost: trace.lost_total(),
            lost_by_cause: trace.lost().to_vec(),
            corrupt_bytes: trace.skipped_bytes(),
            damaged,
            by_event: event_stats(trace, &by_id, end_ns - begin_ns),
            by_span: span_stats(trace, spans),
            by_process: process_stats(trace, &by_thread),
            by_thread: thread_stats(trace, &by_thread),
            span_problems,
            problems,
        }
    }
}

fn event_stats(trace: &Trace, by_id: &HashMap<u32, Count>, length_ns: u64) -> Vec<EventStats> {
    // Several ids may share a name: each process of a session registers its own. Call sites that share
    // a name and differ in level are different events.
    let mut by_name: BTreeMap<(&str, &'static str, Level), EventStats> = BTreeMap::new();
    for (id, count) in by_id {
        let (schema, kind) = trace.schema_and_kind(*id);
        let kind = json::kind_name(kind);
        let stats =
            by_name.entry((&schema.name, kind, schema.level)).or_insert_with(|| EventStats {
                name: schema.name.clone(),
                kind,
                level: text::level_name(schema.level),
                count: 0,
                rate_per_s: 0.0,
                first_ns: count.first_ns,
                last_ns: count.last_ns,
            });
        stats.count += count.count;
        stats.first_ns = stats.first_ns.min(count.first_ns);
        stats.last_ns = stats.last_ns.max(count.last_ns);
    }
    let mut all: Vec<_> = by_name.into_values().collect();
    for stats in &mut all {
        if length_ns > 0 {
            stats.rate_per_s = stats.count as f64 * 1e9 / length_ns as f64;
        }
    }
    all.sort_by_key(|stats| std::cmp::Reverse(stats.count));
    all
}

fn span_stats(trace: &Trace, spans: HashMap<u32, Spans>) -> Vec<SpanStats> {
    let mut by_name: BTreeMap<&str, Spans> = BTreeMap::new();
    for (id, of_id) in spans {
        let all = by_name.entry(&trace.schema_and_kind(id).0.name).or_default();
        all.ended += of_id.ended;
        all.open += of_id.open;
        all.total.merge(of_id.total);
        all.busy.merge(of_id.busy);
    }
    let stats = |(name, spans): (&str, Spans)| SpanStats {
        name: name.to_owned(),
        ended: spans.ended,
        open: spans.open,
        total: spans.total.latency(),
        busy: spans.busy.latency(),
    };
    let mut all: Vec<_> = by_name.into_iter().map(stats).collect();
    all.sort_by_key(|stats| std::cmp::Reverse(stats.total.sum_ns));
    all
}

fn process_stats(trace: &Trace, by_thread: &HashMap<(u32, u32), u64>) -> Vec<ProcessStats> {
    let mut by_pid: BTreeMap<u32, ProcessStats> = BTreeMap::new();
    for ((pid, _), events) in by_thread {
        let stats = by_pid.entry(*pid).or_insert_with(|| {
            let exe = trace.process(*pid).map_or(&[][..], |process| &process.exe);
            let exe = String::from_utf8_lossy(exe).into_owned();
            ProcessStats { pid: *pid, exe, events: 0, threads: 0 }
        });
        stats.events += events;
        stats.threads += 1;
    }
    by_pid.into_values().collect()
}

fn thread_stats(trace: &Trace, by_thread: &HashMap<(u32, u32), u64>) -> Vec<ThreadStats> {
    let stats = |((pid, tid), events): (&(u32, u32), &u64)| {
        let comm = String::from_utf8_lossy(trace.comm(*pid, *tid)).into_owned();
        ThreadStats { pid: *pid, tid: *tid, comm, events: *events }
    };
    let mut all: Vec<_> = by_thread.iter().map(stats).collect();
    all.sort_by_key(|stats| (stats.pid, stats.tid));
    all
}
