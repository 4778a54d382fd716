//! Each operation of the `tracing` bridge `N` times in a function of its own, to count instructions:
//! `bridge_count N [OP]`, under `valgrind --tool=callgrind`, reports them by function, inclusive. Two runs
//! with different `N` tell what one operation has, free of what happens once. Run by itself it prints the
//! time that rounds of one of each, or of `OP` alone, have taken.

mod common;

use common::Session;
use owlet_sys::clock::thread_cpu_ns;
use std::hint::black_box;
use tracing::Span;

/// Operations between two looks at the rings.
const ROUND: u64 = 100;

/// What mini-redis has as a command: the texts of its `Debug` are what its requests record.
#[derive(Debug)]
#[expect(dead_code, reason = "for its Debug")]
struct Set {
    key: String,
    value: Vec<u8>,
    expire: Option<u64>,
}

#[inline(never)]
fn op_event_number(n: u64) {
    tracing::info!(n);
}

#[inline(never)]
fn op_event_message(_: u64) {
    tracing::info!("hello");
}

/// The fields of `owlet-bench event-cost`'s `tracing-event`.
#[inline(never)]
fn op_event_three(n: u64) {
    tracing::info!(value = n, other = n ^ 1, note = "nine char");
}

#[inline(never)]
fn op_event_four(n: u64) {
    tracing::info!(n, ok = true, text = "a short string", "hello");
}

#[inline(never)]
fn op_event_display(n: u64) {
    tracing::info!(n = %n, "hello");
}

#[inline(never)]
fn op_event_debug(set: &Set) {
    tracing::info!(?set);
}

#[inline(never)]
fn op_debug_alone(set: &Set, text: &mut String) {
    use std::fmt::Write;
    text.clear();
    let _ = write!(text, "{set:?}");
}

#[inline(never)]
fn op_span_new(n: u64) -> Span {
    tracing::info_span!("span", n)
}

#[inline(never)]
fn op_span_enter(span: &Span) {
    span.with_subscriber(|(id, dispatch)| dispatch.enter(id));
}

#[inline(never)]
fn op_span_exit(span: &Span) {
    span.with_subscriber(|(id, dispatch)| dispatch.exit(id));
}

#[inline(never)]
fn op_span_close(span: Span) {
    drop(span);
}

#[inline(never)]
fn op_log() {
    log::info!("record");
}

/// 21 events: two spans, each entered three times, five events.
#[inline(never)]
fn op_request(n: u64, set: &Set) {
    let outer = tracing::info_span!("run", peer = n);
    let inner = tracing::debug_span!("apply");
    for step in 0..3 {
        let _outer = outer.enter();
        if step == 0 {
            tracing::debug!(n, "accepted");
            tracing::debug!(?set);
        }
        let _inner = inner.enter();
        match step {
            0 => tracing::trace!("locked"),
            1 => tracing::debug!(?step, "stored"),
            _ => tracing::info!(n, ok = true, "answered"),
        }
    }
}

fn run(n: u64, only: Option<&str>, session: &mut Session) {
    let set = Set { key: "key:000042".to_owned(), value: b"xxx".to_vec(), expire: None };
    let mut text = String::new();
    let (mut expected, mut events) = (0, 0);
    let (mut start, mut spent) = (thread_cpu_ns(), Vec::new());
    for i in 0..n {
        let mut op = |name: &str, count: u64, run: &mut dyn FnMut()| {
            if only.is_none_or(|only| only == name) {
                run();
                expected += count;
            }
        };
        op("event_number", 1, &mut || op_event_number(i));
        op("event_message", 1, &mut || op_event_message(i));
        op("event_three", 1, &mut || op_event_three(i));
        op("event_four", 1, &mut || op_event_four(i));
        op("event_display", 1, &mut || op_event_display(i));
        op("event_debug", 1, &mut || op_event_debug(&set));
        op("debug_alone", 0, &mut || op_debug_alone(&set, &mut text));
        op("span", 4, &mut || {
            let span = op_span_new(i);
            op_span_enter(&span);
            op_span_exit(&span);
            op_span_close(span);
        });
        op("request", 21, &mut || op_request(i, &set));
        op("log", 1, &mut || op_log());
        if i % ROUND == ROUND - 1 || i == n - 1 {
            spent.push(thread_cpu_ns() - start);
            events += session.drain();
            start = thread_cpu_ns();
        }
    }
    black_box(&text);
    spent.sort_unstable();
    let ns = |at: usize| spent.get(at).map_or(f64::NAN, |&ns| ns as f64 / ROUND as f64);
    println!("{n} rounds, {}: {events} events", owlet_percpu::backend_why());
    println!("ns of CPU a round, best and median: {:.0} {:.0}", ns(0), ns(spent.len() / 2));
    assert_eq!(events, expected, "events recorded");
}

fn main() {
    let mut args = std::env::args().skip(1);
    let n = args.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let only = args.next();
    let mut session = Session::attach(1, 1 << 20);
    tracing::dispatcher::set_global_default(tracing::Dispatch::new(owlet::tracing::subscriber()))
        .expect("the first");
    owlet::log::logger().install().expect("the first");
    run(n, only.as_deref(), &mut session);
}
