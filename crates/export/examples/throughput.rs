//! How fast a trace is merged, rendered and exported on one thread.
//!
//! ```text
//! cargo run --release -p owlet-export --example throughput -- [EVENTS]
//! ```
//!
//! The trace is in memory: what is measured is this code and not a disk. Time is the thread's CPU time,
//! so that a busy machine does not count.

use owlet_analyze::build::{Builder, Payload, at};
use owlet_analyze::{Stats, Trace, json, text};
use owlet_export::perfetto;
use owlet_wire::schema::{Kind, Scalar, Type};
use std::hint::black_box;

fn build(events: u64) -> Trace {
    let mut b = Builder::new(2);
    let fields = [
        ("seq", Type::Scalar(Scalar::U64)),
        ("thread", Type::Scalar(Scalar::U32)),
        ("note", Type::Str),
    ];
    let id = b.schema("demo:tick", Kind::Event, &fields);
    let work = |b: &mut Builder, kind| b.schema("demo:work", kind, &[]);
    let (new, enter) = (work(&mut b, Kind::SpanNew), work(&mut b, Kind::SpanEnter));
    let (exit, close) = (work(&mut b, Kind::SpanExit), work(&mut b, Kind::SpanClose));
    for thread in 0..4 {
        b.thread(10, 11 + thread, format!("worker-{thread}").as_bytes());
    }
    // Of five records one is an event and four are of a span.
    for n in 0..events {
        let here = at(1_796_032_912_000_000_000 + 213 * n).tid(11 + n as u32 % 4);
        let here = here.cpu(n as usize / 7 % 2);
        let span = n / 5 + 1;
        let here = if n % 5 == 0 { here } else { here.tid(11 + (span % 4) as u32) };
        match n % 5 {
            0 => b.event(here, id, &Payload::new().u64(n).u32(7).bytes(b"a short note")),
            1 => b.event(here, new, &Payload::new().u64(span).u64(0)),
            2 => b.event(here, enter, &Payload::new().u64(span)),
            3 => b.event(here, exit, &Payload::new().u64(span)),
            _ => b.event(here, close, &Payload::new().u64(span).u64(639)),
        }
    }
    b.trace()
}

/// Nanoseconds this thread has run, by the kernel's count.
fn cpu_ns() -> u64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn measure(what: &str, events: u64, run: impl FnOnce() -> u64) {
    let start = cpu_ns();
    let bytes = run();
    let seconds = (cpu_ns() - start) as f64 / 1e9;
    let (rate, each) = (events as f64 / seconds / 1e6, bytes as f64 / events as f64);
    println!("{what:<16} {rate:7.2} M events/s, {each:6.1} bytes/event");
}

fn main() {
    let events = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2_000_000);
    let trace = build(events);
    println!("{events} events in 2 streams, one fifth with 3 fields, the rest spans");
    let walk = |mut each: Box<dyn FnMut(&owlet_analyze::Event<'_>) -> u64>| {
        let mut walk = trace.events().expect("memory opens");
        let mut bytes = 0;
        while let Some(event) = walk.next_event() {
            bytes += each(&event);
        }
        bytes
    };
    measure("merge", events, || walk(Box::new(|event| black_box(event.time_ns) & 1)));
    let mut line = text::Line::default();
    measure("merge + text", events, || walk(Box::new(move |e| line.render(e).len() as u64)));
    let mut line = json::Line::default();
    measure("merge + JSON", events, || walk(Box::new(move |e| line.render(e).len() as u64)));
    measure("statistics", events, || {
        let stats = Stats::collect(&trace, &mut trace.events().expect("memory opens"));
        black_box(stats.events) & 1
    });
    measure("Perfetto", events, || {
        perfetto::write(&trace, None, &mut std::io::sink()).expect("a sink takes all").bytes
    });
}
