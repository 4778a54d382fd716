//! The one line, and what a client then sees of the program.

#[path = "common/bridge.rs"]
mod bridge;
mod common;
#[path = "common/child.rs"]
mod proc;

use bridge::Session;
use common::Client;
use owlet::tracing::{InitError, Seat};
use owlet_wire::schema::{Kind, Scalar, Type};
use proc::{Target, say};
use tracing::{info, info_span};

/// A call site is one line of the list, known before anybody records, whatever was recorded of it.
#[test]
fn one_line_is_enough_and_a_list_shows_each_call_site_once() {
    owlet::tracing::init().unwrap();
    let taken = owlet::tracing::init().unwrap_err();
    assert!(matches!(taken, InitError::Taken(Seat::Subscriber)));
    let taken = taken.to_string();
    assert!(taken.starts_with("another tracing subscriber"), "{taken}");
    let hint =
        "instead of setting it; with tracing-subscriber, that is `.finish()` instead of `.init()`";
    assert!(taken.ends_with(hint), "{taken}");
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

traced_program!(child);

/// A program whose own subscriber writes to where the test listens.
fn child(_: &str) {
    let own = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .without_time()
        .with_ansi(false)
        .finish();
    say(&format!("init {:?}", owlet::tracing::init_with(own)));
    info!("still told");
}

/// The program's own subscriber is there, whatever becomes of the agent.
#[test]
fn without_an_agent_the_inner_subscriber_is_installed_all_the_same() {
    let mut disabled = Target::spawn(proc::command("init").env("OWLET_DISABLE", "1"));
    assert_eq!(disabled.expect("init"), "Ok(())");
    let stale = "/proc/1/fd/99999";
    let mut stale = Target::spawn(proc::command("init").env("OWLET_SESSION", stale));
    assert_eq!(stale.expect("init"), "Ok(())");
    let dir = std::env::temp_dir().join(format!("owlet-init-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("owlet"), "in the way").unwrap();
    let mut failed = Target::spawn(proc::command("init").env("XDG_RUNTIME_DIR", &dir));
    let (told, outcome) = failed.until("init");
    assert_eq!(outcome, "Ok(())");
    let why = "owlet: this process cannot be traced: cannot make the owlet agent's socket in ";
    assert!(told.starts_with(why), "{told}");
    for target in [&mut disabled, &mut stale, &mut failed] {
        assert!(target.expect("INFO").ends_with("still told"));
    }
    std::fs::remove_dir_all(dir).unwrap();
}
