//! What an event of `tracing` and `log` costs, off and recorded: prints one line a case.
//!
//! Each case is the best of several rounds, in nanoseconds of CPU time; the reader drains between
//! rounds, outside of the time measured.

mod common;

use common::Session;
use std::hint::black_box;

/// Room for a round.
const RINGS: usize = 32 << 20;
const ROUND: u64 = 50_000;
const ROUNDS: u64 = 20;

/// Nanoseconds a call, best round. `expect` events a call are recorded, if a session is given.
fn measure(name: &str, mut session: Option<&mut Session>, expect: u64, mut call: impl FnMut(u64)) {
    let mut best = f64::MAX;
    for round in 0..ROUNDS {
        let start = owlet_sys::clock::thread_cpu_ns();
        for n in 0..ROUND {
            call(round * ROUND + n);
        }
        let spent = owlet_sys::clock::thread_cpu_ns() - start;
        best = best.min(spent as f64 / ROUND as f64);
        if let Some(session) = &mut session {
            assert_eq!(session.drain(), expect * ROUND, "{name}");
        }
    }
    println!("{name:<48} {best:8.2} ns");
}

fn cases(title: &str, mut session: Option<&mut Session>) {
    let on = u64::from(session.is_some());
    let name = |case: &str| format!("{title}: {case}");
    let mut run = |case: &str, expect: u64, call: &mut dyn FnMut(u64)| {
        measure(&name(case), session.as_deref_mut(), expect * on, call);
    };
    run("(empty loop)", 0, &mut |n| {
        black_box(n);
    });
    run("event, one u64", 1, &mut |n| tracing::info!(n));
    run("event, message only", 1, &mut |_| tracing::info!("hello"));
    run("event, u64, bool, str and message", 1, &mut |n| {
        tracing::info!(n, ok = true, text = "a short string", "hello");
    });
    run("span: new, enter, exit, close", 4, &mut |n| {
        tracing::info_span!("span", n).in_scope(|| {});
    });
    run("log record", 1, &mut |n| log::info!("record {n}"));
}

fn main() {
    log::set_max_level(log::LevelFilter::Off);
    let own = tracing::Dispatch::new(owlet::tracing::subscriber());
    tracing::dispatcher::with_default(&own, || {
        cases("off", None);
    });
    drop(own);
    tracing::dispatcher::set_global_default(tracing::Dispatch::new(owlet::tracing::subscriber()))
        .expect("the first");
    owlet::log::logger().install().expect("the first");
    let mut session = Session::attach(1, RINGS);
    cases("recorded", Some(&mut session));
    drop(session);
    // A tee around a subscriber that wants nothing.
    let quiet = tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).finish();
    let tee = tracing::Dispatch::new(owlet::tracing::tee(quiet));
    tracing::dispatcher::with_default(&tee, || {
        let mut session = Session::attach(2, RINGS);
        cases("tee, recorded", Some(&mut session));
    });
}
