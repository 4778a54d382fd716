//! What the tests from outside cannot see: that tables are empty afterwards, and right under fire.

use super::site::{self, Site};
use super::spans::{New, Spans};
use super::stack::{self, Entered};
use super::{Subscriber, Tee};
use crate::bridge::payload::Payload;
use crate::bridge::table::{Table, mix};
use crate::control_tests::one;
use crate::session::{self, SessionId};
use owlet_ring::{Clock, Segment, SegmentOptions};
use owlet_wire::config::{Rule, SessionConfig};
use std::collections::VecDeque;
use std::sync::Barrier;
use tracing::{Dispatch, dispatcher, info, info_span};
use tracing_subscriber::Registry;

fn attach(number: u64, pattern: &str) -> SessionId {
    let config = SessionConfig {
        session: number,
        rules: vec![Rule { pattern: pattern.to_owned(), enable: true }],
        level: owlet_wire::schema::Level::Trace,
        filter: String::new(),
        rendezvous: String::new(),
        recorder_pid: 0,
    };
    let options = SegmentOptions {
        ring_bytes: 1 << 16,
        cpus: owlet_percpu::cpus(),
        clock: Clock::Monotonic,
        log_bytes: 1 << 18,
        config: config.encode(),
        deferral_us: 2000,
    };
    let segment = Segment::create(&options).unwrap();
    session::attach(segment.fd().try_clone_to_owned().unwrap()).unwrap().0
}

/// Some site; which one does not matter.
fn any_site() -> &'static Site {
    let span = dispatcher::with_default(&Dispatch::new(super::subscriber()), || {
        let id = attach(7000, "unit:any");
        let span = info_span!(target: "unit", "any");
        session::detach(id);
        span
    });
    site::of(span.metadata().unwrap()).unwrap()
}

#[test]
fn a_table_of_spans_grows_and_is_empty_again() {
    let _one = one();
    let site = any_site();
    let spans = Spans::new();
    let ids = 1..=100_000u64;
    for id in ids.clone() {
        assert!(spans.insert(id, &New { span: id * 3, since: 0, site, flags: 0 }));
    }
    assert_eq!(spans.count(), 100_000);
    for id in ids.clone() {
        let known = spans.find(id).unwrap();
        assert_eq!(known.span, id * 3);
        known.retain();
        assert!(!known.release());
        assert!(known.release());
        known.remove();
        assert!(spans.find(id).is_none());
    }
    assert_eq!(spans.count(), 0);
    for forged in [0, u64::MAX] {
        assert!(spans.find(forged).is_none());
        assert!(!spans.insert(forged, &New { span: 1, since: 0, site, flags: 0 }));
    }
}

#[test]
fn a_span_found_under_fire_is_the_one_that_was_asked_for() {
    let _one = one();
    let site = any_site();
    let spans = Spans::new();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let spans = &spans;
            scope.spawn(move || {
                for n in 0..20_000u64 {
                    let id = 1 + thread + 4 * (n % 64);
                    assert!(spans.insert(id, &New { span: id * 7, since: id, site, flags: 0 }));
                    // Others' ids come and go meanwhile.
                    for other in 1..=16 {
                        if let Some(known) = spans.find(other) {
                            assert_eq!((known.span, known.since), (other * 7, other));
                        }
                    }
                    spans.find(id).unwrap().remove();
                }
            });
        }
    });
    assert_eq!(spans.count(), 0);
}

#[test]
fn threads_that_insert_one_key_at_once_get_one_entry() {
    struct Keyed(u64);
    let table: Table<Keyed> = Table::new(usize::MAX);
    let barrier = Barrier::new(4);
    let found: Vec<Vec<usize>> = std::thread::scope(|scope| {
        let run = || {
            (0..5_000u64)
                .map(|key| {
                    if key % 100 == 0 {
                        barrier.wait();
                    }
                    let same = |entry: &Keyed| entry.0 == key;
                    let entry = table.find(mix(key), same).unwrap_or_else(|| {
                        table.find_or_insert_slow(mix(key), same, || Keyed(key)).unwrap()
                    });
                    std::ptr::from_ref(entry).addr()
                })
                .collect()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(found.iter().all(|addresses| *addresses == found[0]));
    let mut count = 0;
    table.for_each(|_| count += 1);
    assert_eq!(count, 5_000);
}

/// Spans in every constellation, and none left.
fn churn() {
    let mut held = VecDeque::new();
    for n in 0..2_000u64 {
        let span = info_span!(target: "unit", "churn", n);
        let _in = span.enter();
        let child = info_span!(target: "unit", "child", n);
        child.in_scope(|| info!(target: "unit", "x"));
        held.push_back((span.clone(), child, tracing::Span::current()));
        if n % 64 == 0 {
            let moved = held.pop_front();
            std::thread::spawn(move || drop(moved)).join().unwrap();
        }
        if held.len() > 50 {
            held.pop_front();
        }
    }
}

#[test]
fn no_span_is_left_when_all_handles_are_gone() {
    let _one = one();
    let id = attach(7001, "unit:ch*");
    let own = Dispatch::new(super::subscriber());
    dispatcher::with_default(&own, churn);
    assert_eq!(own.downcast_ref::<Subscriber>().unwrap().recorder.spans.count(), 0);

    let tee = Dispatch::new(super::tee(tracing_subscriber::registry()));
    dispatcher::with_default(&tee, churn);
    assert_eq!(tee.downcast_ref::<Tee<Registry>>().unwrap().recorder.spans.count(), 0);

    use tracing_subscriber::prelude::*;
    let off = tracing_subscriber::registry().with(tracing_subscriber::filter::LevelFilter::OFF);
    let ours = Dispatch::new(super::tee(off));
    dispatcher::with_default(&ours, churn);
    type Off =
        tracing_subscriber::layer::Layered<tracing_subscriber::filter::LevelFilter, Registry>;
    assert_eq!(ours.downcast_ref::<Tee<Off>>().unwrap().recorder.spans.count(), 0);
    session::detach(id);
}

#[test]
fn a_payload_never_holds_more_than_it_may() {
    let long = "x".repeat(10_000);
    let mut payload = Payload::new(64);
    payload.lead(1);
    for index in 0..64 {
        payload.str(index, &long);
    }
    payload.u64(64, 1);
    payload.spell_slow();
    assert!(payload.all().len() <= crate::bridge::payload::CAPACITY);
    assert_eq!(payload.parts().len(), 64);
    // Out of order, and twice: told by no signature, but all there.
    let mut payload = Payload::new(3);
    payload.u64(2, 1);
    payload.u64(0, 2);
    payload.u64(0, 3);
    assert_eq!((payload.signature(), payload.parts().len()), (None, 3));
}

/// Values by index, in the order they come in, spelled out as parts.
#[test]
fn where_values_are_is_found_out_in_whatever_order_they_came() {
    for order in [vec![0, 2, 3, 5], vec![0, 2, 3, 1], vec![4, 0, 4, 31, 32, 33], vec![40, 2]] {
        let mut payload = Payload::new(64);
        payload.lead(7);
        payload.lead(8);
        let mut expected = Vec::new();
        for (turn, &index) in order.iter().enumerate() {
            match turn % 3 {
                0 => payload.str(index, "text"),
                1 => payload.bool(index, true),
                _ => payload.u64(index, index as u64),
            }
            expected.push((index, [5, 4, 1][turn % 3], [8, 1, 8][turn % 3]));
        }
        payload.spell_slow();
        let parts = payload.parts();
        let found: Vec<_> = parts
            .iter()
            .map(|part| (usize::from(part.index), part.tag, payload.value(part).len()))
            .collect();
        assert_eq!(found, expected, "{order:?}");
        let whole: Vec<u8> = parts.iter().flat_map(|part| payload.value(part).to_vec()).collect();
        assert_eq!([payload.leading(), &whole].concat(), payload.all(), "{order:?}");
        assert_eq!(payload.leading().len(), 16);
    }
}

/// Pushed and popped at random, deeper than what lies outside of the vector, beside a plain vector.
#[test]
fn the_stack_of_spans_is_a_stack_at_any_depth() {
    let site = {
        let _one = one();
        any_site()
    };
    let mut random = 1u64;
    let mut next = |below: u64| {
        random = mix(random).rotate_left(17) ^ 0x9e37;
        (random >> 8) % below
    };
    let mut model: Vec<(u32, u64, u64)> = Vec::new();
    let (mut deepest, mut emptied) = (0, 0);
    for turn in 0..20_000 {
        // Mostly up, then mostly down, so that both ends are seen.
        let up = if turn / 50 % 2 == 0 { 3 } else { 1 };
        let (owner, id) = (next(2) as u32, next(4));
        if next(4) < up {
            stack::push(Entered { owner, recorded: true, id, span: turn, site });
            model.push((owner, id, turn));
        } else {
            // Usually the innermost.
            let (owner, id) = match model.last() {
                Some(&(owner, id, _)) if next(4) > 0 => (owner, id),
                _ => (owner, id),
            };
            let at = model.iter().rposition(|entry| (entry.0, entry.1) == (owner, id));
            let expected = at.map(|at| model.remove(at).2);
            assert_eq!(stack::pop(owner, id).map(|entered| entered.span), expected);
        }
        deepest = deepest.max(model.len());
        emptied += u32::from(model.is_empty());
        for owner in 0..2 {
            let expected = model.iter().rfind(|entry| entry.0 == owner).map(|entry| entry.2);
            assert_eq!(stack::top(owner).map(|entered| entered.span), expected);
            assert_eq!(stack::top_span(owner), expected.unwrap_or(0));
        }
        #[cfg(feature = "log")]
        assert_eq!(stack::innermost(), model.last().map_or(0, |entry| entry.2));
    }
    assert!(deepest > 16 && emptied > 0, "{deepest} deep, {emptied} times empty");
}
