//! The worker, and what of the user's runs on it.
#![cfg(not(loom))]

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::{Background, alone, until};
use owlet_rcu::{Srcu, stall};

struct Call<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(f: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Call(f)))
}

/// LV-02: a waker that panics is counted, and the worker goes on.
#[test]
fn lv_02_a_waker_that_panics() {
    static DOMAIN: Srcu = Srcu::named("waker that panics");
    let section = DOMAIN.read();
    let bad = waker(|| panic!("on purpose"));
    let mut futures: Vec<_> = (0..3).map(|_| Box::pin(DOMAIN.synchronize_async())).collect();
    for future in &mut futures {
        assert!(future.as_mut().poll(&mut Context::from_waker(&bad)).is_pending());
    }
    let (done, receiver) = mpsc::channel();
    let good = waker(move || done.send(()).expect("heard"));
    let mut last = pin!(DOMAIN.synchronize_async());
    assert!(last.as_mut().poll(&mut Context::from_waker(&good)).is_pending());
    drop(section);
    receiver.ends("the others are woken");
    until("counted", || DOMAIN.callback_stats().panicked == 3);
    DOMAIN.call_hurry(|| ());
    DOMAIN.barrier();
    let cookie = DOMAIN.start_poll();
    until("the worker works", || DOMAIN.poll(cookie));
}

/// A future keeps one waker, the last; a future that is dropped keeps none.
#[test]
fn a_future_has_one_waker() {
    let domain = Srcu::new();
    let section = domain.read();
    let live = Arc::new(());
    let woken = Arc::new(AtomicU32::new(0));
    let mut future = Box::pin(domain.synchronize_async());
    for round in 0..100 {
        let (live, woken) = (live.clone(), woken.clone());
        let waker = waker(move || {
            let _ = &live;
            woken.fetch_add(1 + 1000 * u32::from(round != 99), Ordering::Relaxed);
        });
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(Arc::strong_count(&live), 2, "all but the last are gone");
    let mut dropped = Box::pin(domain.synchronize_async());
    let keeps = live.clone();
    let second = waker(move || drop(keeps.clone()));
    assert!(dropped.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    drop(second);
    assert_eq!(Arc::strong_count(&live), 3);
    drop(dropped);
    assert_eq!(Arc::strong_count(&live), 2, "gone with its future");
    drop(section);
    until("the last is woken", || woken.load(Ordering::Relaxed) != 0);
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert_eq!(woken.load(Ordering::Relaxed), 1, "and no other");
    drop(future);
    until("and gone", || Arc::strong_count(&live) == 1);
}

/// No wake is lost where wakers are exchanged while the worker wakes.
#[test]
fn lv_02_wakers_exchanged_while_woken() {
    let domain = Srcu::new();
    let woken = Arc::new(AtomicU32::new(0));
    for round in 0..300 {
        let section = domain.read();
        let mut future = pin!(domain.synchronize_async());
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_micros(round));
                drop(section);
            });
            for _ in 0..200 {
                let woken = woken.clone();
                let waker = waker(move || {
                    woken.fetch_add(1, Ordering::Relaxed);
                });
                if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                    return;
                }
            }
            let (done, receiver) = mpsc::channel();
            let last = waker(move || {
                let _ = done.send(());
            });
            while future.as_mut().poll(&mut Context::from_waker(&last)).is_pending() {
                receiver.ends("woken");
            }
        });
    }
}

/// A wait that is refused leaves nothing expedited.
#[cfg(any(debug_assertions, feature = "checks"))]
#[test]
fn a_refused_wait_hurries_nobody() {
    let (first, second) = (Srcu::new(), Srcu::new());
    // A token's section, which stays here; a guard could be another thread's by now.
    let token = second.read_lock();
    let wait = std::panic::AssertUnwindSafe(|| owlet_rcu::wait_all_expedited(&[&first, &second]));
    assert!(std::panic::catch_unwind(wait).is_err(), "its own section");
    // SAFETY: the token of this domain and thread.
    unsafe { second.read_unlock(token) };
    let before = first.stats().expedited;
    first.synchronize();
    assert_eq!(first.stats().expedited, before);
}

/// A timeout of zero is the least one, not a flood.
#[test]
fn a_timeout_of_zero() {
    static REPORTS: AtomicU32 = AtomicU32::new(0);
    // Timeout and reporter are the process's.
    if !alone("a_timeout_of_zero") {
        return;
    }
    stall::set_reporter(|_| {
        REPORTS.fetch_add(1, Ordering::Relaxed);
    });
    stall::set_timeout(Some(Duration::ZERO));
    let begun = Instant::now();
    let domain = Srcu::new();
    let section = domain.read();
    thread::scope(|scope| {
        scope.spawn(|| domain.synchronize());
        until("reports", || REPORTS.load(Ordering::Relaxed) >= 4);
        drop(section);
    });
    // At 1, 2, 4, .. ms.
    let most = (begun.elapsed().as_millis() + 1).ilog2() + 2;
    let reports = REPORTS.load(Ordering::Relaxed);
    assert!(reports <= most, "{reports} reports, at most {most}");
}
