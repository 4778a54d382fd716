//! What an event of `tracing` and `log` costs, off and recorded: prints one line a case.
//!
//! Each case is the best of several rounds, in nanoseconds of CPU time; the reader drains between
//! rounds, outside of the time measured.

use owlet::session;
use owlet_ring::{Clock, Reader, RingReader, Segment, SegmentOptions};
use owlet_wire::config::{Rule, SessionConfig};
use owlet_wire::schema::Level;
use std::hint::black_box;
use std::sync::Arc;

const ROUND: u64 = 50_000;
const ROUNDS: u64 = 20;

struct Session {
    id: session::SessionId,
    rings: Vec<RingReader>,
}

impl Session {
    fn attach(number: u64) -> Self {
        let config = SessionConfig {
            session: number,
            rules: vec![Rule { pattern: "*".to_owned(), enable: true }],
            level: Level::Trace,
            filter: String::new(),
            rendezvous: String::new(),
            recorder_pid: std::process::id(),
        };
        let tsc = owlet_sys::clock::tsc_usable().usable;
        let options = SegmentOptions {
            ring_bytes: 32 << 20,
            cpus: owlet_percpu::cpus(),
            clock: if tsc { Clock::Tsc } else { Clock::Monotonic },
            log_bytes: 1 << 20,
            config: config.encode(),
            deferral_us: 2000,
        };
        let segment = Arc::new(Segment::create(&options).expect("a segment"));
        let reader = Reader::new(Arc::clone(&segment));
        let fd = segment.fd().try_clone_to_owned().expect("a descriptor");
        let (id, _) = session::attach(fd).expect("a session");
        Self { id, rings: (0..reader.rings()).filter_map(|i| reader.ring(i)).collect() }
    }

    fn drain(&mut self) -> u64 {
        let mut events = 0;
        for ring in &mut self.rings {
            events += ring.drain(&mut Vec::new()).events;
        }
        events
    }
}

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
    let mut session = Session::attach(1);
    cases("recorded", Some(&mut session));
    session::detach(session.id);
    // A tee around a subscriber that wants nothing.
    let quiet = tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).finish();
    let tee = tracing::Dispatch::new(owlet::tracing::tee(quiet));
    tracing::dispatcher::with_default(&tee, || {
        let mut session = Session::attach(2);
        cases("tee, recorded", Some(&mut session));
        session::detach(session.id);
    });
}
