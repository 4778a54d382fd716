//! The engine's part of the acceptance list: polled cookies, several domains at once, expediting,
//! async waits, reports.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use owlet_rcu::stall::{self, Kind};
use owlet_rcu::{
    ClassicSrcu, Cookie, Domain, FullCookie, Srcu, SrcuGuard, expedite, heavy_fences, wait_all,
    wait_all_expedited,
};

const SOON: Duration = Duration::from_millis(60);
const LATE: Duration = Duration::from_secs(20);

fn comes_true(what: impl Fn() -> bool) -> bool {
    let until = Instant::now() + LATE;
    while !what() {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

fn in_background<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (done, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = done.send(f());
    });
    receiver
}

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

#[test]
fn po_01_a_snapshot_starts_nothing_and_start_poll_does() {
    let domain = Srcu::new();
    let snapshot = domain.snapshot();
    thread::sleep(SOON);
    assert!(!domain.poll(snapshot), "somebody ran a grace period that nobody asked for");
    let started = domain.start_poll();
    assert!(comes_true(|| domain.poll(started)), "no progress without further calls");
    assert!(domain.poll(snapshot));
}

/// PO-09: the expedited way to start means the same.
#[test]
fn po_09_expedited_start_poll() {
    let domain = Srcu::new();
    for _ in 0..20 {
        let section = domain.read();
        let cookie = domain.start_poll_expedited();
        thread::sleep(Duration::from_millis(1));
        assert!(!domain.poll(cookie), "true while a section that was there is open");
        drop(section);
        domain.wait_expedited(cookie);
        assert!(domain.poll(cookie));
    }
    let before = domain.stats().expedited;
    let cookie = domain.start_poll_expedited();
    assert!(comes_true(|| domain.poll(cookie)));
    assert_eq!(domain.stats().expedited, before + 1);
}

/// PO-02, PO-05: never true while the section lasts, from then on for good, also for the worker's.
#[test]
fn po_02_no_cookie_comes_true_inside_the_section_it_was_taken_in() {
    let domain = Arc::new(Srcu::new());
    for round in 0..10 {
        let section = domain.read();
        let cookie = if round % 2 == 0 { domain.start_poll() } else { domain.snapshot() };
        let waiter = in_background({
            let domain = domain.clone();
            move || domain.wait(cookie)
        });
        let until = Instant::now() + Duration::from_millis(10);
        while Instant::now() < until {
            assert!(!domain.poll(cookie));
        }
        drop(section);
        waiter.recv_timeout(LATE).expect("ends");
        for _ in 0..5 {
            assert!(domain.poll(cookie));
            domain.synchronize();
        }
    }
}

/// PO-06: two different cookies at most that have not passed, whatever happens meanwhile.
#[test]
fn po_06_at_most_two_cookies_are_active() {
    let domain = Arc::new(Srcu::new());
    let mut taken = Vec::new();
    let section = domain.read();
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let domain = domain.clone();
            in_background(move || domain.synchronize())
        })
        .collect();
    for _ in 0..50 {
        taken.push(domain.snapshot());
        thread::sleep(Duration::from_millis(1));
    }
    let mut active: Vec<Cookie> = taken.iter().copied().filter(|c| !domain.poll(*c)).collect();
    active.dedup();
    assert!(active.len() <= Cookie::MAX_ACTIVE, "{active:?}");
    drop(section);
    waiters.iter().for_each(|w| w.recv_timeout(LATE).expect("ends"));
    assert!(domain.poll(Cookie::completed()));
    domain.wait(Cookie::completed());
    assert_eq!(domain.snapshot(), domain.snapshot(), "the same state is the same cookie");
}

/// PO-07: one wait of either kind is enough, and a full cookie knows its domain.
#[test]
fn po_07_full_cookies() {
    let domain = Srcu::new();
    for expedited in [false, true] {
        let full = domain.snapshot_full();
        assert!(!domain.poll_full(&full));
        if expedited {
            domain.synchronize_expedited()
        } else {
            domain.synchronize()
        }
        assert!(domain.poll_full(&full));
        assert!(domain.poll(full.cookie()));
    }
    assert!(domain.poll_full(&FullCookie::completed()));
    let other = Srcu::new();
    let full = domain.snapshot_full();
    // Far enough for the number alone.
    (0..5).for_each(|_| other.synchronize());
    let foreign = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| other.poll_full(&full)));
    assert!(!foreign.unwrap_or(false), "a cookie of another domain");
}

/// PO-08: polling and taking cookies in a handler that interrupts anything.
#[test]
fn po_08_cookies_in_a_signal_handler() {
    static DOMAIN: Srcu = Srcu::new();
    static HANDLED: AtomicU64 = AtomicU64::new(0);
    static LAST: Mutex<Option<Cookie>> = Mutex::new(None);
    extern "C" fn handler(_: i32) {
        let before = DOMAIN.snapshot();
        assert!(!DOMAIN.poll(before) || DOMAIN.stats().grace_periods != 0);
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler only uses what is async-signal-safe.
    unsafe { libc::signal(libc::SIGURG, handler as *const () as usize) };
    // SAFETY: takes no arguments.
    let me = unsafe { libc::pthread_self() } as usize;
    thread::scope(|s| {
        let sender = s.spawn(move || {
            for _ in 0..500 {
                // SAFETY: the target outlives the scope.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGURG) };
                thread::sleep(Duration::from_micros(50));
            }
        });
        while !sender.is_finished() {
            DOMAIN.synchronize();
            *LAST.lock().expect("no panic") = Some(DOMAIN.snapshot());
        }
    });
    assert!(HANDLED.load(Ordering::Relaxed) > 0);
}

/// MU-01: the waits overlap. In each of six domains there is always a section of 60 ms; waiting for
/// one after the other takes about half of that each, waiting for all takes the longest.
#[test]
fn mu_01_waits_overlap() {
    static DOMAINS: [Srcu; 6] = [const { Srcu::new() }; 6];
    let (held, rounds) = (Duration::from_millis(60), 5);
    let stop = AtomicU32::new(0);
    thread::scope(|s| {
        for (at, domain) in (0..).zip(&DOMAINS) {
            let stop = &stop;
            s.spawn(move || {
                thread::sleep(Duration::from_millis(17 * at));
                let mut section = domain.read();
                while stop.load(Ordering::Relaxed) == 0 {
                    thread::sleep(held);
                    let next = domain.read();
                    drop(std::mem::replace(&mut section, next));
                }
            });
        }
        thread::sleep(Duration::from_millis(120));
        let list = DOMAINS.each_ref().map(|d| d as &dyn Domain);
        let begun = Instant::now();
        for _ in 0..rounds {
            let cookies = list.map(|d| d.snapshot());
            wait_all(&list);
            assert!(list.iter().zip(cookies).all(|(d, c)| d.poll(c)));
        }
        let took = begun.elapsed();
        stop.store(1, Ordering::Relaxed);
        assert!(took < (held * rounds).mul_f64(1.8), "{took:?} for {rounds} rounds: they add up");
    });
}

/// MU-01, EX-02: one heavy fence serves all domains.
#[test]
fn mu_01_domains_share_a_heavy_fence() {
    if !alone("mu_01_domains_share_a_heavy_fence") {
        return;
    }
    let domains: Vec<Srcu> = (0..8).map(|_| Srcu::new()).collect();
    let list: Vec<&dyn Domain> = domains.iter().map(|d| d as &dyn Domain).collect();
    let each = u64::from(owlet_percpu::backend() == owlet_percpu::Backend::Rseq);
    for rounds in 1..4 {
        wait_all(&list);
        assert_eq!(heavy_fences(), rounds * each);
        assert!(domains.iter().all(|d| d.stats().membarriers == rounds * each));
    }
    list.iter().for_each(|d| d.synchronize());
    assert_eq!(heavy_fences(), (3 + 8) * each);
}

#[test]
fn mu_02_duplicates_are_waited_for_once_and_nothing_for_nothing() {
    let domain = Srcu::new();
    wait_all(&[]);
    wait_all(&[&domain, &domain, &domain]);
    let stats = domain.stats();
    assert_eq!((stats.grace_periods, stats.calls), (1, 1), "named thrice, waited for once");
    let classic = ClassicSrcu::new();
    wait_all_expedited(&[&domain, &classic, &domain]);
    assert_eq!((domain.stats().grace_periods, classic.stats().grace_periods), (2, 1));
}

/// A domain that another thread leads is waited for too, and nobody waits for a leader for ever.
#[test]
fn mu_01_domains_led_by_others() {
    static DOMAINS: [Srcu; 3] = [const { Srcu::new() }; 3];
    let rounds = 300;
    thread::scope(|s| {
        for shift in 0..3 {
            s.spawn(move || {
                for _ in 0..rounds {
                    let order = [0, 1, 2].map(|i| &DOMAINS[(i + shift) % 3] as &dyn Domain);
                    let cookies = order.map(|d| d.snapshot());
                    wait_all(&order);
                    for (domain, cookie) in order.iter().zip(cookies) {
                        assert!(domain.poll(cookie));
                    }
                }
            });
        }
    });
}

/// EX-01: the switches nest; forbidding wins; the waits mean the same.
#[test]
fn ex_01_force_and_forbid() {
    if !alone("ex_01_force_and_forbid") {
        return;
    }
    let domain = Srcu::new();
    let expedited = || domain.stats().expedited;
    domain.synchronize();
    assert_eq!(expedited(), 0);
    {
        let _force = expedite::force();
        let _again = expedite::force();
        domain.synchronize();
        assert_eq!(expedited(), 1);
        let _forbid = expedite::forbid();
        domain.synchronize();
        domain.synchronize_expedited();
        assert_eq!(expedited(), 1, "forbidding wins");
    }
    domain.synchronize();
    assert_eq!(expedited(), 1);
    domain.synchronize_expedited();
    assert_eq!(expedited(), 2);
}

/// SR-10: a request makes one grace period quick, not all; repeated ones are one.
#[test]
fn sr_10_expedite_current() {
    let domain = Srcu::new();
    for _ in 0..5 {
        domain.expedite_current();
    }
    assert_eq!(domain.stats().grace_periods, 0, "starts none");
    for _ in 0..4 {
        domain.synchronize();
    }
    let stats = domain.stats();
    assert_eq!((stats.grace_periods, stats.expedited), (4, 1), "{stats}");
}

/// SR-10: the leader's present sleep ends at once.
#[test]
fn sr_10_expedite_current_ends_a_sleep() {
    let domain = Arc::new(Srcu::new());
    let section = domain.read();
    let waiter = in_background({
        let domain = domain.clone();
        move || domain.synchronize()
    });
    // By now it sleeps for milliseconds at a time.
    thread::sleep(Duration::from_millis(400));
    let before = domain.stats().sleeps;
    domain.expedite_current();
    thread::sleep(Duration::from_millis(100));
    let sleeps = domain.stats().sleeps - before;
    assert!(sleeps > 60, "{sleeps} sleeps in 100 ms: not hurried");
    drop(section);
    waiter.recv_timeout(LATE).expect("ends");
    assert_eq!(domain.stats().expedited, 1);
}

struct Unpark(Thread, AtomicU32);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.unpark();
    }
}

fn block_on(future: impl Future<Output = ()>) -> u32 {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark(thread::current(), AtomicU32::new(0)));
    let waker = Waker::from(unpark.clone());
    while future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        thread::park_timeout(10 * LATE);
    }
    unpark.1.load(Ordering::Relaxed)
}

/// GP-01 for async code: woken once, after the section, on any runtime.
#[test]
fn gp_01_synchronize_async() {
    let domain = Arc::new(Srcu::new());
    for _ in 0..3 {
        let section = domain.read();
        let waiter = in_background({
            let domain = domain.clone();
            move || block_on(domain.synchronize_async())
        });
        assert!(waiter.recv_timeout(SOON).is_err(), "did not wait");
        drop(section);
        let woken = waiter.recv_timeout(LATE).expect("is woken");
        assert_eq!(woken, 1, "woken {woken} times");
    }
    // Given up: nothing is left behind that keeps the domain.
    let mut given_up = pin!(domain.synchronize_async());
    let waker = Waker::noop();
    assert_eq!(given_up.as_mut().poll(&mut Context::from_waker(waker)), Poll::Pending);
}

/// Many tasks on one thread share grace periods.
#[test]
fn async_waits_share_grace_periods() {
    let domain = Srcu::new();
    let before = domain.stats().grace_periods;
    let waits: Vec<_> = (0..100).map(|_| domain.synchronize_async()).collect();
    waits.into_iter().for_each(|wait| {
        block_on(wait);
    });
    assert!(domain.stats().grace_periods - before <= 4);
}

/// The worker is for everybody: ten thousand cookies over a hundred domains.
#[test]
fn po_01_many_domains_at_once() {
    let domains: Vec<Srcu> = (0..100).map(|_| Srcu::new()).collect();
    let stuck = Srcu::new();
    let section = stuck.read();
    let never = stuck.start_poll();
    for _ in 0..20 {
        let cookies: Vec<_> = domains.iter().map(|d| (d, d.start_poll())).collect();
        assert!(
            comes_true(|| cookies.iter().all(|(d, c)| d.poll(*c))),
            "held up by another domain"
        );
    }
    assert!(!stuck.poll(never));
    drop(section);
    assert!(comes_true(|| stuck.poll(never)));
}

static REPORTS: Mutex<Vec<stall::Report>> = Mutex::new(Vec::new());

fn reports_of(domain: &str) -> Vec<stall::Report> {
    let reports = REPORTS.lock().expect("no panic");
    reports.iter().filter(|r| r.domain == domain).cloned().collect()
}

fn collect(report: &stall::Report) {
    REPORTS.lock().expect("no panic").push(report.clone());
}

/// GP-14, LV-02: a section that goes on and on is reported: domain, age, who.
#[test]
fn gp_14_stalls_are_reported() {
    if !alone("gp_14_stalls_are_reported") {
        return;
    }
    stall::set_reporter(collect);
    stall::set_timeout(Some(Duration::from_millis(50)));
    static DOMAIN: Srcu = Srcu::named("stuck");
    let (leave, told) = mpsc::channel::<()>();
    let (inside, is_inside) = mpsc::channel();
    let holder = thread::Builder::new().name("the-holder".into()).spawn(move || {
        let _section = DOMAIN.read();
        let _ = inside.send(owlet_sys::process::gettid());
        let _ = told.recv();
    });
    let tid = is_inside.recv().expect("inside");
    DOMAIN.call(|| {});
    let waiter = in_background(|| DOMAIN.synchronize());
    assert!(comes_true(|| reports_of("stuck").len() >= 2));
    let report = reports_of("stuck").into_iter().next_back().expect("one");
    assert!(report.kind == Kind::Stalled && report.age >= Duration::from_millis(50));
    assert_eq!(report.pending_callbacks, 1);
    if cfg!(any(debug_assertions, feature = "stacks")) {
        let holder = report.holders.first().expect("its holder is known");
        assert_eq!((holder.thread.as_str(), holder.tid), ("the-holder", tid));
        assert!(holder.age >= Duration::from_millis(30));
        let text = report.to_string();
        assert!(text.contains("stuck") && text.contains("the-holder"), "{text}");
        assert_eq!(holder.stack.contains("gp_14_stalls"), cfg!(feature = "stacks"), "{text}");
    }
    assert!(DOMAIN.stats().stalls >= 1);
    let _ = leave.send(());
    waiter.recv_timeout(LATE).expect("ends");
    holder.expect("runs").join().expect("no panic");
    let (before, stats) = (reports_of("stuck").len(), DOMAIN.stats());
    DOMAIN.synchronize();
    assert_eq!(reports_of("stuck").len(), before, "{stats}");
}

/// SR-13: a domain that is dropped while in use is kept, and that is reported.
#[test]
fn sr_13_a_domain_in_use_is_not_given_back() {
    if !alone("sr_13_a_domain_in_use_is_not_given_back") {
        return;
    }
    stall::set_reporter(collect);
    let why = |name: &str| reports_of(name).first().map(|r| r.kind);

    let domain = Srcu::named("open section");
    std::mem::forget(domain.read());
    drop(domain);
    assert_eq!(why("open section"), Some(Kind::Leaked("a section is open")));

    // A grace period that nothing but a cookie asked for: its section ends as the domain goes.
    let mut reported = false;
    for _ in 0..200 {
        let domain = Srcu::named("polled for");
        let section = domain.read();
        let _ = domain.start_poll();
        drop(section);
        drop(domain);
        reported |= matches!(
            why("polled for"),
            Some(Kind::Leaked("a grace period is running" | "a grace period is wanted"))
        );
    }
    assert!(reported, "a domain went while its grace period was to come");

    let domain = Srcu::named("at rest");
    domain.synchronize();
    drop(domain.read());
    drop(domain);
    assert_eq!(why("at rest"), None);
    // None of the blocks in use is given to a new domain: their readers would hold it up.
    for _ in 0..50 {
        let fresh = Srcu::new();
        drop(fresh.read());
        let waiter = in_background(move || fresh.synchronize());
        waiter.recv_timeout(LATE).expect("a new domain inherited an old section");
    }
}

/// SR-06: a classic section's ends are full barriers: store buffering between two threads, each with
/// a store, the beginning or the end of a section, and a load.
#[test]
fn sr_06_classic_sections_are_full_barriers() {
    static DOMAIN: ClassicSrcu = ClassicSrcu::new();
    static X: [Line; 2] = [const { Line(AtomicU32::new(0)) }; 2];
    static READY: Line = Line(AtomicU32::new(0));
    #[repr(align(128))]
    struct Line(AtomicU32);
    let rounds = 100_000;
    let side = |me: usize, at_end: bool| {
        let mut seen = Vec::with_capacity(rounds as usize);
        for round in 1..=rounds {
            READY.0.fetch_add(1, Ordering::AcqRel);
            let mut spins = 0;
            while READY.0.load(Ordering::Acquire) < 2 * round {
                spins += 1;
                if spins % 2000 == 0 { thread::yield_now() } else { std::hint::spin_loop() }
            }
            (0..(round * 7 + me as u32) % 16).for_each(|_| std::hint::spin_loop());
            if at_end {
                let section = DOMAIN.read();
                X[me].0.store(round, Ordering::Relaxed);
                drop(section);
                seen.push(X[1 - me].0.load(Ordering::Relaxed));
            } else {
                X[me].0.store(round, Ordering::Relaxed);
                let section = DOMAIN.read();
                seen.push(X[1 - me].0.load(Ordering::Relaxed));
                drop(section);
            }
        }
        seen
    };
    thread::scope(|s| {
        let a = s.spawn(move || side(0, true));
        let b = s.spawn(move || side(1, false));
        let (a, b) = (a.join().expect("no panic"), b.join().expect("no panic"));
        for (round, (a, b)) in (1..).zip(a.into_iter().zip(b)) {
            assert!(a >= round || b >= round, "round {round}: both read the past");
        }
    });
    DOMAIN.synchronize();
    // Readers that fence for themselves need no heavy fence.
    assert_eq!(DOMAIN.stats().membarriers, 0);
}

/// SR-09: classic domains expedite the first wait after a pause, fast ones never do by themselves.
#[test]
fn sr_09_classic_domains_expedite_after_a_pause() {
    let (classic, fast) = (ClassicSrcu::new(), Srcu::new());
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(1));
        classic.synchronize();
        fast.synchronize();
    }
    assert_eq!((classic.stats().expedited, fast.stats().expedited), (3, 0));
    assert_eq!(classic.stats().membarriers, 0);
}

/// SR-14's kind: a fenced domain waits like any other, and has no membarrier.
#[test]
fn gp_01_fenced_domains() {
    let domain = Arc::new(Srcu::fenced("rare readers"));
    let section = domain.read();
    let waiter = in_background({
        let domain = domain.clone();
        move || domain.synchronize()
    });
    assert!(waiter.recv_timeout(SOON).is_err(), "did not wait");
    drop(section);
    waiter.recv_timeout(LATE).expect("ends");
    let token = domain.read_lock();
    let cookie = domain.start_poll();
    thread::sleep(Duration::from_millis(5));
    assert!(!domain.poll(cookie));
    // SAFETY: this thread's own token, given back once.
    unsafe { domain.read_unlock(token) };
    domain.wait(cookie);
    assert_eq!(domain.stats().membarriers, 0);
    assert_eq!(domain.name(), "rare readers");
}

/// More domains than are near: the far ones wait and protect alike.
#[test]
fn sr_01_hundreds_of_domains() {
    let domains: Vec<Arc<Srcu>> = (0..200).map(|_| Arc::new(Srcu::new())).collect();
    for domain in domains.iter().step_by(7) {
        let section = domain.read();
        let inner = domain.read();
        drop(section);
        let cookie = domain.start_poll_expedited();
        let moved = in_background(move || 0).recv_timeout(LATE);
        assert!(moved.is_ok() && !domain.poll(cookie));
        drop(inner);
        domain.wait(cookie);
    }
    let guards: Vec<SrcuGuard<'_>> = domains.iter().map(|d| d.read()).collect();
    let cookies: Vec<_> = domains.iter().map(|d| d.snapshot()).collect();
    drop(guards);
    let list: Vec<&dyn Domain> = domains.iter().map(|d| d.as_ref() as &dyn Domain).collect();
    wait_all(&list);
    assert!(domains.iter().zip(cookies).all(|(d, c)| d.poll(c)));
}

/// SR-02: down in one thread, up in another.
#[test]
fn sr_02_a_section_handed_over_as_a_raw_one() {
    static DOMAIN: Srcu = Srcu::new();
    let raw = DOMAIN.read().into_raw();
    let cookie = DOMAIN.start_poll();
    thread::sleep(Duration::from_millis(5));
    assert!(!DOMAIN.poll(cookie));
    let ended = in_background(move || {
        // SAFETY: of a guard of this domain, used once.
        drop(unsafe { SrcuGuard::from_raw(&DOMAIN, raw) });
    });
    ended.recv_timeout(LATE).expect("ends");
    DOMAIN.wait(cookie);
}

/// Statistics as text and as a struct; waits that others' grace periods served are counted.
#[test]
fn ex_02_statistics() {
    let domain = Arc::new(Srcu::named("counted"));
    let section = domain.read();
    let waiters: Vec<_> = (0..6)
        .map(|_| {
            let domain = domain.clone();
            in_background(move || domain.synchronize())
        })
        .collect();
    assert!(comes_true(|| domain.stats().calls == 6));
    drop(section);
    waiters.iter().for_each(|w| w.recv_timeout(LATE).expect("ends"));
    let stats = domain.stats();
    assert!(stats.grace_periods <= 2 && stats.shared >= 4, "{stats}");
    assert!(stats.membarriers <= stats.grace_periods);
    let text = stats.to_string();
    assert!(text.contains("calls=6") && text.contains("grace_periods="), "{text}");
}
