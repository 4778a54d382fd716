//! The engine's part of the acceptance list: polled cookies, several domains at once, expediting,
//! async waits, reports.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use common::{Background, LATE, SOON, alone, in_background, until, waiter, watched};
use owlet_rcu::stall::{self, Kind};
use owlet_rcu::{
    ClassicSrcu, Cookie, Domain, FullCookie, Srcu, SrcuGuard, expedite, heavy_fences, wait_all,
    wait_all_expedited,
};

#[test]
fn po_01_a_snapshot_starts_nothing_and_start_poll_does() {
    let domain = Srcu::new();
    let snapshot = domain.snapshot();
    thread::sleep(SOON);
    assert!(!domain.poll(snapshot), "somebody ran a grace period that nobody asked for");
    let started = domain.start_poll();
    until("no progress without further calls", || domain.poll(started));
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
    until("the worker's part", || domain.poll(cookie));
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
        let soon = Instant::now() + Duration::from_millis(10);
        while Instant::now() < soon {
            assert!(!domain.poll(cookie));
        }
        drop(section);
        waiter.ends("the section has ended");
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
    let waiters: Vec<_> = (0..4).map(|_| waiter(&domain)).collect();
    for _ in 0..50 {
        taken.push(domain.snapshot());
        thread::sleep(Duration::from_millis(1));
    }
    let mut active: Vec<Cookie> = taken.iter().copied().filter(|c| !domain.poll(*c)).collect();
    active.dedup();
    assert!(active.len() <= Cookie::MAX_ACTIVE, "{active:?}");
    drop(section);
    waiters.iter().for_each(|w| w.ends("the section has ended"));
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

/// MU-01: the waits overlap: with a section open in each of six domains, the grace periods of all of them
/// are under way before the first of these sections ends.
#[test]
fn mu_01_waits_overlap() {
    static DOMAINS: [Srcu; 6] = [const { Srcu::new() }; 6];
    fn list() -> [&'static dyn Domain; 6] {
        DOMAINS.each_ref().map(|d| d as &dyn Domain)
    }
    for wait in [wait_all, wait_all_expedited] {
        let mut sections = DOMAINS.each_ref().map(|d| Some(d.read()));
        let idle = list().map(|d| d.snapshot());
        let waits = in_background(move || wait(&list()));
        // While a grace period runs, its domain's cookies are those of the one after it.
        for (domain, idle) in list().iter().zip(idle) {
            until("a domain waits for its turn", || domain.snapshot() != idle);
        }
        // The first comes last.
        sections.iter_mut().skip(1).for_each(|section| *section = None);
        waits.goes_on("a section is open");
        sections[0] = None;
        waits.ends("all sections have ended");
        assert!(list().iter().zip(idle).all(|(d, c)| d.poll(c)));
    }
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
        thread::park_timeout(LATE);
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
        waiter.goes_on("did not wait");
        drop(section);
        let woken = waiter.ends("is woken");
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
        until("held up by another domain", || cookies.iter().all(|(d, c)| d.poll(*c)));
    }
    assert!(!stuck.poll(never));
    drop(section);
    until("the section has ended", || stuck.poll(never));
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
    let waiter = waiter(&&DOMAIN);
    until("two reports", || reports_of("stuck").len() >= 2);
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
    waiter.ends("the holder has left");
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
        waiter.ends("a new domain inherited an old section");
    }
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
    let waits = waiter(&domain);
    waits.goes_on("did not wait");
    drop(section);
    waits.ends("the section has ended");
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
        watched("the last section has ended", || domain.wait(cookie));
    }
    let guards: Vec<SrcuGuard<'_>> = domains.iter().map(|d| d.read()).collect();
    let cookies: Vec<_> = domains.iter().map(|d| d.snapshot()).collect();
    drop(guards);
    let list: Vec<&dyn Domain> = domains.iter().map(|d| d.as_ref() as &dyn Domain).collect();
    watched("no section is open", || wait_all(&list));
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
    ended.ends("the other thread");
    DOMAIN.wait(cookie);
}

/// Statistics as text and as a struct; waits that others' grace periods served are counted.
#[test]
fn ex_02_statistics() {
    let domain = Arc::new(Srcu::named("counted"));
    let section = domain.read();
    let waiters: Vec<_> = (0..6).map(|_| waiter(&domain)).collect();
    until("all wait", || domain.stats().calls == 6);
    drop(section);
    waiters.iter().for_each(|w| w.ends("the section has ended"));
    let stats = domain.stats();
    assert!(stats.grace_periods <= 2 && stats.shared >= 4, "{stats}");
    assert!(stats.membarriers <= stats.grace_periods);
    let text = stats.to_string();
    assert!(text.contains("calls=6") && text.contains("grace_periods="), "{text}");
}
