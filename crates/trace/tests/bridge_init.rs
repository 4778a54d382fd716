//! The one line, and what a client then sees of the program.

#[path = "common/bridge.rs"]
mod bridge;
mod common;

use bridge::Session;
use common::Client;
use owlet_wire::schema::{Kind, Scalar, Type};
use tracing::{info, info_span};

/// A call site is one line of the list, known before anybody records, whatever was recorded of it.
#[test]
fn one_line_is_enough_and_a_list_shows_each_call_site_once() {
    owlet::tracing::init().unwrap();
    assert!(matches!(owlet::tracing::init(), Err(owlet::tracing::InitError::Taken)));
    let work = || {
        let span = info_span!(target: "listed", "span", n = 1u64);
        span.in_scope(|| info!(name: "event", target: "listed", n = 2u64, "hello"));
        span.record("n", 3u64);
    };
    work();
    let client = Client::connect(std::process::id());
    let list = client.list("listed:*");
    let names: Vec<_> = list.iter().map(|point| (point.name.as_str(), point.kind)).collect();
    assert_eq!(names, [("listed:event", Kind::SpanEvent), ("listed:span", Kind::SpanNew)]);
    assert!(list.iter().all(|point| !point.enabled && point.hits == 0));
    assert_eq!(list[0].fields[1].ty, Type::Dynamic);
    let mut session = Session::new(&[("listed:*", true)]);
    work();
    work();
    let list = client.list("listed:*");
    let hits: Vec<_> = list.iter().map(|point| (point.name.as_str(), point.hits)).collect();
    // New, enter, exit, record, close.
    assert_eq!(hits, [("listed:event", 2), ("listed:span", 2 * 5)]);
    assert!(list.iter().all(|point| point.enabled));
    let field = list[0].fields.iter().find(|field| field.name == "n").unwrap();
    assert_eq!(field.ty, Type::Scalar(Scalar::U64));
    session.end();
    assert_eq!(session.recorder.events.len(), 12);
}
