//! LV-03: async waits whose wakers the worker has in hand at the fork. The whole file is one test, so that
//! nobody else's thread holds the allocator's lock while a child is made.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::fork::{How, comes_true, in_child};
use common::until;
use owlet_rcu::{Srcu, Synchronize};

static DOMAIN: Srcu = Srcu::new();

/// A waker that keeps the worker in its `wake` until told.
#[derive(Default)]
struct Sticky {
    woken: AtomicBool,
    leave: AtomicBool,
}

impl Wake for Sticky {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        while !self.leave.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A waker that counts.
#[derive(Default)]
struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

fn poll(future: &mut Pin<Box<Synchronize<'_>>>, waker: &Waker) -> bool {
    future.as_mut().poll(&mut Context::from_waker(waker)).is_ready()
}

/// As an executor has them: all are polled, and polled again when woken, not before.
fn complete(futures: &mut [Pin<Box<Synchronize<'_>>>]) -> bool {
    let mut waiting: Vec<_> =
        futures.iter_mut().map(|future| (future, Arc::new(Bell::default()))).collect();
    waiting.retain_mut(|(future, bell)| !poll(future, &Waker::from(bell.clone())));
    waiting.iter_mut().all(|(future, bell)| {
        comes_true(|| bell.0.load(Ordering::Acquire) != 0) && poll(future, Waker::noop())
    })
}

#[test]
fn lv_03_wakers_in_hand_at_a_fork() {
    let idle = DOMAIN.snapshot();
    let first = DOMAIN.read();
    let sticky = Arc::new(Sticky::default());
    let mut soon = Box::pin(DOMAIN.synchronize_async());
    let _ = DOMAIN.start_poll();
    until("its grace period runs", || DOMAIN.snapshot() != idle);
    // These wait for the one after it, which another section is going to hold up. Whichever way round the
    // worker goes, it has some of them in hand when it comes to the first.
    let mut second = Some(DOMAIN.read());
    let mut later: Vec<_> = (0..6).map(|_| Box::pin(DOMAIN.synchronize_async())).collect();
    let (before, after) = later.split_at_mut(3);
    for (future, waker) in before
        .iter_mut()
        .map(|future| (future, Waker::noop().clone()))
        .chain([(&mut soon, Waker::from(sticky.clone()))])
        .chain(after.iter_mut().map(|future| (future, Waker::noop().clone())))
    {
        assert!(!poll(future, &waker));
    }
    drop(first);
    until("the worker wakes the first", || sticky.woken.load(Ordering::Acquire));
    let right = in_child(How::Fork, || {
        let woken = poll(&mut soon, Waker::noop());
        let begun = later.iter_mut().all(|future| !poll(future, Waker::noop()));
        drop(second.take());
        woken && begun && complete(&mut later)
    });
    assert!(right, "a wait that the worker had in hand is forgotten");
    sticky.leave.store(true, Ordering::Release);
    drop(second);
    assert!(complete(&mut later), "in the parent");
}
