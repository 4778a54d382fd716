//! More call sites of `log` than a program should have.

#[path = "common/bridge.rs"]
mod bridge;
mod common;

use bridge::{Session, one};
use log::{Level, Record};

/// Targets made at run time do not grow the process without bound, and are not lost.
#[test]
fn more_call_sites_than_there_is_room_for_share_one_tracepoint() {
    let _one = one();
    owlet::log::logger().install().unwrap();
    let mut session = Session::new(&[("many:*", true), ("log:other", true)]);
    let count = 6000;
    for n in 0..count {
        let target = format!("many:{n}");
        log::logger().log(
            &Record::builder()
                .target(&target)
                .level(Level::Debug)
                .args(format_args!("x"))
                .file(Some("made.rs"))
                .line(Some(1))
                .build(),
        );
    }
    session.end();
    assert_eq!(session.recorder.events.len() as u64 + session.recorder.total_lost(), count);
    let others: Vec<_> = session.recorder.named("log:other").collect();
    assert!(others.len() > 1000, "{}", others.len());
    assert!(others.iter().all(|event| event.value("target").starts_with("many:")));
    assert!(session.recorder.schemas.len() < 5000);
}
