//! Callbacks and barriers, statement by statement (the ids are those of the acceptance list).

mod common;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{Background, LATE, SOON, alone, in_background, until};
use owlet_rcu::callback::{self, quiesce_all};
use owlet_rcu::{Head, Srcu};

/// The lazy window is the process's: tests that set it exclude those that rely on it.
fn window(time: Duration) -> MutexGuard<'static, ()> {
    static WINDOW: Mutex<()> = Mutex::new(());
    let guard = WINDOW.lock().unwrap_or_else(|e| e.into_inner());
    callback::set_lazy_window(time);
    guard
}

/// The name the system knows the calling thread by.
fn thread_name() -> String {
    std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default().trim().to_owned()
}

/// For closures whose last value nobody wants.
fn ignore<T>(_: T) {}

/// An object with a head, which counts its calls.
#[repr(C)]
struct Object {
    head: Head,
    calls: AtomicU32,
}

impl Object {
    const fn new() -> Self {
        Self { head: Head::new(), calls: AtomicU32::new(0) }
    }

    fn leak() -> &'static Self {
        Box::leak(Box::new(Self::new()))
    }

    fn post(&'static self, domain: &Srcu) {
        // SAFETY: leaked, so it stays valid; `count` is for objects.
        unsafe { domain.call_head(NonNull::from(self).cast(), count) };
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

unsafe fn count(head: NonNull<Head>) {
    // SAFETY: the head of an object that is never freed.
    let object = unsafe { head.cast::<Object>().as_ref() };
    object.calls.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn cb_01_never_inside_the_queuing_section() {
    let domain = Srcu::new();
    let (done, called) = mpsc::channel();
    let section = domain.read();
    // GP-09: posting is allowed inside a section.
    let inner = domain.read();
    domain.call_hurry(move || {
        let _ = done.send(thread_name());
    });
    drop(inner);
    let outer = called.recv_timeout(SOON);
    assert!(outer.is_err(), "called while a section was open that began before");
    drop(section);
    let name = called.ends("the section has ended");
    // CB-02.
    assert_eq!(name, "owlet-rcu");
}

/// CB-01: exactly once, after a grace period, with readers and posters at it all the time.
#[test]
fn cb_01_each_once_after_its_grace_period() {
    static DOMAIN: Srcu = Srcu::new();
    static SHARED: AtomicUsize = AtomicUsize::new(0);
    const OBJECTS: usize = 4000;
    static ALIVE: [AtomicBool; OBJECTS] = [const { AtomicBool::new(true) }; OBJECTS];
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _section = DOMAIN.read();
                    let at = SHARED.load(Ordering::Acquire);
                    for _ in 0..20 {
                        assert!(ALIVE[at].load(Ordering::Relaxed), "{at} is gone");
                    }
                }
            });
        }
        for next in 1..OBJECTS {
            let old = SHARED.swap(next, Ordering::AcqRel);
            let gone = move || {
                assert!(ALIVE[old].swap(false, Ordering::Relaxed), "{old} twice");
                CALLS.fetch_add(1, Ordering::Relaxed);
            };
            if next.is_multiple_of(3) {
                DOMAIN.call(gone)
            } else {
                DOMAIN.call_hurry(gone)
            }
            if next.is_multiple_of(64) {
                thread::sleep(Duration::from_micros(200));
            }
        }
        DOMAIN.barrier();
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(CALLS.load(Ordering::Relaxed), OBJECTS as u64 - 1);
    let stats = DOMAIN.callback_stats();
    assert_eq!((stats.pending(), stats.pending_bytes, stats.panicked), (0, 0, 0), "{stats:?}");
}

#[test]
fn cb_03_a_callback_may_post_its_own_head() {
    static DOMAIN: Srcu = Srcu::new();
    static OBJECT: Object = Object::new();
    unsafe fn again(head: NonNull<Head>) {
        // SAFETY: the head of OBJECT.
        unsafe { count(head) };
        if OBJECT.calls() < 20 {
            // SAFETY: OBJECT is a static.
            unsafe { DOMAIN.call_head(head, again) };
        }
    }
    let _window = window(Duration::ZERO);
    // SAFETY: OBJECT is a static.
    unsafe { DOMAIN.call_head(NonNull::from(&OBJECT).cast(), again) };
    quiesce_all(&[&DOMAIN], 20);
    assert_eq!(OBJECT.calls(), 20);
}

/// CB-03, BA-04: callbacks that post to another domain, and the barriers that a chain needs.
#[test]
fn ba_04_chains() {
    static ONE: Srcu = Srcu::new();
    static TWO: Srcu = Srcu::new();
    static LINKS: AtomicU32 = AtomicU32::new(0);
    fn link(left: u32) {
        LINKS.fetch_add(1, Ordering::SeqCst);
        if left > 1 {
            let next = if left.is_multiple_of(2) { &ONE } else { &TWO };
            next.call(move || link(left - 1));
        }
    }
    for length in [1, 2, 5, 9] {
        LINKS.store(0, Ordering::SeqCst);
        ONE.call(move || link(length));
        quiesce_all(&[&ONE, &TWO], length as usize);
        assert_eq!(LINKS.load(Ordering::SeqCst), length);
    }
}

/// CB-03: a head posted while it is queued is leaked, and its list is whole.
#[test]
fn cb_03_posting_twice_leaks() {
    let domain = Srcu::new();
    let twice = Object::leak();
    let others = [Object::leak(), Object::leak()];
    let section = domain.read();
    others[0].post(&domain);
    twice.post(&domain);
    let second = catch_unwind(AssertUnwindSafe(|| twice.post(&domain)));
    assert_eq!(second.is_err(), cfg!(debug_assertions), "debug builds say so");
    others[1].post(&domain);
    drop(section);
    domain.barrier();
    assert_eq!([others[0].calls(), others[1].calls(), twice.calls()], [1, 1, 0]);
    assert_eq!(domain.callback_stats().leaked, 1);
    assert!(twice.head.is_queued(), "nobody's, for ever");
    let third = catch_unwind(AssertUnwindSafe(|| twice.post(&domain)));
    assert_eq!(third.is_err(), cfg!(debug_assertions));
    domain.barrier();
    assert_eq!(twice.calls(), 0);
    // What was called may be posted again.
    others[0].post(&domain);
    domain.barrier();
    assert_eq!(others[0].calls(), 2);
}

/// CB-04: what the poster did before is visible to the callback, and what it did is to the barrier.
#[test]
fn cb_04_stores_before_posting_are_visible() {
    static DOMAIN: Srcu = Srcu::new();
    static BEFORE: AtomicU64 = AtomicU64::new(0);
    static AFTER: AtomicU64 = AtomicU64::new(0);
    for round in 1..2000 {
        BEFORE.store(round, Ordering::Relaxed);
        DOMAIN.call_hurry(move || AFTER.store(BEFORE.load(Ordering::Relaxed), Ordering::Relaxed));
        DOMAIN.barrier();
        assert_eq!(AFTER.load(Ordering::Relaxed), round);
    }
}

/// CB-05: a lazy callback waits for the window; hurry, a barrier and much of it do not: there the
/// window is so long that who is called at all has not waited for it.
#[test]
fn cb_05_lazy_and_hurried() {
    const SHORT: Duration = Duration::from_secs(1);
    let _window = window(SHORT);
    type Post<'a> = &'a dyn Fn(&Srcu, Box<dyn FnOnce() + Send>);
    let after = |post: Post<'_>| {
        let domain = Srcu::new();
        let (done, called) = mpsc::channel();
        let begin = Instant::now();
        post(&domain, Box::new(move || ignore(done.send(begin.elapsed()))));
        called.recv_timeout(LATE)
    };
    let lazy = after(&|d, f| d.call(f)).expect("a lazy one");
    assert!(lazy >= SHORT, "lazy after {lazy:?}");
    callback::set_lazy_window(LATE * 60);
    after(&|d, f| d.call_hurry(f)).expect("a hurried one");
    let with_barrier = |d: &Srcu, f| {
        d.call(f);
        d.barrier();
    };
    after(&with_barrier).expect("one before a barrier");
    let followed = |d: &Srcu, f| {
        d.call(f);
        d.call_hurry(|| {});
    };
    after(&followed).expect("one before a hurried one");
    let flushed = |d: &Srcu, f| {
        d.call(f);
        callback::flush();
    };
    after(&flushed).expect("a flushed one");
    let many = |d: &Srcu, f| {
        d.call(f);
        // Whatever CPU the first one was posted on, that one's shard fills up.
        for _ in 0..1024 * (owlet_percpu::cpus() + 1) {
            d.call(|| {});
        }
    };
    after(&many).expect("one of many");
    let big = |d: &Srcu, f| {
        d.call(f);
        for _ in 0..16 * (owlet_percpu::cpus() + 1) {
            let bytes = [0_u8; 1 << 17];
            d.call(move || ignore(bytes));
        }
    };
    after(&big).expect("one of megabytes");
    // What is still queued for the long window is not left to it.
    callback::flush();
    callback::set_lazy_window(Duration::from_millis(100));
}

/// CB-06: all threads post all the time, callbacks that post themselves again go round, and
/// everything is called in the end; memory stays bounded.
#[test]
fn cb_06_flood() {
    static DOMAIN: Srcu = Srcu::new();
    static STOP: AtomicBool = AtomicBool::new(false);
    const ROUND: usize = 100;
    static LAUNDERED: [Object; ROUND] = [const { Object::new() }; ROUND];
    unsafe fn launder(head: NonNull<Head>) {
        // SAFETY: the head of one of LAUNDERED.
        unsafe { count(head) };
        if !STOP.load(Ordering::Relaxed) {
            // SAFETY: statics.
            unsafe { DOMAIN.call_head(head, launder) };
        }
    }
    for object in &LAUNDERED {
        // SAFETY: statics.
        unsafe { DOMAIN.call_head(NonNull::from(object).cast(), launder) };
    }
    let (calls, posts, most) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0), AtomicU64::new(0));
    let least = || LAUNDERED.iter().map(Object::calls).min().unwrap_or_default();
    let begun = Instant::now();
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                // For as long as it takes; and a little longer.
                let on = |begun: Instant| {
                    begun.elapsed() < Duration::from_secs(2)
                        || least() < 3 && begun.elapsed() < LATE
                };
                while on(begun) {
                    for _ in 0..256 {
                        let calls = calls.clone();
                        DOMAIN.call(move || ignore(calls.fetch_add(1, Ordering::Relaxed)));
                    }
                    posts.fetch_add(256, Ordering::Relaxed);
                    most.fetch_max(DOMAIN.callback_stats().pending(), Ordering::Relaxed);
                }
            });
        }
    });
    STOP.store(true, Ordering::Relaxed);
    quiesce_all(&[&DOMAIN], 2);
    assert_eq!(calls.load(Ordering::Relaxed), posts.load(Ordering::Relaxed));
    let (most, stats) = (most.load(Ordering::Relaxed), DOMAIN.callback_stats());
    println!("{} posted, at most {most} pending, {stats:?}", posts.load(Ordering::Relaxed));
    assert!(most < 4 * callback::FLOOD_COUNT, "{most} pending");
    assert!(least() >= 3, "laundered {} times", least());
    assert_eq!(stats.pending(), 0);
}

/// CB-06: a domain whose callbacks post themselves for ever does not starve another one.
#[test]
fn cb_06_self_posting_does_not_starve_others() {
    static GREEDY: Srcu = Srcu::new();
    static STOP: AtomicBool = AtomicBool::new(false);
    fn go_on() {
        if !STOP.load(Ordering::Relaxed) {
            GREEDY.call_hurry(go_on);
        }
    }
    for _ in 0..5000 {
        GREEDY.call_hurry(go_on);
    }
    let modest = Srcu::new();
    for _ in 0..20 {
        let (done, called) = mpsc::channel();
        modest.call_hurry(move || ignore(done.send(())));
        called.ends("a callback of a modest domain");
        GREEDY.barrier();
    }
    STOP.store(true, Ordering::Relaxed);
    quiesce_all(&[&GREEDY], 2);
}

/// CB-07, and what mutant M20 fails: one callback at a time, posted at the instant at which the
/// worker may be on its way to sleep.
#[test]
fn cb_07_no_wakeup_is_lost() {
    let domain = Srcu::new();
    let turn = Arc::new(AtomicU64::new(0));
    let enough = Instant::now() + Duration::from_secs(4);
    let mut round = 0;
    while Instant::now() < enough {
        round += 1;
        let theirs = turn.clone();
        domain.call_hurry(move || theirs.store(round, Ordering::Release));
        let begin = Instant::now();
        while turn.load(Ordering::Acquire) != round {
            let waited = begin.elapsed();
            assert!(waited < LATE, "round {round} was not called");
            if waited > Duration::from_micros(50) {
                thread::yield_now();
            }
        }
        // From at once to some microseconds later.
        (0..round % 512).for_each(|_| std::hint::spin_loop());
    }
    println!("{round} rounds");
}

#[test]
fn cb_a_panic_ends_the_callback_only() {
    // The hook is the process's.
    if !alone("cb_a_panic_ends_the_callback_only") {
        return;
    }
    let domain = Srcu::new();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if thread_name() != "owlet-rcu" {
            hook(info);
        }
    }));
    struct Rude;
    impl Drop for Rude {
        fn drop(&mut self) {
            assert!(thread::panicking(), "dropped by the worker");
        }
    }
    domain.call(|| panic!("a callback panics"));
    domain.call(|| std::panic::panic_any(Rude));
    let (done, called) = mpsc::channel();
    domain.call(move || ignore(done.send(())));
    domain.barrier();
    called.try_recv().expect("the others are called");
    assert_eq!(domain.callback_stats().panicked, 2);
}

#[test]
fn ba_01_waits_for_what_any_thread_queued_before() {
    let domain = Srcu::new();
    let calls = Arc::new(AtomicU64::new(0));
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..500 {
                    let calls = calls.clone();
                    domain.call(move || ignore(calls.fetch_add(1, Ordering::Relaxed)));
                }
            });
        }
    });
    domain.barrier();
    assert_eq!(calls.load(Ordering::Relaxed), 2000);
}

#[test]
fn ba_01_returns_at_once_without_a_grace_period_if_nothing_is_queued() {
    let domain = Srcu::new();
    domain.call(|| {});
    domain.barrier();
    let before = (domain.stats().grace_periods, domain.callback_stats().batches);
    let section = domain.read();
    thread::scope(|s| {
        s.spawn(|| (0..1000).for_each(|_| domain.barrier()));
    });
    drop(section);
    assert_eq!((domain.stats().grace_periods, domain.callback_stats().batches), before);
}

#[test]
fn ba_01_does_not_wait_for_later_ones() {
    let domain = Arc::new(Srcu::new());
    let first = domain.read();
    domain.call_hurry(|| {});
    let collected = domain.callback_stats().batches;
    let returned = in_background({
        let domain = domain.clone();
        move || domain.barrier()
    });
    until("collected", || domain.callback_stats().batches > collected);
    thread::sleep(SOON);
    // A later one, in a grace period that cannot end before its section does.
    let second = domain.read();
    let called = Arc::new(AtomicBool::new(false));
    domain.call_hurry({
        let called = called.clone();
        move || called.store(true, Ordering::Relaxed)
    });
    assert!(returned.try_recv().is_err(), "did not wait for the first");
    drop(first);
    returned.ends("waits for the second");
    assert!(!called.load(Ordering::Relaxed));
    drop(second);
    domain.barrier();
    assert!(called.load(Ordering::Relaxed));
}

/// BA-01, and what mutant M22 fails: nothing is queued any more, but a callback is still running.
#[test]
fn ba_01_waits_for_a_callback_in_flight() {
    for _ in 0..10 {
        let domain = Srcu::new();
        let (begun, begins) = mpsc::channel();
        let done = Arc::new(AtomicBool::new(false));
        domain.call_hurry({
            let done = done.clone();
            move || {
                let _ = begun.send(());
                thread::sleep(Duration::from_millis(20));
                done.store(true, Ordering::Relaxed);
            }
        });
        begins.ends("called");
        domain.barrier();
        assert!(done.load(Ordering::Relaxed), "the barrier returned while a callback was running");
    }
}

#[test]
fn ba_02_quiesce_waits_for_sections_and_callbacks() {
    let domain = Arc::new(Srcu::new());
    let section = domain.read();
    let called = Arc::new(AtomicBool::new(false));
    let returned = in_background({
        let (domain, called) = (domain.clone(), called.clone());
        move || {
            domain.call(move || called.store(true, Ordering::Relaxed));
            domain.quiesce();
        }
    });
    returned.goes_on("did not wait for the section");
    drop(section);
    returned.ends("the section has ended");
    assert!(called.load(Ordering::Relaxed));
    // Without anything queued it is still a grace period.
    let before = domain.stats().grace_periods;
    domain.quiesce();
    assert!(domain.stats().grace_periods > before);
}

/// BA-03: barriers that wait at once share a collection.
#[test]
fn ba_03_concurrent_barriers_coalesce() {
    let _window = window(Duration::from_secs(2));
    let domain = Srcu::new();
    let section = domain.read();
    let calls = Arc::new(AtomicU64::new(0));
    domain.call({
        let calls = calls.clone();
        move || ignore(calls.fetch_add(1, Ordering::Relaxed))
    });
    let before = domain.callback_stats().batches;
    let waiting = Barrier::new(17);
    thread::scope(|s| {
        for _ in 0..16 {
            s.spawn(|| {
                waiting.wait();
                domain.barrier();
                assert_eq!(calls.load(Ordering::Relaxed), 1);
            });
        }
        waiting.wait();
        thread::sleep(SOON);
        drop(section);
    });
    let batches = domain.callback_stats().batches - before;
    assert!(batches <= 3, "{batches} collections for 16 barriers");
    callback::set_lazy_window(Duration::from_millis(100));
}

#[test]
fn ba_03_a_barrier_in_a_callback_is_an_error() {
    static DOMAIN: Srcu = Srcu::new();
    let (done, refused) = mpsc::channel();
    DOMAIN.call_hurry(move || {
        let barrier = catch_unwind(|| DOMAIN.barrier()).is_err();
        let wait = catch_unwind(|| DOMAIN.synchronize());
        let _ = done.send((barrier, wait.is_err()));
    });
    let refused = refused.ends("no deadlock");
    assert!(refused.0);
    assert_eq!(refused.1, cfg!(debug_assertions));
}

#[cfg(debug_assertions)]
#[test]
fn ba_03_a_barrier_in_a_section_is_an_error() {
    let domain = Srcu::new();
    let token = domain.read_lock();
    // Also when nothing is queued.
    assert!(catch_unwind(AssertUnwindSafe(|| domain.barrier())).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| domain.quiesce())).is_err());
    // SAFETY: the token of this domain and thread.
    unsafe { domain.read_unlock(token) };
    domain.barrier();
}

/// GP-12: what a thread queued is called though the thread has ended, also what it queued while its
/// thread-local values were being dropped.
#[test]
fn gp_12_a_thread_posts_and_ends() {
    static DOMAIN: Srcu = Srcu::new();
    static CALLS: AtomicU32 = AtomicU32::new(0);
    struct Last;
    impl Drop for Last {
        fn drop(&mut self) {
            DOMAIN.call(|| ignore(CALLS.fetch_add(1, Ordering::Relaxed)));
        }
    }
    thread_local!(static LAST: Cell<Option<Last>> = const { Cell::new(None) });
    for _ in 0..100 {
        let threads = [(); 4].map(|()| {
            thread::spawn(|| {
                LAST.with(|l| l.set(Some(Last)));
                DOMAIN.call(|| ignore(CALLS.fetch_add(1, Ordering::Relaxed)));
            })
        });
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
    }
    DOMAIN.barrier();
    assert_eq!(CALLS.load(Ordering::Relaxed), 800);
}

/// SR-13: a domain that is dropped with callbacks queued leaks its memory, and they are called.
#[test]
fn sr_13_a_dropped_domain_s_callbacks_are_called() {
    let (done, called) = mpsc::channel();
    for _ in 0..20 {
        let domain = Srcu::new();
        let done = done.clone();
        domain.call(move || ignore(done.send(())));
        drop(domain);
        // One that might get the same memory.
        let next = Srcu::new();
        next.call(|| {});
        next.barrier();
        assert_eq!(next.callback_stats().queued, 1);
    }
    for _ in 0..20 {
        called.ends("called");
    }
}
