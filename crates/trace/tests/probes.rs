//! Probe lists: TP-01, TP-03 to TP-08, TP-13, TP-14, D2. See also `src/control_tests.rs` and
//! `batch.rs`.

#[path = "../../rcu/tests/common/mod.rs"]
mod common;

use owlet::{Probe, RegisterError, SynchronizeError, UnregisterError};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::time::{Duration, Instant};

owlet::tracepoint! {
    /// Each test has its own, for they run at the same time.
    pub mod tp {
        freed(value: u64);
        transitions(n: u64);
        after();
        order();
        #[hooks(on_register, on_unregister)]
        hooked();
        conditional(n: u64);
        own();
        panics();
        within(); within_other();
        threads(n: u64);
        storm(n: u64);
        drops(); dropped();
        deep(level: u64);
        state(n: u64);
        asked(n: u64);
    }
}

fn on_register() -> Result<(), i32> {
    HOOKS.lock().unwrap().push("register");
    match HOOK_ANSWER.load(Ordering::Relaxed) {
        0 => Ok(()),
        code => Err(code),
    }
}

fn on_unregister() {
    HOOKS.lock().unwrap().push("unregister");
}

static HOOKS: Mutex<Vec<&str>> = Mutex::new(Vec::new());
static HOOK_ANSWER: AtomicI32 = AtomicI32::new(0);

fn probe0(f: impl Fn() + Send + Sync + 'static) -> Probe<dyn Fn() + Send + Sync> {
    Probe::new(Box::new(f))
}

fn probe1(f: impl Fn(u64) + Send + Sync + 'static) -> Probe<dyn Fn(u64) + Send + Sync> {
    Probe::new(Box::new(f))
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn bump_if(what: bool, counter: &AtomicU64) {
    counter.fetch_add(u64::from(what), Ordering::Relaxed);
}

/// Whether nobody else holds `value` any more. Tests run at the same time, and the wait that frees a
/// list may be another test's.
fn is_last<T>(value: &Arc<T>) -> bool {
    let until = Instant::now() + common::LATE;
    while Arc::strong_count(value) > 1 && Instant::now() < until {
        std::thread::yield_now();
    }
    Arc::strong_count(value) == 1
}

/// Emits in as many threads as there are CPUs and one more while `work` runs.
fn under_load(emit: impl Fn() + Sync, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    emit();
                }
            });
        }
        // Also when `work` panics: the threads would keep the test from ending.
        let _end = Stop(&stop);
        work();
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn tp_01_after_unregister_the_probe_never_runs_and_its_data_goes() {
    under_load(
        || owlet::trace!(tp::freed, 1),
        || {
            for _ in 0..500 {
                let alive = Arc::new(AtomicBool::new(true));
                let seen = Arc::clone(&alive);
                let probe =
                    probe1(move |_| assert!(seen.load(Ordering::Relaxed), "ran after the end"));
                tp::freed::TRACEPOINT.register(&probe, 0).unwrap();
                tp::freed::TRACEPOINT.unregister(&probe).unwrap();
                alive.store(false, Ordering::Relaxed);
                assert!(!probe.stopped(), "the probe ran after unregister");
                drop(probe);
                // Nobody holds the list any more either.
                assert!(is_last(&alive));
            }
        },
    );
}

#[test]
fn tp_03_no_mixed_up_data_and_no_missed_probe_while_others_come_and_go() {
    // The probe that stays sees every event that is emitted; those that come and go see only theirs.
    static STAYED: AtomicU64 = AtomicU64::new(0);
    static EMITTED: AtomicU64 = AtomicU64::new(0);
    static WRONG: AtomicU64 = AtomicU64::new(0);
    let stays = probe1(|_| bump(&STAYED));
    tp::transitions::TRACEPOINT.register(&stays, 0).unwrap();
    under_load(
        || {
            EMITTED.fetch_add(1, Ordering::Relaxed);
            owlet::trace!(tp::transitions, 1);
        },
        || {
            for round in 0..400u64 {
                // 1 -> 2 -> 1, and N -> 2 -> 1.
                let of = |id: u64| {
                    let data = id;
                    probe1(move |_| bump_if(data != id, &WRONG))
                };
                let come: Vec<_> = (0..1 + round % 4).map(of).collect();
                for (n, probe) in come.iter().enumerate() {
                    tp::transitions::TRACEPOINT.register(probe, n as i32 - 1).unwrap();
                }
                for probe in &come {
                    tp::transitions::TRACEPOINT.unregister_async(probe).unwrap();
                }
                if round % 8 == 0 {
                    owlet::synchronize().unwrap();
                }
            }
        },
    );
    tp::transitions::TRACEPOINT.unregister(&stays).unwrap();
    assert_eq!(STAYED.load(Ordering::Relaxed), EMITTED.load(Ordering::Relaxed));
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
}

#[test]
fn tp_03_one_zero_one_calls_nobody_in_between() {
    static ON: AtomicBool = AtomicBool::new(false);
    static CALLED_WHILE_OFF: AtomicU64 = AtomicU64::new(0);
    under_load(
        || owlet::trace!(tp::state, 1),
        || {
            for _ in 0..300 {
                let probe = probe1(|_| {
                    if !ON.load(Ordering::SeqCst) {
                        CALLED_WHILE_OFF.fetch_add(1, Ordering::Relaxed);
                    }
                });
                ON.store(true, Ordering::SeqCst);
                tp::state::TRACEPOINT.register(&probe, 0).unwrap();
                tp::state::TRACEPOINT.unregister(&probe).unwrap();
                ON.store(false, Ordering::SeqCst);
            }
        },
    );
    assert_eq!(CALLED_WHILE_OFF.load(Ordering::Relaxed), 0);
}

#[test]
fn tp_04_every_event_after_register_reaches_the_probe_on_every_thread() {
    for _ in 0..200 {
        let hits = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&hits);
        let probe = probe0(move || bump(&count));
        let barrier = Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    owlet::trace!(tp::after); // the site is in the instruction cache
                    barrier.wait();
                    barrier.wait();
                    owlet::trace!(tp::after);
                });
            }
            barrier.wait();
            tp::after::TRACEPOINT.register(&probe, 0).unwrap();
            barrier.wait();
        });
        tp::after::TRACEPOINT.unregister(&probe).unwrap();
        assert_eq!(hits.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn tp_05_order_and_errors() {
    static ORDER: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    let of = |n| probe0(move || ORDER.lock().unwrap().push(n));
    let point = &tp::order::TRACEPOINT;
    let probes = [(of(1), 0), (of(2), 5), (of(3), 0), (of(4), -7), (of(5), 5)];
    for (probe, priority) in &probes {
        point.register(probe, *priority).unwrap();
    }
    owlet::trace!(tp::order);
    assert_eq!(*ORDER.lock().unwrap(), [2, 5, 1, 3, 4]);
    assert_eq!(point.register(&probes[0].0, 9), Err(RegisterError::Exists));
    assert_eq!(point.register_may_exist(&probes[0].0.clone(), 9), Ok(false));
    assert_eq!(point.unregister(&of(9)), Err(UnregisterError::NotFound));
    assert_eq!(point.unregister_async(&of(9)), Err(UnregisterError::NotFound));
    for (probe, _) in &probes {
        point.unregister_async(probe).unwrap();
        assert_eq!(point.unregister_async(probe), Err(UnregisterError::NotFound));
    }
    assert_eq!(point.register_may_exist(&probes[0].0, 9), Ok(true));
    point.unregister(&probes[0].0).unwrap();
    assert!(!owlet::enabled!(tp::order));
}

#[test]
fn tp_06_hooks_run_on_the_first_and_the_last_probe_and_may_refuse() {
    let (a, b) = (probe0(|| {}), probe0(|| {}));
    let point = &tp::hooked::TRACEPOINT;
    HOOK_ANSWER.store(13, Ordering::Relaxed);
    assert_eq!(point.register(&a, 0), Err(RegisterError::Hook(13)));
    assert!(!owlet::enabled!(tp::hooked));
    HOOK_ANSWER.store(0, Ordering::Relaxed);
    point.register(&a, 0).unwrap();
    point.register(&b, 0).unwrap();
    point.unregister(&a).unwrap();
    assert_eq!(*HOOKS.lock().unwrap(), ["register", "register"]);
    point.unregister(&b).unwrap();
    assert_eq!(*HOOKS.lock().unwrap(), ["register", "register", "unregister"]);
}

#[test]
fn tp_07_a_false_condition_evaluates_and_calls_nothing() {
    let called = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&called);
    let probe = probe1(move |_| bump(&count));
    let evaluated = AtomicU64::new(0);
    let argument = || evaluated.fetch_add(1, Ordering::Relaxed);
    let condition = |answer| {
        evaluated.fetch_add(100, Ordering::Relaxed);
        answer
    };
    owlet::trace!(tp::conditional, if condition(true); argument());
    assert_eq!(evaluated.load(Ordering::Relaxed), 0, "off: not even the condition");
    tp::conditional::TRACEPOINT.register(&probe, 0).unwrap();
    owlet::trace!(tp::conditional, if condition(false); argument());
    assert_eq!((evaluated.load(Ordering::Relaxed), called.load(Ordering::Relaxed)), (100, 0));
    owlet::trace!(tp::conditional, if condition(true); argument());
    assert_eq!((evaluated.load(Ordering::Relaxed), called.load(Ordering::Relaxed)), (201, 1));
    tp::conditional::TRACEPOINT.unregister(&probe).unwrap();
}

#[test]
fn tp_08_enabled_then_trace_is_race_safe() {
    let probe = probe1(|n| assert_eq!(n, 42));
    let seen = AtomicU64::new(0);
    under_load(
        || {
            if owlet::enabled!(tp::threads) {
                seen.fetch_add(1, Ordering::Relaxed);
                let prepared = 42;
                owlet::trace!(tp::threads, prepared);
            }
        },
        || {
            for _ in 0..200 {
                tp::threads::TRACEPOINT.register(&probe, 0).unwrap();
                tp::threads::TRACEPOINT.unregister(&probe).unwrap();
            }
        },
    );
    assert!(!probe.stopped());
}

/// Who waits until somebody listens loses none of what it emits then: the sites that only ask are
/// switched on after all others (L1).
#[test]
fn l1_once_enabled_says_so_every_site_is_on() {
    static HEARD: AtomicU64 = AtomicU64::new(0);
    const SITES: u64 = 16;
    fn emit() {
        macro_rules! sites {
            ($($n:literal)*) => { $(owlet::trace!(tp::asked, $n);)* };
        }
        sites!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
    let probe = probe1(|_| bump(&HEARD));
    for round in 0..300 {
        let on = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let until = Instant::now() + Duration::from_secs(60);
                let on = || owlet::enabled!(tp::asked);
                while !on() {
                    assert!(Instant::now() < until, "never on");
                    std::hint::spin_loop();
                }
                let before = HEARD.load(Ordering::Relaxed);
                emit();
                HEARD.load(Ordering::Relaxed) - before
            });
            tp::asked::TRACEPOINT.register(&probe, 0).unwrap();
            waiter.join().unwrap()
        });
        tp::asked::TRACEPOINT.unregister(&probe).unwrap();
        assert_eq!(on, SITES, "round {round}");
    }
}

#[test]
fn a_probe_may_unregister_itself_and_cannot_wait_for_itself() {
    type Own = Probe<dyn Fn() + Send + Sync>;
    static OWN: OnceLock<Own> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let probe = probe0(|| {
        CALLS.fetch_add(1, Ordering::Relaxed);
        tp::own::TRACEPOINT.unregister(OWN.get().unwrap()).unwrap();
        assert_eq!(owlet::synchronize(), Err(SynchronizeError::InsideProbe));
    });
    OWN.set(probe.clone()).unwrap();
    tp::own::TRACEPOINT.register(&probe, 0).unwrap();
    owlet::trace!(tp::own);
    owlet::trace!(tp::own);
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    assert!(!probe.stopped());
    owlet::synchronize().unwrap();
}

#[test]
fn a_panic_in_a_probe_stops_the_probe_and_nothing_else() {
    static OTHERS: AtomicU64 = AtomicU64::new(0);
    let bad = probe0(|| panic!("a probe's own fault"));
    let good = probe0(|| bump(&OTHERS));
    let before = owlet::panicked_probes();
    tp::panics::TRACEPOINT.register(&bad, 1).unwrap();
    tp::panics::TRACEPOINT.register(&good, 0).unwrap();
    owlet::trace!(tp::panics);
    owlet::trace!(tp::panics);
    assert!(bad.stopped() && !good.stopped());
    assert_eq!(OTHERS.load(Ordering::Relaxed), 2);
    assert_eq!(owlet::panicked_probes(), before + 1);
    tp::panics::TRACEPOINT.unregister(&bad).unwrap();
    tp::panics::TRACEPOINT.unregister(&good).unwrap();
}

#[test]
fn tp_13_registering_from_probes_and_from_many_threads_does_not_deadlock() {
    let inner = probe0(|| {});
    let outer = probe0({
        let inner = inner.clone();
        move || {
            let _ = tp::within_other::TRACEPOINT.register_may_exist(&inner, 0);
            owlet::trace!(tp::within_other);
            let _ = tp::within_other::TRACEPOINT.unregister(&inner);
        }
    });
    tp::within::TRACEPOINT.register(&outer, 0).unwrap();
    common::watched("registering from probes and from many threads", || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        owlet::trace!(tp::within);
                        let probe = probe0(|| {});
                        tp::within_other::TRACEPOINT.register(&probe, 0).unwrap();
                        tp::within_other::TRACEPOINT.unregister(&probe).unwrap();
                    }
                });
            }
        });
    });
    tp::within::TRACEPOINT.unregister(&outer).unwrap();
    let _ = tp::within_other::TRACEPOINT.unregister(&inner);
}

#[test]
fn d2_state_whose_drop_emits_and_changes_probes() {
    static DROPPED: AtomicU64 = AtomicU64::new(0);
    struct State(Probe<dyn Fn() + Send + Sync>);
    impl Drop for State {
        fn drop(&mut self) {
            owlet::trace!(tp::dropped);
            tp::dropped::TRACEPOINT.unregister(&self.0).unwrap();
            owlet::trace!(tp::dropped);
        }
    }
    let counts = probe0(|| bump(&DROPPED));
    tp::dropped::TRACEPOINT.register(&counts, 0).unwrap();
    let state = State(counts);
    let probe = probe0(move || assert!(!state.0.stopped()));
    tp::drops::TRACEPOINT.register(&probe, 0).unwrap();
    owlet::trace!(tp::drops);
    tp::drops::TRACEPOINT.unregister_async(&probe).unwrap();
    drop(probe);
    // Another test's wait may have been the one that dropped it.
    owlet::synchronize().unwrap();
    let until = Instant::now() + common::LATE;
    while DROPPED.load(Ordering::Relaxed) == 0 && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(DROPPED.load(Ordering::Relaxed), 1);
}

#[test]
fn events_inside_events_run_four_deep() {
    static DEEPEST: AtomicU64 = AtomicU64::new(0);
    let probe = probe1(|level| {
        DEEPEST.fetch_max(level, Ordering::Relaxed);
        owlet::trace!(tp::deep, level + 1);
    });
    tp::deep::TRACEPOINT.register(&probe, 0).unwrap();
    owlet::trace!(tp::deep, 1);
    tp::deep::TRACEPOINT.unregister(&probe).unwrap();
    assert_eq!(DEEPEST.load(Ordering::Relaxed), 4);
}

#[test]
fn tp_14_storm_of_registrations_under_load() {
    static EVENTS: AtomicU64 = AtomicU64::new(0);
    let seconds = std::env::var("OWLET_STORM_SECONDS").map_or(2, |s| s.parse().unwrap());
    let changes = AtomicU64::new(0);
    under_load(
        || owlet::trace!(tp::storm, 0x5151),
        || {
            let until = Instant::now() + Duration::from_secs(seconds);
            while Instant::now() < until {
                // Poison in the closure's data: a freed one is seen.
                let data = Box::new([0x5151u64; 16]);
                let probe = probe1(move |n| {
                    assert!(data.iter().all(|word| *word == n), "freed or mixed up");
                    EVENTS.fetch_add(1, Ordering::Relaxed);
                });
                tp::storm::TRACEPOINT.register(&probe, 0).unwrap();
                std::thread::sleep(Duration::from_millis(2));
                tp::storm::TRACEPOINT.unregister(&probe).unwrap();
                assert!(!probe.stopped());
                changes.fetch_add(2, Ordering::Relaxed);
            }
        },
    );
    assert!(changes.into_inner() >= 100 * seconds, "fewer than 100 changes a second");
    assert!(EVENTS.load(Ordering::Relaxed) > 1000);
}
