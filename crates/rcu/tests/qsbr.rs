//! QSBR, statement by statement (the ids are those of the acceptance list).

mod common;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Background, SOON, alone, handle, in_background, in_storm, pages, until, waiter, watched,
};
use owlet_rcu::{Domain, Qsbr};

#[test]
fn gp_01_waits_for_a_thread_that_was_online() {
    let domain = Arc::new(Qsbr::new());
    let mut reader = domain.register();
    let mut online = reader.online();
    let first = waiter(&domain);
    first.goes_on("did not wait");
    // More than once: the waiter may not have begun.
    first.until_done(|| online.quiescent());
    let second = waiter(&domain);
    second.goes_on("did not wait for the next section");
    drop(online);
    second.ends("going offline ends the section");
}

/// Mutant M24: a thread that registered after the last grace period, and one that registers while the
/// grace period looks at the others, are waited for.
#[test]
fn gp_01_m24_threads_that_register_late_are_waited_for() {
    let domain = Arc::new(Qsbr::new());
    let mut first = domain.register();
    domain.synchronize();
    let mut late = domain.register();
    let section = late.online();
    let waits = waiter(&domain);
    waits.goes_on("the late thread is not known");
    drop(section);
    waits.ends("the late thread is offline");
    // One that was online all the while holds the walk up; whoever comes behind it needs not be
    // waited for, and is not.
    let held = first.online();
    let waits = waiter(&domain);
    waits.goes_on("the first is online");
    let mut behind = domain.register();
    let _online = behind.online();
    drop(held);
    waits.ends("the section behind began after it");
}

#[test]
fn gp_02_ends_under_threads_that_are_always_online() {
    static DOMAIN: Qsbr = Qsbr::new();
    let (stop, sections) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
    thread::scope(|s| {
        for sections in &sections {
            s.spawn(|| {
                let mut reader = DOMAIN.register();
                let mut online = reader.online();
                while !stop.load(Ordering::Relaxed) {
                    online.quiescent();
                    sections.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let all = |n| sections.iter().all(|count| count.load(Ordering::Relaxed) > n);
        until("readers are at it", || all(0));
        watched("a grace period under threads that are always online", || {
            for i in 0..50 {
                if i % 2 == 0 { DOMAIN.synchronize() } else { DOMAIN.synchronize_expedited() }
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert!(DOMAIN.stats().grace_periods >= 50);
    assert_eq!(DOMAIN.stats().membarriers, 0, "EX-02: this flavour needs none");
}

/// GP-11: registered and offline, offline for a while, never registered, blocked: nobody is waited
/// for, whoever waits.
#[test]
fn gp_11_offline_idle_and_unregistered_threads_delay_nothing() {
    static DOMAIN: Qsbr = Qsbr::new();
    let leave = Barrier::new(4);
    let (ready, all_ready) = mpsc::channel();
    thread::scope(|s| {
        s.spawn(|| {
            let _reader = DOMAIN.register();
            let _ = ready.send(());
            leave.wait();
        });
        s.spawn(|| {
            let mut reader = DOMAIN.register();
            let mut online = reader.online();
            online.offline(|| {
                let _ = ready.send(());
                leave.wait();
            });
        });
        s.spawn(|| {
            let _ = ready.send(());
            leave.wait();
        });
        (0..3).for_each(|_| all_ready.recv().expect("they come"));
        watched("a grace period beside threads that are in no section", || {
            // By an unregistered thread, by a registered one, and by one that is online and says so.
            for _ in 0..100 {
                DOMAIN.synchronize();
            }
            let mut reader = DOMAIN.register();
            DOMAIN.synchronize();
            reader.online().synchronize();
        });
        let sleeps = DOMAIN.stats().sleeps;
        leave.wait();
        assert_eq!(sleeps, 0, "somebody was waited for");
    });
}

/// GP-12: a thread that ends while online is found out; what it read and lent to others lives on.
#[test]
fn gp_12_ending_while_online_is_detected() {
    static DOMAIN: Qsbr = Qsbr::named("lender");
    static TOLD: Mutex<Vec<owlet_rcu::stall::Report>> = Mutex::new(Vec::new());
    if !alone("gp_12_ending_while_online_is_detected") {
        return;
    }
    owlet_rcu::stall::set_timeout(Some(Duration::from_millis(50)));
    owlet_rcu::stall::set_reporter(|report| {
        TOLD.lock().expect("no panic").push(report.clone());
    });
    let cell: &'static _ =
        Box::leak(Box::new(owlet_rcu::Rcu::with_domain(String::from("lent"), &DOMAIN)));
    let ended = thread::spawn(|| {
        let reader = Box::leak(Box::new(DOMAIN.register()));
        let online = Box::leak(Box::new(reader.online()));
        let guard = Box::leak(Box::new(online.read()));
        cell.read(guard).as_str()
    });
    let lent: &'static str = ended.join().expect("no panic");
    until("the thread has ended for the kernel, too", || DOMAIN.abandoned() == 1);
    let old = cell.replace(String::from("new"));
    let waits = in_background(move || drop(old.wait()));
    until("the stall is reported", || !TOLD.lock().expect("no panic").is_empty());
    waits.goes_on("the thread lent what it read");
    assert_eq!(lent, "lent");
    let told = TOLD.lock().expect("no panic");
    let text = told.iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains("online when its thread ended"), "{text}");
}

#[test]
fn gp_12_bursts_of_threads_that_read_and_exit() {
    let domain = Arc::new(Qsbr::new());
    for _ in 0..20 {
        let burst: Vec<_> = (0..16)
            .map(|_| {
                let domain = domain.clone();
                thread::spawn(move || {
                    let mut reader = domain.register();
                    let mut online = reader.online();
                    online.quiescent();
                })
            })
            .collect();
        watched("a grace period beside a burst", || domain.synchronize());
        burst.into_iter().for_each(|t| t.join().expect("no panic"));
    }
    waiter(&domain).ends("nobody is left");
    assert_eq!(domain.abandoned(), 0);
}

/// Records are used again: registrations that come and go do not grow the process, and 10,000 at one
/// time are waited for (LV-01's number).
#[test]
fn gp_12_registrations_are_used_again() {
    if !alone("gp_12_registrations_are_used_again") {
        return;
    }
    let domain = Arc::new(Qsbr::new());
    let churn = |domain: &Qsbr| (0..20_000).for_each(|_| drop(domain.register().online()));
    churn(&domain);
    let before = pages(true);
    churn(&domain);
    assert!(pages(true) < before + 100, "registrations grow the process");
    let mut readers: Vec<_> = (0..10_000).map(|_| domain.register()).collect();
    let mut online: Vec<_> = readers.iter_mut().map(|r| r.online()).collect();
    let grown = pages(true) - before;
    assert!(grown < 600, "{grown} pages for 10,000 registrations");
    let waiter = waiter(&domain);
    let soon = Instant::now() + SOON;
    while Instant::now() < soon {
        online.iter_mut().skip(1).for_each(|o| o.quiescent());
    }
    assert!(waiter.try_recv().is_err(), "one is still online");
    waiter.until_done(|| online.iter_mut().for_each(|o| o.quiescent()));
}

/// Domains that come and go use each other's memory.
#[test]
fn gp_12_domains_are_used_again() {
    if !alone("gp_12_domains_are_used_again") {
        return;
    }
    let churn = || {
        for _ in 0..3000 {
            let domain = Qsbr::new();
            drop(domain.register().online());
            domain.synchronize_expedited();
        }
    };
    churn();
    let before = pages(false);
    churn();
    assert!(pages(false) < before + 100, "domains that came and went grew the process");
}

const POISON: u64 = 0xdead_dead_dead_dead;

/// What a handler reads: an object that is poisoned and then freed after it was replaced.
struct Shared {
    domain: Qsbr,
    object: AtomicPtr<AtomicU64>,
    handled: AtomicUsize,
    wrong: AtomicUsize,
    on: AtomicBool,
}

static STEPPED: Shared = Shared::new();
static STORMED: Shared = Shared::new();

impl Shared {
    const fn new() -> Self {
        Self {
            domain: Qsbr::new(),
            object: AtomicPtr::new(std::ptr::null_mut()),
            handled: AtomicUsize::new(0),
            wrong: AtomicUsize::new(0),
            on: AtomicBool::new(false),
        }
    }

    fn look(&self) {
        let object = self.object.load(Ordering::Acquire);
        // SAFETY: null, or freed only after a grace period that began after it was replaced.
        let Some(object) = (unsafe { object.as_ref() }) else { return };
        for _ in 0..20 {
            if object.load(Ordering::Relaxed) != 1 {
                self.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A thread of its own for the length of a section.
    fn visit(&self) {
        let mut reader = self.domain.register();
        let mut online = reader.online();
        self.look();
        online.quiescent();
        self.look();
    }

    /// What the handler interrupts.
    fn live(&self) {
        let mut reader = self.domain.register();
        let mut online = reader.online();
        self.look();
        online.quiescent();
        self.look();
        online.offline(|| {});
        self.look();
        drop(online);
        drop(reader);
    }

    fn replace_and_free(&self) {
        let fresh = Box::into_raw(Box::new(AtomicU64::new(1)));
        let old = self.object.swap(fresh, Ordering::AcqRel);
        self.domain.synchronize_expedited();
        // SAFETY: unpublished before the grace period, which is over; nobody has it any more.
        let Some(old) = (unsafe { old.as_ref() }) else { return };
        old.store(POISON, Ordering::Relaxed);
        // SAFETY: as above; it came from a box.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(old).cast_mut()) });
    }

    fn with_updater(&self, run: impl FnOnce()) {
        self.on.store(true, Ordering::Relaxed);
        thread::scope(|s| {
            s.spawn(|| {
                while self.on.load(Ordering::Relaxed) {
                    self.replace_and_free();
                }
            });
            run();
            self.on.store(false, Ordering::Relaxed);
        });
        self.domain.synchronize();
        assert_eq!(self.wrong.load(Ordering::Relaxed), 0, "a handler saw a freed object");
    }
}

/// Sets or clears the processor's trap flag: a SIGTRAP after each instruction.
#[cfg(target_arch = "x86_64")]
fn trap(on: bool) {
    if on {
        // SAFETY: changes the flags register only; the stack is as before.
        unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    } else {
        // SAFETY: as above.
        unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    }
}

/// GP-13: a handler that registers, goes online, reads and leaves again, after *every instruction* of
/// register, online, quiescent, offline and unregister.
#[cfg(target_arch = "x86_64")]
#[test]
fn gp_13_a_section_after_every_instruction() {
    extern "C" fn handler(_: i32) {
        STEPPED.visit();
        STEPPED.handled.fetch_add(1, Ordering::Relaxed);
    }
    if !alone("gp_13_a_section_after_every_instruction") {
        return;
    }
    handle(libc::SIGTRAP, handler);
    STEPPED.domain.synchronize();
    STEPPED.with_updater(|| {
        for _ in 0..40 {
            trap(true);
            STEPPED.live();
            trap(false);
        }
    });
    let handled = STEPPED.handled.load(Ordering::Relaxed);
    assert!(handled > 40 * 100, "only {handled} steps");
}

/// GP-13: the same by a storm of signals, with waits and polls interrupted as well.
#[test]
fn gp_13_sections_in_a_signal_storm() {
    extern "C" fn handler(_: i32) {
        STORMED.visit();
        let domain = &STORMED.domain;
        assert!(!domain.poll(domain.snapshot()));
        STORMED.handled.fetch_add(1, Ordering::Relaxed);
    }
    if !alone("gp_13_sections_in_a_signal_storm") {
        return;
    }
    handle(libc::SIGUSR1, handler);
    in_storm(libc::SIGUSR1, || {
        STORMED.with_updater(|| {
            watched("2000 signals", || {
                while STORMED.handled.load(Ordering::Relaxed) < 2000 {
                    STORMED.live();
                    STORMED.replace_and_free();
                }
            });
        });
    });
}

/// GP-14: a panic unwinds a section exactly once, also one that is offline at that moment.
#[test]
fn gp_14_a_panic_leaves_the_section_once() {
    let domain = Qsbr::new();
    let mut reader = domain.register();
    for offline in [false, true] {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut online = reader.online();
            if offline {
                online.offline(|| std::panic::resume_unwind(Box::new("on purpose")));
            }
            std::panic::resume_unwind(Box::new("on purpose"))
        }));
        assert!(caught.is_err());
        domain.synchronize();
    }
    // Online again after the panic in the closure.
    let mut online = reader.online();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        online.offline(|| std::panic::resume_unwind(Box::new("on purpose")));
    }));
    assert!(caught.is_err());
    let cookie = domain.snapshot();
    thread::scope(|s| {
        s.spawn(|| domain.synchronize());
        thread::sleep(SOON);
        assert!(!domain.poll(cookie), "the section did not go on");
        drop(online);
    });
    assert!(domain.poll(cookie));
}

/// GP-14: a forgotten section stalls, is reported with its thread, and nothing worse.
#[test]
fn gp_14_a_forgotten_section_is_reported() {
    static TOLD: Mutex<Vec<owlet_rcu::stall::Report>> = Mutex::new(Vec::new());
    if !alone("gp_14_a_forgotten_section_is_reported") {
        return;
    }
    owlet_rcu::stall::set_timeout(Some(Duration::from_millis(50)));
    owlet_rcu::stall::set_reporter(|report| {
        TOLD.lock().expect("no panic").push(report.clone());
    });
    let domain = Arc::new(Qsbr::named("forgetful"));
    let (tid, end) = (Arc::new(AtomicU32::new(0)), Arc::new(Barrier::new(2)));
    let forgetful = thread::Builder::new().name("forgetful-1".into()).spawn({
        let (domain, tid, end) = (domain.clone(), tid.clone(), end.clone());
        move || {
            let mut reader = domain.register();
            std::mem::forget(reader.online());
            tid.store(owlet_sys::process::gettid(), Ordering::Release);
            end.wait();
        }
    });
    while tid.load(Ordering::Acquire) == 0 {
        thread::yield_now();
    }
    let waiter = waiter(&domain);
    until("a report", || !TOLD.lock().expect("no panic").is_empty());
    assert!(waiter.try_recv().is_err());
    let told = TOLD.lock().expect("no panic").clone();
    let report = told.first().expect("a report");
    assert_eq!(report.domain, "forgetful");
    assert_eq!(report.holders.len(), 1);
    let holder = &report.holders[0];
    let expected = (tid.load(Ordering::Relaxed), "forgetful-1", "online");
    assert_eq!((holder.tid, holder.thread.as_str(), holder.what), expected);
    end.wait();
    forgetful.expect("spawned").join().expect("no panic");
    waiter.ends("the thread has unregistered");
}

/// Waits of QSBR and of SRCU overlap, and cookies work as for every domain.
#[test]
fn mu_01_po_cookies_and_joint_waits() {
    let (domain, srcu) = (Qsbr::new(), owlet_rcu::Srcu::new());
    let cookie = domain.snapshot();
    assert!(!domain.poll(cookie));
    owlet_rcu::wait_all(&[&domain, &srcu, &domain]);
    assert!(domain.poll(cookie));
    let cookie = domain.start_poll();
    until("PO-01: progress without further calls", || domain.poll(cookie));
    let mut reader = domain.register();
    let online = reader.online();
    let cookie = domain.start_poll();
    thread::sleep(SOON);
    assert!(!domain.poll(cookie), "PO-02: not while the section lasts");
    drop(online);
    domain.wait(cookie);
    let _: &dyn Domain = &domain;
}
