//! Spans and events of `tracing` through the subscriber of our own: exactly what was emitted.

#[path = "common/bridge.rs"]
mod bridge;
mod common;

use bridge::{Session, one};
use common::Wanted;
use owlet::Level;
use owlet_ring::Loss;
use owlet_wire::schema::{Kind, Scalar, Type};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, debug, error, info, info_span, trace, warn};

/// Ours is the process's default.
fn global() -> std::sync::MutexGuard<'static, ()> {
    static ONCE: OnceLock<()> = OnceLock::new();
    let guard = one();
    ONCE.get_or_init(|| {
        tracing::subscriber::set_global_default(owlet::tracing::subscriber()).unwrap();
    });
    guard
}

#[test]
fn every_type_comes_back_as_it_was_and_absent_fields_are_left_out() {
    let _one = global();
    let mut session = Session::new(&[("*", true)]);
    let error: &(dyn std::error::Error + 'static) = &std::fmt::Error;
    info!(
        a = 1u8,
        b = -2i64,
        c = 1.5f32,
        d = true,
        e = "text",
        f = &b"by\0tes"[..],
        g = u128::MAX,
        h = i128::MIN,
        i = error,
        j = ?Some(3),
        k = %"shown",
        l = tracing::field::Empty,
        m = None::<u64>,
        n = Some(7u64),
        "message {}",
        5
    );
    session.end();
    let event = &session.recorder.events[0];
    let text = |field: &str| event.value(field).to_owned();
    assert_eq!(text("span"), "U64(0)");
    assert_eq!(text("message"), "message 5");
    assert_eq!(text("a"), "U64(1)");
    assert_eq!(text("b"), "I64(-2)");
    assert_eq!(text("c"), "F64(1.5)");
    assert_eq!(text("d"), "Bool(true)");
    assert_eq!(text("e"), "text");
    assert_eq!(text("f"), format!("Bytes({:?})", b"by\0tes"));
    assert_eq!(text("g"), u128::MAX.to_string());
    assert_eq!(text("h"), i128::MIN.to_string());
    assert_eq!(text("i"), std::fmt::Error.to_string());
    assert_eq!(text("j"), "Some(3)");
    assert_eq!(text("k"), "shown");
    assert_eq!(text("n"), "U64(7)");
    assert_eq!(event.values.len(), 14, "{event:?}");
    let schema = session.schema(event);
    let of = |name: &str| &schema.fields.iter().find(|field| field.name == name).unwrap().ty;
    assert_eq!(*of("a"), Type::Scalar(Scalar::U64));
    assert_eq!(*of("b"), Type::Scalar(Scalar::I64));
    assert_eq!(*of("d"), Type::Scalar(Scalar::Bool));
    assert_eq!(*of("message"), Type::Str);
    assert_eq!(*of("f"), Type::Bytes);
    assert_eq!(schema.level, Level::Info);
    assert_eq!(schema.kind, Kind::SpanEvent);
    assert!(schema.file.ends_with("tests/bridge_tracing.rs"), "{}", schema.file);
    assert_eq!(schema.name, format!("bridge_tracing:bridge_tracing.rs:{}", schema.line));
}

#[test]
fn levels_targets_and_names_are_those_of_the_call_site() {
    let _one = global();
    let mut session = Session::new(&[("net::*", true)]);
    error!(target: "net::a", "x");
    warn!(target: "net::b", "x");
    info!(target: "net::c", "x");
    debug!(target: "net::d", "x");
    trace!(target: "net::e", "x");
    info!(target: "other", "x");
    info!(name: "accepted", target: "net::f", "x");
    session.end();
    let seen: Vec<_> = session
        .recorder
        .events
        .iter()
        .map(|event| (event.name.split(":bridge").next().unwrap(), session.schema(event).level))
        .collect();
    assert_eq!(
        seen,
        [
            ("net::a", Level::Error),
            ("net::b", Level::Warn),
            ("net::c", Level::Info),
            ("net::d", Level::Debug),
            ("net::e", Level::Trace),
            ("net::f:accepted", Level::Info),
        ]
    );
}

#[test]
fn a_call_site_has_four_typed_variants_and_then_a_dynamic_one() {
    let _one = global();
    let mut session = Session::new(&[("variants:*", true)]);
    fn emit(value: Option<&dyn tracing::Value>, other: Option<u64>) {
        info!(target: "variants", value, other);
    }
    for _ in 0..2 {
        emit(Some(&1u64), None);
        emit(Some(&-1i64), None);
        emit(Some(&"x"), None);
        emit(None, None);
        emit(Some(&true), None);
        emit(Some(&2.5f64), Some(9));
    }
    session.end();
    assert_eq!(session.recorder.events.len(), 12);
    let shown: Vec<_> = session.recorder.events.iter().map(|e| e.values[1..].to_vec()).collect();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    for shown in [&shown[..6], &shown[6..]] {
        assert_eq!(shown[0], [pair("value", "U64(1)")]);
        assert_eq!(shown[1], [pair("value", "I64(-1)")]);
        assert_eq!(shown[2], [pair("value", "x")]);
        assert_eq!(shown[3], []);
        assert_eq!(shown[4], [pair("value", "Bool(true)"), pair("other", "None")]);
        assert_eq!(shown[5], [pair("value", "F64(2.5)"), pair("other", "U64(9)")]);
    }
    let mut ids: Vec<_> = session.recorder.events.iter().map(|event| event.header.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 5);
}

#[test]
fn long_values_are_cut_at_a_character_and_marked_and_later_fields_are_there() {
    let _one = global();
    let mut session = Session::new(&[("long:*", true)]);
    let long = "\u{e4}".repeat(5000);
    info!(target: "long", long, after = 7, last = "x", "{}", "y".repeat(9000));
    info!(target: "long", bytes = &[7u8; 6000][..], after = 7);
    session.end();
    let [first, second] = &session.recorder.events[..] else { panic!() };
    assert_eq!(first.value("after"), "I64(7)");
    assert!(first.value("message").ends_with("y\u{2026}"), "{}", first.value("message"));
    assert!(first.header.len < 4200);
    assert_eq!(second.value("after"), "I64(7)");
    assert!(second.value("bytes").len() > 3 * 4000);
}

#[test]
fn off_means_never_and_nothing_is_evaluated() {
    let _one = global();
    let evaluated = AtomicU64::new(0);
    let emit = || {
        info!(target: "off", n = evaluated.fetch_add(1, Ordering::Relaxed));
        let _span =
            info_span!(target: "off", "span", n = evaluated.fetch_add(1, Ordering::Relaxed));
        assert_eq!(_span.is_disabled(), evaluated.load(Ordering::Relaxed) == 0);
    };
    emit();
    assert_eq!(evaluated.load(Ordering::Relaxed), 0);
    let mut session = Session::new(&[("off:*", true)]);
    emit();
    assert_eq!(evaluated.load(Ordering::Relaxed), 2);
    session.end();
    assert_eq!(session.recorder.events.len(), 3);
    evaluated.store(0, Ordering::Relaxed);
    emit();
    assert_eq!(evaluated.load(Ordering::Relaxed), 0);
    assert!(!tracing::enabled!(target: "off", tracing::Level::INFO));
}

/// A call site that nobody registers but us, to see what interest it is given.
struct Probe(AtomicU64);
impl tracing::callsite::Callsite for Probe {
    fn set_interest(&self, interest: tracing::subscriber::Interest) {
        let seen = match () {
            () if interest.is_never() => 1,
            () if interest.is_always() => 2,
            () => 3,
        };
        self.0.store(seen, Ordering::Relaxed);
    }
    fn metadata(&self) -> &tracing::Metadata<'_> {
        &PROBED
    }
}
static PROBE: Probe = Probe(AtomicU64::new(0));
static PROBED: tracing::Metadata<'static> = tracing::Metadata::new(
    "event somewhere.rs:7",
    "probed",
    tracing::Level::INFO,
    Some("src/somewhere.rs"),
    Some(7),
    None,
    tracing::field::FieldSet::new(&["a"], tracing::callsite::Identifier(&PROBE)),
    tracing::metadata::Kind::EVENT,
);

#[test]
fn interest_is_never_while_off_and_always_while_on() {
    let _one = global();
    tracing::callsite::register(&PROBE);
    assert_eq!(PROBE.0.load(Ordering::Relaxed), 1);
    let mut session = Session::new(&[("probed:somewhere.rs:7", true)]);
    assert_eq!(PROBE.0.load(Ordering::Relaxed), 2);
    session.control(&[("*", false)]);
    assert_eq!(PROBE.0.load(Ordering::Relaxed), 1);
    session.control(&[("*", true)]);
    assert_eq!(PROBE.0.load(Ordering::Relaxed), 2);
    session.end();
    assert_eq!(PROBE.0.load(Ordering::Relaxed), 1);
}

#[test]
fn the_maximum_level_is_off_for_those_who_do_not_discover_and_only_while_nobody_records() {
    let _one = global();
    // The global one discovers.
    assert_eq!(LevelFilter::current(), LevelFilter::TRACE);
    let hint = |s: &dyn tracing::Subscriber| s.max_level_hint();
    let hiding = owlet::tracing::subscriber().discover(false);
    assert_eq!(hint(&hiding), Some(LevelFilter::OFF));
    assert_eq!(hint(&owlet::tracing::subscriber()), Some(LevelFilter::TRACE));
    // A session that matches nothing known may match what is still to come.
    let mut session = Session::new(&[("not-there-yet", true)]);
    assert_eq!(hint(&hiding), Some(LevelFilter::TRACE));
    session.end();
    assert_eq!(hint(&hiding), Some(LevelFilter::OFF));
}

#[test]
fn spans_nest_and_events_know_theirs() {
    let _one = global();
    let mut session = Session::new(&[("nest:*", true)]);
    let outer = info_span!(target: "nest", "outer", a = 1, late = tracing::field::Empty);
    {
        let _in = outer.enter();
        let inner = info_span!(target: "nest", "inner");
        inner.in_scope(|| info!(name: "in", target: "nest", "x"));
        outer.record("late", "value");
        info!(name: "root", target: "nest", parent: None, "x");
        info!(name: "explicit", target: "nest", parent: &inner, "x");
        let root = info_span!(target: "nest", parent: None, "root_span");
        root.follows_from(&inner);
        drop(root);
    }
    drop(outer);
    info!(name: "out", target: "nest", "x");
    let lines = session.lines();
    let first: u64 = session.of_kind(Kind::SpanNew)[0].number("span");
    let (o, i, r) = (first, first + 1, first + 2);
    let expected = [
        format!("SpanNew nest:outer span=U64({o}) parent=U64(0) a=I64(1)"),
        format!("SpanEnter nest:outer span=U64({o})"),
        format!("SpanNew nest:inner span=U64({i}) parent=U64({o})"),
        format!("SpanEnter nest:inner span=U64({i})"),
        format!("SpanEvent nest:in span=U64({i}) message=x"),
        format!("SpanExit nest:inner span=U64({i})"),
        format!("SpanRecord nest:outer span=U64({o}) late=value"),
        "SpanEvent nest:root span=U64(0) message=x".to_owned(),
        format!("SpanEvent nest:explicit span=U64({i}) message=x"),
        format!("SpanNew nest:root_span span=U64({r}) parent=U64(0)"),
        format!("SpanFollows nest:root_span span=U64({r}) follows=U64({i})"),
        format!("SpanClose nest:root_span span=U64({r})"),
        format!("SpanClose nest:inner span=U64({i})"),
        format!("SpanExit nest:outer span=U64({o})"),
        format!("SpanClose nest:outer span=U64({o})"),
        "SpanEvent nest:out span=U64(0) message=x".to_owned(),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_span_lives_until_its_last_handle_and_says_how_long() {
    let _one = global();
    let mut session = Session::new(&[("handles:*", true)]);
    let span = info_span!(target: "handles", "s");
    let other = span.clone();
    drop(span);
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        other.in_scope(|| {});
    })
    .join()
    .unwrap();
    session.end();
    let closed = session.of_kind(Kind::SpanClose);
    assert_eq!(closed.len(), 1);
    assert!((20_000_000..3_600_000_000_000).contains(&closed[0].number("duration_ns")));
    let new = session.of_kind(Kind::SpanNew)[0];
    assert_ne!(new.header.tid, closed[0].header.tid);
    assert_eq!(session.of_kind(Kind::SpanEnter)[0].header.tid, closed[0].header.tid);
}

struct Nobody;
impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

/// Pending once, then ready.
struct Yield(bool);
impl Future for Yield {
    type Output = ();
    fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[test]
fn spans_of_futures_are_entered_and_left_at_every_poll() {
    let _one = global();
    let mut session = Session::new(&[("async:*", true)]);
    let task = |n: u64| {
        async move {
            for step in 0..3u64 {
                info!(name: "step", target: "async", n, step);
                Yield(false).await;
            }
        }
        .instrument(info_span!(target: "async", "task", n))
    };
    let waker = Waker::from(Arc::new(Nobody));
    let mut context = Context::from_waker(&waker);
    {
        let (mut a, mut b) = (pin!(task(1)), pin!(task(2)));
        loop {
            let (x, y) = (a.as_mut().poll(&mut context), b.as_mut().poll(&mut context));
            if x.is_ready() && y.is_ready() {
                break;
            }
        }
    }
    session.end();
    let id_of = |n: u64| {
        let new = session.of_kind(Kind::SpanNew);
        new.iter().find(|new| new.number("n") == n).unwrap().number("span")
    };
    for n in [1, 2] {
        let own =
            |kind| session.of_kind(kind).iter().filter(|e| e.number("span") == id_of(n)).count();
        assert_eq!(own(Kind::SpanEvent), 3);
        // Four polls, and once more when the future is dropped.
        assert_eq!((own(Kind::SpanEnter), own(Kind::SpanExit)), (5, 5));
        assert_eq!(own(Kind::SpanClose), 1);
    }
    for step in session.of_kind(Kind::SpanEvent) {
        assert_eq!(step.number("span"), id_of(step.number("n")));
    }
}

#[test]
fn a_span_left_out_of_order_or_entered_twice_is_still_paired() {
    let _one = global();
    let mut session = Session::new(&[("order:*", true)]);
    let (a, b) = (info_span!(target: "order", "a"), info_span!(target: "order", "b"));
    let in_a = a.enter();
    let in_b = b.enter();
    let again = a.enter();
    drop(in_a);
    info!(name: "one", target: "order", "x");
    drop(in_b);
    drop(again);
    info!(name: "none", target: "order", "x");
    let lines = session.lines();
    let id = session.of_kind(Kind::SpanNew)[0].number("span");
    let of = |line: &str| lines.iter().find(|l| l.starts_with(line)).unwrap().clone();
    // The innermost entry of `a` went first.
    assert_eq!(
        of("SpanEvent order:one"),
        format!("SpanEvent order:one span=U64({}) message=x", id + 1)
    );
    assert_eq!(of("SpanEvent order:none"), "SpanEvent order:none span=U64(0) message=x");
    assert_eq!(session.of_kind(Kind::SpanExit).len(), 3);
}

#[test]
fn spans_switched_in_the_middle_are_never_paired_wrongly() {
    let _one = global();
    let span = || info_span!(target: "middle", "s");
    let before = span();
    let mut session = Session::new(&[("middle:*", true)]);
    // Created while off: not recorded.
    before.in_scope(|| info!(name: "in", target: "middle", "x"));
    let live = span();
    let entered = live.enter();
    session.control(&[("middle:*", false)]);
    drop(entered);
    let entered = live.enter();
    session.control(&[("middle:*", true)]);
    // Its entry is not recorded: neither is this.
    drop(entered);
    live.in_scope(|| {});
    drop(live);
    let lines = session.lines();
    let id = session.of_kind(Kind::SpanNew)[0].number("span");
    assert_eq!(
        lines,
        [
            "SpanEvent middle:in span=U64(0) message=x".to_owned(),
            format!("SpanNew middle:s span=U64({id}) parent=U64(0)"),
            format!("SpanEnter middle:s span=U64({id})"),
            format!("SpanEnter middle:s span=U64({id})"),
            format!("SpanExit middle:s span=U64({id})"),
            format!("SpanClose middle:s span=U64({id})"),
        ]
    );
}

#[test]
fn numbers_of_spans_are_never_used_twice() {
    let _one = global();
    let mut session = Session::new(&[("unique:*", true)]);
    for _ in 0..1000 {
        drop(info_span!(target: "unique", "s"));
    }
    session.end();
    let mut ids: Vec<_> =
        session.of_kind(Kind::SpanNew).iter().map(|event| event.number("span")).collect();
    assert_eq!(ids.len(), 1000);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1000);
}

/// With one session an event goes another way than with several.
#[test]
fn several_sessions_get_the_same_of_each_event_that_passes_their_filter() {
    let _one = global();
    let rules = vec![("both:*", true)];
    let filtered = Wanted { rules: rules.clone(), filter: "n >= 5", ..Wanted::default() };
    let texts = ["", "1", "seven b", "eight by", "nine byte", &"x".repeat(600), &"x".repeat(3000)];
    let emit = || {
        for n in 0..10u64 {
            for text in texts {
                info!(target: "both", n, text);
            }
        }
    };
    let values = |session: &mut Session| -> Vec<(String, String)> {
        session.end();
        assert_eq!(session.recorder.total_lost(), 0);
        let events = session.recorder.events.iter();
        events.map(|e| (e.value("n").to_owned(), e.value("text").to_owned())).collect()
    };
    let mut all = Session::new(&rules);
    let mut some = Session::with(&filtered);
    emit();
    let all = values(&mut all);
    assert_eq!(all.len(), 10 * texts.len());
    assert!(texts.iter().zip(&all).all(|(text, (_, found))| text == found), "{all:?}");
    assert_eq!(values(&mut some), all[5 * texts.len()..]);
    let mut alone = Session::with(&filtered);
    emit();
    assert_eq!(values(&mut alone), all[5 * texts.len()..]);
}

struct Emits(u32);
impl std::fmt::Debug for Emits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 > 0 {
            info!(target: "nested", depth = self.0, inner = ?Emits(self.0 - 1));
        }
        write!(f, "{}", self.0)
    }
}

/// D2 and its kind: what the user's code does inside us.
#[test]
fn d2_events_inside_events_are_recorded_to_a_depth_and_counted_beyond() {
    let _one = global();
    let mut session = Session::new(&[("nested:*", true)]);
    info!(target: "nested", inner = ?Emits(3));
    session.end();
    assert_eq!(session.recorder.events.len(), 4);
    assert_eq!(session.recorder.total_lost(), 0);
    let mut session = Session::new(&[("nested:*", true)]);
    info!(target: "nested", inner = ?Emits(10));
    session.end();
    assert_eq!(session.recorder.events.len(), 4);
    // The fifth is not built, so those inside it never happen.
    assert_eq!(session.recorder.lost[Loss::Recursion as usize], 1);
}

struct Panics;
impl std::fmt::Debug for Panics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("so far ")?;
        std::panic::panic_any(PanicsInDrop)
    }
}

/// What is thrown may be as bad as who throws it.
struct PanicsInDrop;
impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("as a user's panic may")
    }
}

/// Longer than there is room for, then a panic.
struct PanicsLate;
impl std::fmt::Debug for PanicsLate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (0..1000).try_for_each(|_| f.write_str("0123456789"))?;
        panic!("as a user's Debug may")
    }
}

/// Nobody dies of being recorded, and all else is recorded.
#[test]
fn a_panic_in_a_field_ends_in_the_record_and_the_program_goes_on() {
    let _one = global();
    let mut session = Session::new(&[("panics:*", true)]);
    // More often than payloads may be nested.
    for n in 0..10u64 {
        info!(target: "panics", field = ?Panics, n, "after");
        let span =
            info_span!(target: "panics", "s", field = ?Panics, late = tracing::field::Empty, n);
        span.record("late", tracing::field::debug(Panics));
        span.in_scope(|| info!(target: "panics", field = ?PanicsLate, n, "inside"));
    }
    info!(target: "panics", inner = ?Emits(0), "after");
    session.end();
    assert_eq!(session.recorder.events.len(), 10 * 7 + 1);
    assert_eq!(session.recorder.total_lost(), 0);
    for kind in [Kind::SpanEvent, Kind::SpanNew, Kind::SpanRecord] {
        let events = session.of_kind(kind);
        let ok = |event: &&&common::Event| {
            event.values.iter().any(|(_, value)| value == "so far <panicked>")
        };
        assert_eq!(events.iter().filter(ok).count(), 10, "{kind:?}");
    }
    let inside: Vec<_> = session
        .of_kind(Kind::SpanEvent)
        .into_iter()
        .filter(|event| event.value("message") == "inside")
        .collect();
    assert_eq!(inside.len(), 10);
    assert!(inside.iter().all(|event| event.value("field").ends_with('\u{2026}')));
    assert_eq!(inside.iter().map(|event| event.number("n")).sum::<u64>(), 45);
}

struct EmitsInDrop;
impl Drop for EmitsInDrop {
    fn drop(&mut self) {
        info!(target: "drops", "dropped");
        info_span!(target: "drops", "late").in_scope(|| info!(target: "drops", "inside"));
    }
}

/// T3: events from the destructor of a thread-local, and after our own is gone.
#[test]
fn t3_events_from_the_last_moments_of_a_thread() {
    let _one = global();
    let mut session = Session::new(&[("drops:*", true)]);
    thread_local! { static LATE: EmitsInDrop = const { EmitsInDrop } }
    for first in [true, false] {
        std::thread::spawn(move || {
            if first {
                LATE.with(|_| {});
            }
            let span = info_span!(target: "drops", "s");
            let _in = span.enter();
            LATE.with(|_| {});
        })
        .join()
        .unwrap();
    }
    session.end();
    assert_eq!(session.of_kind(Kind::SpanEvent).len(), 4);
    assert_eq!(session.of_kind(Kind::SpanNew).len(), 4);
    assert_eq!(session.of_kind(Kind::SpanClose).len(), 4);
}

#[test]
fn toggling_under_fire_loses_nothing_that_was_on_all_the_time() {
    let _one = global();
    let mut steady = Session::new(&[("steady:*", true)]);
    let toggled = Session::new(&[("toggled:*", true)]);
    let stop = AtomicBool::new(false);
    let emitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (stop, emitted) = (&stop, &emitted);
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) || n < 500 {
                    let span = info_span!(target: "toggled", "s", thread);
                    span.in_scope(|| {
                        info!(target: "steady", thread, n, "steady");
                        debug!(target: "toggled", thread, n, "toggled");
                    });
                    n += 1;
                    if n % 64 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                }
                emitted.fetch_add(n, Ordering::Relaxed);
            });
        }
        for round in 0..100 {
            toggled.control(&[("toggled:*", round % 2 == 0)]);
            steady.recorder.drain();
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(toggled);
    steady.end();
    assert_eq!(steady.recorder.total_lost(), 0);
    assert_eq!(steady.recorder.events.len() as u64, emitted.load(Ordering::Relaxed));
}

/// A6: many threads reach call sites for the first time at once, while they are on.
#[test]
fn a6_first_events_at_a_barrier_are_all_recorded() {
    let _one = global();
    macro_rules! sites { ($($n:literal)*) => { [$(|n: u64| info!(name: $n, target: "barrier", n)),*] } }
    let sites: [fn(u64); 12] = sites!["0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "a" "b"];
    let mut session = Session::new(&[("barrier:*", true)]);
    let barrier = std::sync::Barrier::new(32);
    std::thread::scope(|scope| {
        for n in 0..32u64 {
            let barrier = &barrier;
            scope.spawn(move || {
                for site in sites {
                    barrier.wait();
                    site(n);
                }
            });
        }
    });
    session.end();
    let mut seen: Vec<_> = session.recorder.events.iter().map(|event| event.number("n")).collect();
    seen.sort_unstable();
    let expected: Vec<_> = (0..32).flat_map(|n| [n; 12]).collect();
    assert_eq!(seen, expected);
}

/// U3: switched on while call sites are being reached for the first time.
#[test]
fn u3_a_call_site_reached_while_the_session_attaches_is_on_afterwards() {
    let _one = global();
    macro_rules! sites { ($($n:literal)*) => { [$(|| info!(name: $n, target: "meanwhile", "x")),*] } }
    let sites: [fn(); 16] = sites!["0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "a" "b" "c" "d" "e" "f"];
    let mut session = std::thread::scope(|scope| {
        let attach = scope.spawn(|| Session::new(&[("meanwhile:*", true)]));
        for site in sites {
            site();
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        attach.join().unwrap()
    });
    session.recorder.drain();
    let before = session.recorder.events.len();
    for site in sites {
        site();
    }
    session.end();
    assert_eq!(session.recorder.events.len() - before, 16);
}

#[test]
fn a_filter_sees_typed_fields() {
    let _one = global();
    let mut session = Session::with(&Wanted {
        rules: vec![("filtered:*", true)],
        filter: "n >= 5",
        ..Wanted::default()
    });
    for n in 0..10u64 {
        info!(target: "filtered", n);
    }
    session.end();
    assert_eq!(session.recorder.events.len(), 5);
}

/// A million spans leave no memory behind.
#[test]
fn a_million_spans_leave_no_memory() {
    let _one = global();
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let mut session = Session::new(&[("churn:*", true)]);
    let churn = |n: u64| {
        let mut held = std::collections::VecDeque::new();
        for i in 0..n {
            let span = info_span!(target: "churn", "s", i);
            span.in_scope(|| {});
            held.push_back(span);
            if held.len() > 100 {
                held.pop_front();
            }
        }
    };
    churn(50_000);
    let before = resident();
    churn(1_000_000);
    let grown = resident().saturating_sub(before);
    assert!(grown < 4 << 20, "grew by {grown} bytes");
    session.end();
}
