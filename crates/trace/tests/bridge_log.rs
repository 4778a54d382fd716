//! Records of `log`, and no `tracing` anywhere in sight (U3).

#[path = "common/bridge.rs"]
mod bridge;
mod common;

use bridge::{Session, one};
use log::{LevelFilter, Log, Metadata, Record, debug, error, info, trace, warn};
use owlet_ring::Loss;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// What the inner logger got.
static INNER: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Inner;
impl Log for Inner {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() != "quiet"
    }
    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            INNER.lock().unwrap().push(record.args().to_string());
        }
    }
    fn flush(&self) {}
}

fn installed() -> MutexGuard<'static, ()> {
    static ONCE: OnceLock<()> = OnceLock::new();
    let guard = one();
    ONCE.get_or_init(|| {
        owlet::log::tee(Box::new(Inner), LevelFilter::Info).install().unwrap();
        assert!(owlet::log::logger().install().is_err());
    });
    INNER.lock().unwrap().clear();
    guard
}

#[test]
fn records_become_events_with_target_level_and_place() {
    let _one = installed();
    let mut session = Session::new(&[("rustls::*", true)]);
    error!(target: "rustls::a", "error {}", 1);
    warn!(target: "rustls::b", "warn");
    info!(target: "rustls::c", "info");
    debug!(target: "rustls::d", "debug");
    trace!(target: "rustls::e", "{}", "trace");
    info!(target: "mio", "other");
    session.end();
    let seen: Vec<_> = session
        .recorder
        .events
        .iter()
        .map(|event| (event.value("message"), format!("{:?}", session.schema(event).level)))
        .collect();
    let seen: Vec<_> = seen.iter().map(|(a, b)| (*a, b.as_str())).collect();
    assert_eq!(
        seen,
        [
            ("error 1", "Error"),
            ("warn", "Warn"),
            ("info", "Info"),
            ("debug", "Debug"),
            ("trace", "Trace")
        ]
    );
    let schema = session.schema(&session.recorder.events[0]);
    assert_eq!(schema.name, format!("rustls::a:bridge_log.rs:{}", schema.line));
    assert!(schema.file.ends_with("tests/bridge_log.rs"));
    assert_eq!(*INNER.lock().unwrap(), ["error 1", "warn", "info", "other"]);
}

/// U3: switched at run time, on call sites reached before, meanwhile and afterwards.
#[test]
fn u3_switching_at_run_time_reaches_every_call_site() {
    let _one = installed();
    let emit = |n: u64| debug!(target: "mio::poll", "{n}");
    emit(1);
    let mut session = Session::new(&[("mio::*", true)]);
    emit(2);
    debug!(target: "mio::new", "3");
    session.control(&[("*", false)]);
    emit(4);
    session.control(&[("*", true)]);
    emit(5);
    session.end();
    emit(6);
    let seen: Vec<_> = session.recorder.events.iter().map(|e| e.value("message")).collect();
    assert_eq!(seen, ["2", "3", "5"]);
    assert!(INNER.lock().unwrap().is_empty());
}

#[test]
fn the_maximum_level_falls_to_the_inner_one_when_all_is_known_and_rises_with_a_session() {
    let _one = installed();
    for _ in 0..=owlet::log::DISCOVERED {
        trace!(target: "hot", "x");
    }
    assert_eq!(log::max_level(), LevelFilter::Info);
    owlet::log::set_max_level(LevelFilter::Off);
    assert_eq!(log::max_level(), LevelFilter::Off);
    let mut session = Session::new(&[("cold:*", true)]);
    assert_eq!(log::max_level(), LevelFilter::Trace);
    trace!(target: "cold", "reached for the first time");
    session.end();
    assert_eq!(session.recorder.events.len(), 1);
    owlet::log::set_max_level(LevelFilter::Info);
}

struct Emits(u32);
impl std::fmt::Display for Emits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 > 0 {
            info!(target: "nested", "{}", Emits(self.0 - 1));
        }
        write!(f, "{}", self.0)
    }
}

struct Panics;
impl std::fmt::Display for Panics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("so far ")?;
        panic!("as a user's Display may")
    }
}

#[test]
fn d2_records_inside_records_are_counted_and_a_panic_ends_in_the_record() {
    let _one = installed();
    owlet::log::set_max_level(LevelFilter::Off);
    let mut session = Session::new(&[("nested:*", true)]);
    info!(target: "nested", "{}", Emits(9));
    for _ in 0..10 {
        info!(target: "nested", "{Panics}");
    }
    info!(target: "nested", "{}", "after");
    session.end();
    assert_eq!(session.recorder.events.len(), 15);
    let panicked = |event: &&common::Event| event.value("message") == "so far <panicked>";
    assert_eq!(session.recorder.events.iter().filter(panicked).count(), 10);
    assert_eq!(session.recorder.lost[Loss::Recursion as usize], 1);
    owlet::log::set_max_level(LevelFilter::Info);
}

#[test]
fn a_long_message_is_cut_and_marked() {
    let _one = installed();
    let mut session = Session::new(&[("long:*", true)]);
    debug!(target: "long", "{}", "\u{20ac}".repeat(3000));
    session.end();
    let message = session.recorder.events[0].value("message");
    assert!(message.ends_with("\u{20ac}\u{2026}") && message.len() > 4000, "{message}");
}

#[test]
fn threads_that_reach_call_sites_at_once_lose_nothing() {
    let _one = installed();
    macro_rules! sites { ($($n:literal)*) => { [$(|n: u64| debug!(target: concat!("at_once:", $n), "{n}")),*] } }
    let sites: [fn(u64); 12] = sites!["0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "a" "b"];
    let mut session = Session::new(&[("at_once:*", true)]);
    let sum = AtomicU64::new(0);
    let barrier = std::sync::Barrier::new(16);
    std::thread::scope(|scope| {
        for n in 1..=16u64 {
            let (sum, barrier) = (&sum, &barrier);
            scope.spawn(move || {
                for site in sites {
                    barrier.wait();
                    site(n);
                    sum.fetch_add(n, Ordering::Relaxed);
                }
            });
        }
    });
    session.end();
    let seen: u64 =
        session.recorder.events.iter().map(|e| e.value("message").parse::<u64>().unwrap()).sum();
    assert_eq!((session.recorder.events.len(), seen), (16 * 12, sum.load(Ordering::Relaxed)));
}
