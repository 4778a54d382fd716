use core::sync::atomic::AtomicBool;

use super::*;
use crate::{Domain, Srcu};

pub(super) static NO_THREADS: AtomicBool = AtomicBool::new(false);

/// True in a process that runs the test `name` and nothing else; runs that process otherwise.
fn alone(name: &str) -> bool {
    if std::env::var_os("OWLET_TEST_ALONE").is_some() {
        return true;
    }
    let exe = std::env::current_exe().expect("own path");
    let mut again = std::process::Command::new(exe);
    let output = again.args(["--exact", name]).env("OWLET_TEST_ALONE", "1").output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// LV-02, PO-01 where no thread can be had: what needs no waiting is done by the caller, what does
/// is taken up by whoever comes next.
#[test]
fn lv_02_without_a_worker() {
    if !alone("worker::tests::lv_02_without_a_worker") {
        return;
    }
    NO_THREADS.store(true, Ordering::Relaxed);
    let domain = Srcu::new();
    let cookie = domain.start_poll();
    assert!(domain.poll(cookie), "nobody was in the way");
    let section = domain.read();
    let cookie = domain.start_poll();
    assert!(!domain.poll(cookie));
    assert!(domain.engine().turns_are_free(), "whoever gives up leads no longer");
    drop(section);
    domain.synchronize();
    assert!(domain.poll(cookie));
    NO_THREADS.store(false, Ordering::Relaxed);
    let section = domain.read();
    let cookie = domain.start_poll();
    drop(section);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !domain.poll(cookie) && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(domain.poll(cookie), "the worker that could be had at last");
}

/// A callback that waits, also for the very domain whose grace period the worker is leading. (The
/// checks of debug builds refuse it; it must not hang for that without them.)
#[cfg(not(any(debug_assertions, feature = "checks")))]
#[test]
fn cb_02_a_callback_that_waits() {
    static DOMAINS: [Srcu; 2] = [const { Srcu::new() }; 2];
    let (done, receiver) = std::sync::mpsc::channel();
    let section = DOMAINS[1].read();
    // The worker leads the other domain's grace period, which is held up.
    let held_up = DOMAINS[1].start_poll();
    std::thread::sleep(Duration::from_millis(20));
    DOMAINS[0].call_hurry(move || {
        let _ = done.send(0);
        DOMAINS[1].synchronize();
        crate::wait_all(&[&DOMAINS[1], &DOMAINS[0]]);
        let _ = done.send(1);
    });
    let late = Duration::from_secs(20);
    receiver.recv_timeout(late).expect("the callback runs");
    std::thread::sleep(Duration::from_millis(20));
    assert!(!DOMAINS[1].poll(held_up));
    drop(section);
    receiver.recv_timeout(late).expect("the worker waits for itself");
    let until = std::time::Instant::now() + late;
    while !DOMAINS[1].poll(held_up) {
        assert!(std::time::Instant::now() < until);
    }
}

/// BA-01 where no thread can be had: who waits at a barrier calls what was queued.
#[test]
fn ba_01_without_a_worker() {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    if !alone("worker::tests::ba_01_without_a_worker") {
        return;
    }
    NO_THREADS.store(true, Ordering::Relaxed);
    let domain = Srcu::new();
    let calls = Arc::new(AtomicU32::new(0));
    for round in 1..4 {
        for _ in 0..1000 {
            let calls = calls.clone();
            domain.call(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            });
        }
        domain.barrier();
        assert_eq!(calls.load(Ordering::Relaxed), 1000 * round);
    }
}
