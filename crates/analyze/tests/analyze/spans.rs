//! Spans paired by id.

use crate::{SpanIds, span_schemas};
use owlet_analyze::build::{Builder, at};
use owlet_analyze::spans::{Closed, Problems, Step, StillOpen, Tracker};
use owlet_analyze::{Stats, Trace};

/// Closed spans, problems and what is open at the end.
fn track(trace: &Trace) -> (Vec<Closed>, Problems, Vec<StillOpen>) {
    let mut tracker = Tracker::new(trace);
    let mut events = trace.events().expect("memory opens");
    let mut closed = Vec::new();
    while let Some(event) = events.next_event() {
        if let Step::Close(span) = tracker.feed(&event) {
            closed.push(span);
        }
    }
    let (problems, open) = tracker.finish();
    (closed, problems, open)
}

fn one_stream(build: impl FnOnce(&mut Builder, SpanIds)) -> Trace {
    let mut b = Builder::new(2);
    let ids = span_schemas(&mut b, "app:work");
    build(&mut b, ids);
    b.trace()
}

/// Two spans on two threads at once, polled several times each.
#[test]
fn async_spans_have_their_own_busy_time_and_duration() {
    let trace = one_stream(|b, ids| {
        let other = |time| at(time).tid(12).cpu(1);
        ids.create(b, at(0), 1);
        ids.enter(b, at(10), 1);
        ids.create(b, at(15), 2);
        ids.exit(b, at(20), 1);
        ids.enter(b, at(30), 2);
        ids.enter(b, other(35), 1);
        ids.exit(b, at(40), 2);
        ids.enter(b, at(41), 1);
        ids.exit(b, at(44), 1);
        ids.exit(b, other(55), 1);
        ids.close(b, other(60), 1, 60);
        ids.close(b, at(100), 2, 85);
    });
    let (closed, problems, open) = track(&trace);
    assert!(problems.is_empty() && open.is_empty(), "{problems:?} {open:?}");
    let times: Vec<_> = closed.iter().map(|span| (span.total_ns, span.busy_ns)).collect();
    assert_eq!(times, [(Some(60), Some(10 + 20 + 3)), (Some(85), Some(10))]);
}

#[test]
fn entering_twice_counts_the_time_once() {
    let trace = one_stream(|b, ids| {
        ids.create(b, at(0), 1);
        ids.enter(b, at(10), 1);
        ids.enter(b, at(20), 1);
        ids.exit(b, at(30), 1);
        ids.exit(b, at(40), 1);
        ids.close(b, at(50), 1, 50);
    });
    assert_eq!(track(&trace).0[0].busy_ns, Some(30));
}

#[test]
fn what_cannot_be_paired_is_counted_and_left_out() {
    let trace = one_stream(|b, ids| {
        ids.exit(b, at(0), 1);
        ids.enter(b, at(10), 2);
        ids.create(b, at(20), 3);
        ids.enter(b, at(30), 3);
        ids.close(b, at(40), 3, 20);
        ids.create(b, at(50), 4);
        ids.create(b, at(60), 4);
        ids.close(b, at(5_000_000), 9, 70);
    });
    let (closed, problems, open) = track(&trace);
    let expected = Problems {
        without_begin: 2,
        without_end: 3,
        unmatched_exits: 1,
        unmatched_enters: 1,
        ..Problems::default()
    };
    assert_eq!(problems, expected);
    let words = "2 without begin, 3 without end, 1 entered and not left, 1 left and not entered";
    assert_eq!(problems.to_string(), words);
    assert_eq!(open.len(), 2, "spans 2 and 4");
    let times: Vec<_> = closed.iter().map(|span| (span.total_ns, span.busy_ns)).collect();
    assert_eq!(times, [(Some(20), None), (Some(70), None)]);
}

/// K3: a clock that goes back gives no negative duration, and a count.
#[test]
fn k3_no_duration_is_negative() {
    let trace = one_stream(|b, ids| {
        // In one stream: the clock goes back while the span is open, and while it is entered.
        ids.create(b, at(1_000), 1);
        ids.enter(b, at(1_001), 1);
        ids.exit(b, at(900), 1);
        ids.close(b, at(901), 1, 5);
    });
    let (closed, problems, _) = track(&trace);
    assert_eq!((closed[0].total_ns, closed[0].busy_ns), (None, None));
    assert_eq!(problems.clock, 2);
    let stats = Stats::collect(&trace, &mut trace.events().expect("memory opens"));
    assert_eq!((stats.by_span[0].total.count, stats.by_span[0].busy.count), (0, 0));
    for word in ["earlier", "2 durations are left out"] {
        assert!(stats.problems.iter().any(|problem| problem.contains(word)), "{stats:?}");
    }
}

/// K3: the clocks of two CPUs disagree, so that the end is read before the begin. The duration
/// that the process measured itself is what counts.
#[test]
fn k3_an_end_before_its_begin_is_one_span_and_a_clock_problem() {
    let trace = one_stream(|b, ids| {
        ids.create(b, at(1_050).cpu(0), 1);
        ids.close(b, at(1_040).cpu(1), 1, 20);
    });
    let (closed, problems, open) = track(&trace);
    assert_eq!(closed.len(), 1);
    assert_eq!((closed[0].total_ns, closed[0].began_ns), (Some(20), Some(1_020)));
    assert_eq!(problems, Problems { clock: 1, ..Problems::default() });
    assert!(open.is_empty());
}

/// Ids are per process; a forked child goes on with its parent's.
#[test]
fn a_forked_childs_ids_are_its_own() {
    let mut b = Builder::new(1);
    let ids = span_schemas(&mut b, "app:work");
    b.process(10, 1, b"parent", b"");
    b.process(20, 10, b"child", b"");
    ids.create(&mut b, at(0).pid(10), 1);
    ids.enter(&mut b, at(1).pid(10), 1);
    ids.exit(&mut b, at(5).pid(20), 1);
    ids.create(&mut b, at(6).pid(20), 2);
    ids.create(&mut b, at(7).pid(10), 2);
    ids.close(&mut b, at(10).pid(20), 2, 4);
    ids.close(&mut b, at(11).pid(20), 1, 11);
    ids.close(&mut b, at(20).pid(10), 2, 13);
    ids.exit(&mut b, at(30).pid(10), 1);
    ids.close(&mut b, at(31).pid(10), 1, 31);
    let (closed, problems, open) = track(&b.trace());
    assert!(problems.is_empty() && open.is_empty(), "{problems:?} {open:?}");
    let totals: Vec<_> = closed.iter().map(|span| (span.pid, span.total_ns)).collect();
    // The inherited span's duration counts for the parent only.
    assert_eq!(totals, [(20, Some(4)), (20, None), (10, Some(13)), (10, Some(31))]);
}

/// A process with the id of one that has ended does not go on with its spans.
#[test]
fn a_reused_id_abandons_the_old_span() {
    let trace = one_stream(|b, ids| {
        ids.create(b, at(0), 1);
        ids.create(b, at(100), 1);
        ids.close(b, at(110), 1, 10);
    });
    let (closed, problems, _) = track(&trace);
    assert_eq!(closed[0].total_ns, Some(10));
    assert_eq!(problems, Problems { without_end: 1, ..Problems::default() });
}
