//! Streams as one sequence.

use crate::{sequence, tick};
use owlet_analyze::Trace;
use owlet_analyze::build::{Builder, Payload, at};
use owlet_analyze::merge::Counts;
use owlet_analyze::trace::Clock;
use owlet_store::{ClockInfo, ClockKind};
use owlet_wire::filter::Filter;
use proptest::prelude::*;

/// Streams of (time) with `seq` numbering the records in the order pushed.
fn trace(streams: &[Vec<u64>]) -> Trace {
    let mut b = Builder::new(u32::try_from(streams.len()).expect("few streams"));
    let id = tick(&mut b);
    let mut seq = 0;
    for (cpu, times) in streams.iter().enumerate() {
        for time in times {
            b.event(at(*time).cpu(cpu), id, &Payload::new().u64(seq));
            seq += 1;
        }
    }
    b.trace()
}

#[test]
fn by_time_and_on_ties_by_stream_then_by_order_written() {
    let trace = trace(&[vec![5, 5, 9], vec![1, 5, 5], vec![], vec![5]]);
    assert_eq!(sequence(&trace), [3, 0, 1, 4, 5, 6, 2]);
}

#[test]
fn a_stream_whose_time_goes_back_keeps_its_order_and_is_counted() {
    let trace = trace(&[vec![10, 7, 8, 20], vec![8, 12]]);
    assert_eq!(sequence(&trace), [4, 0, 1, 2, 5, 3]);
    let mut events = trace.events().expect("memory opens");
    let mut times = Vec::new();
    while let Some(event) = events.next_event() {
        times.push(event.time_ns);
    }
    assert_eq!(times, [8, 10, 7, 8, 12, 20], "times are shown as recorded");
    let counts = Counts { read: 6, kept: 6, time_went_back: 2, unknown_event: 0 };
    assert_eq!(events.counts(), counts);
    assert_eq!(events.problems().len(), 1);
}

#[test]
fn a_filter_keeps_what_matches() {
    let trace = trace(&[vec![1, 3, 5], vec![2, 4]]);
    let filter = Filter::parse("seq >= 2 && seq != 3").expect("it parses");
    let mut events = trace.events().expect("memory opens").with_filter(&filter);
    let mut kept = Vec::new();
    while let Some(event) = events.next_event() {
        kept.push(event.time_ns);
    }
    assert_eq!(kept, [4, 5]);
    assert_eq!((events.counts().read, events.counts().kept), (5, 2));
}

#[test]
fn a_filter_knows_the_threads_name() {
    let mut b = Builder::new(1);
    let id = tick(&mut b);
    b.thread(10, 11, b"net");
    b.thread(10, 12, b"disk");
    b.event(at(1), id, &Payload::new().u64(0));
    b.event(at(2).tid(12), id, &Payload::new().u64(1));
    let trace = b.trace();
    let filter = Filter::parse("comm == \"disk\"").expect("it parses");
    let mut events = trace.events().expect("memory opens").with_filter(&filter);
    assert_eq!(events.next_event().map(|event| event.tid()), Some(12));
    assert!(events.next_event().is_none());
}

#[test]
fn a_threads_name_is_that_of_its_time() {
    let mut b = Builder::new(1);
    let id = tick(&mut b);
    b.thread(10, 11, b"first");
    b.thread(10, 11, b"second");
    b.parts().threads[0].time = 100;
    b.parts().threads[1].time = 200;
    for time in [50, 150, 200, 250] {
        b.event(at(time), id, &Payload::new().u64(0));
    }
    let trace = b.trace();
    let mut events = trace.events().expect("memory opens");
    for comm in ["first", "first", "second", "second"] {
        assert_eq!(events.next_event().map(|event| event.comm()), Some(comm.as_bytes()));
    }
}

#[test]
fn an_event_without_schema_is_shown_and_counted() {
    let mut b = Builder::new(1);
    b.event(at(1), 77, &Payload::new().u64(0));
    let trace = b.trace();
    let mut events = trace.events().expect("memory opens");
    assert_eq!(events.next_event().map(|event| event.name()), Some("owlet:unknown_event"));
    assert_eq!(events.counts().unknown_event, 1);
}

#[test]
fn losses_are_summed_by_cause_the_most_frequent_first() {
    let mut b = Builder::new(1);
    b.lose("busy", 3);
    b.lose("full", 4);
    b.lose("full", 5);
    b.lose("too large", 0);
    let trace = b.trace();
    let lost: Vec<_> = trace.lost().iter().map(|lost| (lost.cause.as_str(), lost.events)).collect();
    assert_eq!(lost, [("full", 9), ("busy", 3)]);
    assert_eq!(trace.lost_total(), 12);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The prepared division gives what the division gives.
    #[test]
    fn the_clock_is_exact(
        freq in prop_oneof![Just(1_000_000_000), 1..=10_000_000_000_u64, any::<u64>()],
        base_ticks in any::<u64>(),
        base_unix_ns in 0..=i64::MAX / 2,
        ticks in any::<u64>(),
    ) {
        let freq_hz = freq.max(1);
        let info = ClockInfo { kind: ClockKind::Tsc, freq_hz, base_ticks, base_unix_ns };
        let ns = |ticks: u64| i128::from(ticks) * 1_000_000_000 / i128::from(freq_hz);
        let expected = i128::from(base_unix_ns) + ns(ticks) - ns(base_ticks);
        // Beyond this the store's clock saturates.
        prop_assume!(expected < i128::from(i64::MAX) - 5_000_000_000);
        prop_assume!(ns(ticks) < u64::MAX.into() && ns(base_ticks) < u64::MAX.into());
        let clock = Clock::new(info).to_unix_ns(ticks);
        prop_assert_eq!(clock, info.unix_ns(ticks).max(0).cast_unsigned());
        // The origin is a whole tick.
        let exact = 3 + 1_000_000_000 / i128::from(freq_hz);
        prop_assert!((i128::from(clock) - expected.max(0)).abs() <= exact, "{clock} {expected}");
    }

    /// Every record comes once; times never go back; each stream keeps its order.
    #[test]
    fn a_merge_is_a_sorted_permutation(
        mut streams in prop::collection::vec(prop::collection::vec(0..40_u64, 0..30), 1..6)
    ) {
        for stream in &mut streams {
            stream.sort_unstable();
        }
        let mut expected = Vec::new();
        let mut seq = 0;
        for (cpu, stream) in streams.iter().enumerate() {
            for time in stream {
                expected.push((*time, cpu, seq));
                seq += 1;
            }
        }
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|(_, _, seq)| seq).collect();
        prop_assert_eq!(sequence(&trace(&streams)), expected);
    }
}
