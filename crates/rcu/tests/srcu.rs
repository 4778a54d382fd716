//! The SRCU domain, statement by statement (the ids are those of the acceptance list).

mod common;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{Background, alone, in_background, pages, until, waiter, watched};
use owlet_percpu::{Backend, backend};
use owlet_rcu::{Qsbr, Srcu, SrcuGuard, TasksTrace, stall};
use owlet_sys::clock::thread_cpu_ns;

#[test]
fn gp_01_waits_for_a_section_that_began_before() {
    let domain = Arc::new(Srcu::new());
    let section = domain.read();
    let waiter = waiter(&domain);
    waiter.goes_on("did not wait");
    drop(section);
    waiter.ends("the section has ended");
}

#[test]
fn gp_02_ends_under_endless_overlapping_readers() {
    static DOMAIN: Srcu = Srcu::new();
    let (stop, sections) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
    thread::scope(|s| {
        for sections in &sections {
            s.spawn(|| {
                // Always inside: the next section begins before the last one ends.
                let mut section = DOMAIN.read();
                while !stop.load(Ordering::Relaxed) {
                    let next = DOMAIN.read();
                    drop(std::mem::replace(&mut section, next));
                    sections.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let all = |n| sections.iter().all(|count| count.load(Ordering::Relaxed) > n);
        until("readers are at it", || all(0));
        watched("a grace period under readers that never stop", || {
            for i in 0..50 {
                if i % 2 == 0 { DOMAIN.synchronize() } else { DOMAIN.synchronize_expedited() }
            }
        });
        until("readers never stopped", || all(50));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(DOMAIN.stats().grace_periods >= 50);
}

#[test]
fn gp_08_nested_sections_count_apart_and_end_in_any_order() {
    let domain = Arc::new(Srcu::new());
    let outer = domain.read();
    let inner = domain.read();
    let waiter = waiter(&domain);
    drop(outer);
    waiter.goes_on("the inner section is still open");
    drop(inner);
    waiter.ends("both have ended");
}

/// Alone, because other tests give guards back on other threads, after which the check stands down.
#[cfg(debug_assertions)]
#[test]
fn gp_09_waiting_for_oneself_is_caught() {
    if !alone("gp_09_waiting_for_oneself_is_caught") {
        return;
    }
    let domain = Srcu::new();
    let other = Srcu::new();
    // A token's section, which stays here; a guard could be another thread's by now.
    let token = domain.read_lock();
    other.synchronize();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| domain.synchronize()));
    assert!(caught.is_err());
    // SAFETY: the token of this domain and thread.
    unsafe { domain.read_unlock(token) };
    domain.synchronize();
}

#[test]
fn gp_12_bursts_of_threads_that_read_and_exit() {
    let domain = Arc::new(Srcu::new());
    for _ in 0..20 {
        let burst: Vec<_> = (0..16)
            .map(|_| {
                let domain = domain.clone();
                thread::spawn(move || drop(domain.read()))
            })
            .collect();
        watched("a grace period beside a burst", || domain.synchronize());
        burst.into_iter().for_each(|t| t.join().expect("no panic"));
    }
    waiter(&domain).ends("nothing was lost or counted twice");
}

#[test]
fn gp_14_guards_are_send_and_end_once_when_a_panic_unwinds() {
    fn is_send<T: Send>(_: &T) {}
    static DOMAIN: Srcu = Srcu::new();
    let guard: SrcuGuard<'static> = DOMAIN.read();
    is_send(&guard);
    let cookie = DOMAIN.snapshot();
    let other = thread::spawn(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(other.join().is_err());
    DOMAIN.wait(cookie);
    let section = DOMAIN.read();
    let cookie = DOMAIN.snapshot();
    assert!(!DOMAIN.poll(cookie));
    drop(section);
    DOMAIN.synchronize();
    assert!(DOMAIN.poll(cookie));
}

#[test]
fn sr_01_domains_are_independent() {
    let stuck = Srcu::new();
    let free = Srcu::new();
    let _for_ever = stuck.read();
    let cookie = stuck.start_poll();
    let waits = in_background(move || {
        for _ in 0..100 {
            free.synchronize();
            free.synchronize_expedited();
        }
        free.stats().grace_periods
    });
    assert!(waits.ends("a section of another domain is in the way") >= 200);
    assert!(!stuck.poll(cookie), "and it is still in its own domain's way");
}

#[test]
fn sr_10_an_expedited_waiter_hurries_the_one_in_progress() {
    let domain = Arc::new(Srcu::new());
    let section = domain.read();
    let normal = waiter(&domain);
    normal.goes_on("the section is open");
    let hurried = {
        let domain = domain.clone();
        in_background(move || domain.synchronize_expedited())
    };
    until("both wait", || domain.stats().calls == 2);
    drop(section);
    hurried.ends("the section has ended");
    normal.ends("ended by the same or an earlier grace period");
    assert!(domain.stats().expedited >= 1);
}

/// SR-12 and case W1: a reader held for long, and signals without SA_RESTART to the waiter: it
/// sleeps, and it completes.
#[test]
fn sr_12_w1_a_long_wait_costs_no_cpu() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: a valid action, no SA_RESTART.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };

    let domain = Arc::new(Srcu::new());
    let section = domain.read();
    let (tid_sender, tid) = mpsc::channel();
    let waiter = {
        let domain = domain.clone();
        thread::spawn(move || {
            let _ = tid_sender.send(owlet_sys::process::gettid());
            let before = thread_cpu_ns();
            domain.synchronize();
            thread_cpu_ns() - before
        })
    };
    let tid = tid.recv().expect("its id");
    let begun = Instant::now();
    let pid = owlet_sys::process::getpid();
    while begun.elapsed() < Duration::from_millis(700) {
        // SAFETY: takes no pointers.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR1) };
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!waiter.is_finished(), "the section is still open");
    drop(section);
    let cpu = u128::from(waiter.join().expect("completes"));
    // A share of the time, however long that was: on a busy machine it is less, never more.
    let share = begun.elapsed().as_nanos() / 4;
    assert!(cpu < share, "{cpu} ns of CPU while it should have slept");
}

#[test]
fn po_cookies() {
    let domain = Srcu::new();
    // PO-01: a snapshot starts nothing.
    let cookie = domain.snapshot();
    thread::sleep(Duration::from_millis(20));
    assert!(!domain.poll(cookie));
    assert_eq!(domain.stats().grace_periods, 0);
    // PO-06: at most two values not yet elapsed.
    assert_eq!(cookie, domain.snapshot());
    domain.wait(cookie);
    // PO-04 and PO-05: true, for ever, and waiting for it returns at once.
    for _ in 0..10 {
        assert!(domain.poll(cookie));
        let before = domain.stats().grace_periods;
        domain.wait(cookie);
        assert_eq!(domain.stats().grace_periods, before);
        domain.synchronize();
    }
}

#[test]
fn ex_02_counts_of_grace_periods_and_membarriers() {
    let domain = Srcu::new();
    for _ in 0..10 {
        domain.synchronize();
    }
    let stats = domain.stats();
    assert_eq!((stats.grace_periods, stats.calls, stats.expedited), (10, 10, 0));
    let each = if backend() == Backend::Rseq { 1 } else { 0 };
    assert_eq!(stats.membarriers, 10 * each);
    domain.synchronize_expedited();
    assert_eq!(domain.stats().expedited, 1);
}

#[test]
fn waiters_share_grace_periods() {
    let domain = Arc::new(Srcu::new());
    let section = domain.read();
    let waiters: Vec<_> = (0..16).map(|_| waiter(&domain)).collect();
    until("all wait", || domain.stats().calls == 16);
    drop(section);
    waiters.iter().for_each(|waiter| waiter.ends("the section has ended"));
    let periods = domain.stats().grace_periods;
    assert!(periods <= 2, "16 waits at once took {periods} grace periods");
}

/// Domains that come and go do not grow the process (the kind of case M5).
#[test]
fn memory_of_dropped_domains_is_used_again() {
    if !alone("memory_of_dropped_domains_is_used_again") {
        return;
    }
    let churn = || {
        for _ in 0..2000 {
            let domain = Srcu::new();
            drop(domain.read());
            domain.synchronize_expedited();
        }
    };
    churn();
    let before = pages(false);
    churn();
    let grown = pages(false).saturating_sub(before);
    assert!(grown < 100, "grew by {grown} pages over 2000 domains");
}

#[test]
fn a_domain_may_be_moved() {
    let domain = Srcu::new();
    drop(domain.read());
    let boxed = Box::new(domain);
    let cookie = boxed.snapshot();
    let moved = *boxed;
    moved.synchronize();
    assert!(moved.poll(cookie));
}

/// GP-12: a thread that ends inside a section holds the domain up, says the report, though it is gone
/// and other threads have come since.
#[test]
fn gp_12_ending_inside_a_section_is_reported() {
    static STUCK: Srcu = Srcu::named("left behind");
    static TRACED: TasksTrace = TasksTrace::named("traced, left behind");
    static TOLD: Mutex<Vec<stall::Report>> = Mutex::new(Vec::new());
    if !alone("gp_12_ending_inside_a_section_is_reported") {
        return;
    }
    let told = |domain| {
        let told = TOLD.lock().expect("no panic");
        told.iter().find(|report| report.domain == domain).cloned()
    };
    stall::set_reporter(|report| TOLD.lock().expect("no panic").push(report.clone()));
    stall::set_timeout(Some(Duration::from_millis(20)));
    let ended = thread::spawn(|| {
        std::mem::forget(STUCK.read());
        std::mem::forget(TRACED.read());
        owlet_sys::process::gettid()
    });
    let tid = ended.join().expect("no panic");
    // Threads that might take over what is known of it.
    for _ in 0..8 {
        thread::spawn(|| drop(Srcu::new().read())).join().expect("no panic");
    }
    let waits = [waiter(&&STUCK), in_background(|| TRACED.synchronize())];
    for domain in ["left behind", "traced, left behind"] {
        until("a report", || told(domain).is_some());
        let report = told(domain).expect("one");
        if cfg!(any(debug_assertions, feature = "stacks")) {
            let holder = report.holders.first().expect("who it was is known");
            assert_eq!((report.holders.len(), holder.tid), (1, tid), "{report}");
            assert!(report.to_string().contains("orphaned section"), "{report}");
        }
    }
    // Its own domain's grace periods wait for ever, nobody else's, and sections go on being sections.
    waits.iter().for_each(|waits| waits.goes_on("the section was forgotten, not ended"));
    Srcu::new().synchronize();
    drop((STUCK.read(), TRACED.read()));
}

/// GP-12: sections in thread-local destructors, of threads that have read and of those that have not.
#[test]
fn gp_12_sections_in_thread_local_destructors() {
    static DOMAIN: Srcu = Srcu::new();
    static TRACED: TasksTrace = TasksTrace::new();
    static ONLINE: Qsbr = Qsbr::new();
    struct Last(Cell<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>);
    impl Drop for Last {
        fn drop(&mut self) {
            let Some((inside, leave)) = self.0.take() else { return };
            let sections = (DOMAIN.read(), TRACED.read());
            let mut reader = ONLINE.register();
            let online = reader.online();
            let _ = inside.send(());
            let _ = leave.recv();
            drop(online);
            drop(sections);
        }
    }
    thread_local!(static LAST: Last = const { Last(Cell::new(None)) });
    for has_read in [true, false] {
        let ((inside, is_inside), (leave, told)) = (mpsc::channel(), mpsc::channel());
        let thread = thread::spawn(move || {
            LAST.with(|last| last.0.set(Some((inside, told))));
            if has_read {
                drop((DOMAIN.read(), TRACED.read(), ONLINE.register().online()));
            }
        });
        is_inside.recv().expect("its destructor runs");
        let waits = [
            waiter(&&DOMAIN),
            in_background(|| TRACED.synchronize()),
            in_background(|| ONLINE.synchronize()),
        ];
        waits.iter().for_each(|waits| waits.goes_on("the thread is still inside"));
        leave.send(()).expect("told");
        waits.iter().for_each(|waits| waits.ends("the thread has ended"));
        thread.join().expect("no panic");
    }
    assert_eq!(ONLINE.abandoned(), 0);
}

static HANDLED: AtomicU64 = AtomicU64::new(0);
static IN_HANDLER: Srcu = Srcu::new();

/// GP-13: sections in a handler, the domain's first use included.
#[test]
fn gp_13_first_use_in_a_signal_handler() {
    extern "C" fn handler(_: i32) {
        let _section = IN_HANDLER.read();
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    common::handle(libc::SIGUSR2, handler);
    // SAFETY: takes no pointers.
    unsafe { libc::raise(libc::SIGUSR2) };
    assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
    IN_HANDLER.synchronize();
}
