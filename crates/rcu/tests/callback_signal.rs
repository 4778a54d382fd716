//! GP-13: heads posted by a signal handler that interrupts posting, waiting, barriers and the rest at
//! every instruction it hits.

mod common;

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use owlet_rcu::{Head, Srcu, callback};

static DOMAIN: Srcu = Srcu::new();

#[repr(C)]
struct Object {
    head: Head,
    calls: AtomicU64,
    posts: AtomicU64,
}

impl Object {
    const fn new() -> Self {
        Self { head: Head::new(), calls: AtomicU64::new(0), posts: AtomicU64::new(0) }
    }

    fn is_free(&self) -> bool {
        self.calls.load(Ordering::Acquire) == self.posts.load(Ordering::Relaxed)
    }
}

static POOL: [Object; 200] = [const { Object::new() }; 200];
static OWN: [Object; 200] = [const { Object::new() }; 200];

unsafe fn count(head: NonNull<Head>) {
    // SAFETY: heads here are of statics.
    let object = unsafe { head.cast::<Object>().as_ref() };
    object.calls.fetch_add(1, Ordering::Release);
}

thread_local!(static NEXT: Cell<usize> = const { Cell::new(0) });
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: i32) {
    let section = DOMAIN.read();
    let next = NEXT.with(|n| n.replace((n.get() + 1) % POOL.len()));
    let object = &POOL[next];
    if object.is_free() {
        object.posts.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a static, called as often as it was posted, and posted by this thread only.
        unsafe { DOMAIN.call_head_in_handler(NonNull::from(object).cast(), count) };
    }
    drop(section);
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// What the handler interrupts.
fn work(until: Instant, enough: impl Fn() -> bool) {
    let calls: &'static AtomicU64 = Box::leak(Box::default());
    let mut posts = 0;
    while Instant::now() < until || !enough() {
        for object in &OWN {
            if object.is_free() {
                object.posts.fetch_add(1, Ordering::Relaxed);
                // SAFETY: a static, called as often as it was posted, and posted by this thread only.
                unsafe { DOMAIN.call_head(NonNull::from(object).cast(), count) };
            }
        }
        DOMAIN.call(|| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        let section = DOMAIN.read();
        DOMAIN.call_hurry(|| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        posts += 2;
        drop(section);
        let cookie = DOMAIN.snapshot();
        DOMAIN.barrier();
        let _ = DOMAIN.poll(cookie);
        assert_eq!(calls.load(Ordering::Relaxed), posts);
        DOMAIN.synchronize();
    }
}

#[test]
fn gp_13_heads_posted_by_a_handler() {
    assert!(callback::start_worker());
    common::handle(libc::SIGUSR1, handler);
    let handled = || POOL.iter().map(|o| o.posts.load(Ordering::Relaxed)).sum::<u64>();
    common::in_storm(libc::SIGUSR1, || {
        common::watched("1000 heads posted by the handler", || {
            work(Instant::now() + Duration::from_secs(3), || handled() > 1000);
        });
    });
    DOMAIN.barrier();
    for object in POOL.iter().chain(&OWN) {
        let calls = object.calls.load(Ordering::Relaxed);
        assert_eq!(calls, object.posts.load(Ordering::Relaxed));
    }
    println!("{} posted in {HANDLED:?} handlers, {:?}", handled(), DOMAIN.stats());
}
