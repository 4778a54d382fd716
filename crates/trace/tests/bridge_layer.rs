//! The layer in a stack of others.

#[path = "common/bridge.rs"]
mod bridge;
mod common;

use bridge::{Session, one};
use owlet_wire::schema::Kind;
use std::io::Write;
use std::sync::{Arc, Mutex};
use tracing::{debug, info, info_span, subscriber::with_default};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

#[derive(Clone, Default)]
struct Out(Arc<Mutex<Vec<u8>>>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn work() {
    let outer = info_span!(target: "layered", "outer", late = tracing::field::Empty);
    outer.in_scope(|| {
        info!(target: "layered", "info");
        debug!(target: "layered", "debug");
        let inner = tracing::debug_span!(target: "layered", "inner");
        inner.in_scope(|| debug!(target: "layered", "in inner"));
        inner.follows_from(&outer);
    });
    outer.record("late", 1);
}

#[test]
fn other_layers_are_not_disturbed_and_everything_is_recorded() {
    let _one = one();
    let text = |with: bool| {
        let out = Out::default();
        let writer = out.clone();
        let fmt = tracing_subscriber::fmt::layer()
            .without_time()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .with_filter(LevelFilter::INFO);
        let registry = tracing_subscriber::registry().with(fmt);
        if with {
            with_default(registry.with(owlet::tracing::layer()), work);
        } else {
            with_default(registry, work);
        }
        String::from_utf8(out.0.lock().unwrap().clone()).unwrap()
    };
    let expected = text(false);
    assert_eq!(expected.lines().count(), 1);
    assert_eq!(text(true), expected, "off");
    let mut session = Session::new(&[("layered:*", true)]);
    assert_eq!(text(true), expected, "recorded");
    session.end();
    let of = |kind| session.of_kind(kind).len();
    assert_eq!((of(Kind::SpanNew), of(Kind::SpanClose)), (2, 2));
    assert_eq!((of(Kind::SpanEnter), of(Kind::SpanExit)), (2, 2));
    assert_eq!((of(Kind::SpanEvent), of(Kind::SpanRecord), of(Kind::SpanFollows)), (3, 1, 1));
    let new = session.of_kind(Kind::SpanNew);
    assert_eq!(new[1].number("parent"), new[0].number("span"));
    let events = session.of_kind(Kind::SpanEvent);
    assert_eq!(events[2].number("span"), new[1].number("span"));
    assert_eq!(text(true), expected, "off again");
}

#[test]
fn alone_in_a_registry_it_switches_what_is_evaluated() {
    let _one = one();
    with_default(tracing_subscriber::registry().with(owlet::tracing::layer()), || {
        let evaluated = std::cell::Cell::new(0);
        let emit = || info!(target: "evaluated", n = { evaluated.set(evaluated.get() + 1); 1 });
        emit();
        assert_eq!(evaluated.get(), 0);
        let mut session = Session::new(&[("evaluated:*", true)]);
        emit();
        assert_eq!(evaluated.get(), 1);
        session.end();
        emit();
        assert_eq!(evaluated.get(), 1);
        assert_eq!(session.recorder.events.len(), 1);
    });
}
