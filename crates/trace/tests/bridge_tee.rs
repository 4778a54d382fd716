//! A tee around subscribers of several makes: they see what they would see without us, to the letter,
//! and we record what is on.

#[path = "common/bridge.rs"]
mod bridge;
mod common;

use bridge::{Session, one};
use owlet_wire::schema::Kind;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{
    Dispatch, Event, Metadata, Subscriber, debug, dispatcher, info, info_span, trace_span, warn,
};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::prelude::*;

/// Text that a subscriber writes.
#[derive(Clone, Default)]
struct Out(Arc<Mutex<Vec<u8>>>);

impl Out {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

type Boxed = Box<dyn Subscriber + Send + Sync>;

/// A subscriber of that make that writes to `Out`.
type Make = fn(Out) -> Boxed;

/// tracing-subscriber 0.3: a filter for everything.
fn with_env(out: Out, filter: &str) -> Boxed {
    Box::new(
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
            .without_time()
            .with_ansi(false)
            .with_writer(move || out.clone())
            .finish(),
    )
}

/// tracing-subscriber 0.3: two layers, a filter each.
fn per_layer(out: Out) -> Boxed {
    macro_rules! layer {
        ($out:expr) => {{
            let out: Out = $out;
            let layer = tracing_subscriber::fmt::layer().without_time().with_ansi(false);
            layer.with_writer(move || out.clone())
        }};
    }
    Box::new(
        tracing_subscriber::registry()
            .with(layer!(out.clone()).with_filter(LevelFilter::WARN))
            .with(layer!(out).with_filter(EnvFilter::new("off,work=debug,[outer{n=1}]=trace"))),
    )
}

/// tracing-subscriber 0.2.
fn old(out: Out, filter: &str) -> Boxed {
    Box::new(
        tracing_subscriber_02::fmt()
            .with_env_filter(tracing_subscriber_02::EnvFilter::new(filter))
            .without_time()
            .with_ansi(false)
            .with_writer(move || out.clone())
            .finish(),
    )
}

/// Written by hand: notes every call, knows no current span, and closes by `drop_span`.
struct ByHand {
    out: Out,
    next: AtomicU64,
    level: tracing::Level,
}

impl ByHand {
    fn note(&self, text: &str) {
        writeln!(self.out.clone(), "{text}").unwrap();
    }
}

impl Subscriber for ByHand {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= &self.level
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let parent = span.parent().map(Id::into_u64);
        self.note(&format!("new {id} {} {parent:?} {}", span.metadata().name(), span.is_root()));
        Id::from_u64(id)
    }
    fn record(&self, span: &Id, _: &Record<'_>) {
        self.note(&format!("record {}", span.into_u64()));
    }
    fn record_follows_from(&self, span: &Id, follows: &Id) {
        self.note(&format!("follows {} {}", span.into_u64(), follows.into_u64()));
    }
    fn event(&self, event: &Event<'_>) {
        self.note(&format!("event {:?}", event.metadata().name()));
    }
    fn enter(&self, span: &Id) {
        self.note(&format!("enter {}", span.into_u64()));
    }
    fn exit(&self, span: &Id) {
        self.note(&format!("exit {}", span.into_u64()));
    }
    fn clone_span(&self, id: &Id) -> Id {
        self.note(&format!("clone {}", id.into_u64()));
        id.clone()
    }
    fn drop_span(&self, id: Id) {
        self.note(&format!("drop {}", id.into_u64()));
    }
}

fn by_hand(out: Out, level: tracing::Level) -> Boxed {
    Box::new(ByHand { out, next: AtomicU64::new(100), level })
}

const MAKES: &[(&str, Make)] = &[
    ("0.3, everything", |out| with_env(out, "trace")),
    ("0.3, info", |out| with_env(out, "info")),
    ("0.3, by target", |out| with_env(out, "warn,work=debug")),
    ("0.3, by span", |out| with_env(out, "warn,[outer{n=1}]=trace")),
    ("0.3, off", |out| with_env(out, "off")),
    ("0.3, by layer", per_layer),
    ("0.2, everything", |out| old(out, "trace")),
    ("0.2, by target", |out| old(out, "warn,work=debug")),
    ("0.2, by span", |out| old(out, "warn,[outer{n=1}]=trace")),
    ("0.2, off", |out| old(out, "off")),
    ("by hand, everything", |out| by_hand(out, tracing::Level::TRACE)),
    ("by hand, info", |out| by_hand(out, tracing::Level::INFO)),
    ("by hand, error", |out| by_hand(out, tracing::Level::ERROR)),
];

/// Events and spans in every constellation, on this thread and others.
fn work() {
    for n in 1..=2u64 {
        let outer = info_span!(target: "work", "outer", n, late = tracing::field::Empty);
        let hidden = trace_span!(target: "deep", "hidden", n);
        let _in = outer.enter();
        info!(target: "work", n, "in outer");
        hidden.in_scope(|| {
            debug!(target: "work", n, "in hidden");
            warn!(target: "deep", "warning in hidden");
            let child = info_span!(target: "work", "child");
            child.in_scope(|| debug!(target: "deep", "in child of hidden"));
        });
        outer.record("late", n);
        let explicit = info_span!(target: "work", parent: &hidden, "explicit");
        explicit.follows_from(&hidden);
        explicit.follows_from(&outer);
        hidden.follows_from(&explicit);
        warn!(target: "work", parent: &explicit, "explicit parent");
        warn!(target: "work", parent: None, "no parent");
        let current = tracing::Span::current();
        let clones = (outer.clone(), hidden.clone(), current);
        let dispatch = dispatcher::get_default(Dispatch::clone);
        std::thread::spawn(move || {
            dispatcher::with_default(&dispatch, || {
                clones.2.in_scope(|| warn!(target: "work", "elsewhere"));
                clones.1.in_scope(|| warn!(target: "deep", "elsewhere, hidden"));
                drop(clones);
            });
        })
        .join()
        .unwrap();
        drop(hidden);
        if tracing::enabled!(target: "work", tracing::Level::DEBUG) {
            debug!(target: "work", "enabled");
        }
    }
    warn!(target: "deep", "done");
}

fn alone(make: Make) -> String {
    let out = Out::default();
    tracing::subscriber::with_default(make(out.clone()), work);
    out.text()
}

fn teed(make: Make, work: impl FnOnce()) -> String {
    let out = Out::default();
    tracing::subscriber::with_default(owlet::tracing::tee(make(out.clone())), work);
    out.text()
}

#[test]
fn the_inner_subscriber_sees_what_it_would_see_without_us() {
    let _one = one();
    for (name, make) in MAKES {
        let expected = alone(*make);
        assert_eq!(teed(*make, work), expected, "{name}, we are off");
        for rules in [&[("*", true)][..], &[("deep:*", true)], &[("work:outer", true)]] {
            let mut session = Session::new(rules);
            let text = teed(*make, work);
            session.end();
            assert_eq!(text, expected, "{name}, we record {rules:?}");
            assert_eq!(session.recorder.total_lost(), 0);
        }
        assert_eq!(teed(*make, work), expected, "{name}, we are off again");
    }
}

#[test]
fn we_record_the_same_whatever_the_inner_subscriber_wants() {
    let _one = one();
    let mut expected: Option<Vec<String>> = None;
    for (name, make) in MAKES {
        let mut session = Session::new(&[("work:*", true), ("deep:*", true)]);
        teed(*make, work);
        let lines = session.lines();
        let base = session.of_kind(Kind::SpanNew).iter().map(|e| e.number("span")).min().unwrap();
        // `Span::current()` is the inner subscriber's, and without one, ours: leave it out.
        let shown: Vec<_> = lines
            .iter()
            .filter(|line| !line.contains("elsewhere"))
            .map(|line| relative(line, base))
            .collect();
        let new = session.of_kind(Kind::SpanNew).len();
        assert_eq!((new, session.of_kind(Kind::SpanClose).len()), (8, 8), "{name}: {lines:#?}");
        let enters = session.of_kind(Kind::SpanEnter).len();
        assert_eq!(session.of_kind(Kind::SpanExit).len(), enters, "{name}: {lines:#?}");
        let counted = |kind: &str| shown.iter().filter(|line| line.starts_with(kind)).count();
        assert_eq!(counted("SpanEvent"), 2 * 7 + 1, "{name}: {shown:#?}");
        let events: Vec<_> = shown
            .iter()
            .filter(|l| !l.starts_with("SpanEnter") && !l.starts_with("SpanExit"))
            .cloned()
            .collect();
        let expected = expected.get_or_insert_with(|| events.clone());
        assert_eq!(&events, expected, "{name}");
    }
}

/// Numbers of spans counted from the first one.
fn relative(line: &str, base: u64) -> String {
    let mut words = Vec::new();
    for word in line.split(' ') {
        let number = ["span=U64(", "parent=U64(", "follows=U64("]
            .iter()
            .find_map(|p| Some((p, word.strip_prefix(p)?.strip_suffix(')')?.parse::<u64>().ok()?)));
        words.push(match number {
            Some((p, n)) if n >= base => format!("{p}+{})", n - base),
            _ => word.to_owned(),
        });
    }
    words.join(" ")
}

/// Counts what it is asked.
struct Counts {
    asked: Arc<AtomicU64>,
    told: Arc<AtomicU64>,
}

impl Subscriber for Counts {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(3)
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.told.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn an_inner_subscriber_that_samples_is_asked_once_for_each_event() {
    let _one = one();
    let (asked, told) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let inner = Counts { asked: Arc::clone(&asked), told: Arc::clone(&told) };
    tracing::subscriber::with_default(owlet::tracing::tee(inner), || {
        let emit = || {
            for n in 0..30u64 {
                info!(target: "sampled", n);
            }
        };
        emit();
        assert_eq!((asked.load(Ordering::Relaxed), told.load(Ordering::Relaxed)), (30, 10));
        let mut session = Session::new(&[("sampled:*", true)]);
        emit();
        session.end();
        assert_eq!(session.recorder.events.len(), 30);
        assert_eq!((asked.load(Ordering::Relaxed), told.load(Ordering::Relaxed)), (60, 20));
    });
}

#[test]
fn the_inner_subscriber_may_be_reloaded() {
    let _one = one();
    let out = Out::default();
    let (filter, handle) = tracing_subscriber::reload::Layer::new(EnvFilter::new("off"));
    let writer = out.clone();
    let layer = tracing_subscriber::fmt::layer()
        .without_time()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    let inner = tracing_subscriber::registry().with(filter).with(layer);
    tracing::subscriber::with_default(owlet::tracing::tee(inner), || {
        let emit = |n: u64| info!(target: "reloaded", n);
        emit(1);
        handle.reload("info").unwrap();
        emit(2);
        let mut session = Session::new(&[("reloaded:*", true)]);
        emit(3);
        handle.reload("off").unwrap();
        emit(4);
        session.control(&[("*", false)]);
        emit(5);
        handle.reload("info").unwrap();
        emit(6);
        session.end();
        emit(7);
        let seen: Vec<_> = session.recorder.events.iter().map(|e| e.number("n")).collect();
        assert_eq!(seen, [3, 4]);
    });
    let numbers: Vec<_> =
        out.text().lines().map(|l| l.split("n=").nth(1).unwrap().to_owned()).collect();
    assert_eq!(numbers, ["2", "3", "6", "7"]);
}

#[test]
fn extensions_of_the_inner_subscriber_find_it_and_its_spans_by_our_ids() {
    use tracing_subscriber::registry::{LookupSpan, Registry};
    let _one = one();
    let _session = Session::new(&[("*", true)]);
    tracing::subscriber::with_default(owlet::tracing::tee(tracing_subscriber::registry()), || {
        let span = info_span!(target: "extended", "s");
        span.with_subscriber(|(id, dispatch)| {
            let registry = dispatch.downcast_ref::<Registry>().unwrap();
            assert_eq!(registry.span(id).unwrap().name(), "s");
            assert!(dispatch.downcast_ref::<owlet::tracing::Tee<Registry>>().is_some());
            assert!(dispatch.downcast_ref::<Counts>().is_none());
        })
        .unwrap();
        span.in_scope(|| assert_eq!(tracing::Span::current().id(), span.id()));
    });
}

#[test]
fn a_span_of_ours_alone_is_never_shown_inside() {
    let _one = one();
    let out = Out::default();
    let mut session = Session::new(&[("alone:*", true)]);
    let inner = by_hand(out.clone(), tracing::Level::ERROR);
    tracing::subscriber::with_default(owlet::tracing::tee(inner), || {
        let span = info_span!(target: "alone", "s", late = tracing::field::Empty);
        span.in_scope(|| {
            info!(target: "alone", "in");
            let current = tracing::Span::current();
            assert_eq!(current.id(), span.id());
            std::thread::spawn(move || current.in_scope(|| {})).join().unwrap();
        });
        span.record("late", 5);
        let other = info_span!(target: "alone", parent: &span, "child");
        other.follows_from(&span);
    });
    session.end();
    assert_eq!(out.text(), "");
    let of = |kind| session.of_kind(kind).len();
    assert_eq!((of(Kind::SpanNew), of(Kind::SpanClose)), (2, 2));
    assert_eq!((of(Kind::SpanEnter), of(Kind::SpanExit)), (2, 2));
    assert_eq!((of(Kind::SpanRecord), of(Kind::SpanFollows), of(Kind::SpanEvent)), (1, 1, 1));
}

#[test]
fn toggling_under_fire_does_not_disturb_the_inner_subscriber() {
    let _one = one();
    for make in [|out| with_env(out, "warn,[kept{n=1}]=info"), per_layer as Make] {
        let out = Out::default();
        let dispatch = Dispatch::new(owlet::tracing::tee(make(out.clone())));
        let session = Session::new(&[("fire:*", true)]);
        let stop = AtomicBool::new(false);
        let lines = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    dispatcher::with_default(&dispatch, || {
                        let mut n = 0;
                        while !stop.load(Ordering::Relaxed) || n < 200 {
                            let span = trace_span!(target: "fire", "s", n);
                            span.in_scope(|| {
                                warn!(target: "fire", "line");
                                debug!(target: "fire", "no line");
                                let _child = info_span!(target: "fire", parent: &span, "child");
                            });
                            n += 1;
                            if n % 32 == 0 {
                                std::thread::sleep(std::time::Duration::from_millis(1));
                            }
                        }
                        lines.fetch_add(n, Ordering::Relaxed);
                    });
                });
            }
            for round in 0..100 {
                session.control(&[("fire:*", round % 2 == 0)]);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let text = out.text();
        let seen =
            text.lines().filter(|line| line.ends_with(" line") && line.contains("WARN")).count();
        assert_eq!(seen as u64, lines.load(Ordering::Relaxed));
        assert!(!text.contains("no line"));
    }
}

struct Panics;
impl std::fmt::Debug for Panics {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("as a user's Debug may")
    }
}

/// One that formats nothing goes on; one that formats panics as it does without us.
#[test]
fn a_panic_while_we_record_is_not_the_inner_subscribers() {
    let _one = one();
    let span = || drop(info_span!(target: "panics", "s", field = ?Panics));
    let alone = Out::default();
    tracing::subscriber::with_default(by_hand(alone.clone(), tracing::Level::INFO), span);
    let out = Out::default();
    let mut session = Session::new(&[("panics:*", true)]);
    let inner = by_hand(out.clone(), tracing::Level::INFO);
    tracing::subscriber::with_default(owlet::tracing::tee(inner), span);
    assert_eq!(out.text(), alone.text());
    assert!(out.text().starts_with("new 100 s None false\n"));
    session.end();
    assert_eq!(session.of_kind(Kind::SpanNew)[0].value("field"), "<panicked>");
    let mut session = Session::new(&[("panics:*", true)]);
    let inner = with_env(Out::default(), "info");
    tracing::subscriber::with_default(owlet::tracing::tee(inner), || {
        assert!(std::panic::catch_unwind(|| info!(target: "panics", field = ?Panics)).is_err());
    });
    session.end();
    assert!(session.recorder.events.iter().all(|event| event.value("field") == "<panicked>"));
}

#[test]
fn the_hint_is_the_greater_of_both_and_none_stays_none() {
    let _one = one();
    let hint = |s: &dyn Subscriber| s.max_level_hint();
    let info = || tracing_subscriber::registry().with(LevelFilter::INFO);
    assert_eq!(hint(&owlet::tracing::tee(info())), Some(LevelFilter::TRACE));
    let hiding = owlet::tracing::tee(info()).discover(false);
    assert_eq!(hint(&hiding), Some(LevelFilter::INFO));
    let off = owlet::tracing::tee(tracing::subscriber::NoSubscriber::default()).discover(false);
    assert_eq!(hint(&off), None);
    let _session = Session::new(&[("x", true)]);
    assert_eq!(hint(&hiding), Some(LevelFilter::TRACE));
}
