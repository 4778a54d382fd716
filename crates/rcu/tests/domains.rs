//! Domains at the edges: how they are made, dropped and recycled, and what becomes of their threads.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::{Background, in_background, waiter};
use owlet_rcu::{ClassicSrcu, Rcu, Srcu, Tasks, TasksTrace, callback, free, stall};

/// A classic domain has no membarrier, however it was made.
#[test]
fn a_classic_domain_by_default_is_classic() {
    let domain = ClassicSrcu::default();
    for _ in 0..5 {
        drop(domain.read());
        domain.synchronize();
    }
    assert_eq!((domain.stats().grace_periods, domain.stats().membarriers), (5, 0));
}

/// A callback that attaches the worker does not make it wait for itself.
#[test]
fn attaching_the_worker_holds_nothing_up() {
    static DOMAIN: Tasks = Tasks::new();
    static RAN: AtomicBool = AtomicBool::new(false);
    let other = Srcu::new();
    other.call_hurry(|| {
        DOMAIN.attach();
        RAN.store(true, Ordering::Release);
    });
    other.barrier();
    assert!(RAN.load(Ordering::Acquire));
    waiter(&&DOMAIN).ends("the worker is in the way");
    assert!(DOMAIN.holdouts().is_empty());
}

/// Inside `offline_attached` a thread stays offline, whatever it says there.
#[test]
fn a_voluntary_point_while_offline_is_nothing() {
    static DOMAIN: Tasks = Tasks::new();
    DOMAIN.attach();
    DOMAIN.synchronize();
    DOMAIN.offline_attached(|| {
        DOMAIN.quiescent_attached();
        DOMAIN.offline_attached(|| DOMAIN.quiescent_attached());
        DOMAIN.quiescent_attached();
        waiter(&&DOMAIN).ends("this thread is in the way");
    });
    let cookie = DOMAIN.snapshot();
    let other = in_background(|| DOMAIN.synchronize_expedited());
    other.goes_on("online again, it is waited for");
    assert!(!DOMAIN.poll(cookie));
    other.until_done(|| DOMAIN.quiescent_attached());
}

/// A domain in memory that another one had does not take that one's cookies.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "a cookie of another domain"))]
fn po_08_a_cookie_of_a_dropped_domain_is_one_of_another() {
    let old = Srcu::new();
    old.synchronize();
    let cookie = old.snapshot_full();
    old.synchronize();
    assert!(old.poll_full(&cookie));
    drop(old);
    let new = Srcu::new();
    for _ in 0..3 {
        new.synchronize();
    }
    assert!(!new.poll_full(&cookie));
}

static REPORTS: AtomicU32 = AtomicU32::new(0);

/// A cell that goes with its domain is no leak; neither is a domain that its last callback drops.
#[test]
fn a_cell_outlives_its_domain_without_a_report() {
    stall::set_reporter(|report| {
        if report.domain == "cell" {
            eprintln!("{report}");
            REPORTS.fetch_add(1, Ordering::Relaxed);
        }
    });
    for n in 0..50 {
        drop(Rcu::with_domain(n, Arc::new(Srcu::named("cell"))));
        drop(Rcu::with_domain(n, Arc::new(ClassicSrcu::named("cell"))));
        let domain = Arc::new(TasksTrace::named("cell"));
        let cell = Rcu::with_domain(n, Arc::clone(&domain));
        let section = domain.read();
        let seen = cell.read(&section);
        drop(cell.replace(n + 1));
        drop(cell);
        assert_eq!(*seen, n);
        drop(section);
        let last = Arc::clone(&domain);
        domain.call(move || drop(last));
    }
    callback::flush();
    free::flush();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(REPORTS.load(Ordering::Relaxed), 0);
}
