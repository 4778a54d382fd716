//! The SRCU domain, statement by statement (the ids are those of the acceptance list).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use owlet_percpu::{Backend, backend};
use owlet_rcu::{Srcu, SrcuGuard};
use owlet_sys::clock::thread_cpu_ns;

fn in_background(domain: &Arc<Srcu>) -> mpsc::Receiver<()> {
    let (done, receiver) = mpsc::channel();
    let domain = domain.clone();
    thread::spawn(move || {
        domain.synchronize();
        let _ = done.send(());
    });
    receiver
}

const SOON: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_secs(20);

#[test]
fn gp_01_waits_for_a_section_that_began_before() {
    let domain = Arc::new(Srcu::new());
    let section = domain.read();
    let waiter = in_background(&domain);
    assert!(waiter.recv_timeout(SOON).is_err(), "did not wait");
    drop(section);
    waiter.recv_timeout(LATE).expect("ends once the section has");
}

#[test]
fn gp_02_ends_under_endless_overlapping_readers() {
    static DOMAIN: Srcu = Srcu::new();
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                // Always inside: the next section begins before the last one ends.
                let mut section = DOMAIN.read();
                while !stop.load(Ordering::Relaxed) {
                    let next = DOMAIN.read();
                    drop(std::mem::replace(&mut section, next));
                }
            });
        }
        for i in 0..50 {
            if i % 2 == 0 { DOMAIN.synchronize() } else { DOMAIN.synchronize_expedited() }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(DOMAIN.stats().grace_periods >= 50);
}

/// Runs `reader` and `updater` against each other, in step, and checks each outcome.
fn litmus(
    rounds: u32,
    reader: impl Fn(&Srcu, &[AtomicU32; 2]) -> (u32, u32) + Sync,
    updater: impl Fn(&Srcu, &[AtomicU32; 2]) -> u32 + Sync,
    forbidden: impl Fn((u32, u32), u32) -> bool,
) {
    let domain = Srcu::new();
    let step = Barrier::new(2);
    let words: Vec<[AtomicU32; 2]> =
        (0..rounds).map(|_| [AtomicU32::new(0), AtomicU32::new(0)]).collect();
    thread::scope(|s| {
        let reads = s.spawn(|| {
            let read = |words| {
                step.wait();
                reader(&domain, words)
            };
            words.iter().map(read).collect::<Vec<_>>()
        });
        for (i, words) in words.iter().enumerate() {
            step.wait();
            std::hint::black_box((0..i % 64).sum::<usize>());
            let seen = updater(&domain, words);
            words[1].store(words[1].load(Ordering::Relaxed) | (seen << 8), Ordering::Relaxed);
        }
        let reads = reads.join().expect("no panic");
        for (read, words) in reads.into_iter().zip(&words) {
            let seen = words[1].load(Ordering::Relaxed) >> 8;
            assert!(!forbidden(read, seen), "{read:?} {seen}");
        }
    });
}

#[test]
fn gp_03_what_follows_the_wait_is_after_the_section() {
    litmus(
        2000,
        |domain, words| {
            let _section = domain.read();
            let second = words[1].load(Ordering::Relaxed) & 0xff;
            let first = words[0].load(Ordering::Relaxed);
            (first, second)
        },
        |domain, words| {
            words[0].store(1, Ordering::Relaxed);
            domain.synchronize_expedited();
            words[1].store(1, Ordering::Relaxed);
            0
        },
        |(first, second), _| first == 0 && second == 1,
    );
}

#[test]
fn gp_04_a_section_that_outlives_the_wait_sees_what_was_before_it() {
    litmus(
        2000,
        |domain, words| {
            let _section = domain.read();
            words[0].store(1, Ordering::Relaxed);
            (words[1].load(Ordering::Relaxed) & 0xff, 0)
        },
        |domain, words| {
            words[1].store(1, Ordering::Relaxed);
            domain.synchronize_expedited();
            words[0].load(Ordering::Relaxed)
        },
        |(seen_by_reader, _), seen_by_updater| seen_by_reader == 0 && seen_by_updater == 0,
    );
}

#[test]
fn gp_05_two_waiters_order_each_other() {
    litmus(
        2000,
        |domain, words| {
            words[0].store(1, Ordering::Relaxed);
            domain.synchronize_expedited();
            (words[1].load(Ordering::Relaxed) & 0xff, 0)
        },
        |domain, words| {
            words[1].store(1, Ordering::Relaxed);
            domain.synchronize_expedited();
            words[0].load(Ordering::Relaxed)
        },
        |(a, _), b| a == 0 && b == 0,
    );
}

#[test]
fn gp_08_nested_sections_count_apart_and_end_in_any_order() {
    let domain = Arc::new(Srcu::new());
    let outer = domain.read();
    let inner = domain.read();
    let waiter = in_background(&domain);
    drop(outer);
    assert!(waiter.recv_timeout(SOON).is_err(), "the inner section is still open");
    drop(inner);
    waiter.recv_timeout(LATE).expect("both have ended");
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
        domain.synchronize();
        burst.into_iter().for_each(|t| t.join().expect("no panic"));
    }
    let waiter = in_background(&domain);
    waiter.recv_timeout(LATE).expect("nothing was lost or counted twice");
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
    for _ in 0..100 {
        free.synchronize();
        free.synchronize_expedited();
    }
}

#[test]
fn sr_10_an_expedited_waiter_hurries_the_one_in_progress() {
    let domain = Arc::new(Srcu::new());
    let section = domain.read();
    let normal = in_background(&domain);
    assert!(normal.recv_timeout(Duration::from_millis(200)).is_err());
    let hurried = {
        let domain = domain.clone();
        thread::spawn(move || domain.synchronize_expedited())
    };
    thread::sleep(Duration::from_millis(20));
    drop(section);
    hurried.join().expect("no panic");
    normal.recv_timeout(LATE).expect("ended by the same or an earlier grace period");
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
    let until = Instant::now() + Duration::from_millis(700);
    let pid = owlet_sys::process::getpid();
    while Instant::now() < until {
        // SAFETY: takes no pointers.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR1) };
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!waiter.is_finished(), "the section is still open");
    drop(section);
    let cpu = waiter.join().expect("completes");
    assert!(cpu < 70_000_000, "{cpu} ns of CPU while it should have slept");
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
    let waiters: Vec<_> = (0..16).map(|_| in_background(&domain)).collect();
    while domain.stats().calls < 16 {
        thread::sleep(Duration::from_millis(1));
    }
    drop(section);
    for waiter in waiters {
        waiter.recv_timeout(LATE).expect("ends");
    }
    let periods = domain.stats().grace_periods;
    assert!(periods <= 2, "16 waits at once took {periods} grace periods");
}

/// Domains that come and go do not grow the process (the kind of case M5).
#[test]
fn memory_of_dropped_domains_is_used_again() {
    if !alone("memory_of_dropped_domains_is_used_again") {
        return;
    }
    let resident = || -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("proc");
        statm.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
    };
    let churn = || {
        for _ in 0..2000 {
            let domain = Srcu::new();
            drop(domain.read());
            domain.synchronize_expedited();
        }
    };
    churn();
    let before = resident();
    churn();
    let grown = resident().saturating_sub(before);
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

static HANDLED: AtomicU64 = AtomicU64::new(0);
static IN_HANDLER: Srcu = Srcu::new();

/// GP-13: sections in a handler, the domain's first use included.
#[test]
fn gp_13_first_use_in_a_signal_handler() {
    extern "C" fn handler(_: i32) {
        let _section = IN_HANDLER.read();
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler only uses what is async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR2, handler as *const () as usize) };
    // SAFETY: takes no pointers.
    unsafe { libc::raise(libc::SIGUSR2) };
    assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
    IN_HANDLER.synchronize();
}
