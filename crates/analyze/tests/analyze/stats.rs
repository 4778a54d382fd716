//! Statistics.

use crate::{span_schemas, tick};
use owlet_analyze::build::{Builder, Payload, at};
use owlet_analyze::{Stats, Trace, json};
use owlet_wire::schema::{Kind, Level};

fn sample() -> Trace {
    let mut b = Builder::new(2);
    let id = tick(&mut b);
    // Another process registers the same tracepoint under an id of its own.
    let twin = tick(&mut b);
    let span = span_schemas(&mut b, "app:work");
    b.process(10, 1, b"/bin/a", b"");
    b.thread(10, 11, b"one");
    for n in 0..1_000_u64 {
        b.event(at(n * 1_000_000), id, &Payload::new().u64(n));
    }
    b.event(at(5).pid(20).cpu(1), twin, &Payload::new().u64(0));
    for n in 1..=100_u64 {
        let begin = 1_000_000_000 + n * 1_000_000;
        span.create(&mut b, at(begin).tid(12).cpu(1), n);
        span.enter(&mut b, at(begin + 1).tid(12).cpu(1), n);
        span.exit(&mut b, at(begin + 51).tid(12).cpu(1), n);
        span.close(&mut b, at(begin + n * 1_000).tid(12).cpu(1), n, n * 1_000);
    }
    span.create(&mut b, at(2_000_000_000).cpu(1), 101);
    b.lose("full", 5);
    b.trace()
}

fn collect(trace: &Trace) -> Stats {
    Stats::collect(trace, &mut trace.events().expect("memory opens"))
}

#[test]
fn counts_and_rates_by_name() {
    let stats = collect(&sample());
    assert_eq!((stats.begin_ns, stats.end_ns), (0, 2_000_000_000));
    assert_eq!(stats.events, 1_000 + 1 + 400 + 1);
    let first = &stats.by_event[0];
    assert_eq!((first.name.as_str(), first.kind, first.count), ("demo:tick", "event", 1_001));
    assert_eq!((first.first_ns, first.last_ns), (0, 999_000_000));
    assert!((first.rate_per_s - 500.5).abs() < 0.01, "{}", first.rate_per_s);
    assert_eq!(stats.by_event.len(), 5, "span records are told apart by kind");
}

/// Call sites that share a name are one line each level, always the same.
#[test]
fn events_of_one_name_are_told_apart_by_level() {
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let mut b = Builder::new(1);
        for (n, level) in [(1, Level::Warn), (2, Level::Info), (3, Level::Warn)] {
            let id = b.schema("app:same", Kind::Event, &[]);
            b.parts().schemas.last_mut().expect("just added").1.level = level;
            (0..n).for_each(|i| b.event(at(n * 100 + i), id, &Payload::new()));
        }
        let stats = collect(&b.trace());
        let lines = stats.by_event.iter().map(|e| format!("{} {}", e.level, e.count));
        seen.insert(lines.collect::<Vec<_>>());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [["warn 4", "info 2"]]);
}

#[test]
fn latency_by_span_name() {
    let stats = collect(&sample());
    let [span] = &stats.by_span[..] else { panic!("one span name") };
    assert_eq!((span.name.as_str(), span.ended, span.open), ("app:work", 100, 1));
    let total = span.total;
    assert_eq!((total.count, total.min_ns, total.max_ns), (100, 1_000, 100_000));
    assert_eq!(total.sum_ns, 5_050_000);
    let close = |got: u64, want: u64| got.abs_diff(want) * 1_000 <= want * 2;
    let got = (total.p50_ns, total.p90_ns, total.p99_ns, total.p999_ns);
    assert!(close(got.0, 50_000) && close(got.1, 90_000), "{got:?}");
    assert!(close(got.2, 99_000) && got.3 == 100_000, "{got:?}");
    assert_eq!((span.busy.count, span.busy.p50_ns, span.busy.max_ns), (100, 50, 50));
}

#[test]
fn by_process_and_by_thread() {
    let stats = collect(&sample());
    let processes: Vec<_> =
        stats.by_process.iter().map(|p| (p.pid, p.exe.as_str(), p.events, p.threads)).collect();
    assert_eq!(processes, [(10, "/bin/a", 1_401, 2), (20, "", 1, 1)]);
    let threads: Vec<_> =
        stats.by_thread.iter().map(|t| (t.pid, t.tid, t.comm.as_str(), t.events)).collect();
    assert_eq!(threads, [(10, 11, "one", 1_001), (10, 12, "", 400), (20, 20, "", 1)]);
}

#[test]
fn losses_stand_beside_the_counts() {
    let stats = collect(&sample());
    assert_eq!((stats.lost, stats.lost_by_cause.len()), (5, 1));
    let text = json::to_string(&stats).expect("it serialises");
    assert!(text.contains(r#""lost":5,"lost_by_cause":[{"cause":"full","events":5}]"#), "{text}");
}

#[test]
fn an_empty_trace_has_empty_statistics() {
    let stats = collect(&Builder::new(1).trace());
    assert_eq!((stats.events, stats.begin_ns, stats.end_ns), (0, 0, 0));
    assert!(stats.by_event.is_empty() && stats.by_span.is_empty());
}
