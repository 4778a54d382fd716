//! GP-13: heads posted by a signal handler that interrupts posting, waiting, barriers and the rest at
//! every instruction it hits.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread;
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

fn handle(signal: i32) {
    // SAFETY: a zeroed sigaction is one without flags and mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is valid; no old action is asked for.
    let answer = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(answer, 0);
}

/// What the handler interrupts.
fn work(until: Instant) -> u64 {
    let calls: &'static AtomicU64 = Box::leak(Box::default());
    let mut posts = 0;
    while Instant::now() < until {
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
    posts
}

#[test]
fn gp_13_heads_posted_by_a_handler() {
    assert!(callback::start_worker());
    handle(libc::SIGUSR1);
    static VICTIM: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
    static DONE: AtomicBool = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(4);
    let victim = thread::spawn(move || {
        // SAFETY: names the calling thread.
        let me = unsafe { libc::pthread_self() };
        VICTIM.store(me as *mut libc::c_void, Ordering::Release);
        let posts = work(until);
        DONE.store(true, Ordering::Relaxed);
        // Until the sender has stopped: a thread that has ended must not be signalled.
        while !VICTIM.load(Ordering::Acquire).is_null() {
            thread::sleep(Duration::from_millis(1));
        }
        posts
    });
    let mut at = 1_u64;
    while !DONE.load(Ordering::Relaxed) && !victim.is_finished() {
        let thread = VICTIM.load(Ordering::Acquire);
        if !thread.is_null() {
            // SAFETY: the thread lives until VICTIM is null again.
            unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) };
        }
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (0..(at >> 33) % 4000).for_each(|_| std::hint::spin_loop());
    }
    VICTIM.store(std::ptr::null_mut(), Ordering::Release);
    let posts = victim.join().expect("no panic");
    DOMAIN.barrier();
    for object in POOL.iter().chain(&OWN) {
        let calls = object.calls.load(Ordering::Relaxed);
        assert_eq!(calls, object.posts.load(Ordering::Relaxed));
    }
    let handled = POOL.iter().map(|o| o.posts.load(Ordering::Relaxed)).sum::<u64>();
    println!("{posts} closures, {handled} posted in {HANDLED:?} handlers, {:?}", DOMAIN.stats());
    assert!(handled > 1000, "the handler posted {handled} times");
}
