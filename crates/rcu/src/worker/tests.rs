use core::sync::atomic::AtomicBool;
use core::task::{Context, Waker};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Wake;

use super::*;
use crate::common::{LATE, alone, until};
use crate::{Domain, Srcu};

pub(super) static NO_THREADS: AtomicBool = AtomicBool::new(false);
/// How long it takes to find that out.
pub(super) static SLOWNESS_MS: AtomicU64 = AtomicU64::new(0);

/// A waker that counts.
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
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
    until("the worker that could be had at last", || domain.poll(cookie));
}

/// A callback that waits, also for the very domain whose grace period the worker is leading. (The
/// checks of debug builds refuse it; it must not hang for that without them.)
#[cfg(not(any(debug_assertions, feature = "checks")))]
#[test]
fn cb_02_a_callback_that_waits() {
    use crate::common::Background;
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
    receiver.ends("the callback runs");
    std::thread::sleep(Duration::from_millis(20));
    assert!(!DOMAINS[1].poll(held_up));
    drop(section);
    receiver.ends("the worker waits for itself");
    crate::common::until("what it abandoned", || DOMAINS[1].poll(held_up));
}

/// BA-01 where no thread can be had: who waits at a barrier calls what was queued.
#[test]
fn ba_01_without_a_worker() {
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

fn until_being_made() {
    while STARTED.load(Ordering::Relaxed) & 1 == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// BA-01 while another thread is about to find that no thread can be had.
#[test]
fn ba_01_a_worker_that_is_never_made() {
    if !alone("worker::tests::ba_01_a_worker_that_is_never_made") {
        return;
    }
    NO_THREADS.store(true, Ordering::Relaxed);
    SLOWNESS_MS.store(700, Ordering::Relaxed);
    let domain = Srcu::new();
    let (done, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(start);
        until_being_made();
        assert!(!is_running() && start(), "being made");
        let domain = &domain;
        scope.spawn(move || {
            domain.call(|| ());
            domain.barrier();
            let _ = done.send(());
        });
        let late = receiver.recv_timeout(LATE).is_err();
        // A barrier that sleeps for ever must not hold up the failure.
        if late {
            std::process::abort();
        }
    });
}

/// LV-02: an async wait where no thread can be had goes on by being polled.
#[test]
fn lv_02_async_without_a_worker() {
    if !alone("worker::tests::lv_02_async_without_a_worker") {
        return;
    }
    NO_THREADS.store(true, Ordering::Relaxed);
    let domain = Srcu::new();
    let bell = Arc::new(Bell(AtomicU64::new(0)));
    let waker = Waker::from(bell.clone());
    let mut cx = Context::from_waker(&waker);
    assert!(pin!(domain.synchronize_async()).poll(&mut cx).is_ready(), "nobody was in the way");
    let section = domain.read();
    let mut future = pin!(domain.synchronize_async());
    for polls in 1..4 {
        assert!(future.as_mut().poll(&mut cx).is_pending());
        assert!(bell.0.load(Ordering::Relaxed) >= polls, "it is to be polled again");
    }
    let cookie = domain.start_poll();
    drop(section);
    assert!(future.as_mut().poll(&mut cx).is_ready());
    let section = domain.read();
    let later = domain.start_poll();
    drop(section);
    domain.call(|| ());
    assert!(domain.poll(cookie) && domain.poll(later), "posting brings them forward");
    domain.barrier();
}

/// LV-02: who counted on a worker that another thread could not make is woken.
#[test]
fn lv_02_async_while_a_worker_is_not_made() {
    if !alone("worker::tests::lv_02_async_while_a_worker_is_not_made") {
        return;
    }
    NO_THREADS.store(true, Ordering::Relaxed);
    SLOWNESS_MS.store(700, Ordering::Relaxed);
    let domain = Srcu::new();
    let bell = Arc::new(Bell(AtomicU64::new(0)));
    let waker = Waker::from(bell.clone());
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(domain.synchronize_async());
    std::thread::scope(|scope| {
        scope.spawn(start);
        until_being_made();
        assert!(future.as_mut().poll(&mut cx).is_pending());
        assert_eq!(bell.0.load(Ordering::Relaxed), 0);
    });
    SLOWNESS_MS.store(0, Ordering::Relaxed);
    assert_eq!(bell.0.load(Ordering::Relaxed), 1);
    assert!(future.as_mut().poll(&mut cx).is_ready());
}
