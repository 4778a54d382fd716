//! What the exporter writes, read by our own decoder.

use crate::decode::{Decoded, Slice, decode};
use crate::{export, scenes};
use owlet_analyze::build::{Builder, Payload, at};
use owlet_wire::schema::{Kind, Type};

fn slice<'d>(slices: &'d [Slice], name: &str, begin: u64) -> &'d Slice {
    let found = slices.iter().find(|slice| slice.name == name && slice.begin == begin);
    found.unwrap_or_else(|| panic!("no slice {name} at {begin} in {slices:#?}"))
}

fn arg<'d>(slice: &'d Slice, key: &str) -> &'d str {
    slice.args.get(key).unwrap_or_else(|| panic!("no {key} in {slice:?}"))
}

#[test]
fn nested_spans_are_slices_on_their_thread() {
    let (bytes, summary) = export(&scenes::nested());
    let decoded = decode(&bytes);
    let slices = decoded.slices();
    assert_eq!((summary.thread_slices, summary.async_slices, summary.instants), (2, 0, 1));
    let outer = slice(&slices, "app::server:request", 1_010);
    let inner = slice(&slices, "app::db:query", 1_030);
    assert_eq!((outer.end, inner.end), (1_080, 1_050));
    assert_eq!(outer.track, inner.track);
    assert_eq!((arg(outer, "span"), arg(outer, "n"), arg(outer, "status")), ("1", "100", "ok"));
    let thread = &decoded.tracks[&outer.track];
    assert_eq!((thread.pid, thread.tid, thread.name.as_str()), (10, 11, "worker"));
    let process = decoded.tracks.values().find(|track| track.tid == 0 && track.pid == 10);
    let process = process.expect("the process is described");
    assert_eq!((process.name.as_str(), process.cmdline.len()), ("server", 3));
    let tick = decoded.instants().next().expect("an instant");
    assert_eq!((tick.name.as_str(), tick.category.as_str()), ("demo:tick", "demo"));
    assert_eq!((tick.time, tick.args["seq"].as_str()), (1_040, "7"));
}

#[test]
fn async_spans_are_one_slice_each_on_their_own_track() {
    let (bytes, summary) = export(&scenes::interleaved());
    let decoded = decode(&bytes);
    let slices = decoded.slices();
    assert_eq!((summary.thread_slices, summary.async_slices), (0, 2));
    let first = slice(&slices, "app:task", 1_000);
    let second = slice(&slices, "app:task", 1_030);
    assert_eq!((first.end, second.end), (1_080, 1_090));
    assert_ne!(first.track, second.track);
    let process = decoded.tracks[&first.track].parent;
    assert_eq!(decoded.tracks[&process].pid, 10);
    assert_eq!(first.flows.len(), 1, "follows_from is a flow");
    assert_eq!(first.flows, second.flows);
}

#[test]
fn spans_cut_off_by_the_recording_are_marked() {
    let (bytes, summary) = export(&scenes::cut());
    let decoded = decode(&bytes);
    let slices = decoded.slices();
    assert_eq!((summary.thread_slices, summary.async_slices, summary.still_open), (2, 2, 3));
    let begun_before = slice(&slices, "app:work", 1_000);
    assert_eq!(
        (begun_before.end, arg(begun_before, "owlet: began before the trace")),
        (1_100, "true")
    );
    assert_eq!(arg(slice(&slices, "app:work", 1_200), "owlet: began before the trace"), "true");
    for begin in [1_200, 1_310, 1_400] {
        let open = slice(&slices, "app:work", begin);
        assert_eq!((open.end, arg(open, "owlet: still open")), (1_400, "true"));
    }
}

#[test]
fn losses_are_on_their_own_track() {
    let (bytes, _) = export(&scenes::cut());
    let decoded = decode(&bytes);
    let lost = decoded.instants().find(|event| event.name == "lost in all").expect("the losses");
    assert_eq!(decoded.tracks[&lost.track].name, "owlet: lost events");
    assert_eq!((lost.args["events"].as_str(), lost.args["cause full"].as_str()), ("23", "20"));
    // And nothing of the kind without loss.
    let (bytes, _) = export(&scenes::nested());
    assert!(decode(&bytes).tracks.values().all(|track| track.name != "owlet: lost events"));
}

/// C4: text is never cut, and every value has a defined form.
#[test]
fn c4_values_keep_their_meaning() {
    let (bytes, _) = export(&scenes::values());
    let decoded = decode(&bytes);
    let event = decoded.instants().next().expect("the event");
    let expected = [
        ("nul", "a\\x00b"),
        ("bad", "x\\xff\\xfey"),
        ("empty", ""),
        ("list", "[1,-2,3]"),
        ("no_items", "[]"),
        ("max", "18446744073709551615"),
        ("min", "-9223372036854775808"),
        ("nan", "NaN"),
        ("inf", "-Infinity"),
        ("half", "0.5"),
        ("yes", "true"),
        ("state", "Open"),
        ("data", "00ff"),
        ("twice", "4"),
        ("twice#2", "5"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(event.args, expected.into_iter().collect());
    assert_eq!(decoded.tracks[&event.track].name, "evil\\x1b[2J\\xff");
}

/// L4: names do not depend on what a ring has overwritten: the last event of a long trace still
/// resolves, with a thread and an event whose names were learnt at the very beginning.
#[test]
fn l4_every_name_resolves_at_the_end_of_a_long_trace() {
    let mut b = Builder::new(2);
    let ids: Vec<_> = (0..50)
        .map(|n| b.schema(&format!("p{n}:e"), Kind::Event, &[("text", Type::Str)]))
        .collect();
    for tid in 11..61 {
        b.thread(10, tid, format!("thread-{tid}").as_bytes());
    }
    for n in 0..20_000_u32 {
        let id = ids[n as usize % ids.len()];
        let here = at(u64::from(n)).tid(11 + n % 50).cpu(n as usize % 2);
        b.event(here, id, &Payload::new().bytes(format!("text {n}").as_bytes()));
    }
    let (bytes, summary) = export(&b.trace());
    assert_eq!(summary.instants, 20_000);
    let Decoded { tracks, events } = decode(&bytes);
    for event in events {
        assert_eq!(event.args["text"], format!("text {}", event.time));
        assert_eq!(event.name, format!("p{}:e", event.time % 50));
        assert_eq!(tracks[&event.track].name, format!("thread-{}", 11 + event.time % 50));
    }
}

/// A child goes on with the spans its parent had open; each process has its own slices.
#[test]
fn a_forked_child_keeps_its_parents_spans_apart() {
    let mut b = Builder::new(1);
    let span = scenes::span_schemas(&mut b, "app:work");
    b.process(10, 1, b"parent", b"");
    b.process(20, 10, b"child", b"");
    span.create(&mut b, at(1_000).pid(10), 1);
    span.enter(&mut b, at(1_010).pid(10), 1);
    // The child leaves what its parent had entered, and enters it again.
    span.exit(&mut b, at(1_020).pid(20), 1);
    span.enter(&mut b, at(1_030).pid(20), 1);
    // Its own first span has the id that its parent's next span has.
    span.create(&mut b, at(1_040).pid(20), 2);
    span.enter(&mut b, at(1_050).pid(20), 2);
    span.create(&mut b, at(1_060).pid(10), 2);
    span.enter(&mut b, at(1_070).pid(10), 2);
    span.exit(&mut b, at(1_080).pid(20), 2);
    span.close(&mut b, at(1_081).pid(20), 2, 41);
    span.exit(&mut b, at(1_090).pid(20), 1);
    span.exit(&mut b, at(1_100).pid(10), 2);
    span.close(&mut b, at(1_101).pid(10), 2, 41);
    span.exit(&mut b, at(1_110).pid(10), 1);
    span.close(&mut b, at(1_120).pid(10), 1, 120);
    let (bytes, summary) = export(&b.trace());
    let decoded = decode(&bytes);
    let slices = decoded.slices();
    assert_eq!((summary.thread_slices, summary.async_slices), (4, 0));
    let ends = [(1_010, 1_110, 10), (1_030, 1_090, 20), (1_050, 1_080, 20), (1_070, 1_100, 10)];
    for (begin, end, pid) in ends {
        let slice = slice(&slices, "app:work", begin);
        assert_eq!((slice.end, decoded.tracks[&slice.track].pid), (end, pid));
    }
    let inherited = slice(&slices, "app:work", 1_030);
    assert_eq!(arg(inherited, "owlet: entered by the parent process"), "true");
}
