//! Reading a trace: merge, filter, text, JSON, spans, statistics.

mod hostile;
mod merge;
mod render;
mod spans;
mod stats;
mod store;

use owlet_analyze::Trace;
use owlet_analyze::build::{At, Builder, Payload};
use owlet_wire::schema::{Kind, Scalar, Type};

/// Ids of the span records of one name.
#[derive(Clone, Copy)]
struct SpanIds {
    new: u32,
    enter: u32,
    exit: u32,
    close: u32,
}

fn span_schemas(b: &mut Builder, name: &str) -> SpanIds {
    SpanIds {
        new: b.schema(name, Kind::SpanNew, &[]),
        enter: b.schema(name, Kind::SpanEnter, &[]),
        exit: b.schema(name, Kind::SpanExit, &[]),
        close: b.schema(name, Kind::SpanClose, &[]),
    }
}

impl SpanIds {
    fn create(self, b: &mut Builder, at: At, span: u64) {
        b.event(at, self.new, &Payload::new().u64(span).u64(0));
    }

    fn enter(self, b: &mut Builder, at: At, span: u64) {
        b.event(at, self.enter, &Payload::new().u64(span));
    }

    fn exit(self, b: &mut Builder, at: At, span: u64) {
        b.event(at, self.exit, &Payload::new().u64(span));
    }

    fn close(self, b: &mut Builder, at: At, span: u64, duration: u64) {
        b.event(at, self.close, &Payload::new().u64(span).u64(duration));
    }
}

fn tick(b: &mut Builder) -> u32 {
    b.schema("demo:tick", Kind::Event, &[("seq", Type::Scalar(Scalar::U64))])
}

/// The `seq` of every event, in the order read.
fn sequence(trace: &Trace) -> Vec<u64> {
    let mut events = trace.events().expect("memory opens");
    let mut seen = Vec::new();
    while let Some(event) = events.next_event() {
        seen.push(u64::from_le_bytes(*event.payload().first_chunk().expect("a seq")));
    }
    seen
}
