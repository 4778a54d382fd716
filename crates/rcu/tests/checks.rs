//! GP-09: waits that could never end are found out, in builds with the checks.
#![cfg(any(debug_assertions, feature = "checks"))]

mod common;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use common::{alone, until};
use owlet_rcu::PerCpuRwLock;
use owlet_rcu::check::{self, Lock};
use owlet_rcu::rcu_sync::grace::Normal;
use owlet_rcu::rwlock::{Options, Policy, WriteFuture};
use owlet_rcu::stall::{self, Kind};
use owlet_rcu::{Qsbr, Srcu, SrcuGuard, Tasks, TasksTrace, wait_all};

fn panics<T>(f: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn gp_09_waiting_inside_the_own_section_is_caught() {
    let qsbr = Qsbr::new();
    let mut reader = qsbr.register();
    qsbr.synchronize();
    let mut online = reader.online();
    assert!(panics(|| qsbr.synchronize()));
    assert!(panics(|| wait_all(&[&qsbr])));
    online.synchronize();
    online.offline(|| qsbr.synchronize());
    drop(online);
    qsbr.synchronize();

    let trace = TasksTrace::new();
    let (outer, inner) = (trace.read(), trace.read());
    assert!(panics(|| trace.synchronize()));
    drop(outer);
    assert!(panics(|| trace.synchronize_expedited()));
    drop(inner);
    trace.synchronize();

    let srcu = Srcu::new();
    let token = srcu.read_lock();
    assert!(panics(|| srcu.synchronize()));
    // SAFETY: the token of this domain and thread.
    unsafe { srcu.read_unlock(token) };
    srcu.synchronize();
    // A wait that has nothing to wait for is fine everywhere.
    let passed = srcu.snapshot();
    srcu.synchronize();
    let _section = srcu.read();
    srcu.wait(passed);
}

/// A guard that another thread has got is not held here: the wait goes on, and says what it suspects.
#[test]
fn gp_09_a_wait_for_a_moved_guard_is_not_refused() {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    // The reporter is the process's.
    if !alone("gp_09_a_wait_for_a_moved_guard_is_not_refused") {
        return;
    }
    stall::set_reporter(|report| {
        if report.kind == Kind::OwnSection && report.domain == "slow" {
            TOLD.fetch_add(1, Ordering::Relaxed);
        }
    });
    let told = || TOLD.load(Ordering::Relaxed);
    let cycles = check::cycles();
    static SLOW: Srcu = Srcu::named("slow");
    static QUICK: Srcu = Srcu::named("quick");

    let section = SLOW.read();
    let other = thread::spawn(move || {
        until("what is suspected is said", || told() == 1);
        // And not again.
        thread::sleep(common::SOON);
        drop(section);
    });
    SLOW.synchronize();
    other.join().expect("no panic");
    assert_eq!(told(), 1);

    for raw in [true, false] {
        let section = QUICK.read();
        let late = || thread::sleep(Duration::from_millis(50));
        let other = if raw {
            let section = section.into_raw();
            thread::spawn(move || {
                // SAFETY: of this domain, and used once.
                let section = unsafe { SrcuGuard::from_raw(&QUICK, section) };
                late();
                drop(section);
            })
        } else {
            thread::spawn(move || {
                late();
                drop(section);
            })
        };
        QUICK.synchronize();
        wait_all(&[&QUICK]);
        other.join().expect("no panic");
    }
    assert_eq!((told(), check::cycles()), (1, cycles));

    // One that comes back is this thread's again; a token's cannot go.
    let domain = Srcu::new();
    let raw = domain.read().into_raw();
    // SAFETY: of this domain, and used once.
    drop(unsafe { SrcuGuard::from_raw(&domain, raw) });
    let (section, token) = (domain.read(), domain.read_lock());
    assert!(panics(|| domain.synchronize()));
    // SAFETY: the token of this domain and thread.
    unsafe { domain.read_unlock(token) };
    drop(section);
    domain.synchronize();
}

/// What was forgotten and is over is not held.
#[test]
fn gp_09_forgotten_registrations_are_looked_up() {
    let domain = Qsbr::new();
    let mut reader = domain.register();
    std::mem::forget(reader.online());
    assert!(panics(|| domain.synchronize()), "still online");
    let online = reader.online();
    domain.assert_online();
    drop(online);
    domain.synchronize();
    std::mem::forget(reader.online());
    drop(reader);
    domain.synchronize();
    assert!(panics(|| domain.assert_online()));
    for _ in 0..3 {
        let domain = Qsbr::new();
        domain.synchronize();
        let mut reader = domain.register();
        std::mem::forget(reader.online());
        std::mem::forget(reader);
        drop(domain);
        let tasks = Tasks::new();
        tasks.synchronize();
        std::mem::forget(tasks.register());
    }
}

/// The panic of a refused wait leaves the domain as it was.
#[test]
fn gp_09_a_refused_wait_leaves_nothing_behind() {
    let domain = TasksTrace::new();
    let section = domain.read();
    for _ in 0..3 {
        assert!(panics(|| domain.synchronize_expedited()));
    }
    drop(section);
    domain.synchronize();
    assert_eq!(domain.stats().expedited, 0, "still in a hurry");
}

#[test]
fn gp_09_use_while_offline_is_trapped() {
    let qsbr = Qsbr::named("offline");
    assert!(panics(|| qsbr.assert_online()), "not registered");
    let mut reader = qsbr.register();
    assert!(panics(|| qsbr.assert_online()), "registered, offline");
    let mut online = reader.online();
    qsbr.assert_online();
    online.offline(|| assert!(panics(|| qsbr.assert_online())));
    qsbr.assert_online();
    drop(online);
    assert!(panics(|| qsbr.assert_online()));

    let tasks = Tasks::new();
    assert!(panics(|| tasks.assert_online()));
    let mut task = tasks.register();
    tasks.assert_online();
    task.offline(|| assert!(panics(|| tasks.assert_online())));
}

static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// One test for all that the reporter is told: there is one reporter.
#[test]
fn gp_09_cycles_of_length_1_to_10_between_domains_and_locks_are_reported() {
    if !alone("gp_09_cycles_of_length_1_to_10_between_domains_and_locks_are_reported") {
        return;
    }
    check::set_reporter(|cycle| TOLD.lock().expect("no panic").push(cycle.to_string()));
    let told = || std::mem::take(&mut *TOLD.lock().expect("no panic"));

    // Domains only: in a section of each, a wait for the next.
    for length in 2..=10 {
        let domains: Vec<_> = (0..length).map(|_| Srcu::new()).collect();
        for n in 0..length {
            assert!(told().is_empty(), "reported before it closed");
            let _section = domains[n].read();
            domains[(n + 1) % length].synchronize();
        }
        let cycles = told();
        assert_eq!(cycles.len(), 1, "length {length}: {cycles:?}");
        assert_eq!(cycles[0].matches(" -> ").count(), length);
        // The same again is no news.
        let _section = domains[0].read();
        domains[1].synchronize();
        assert!(told().is_empty());
    }

    // Every second one a lock: mutex or reader-writer lock.
    for length in [2, 4, 6, 8, 10] {
        let domains: Vec<_> = (0..length / 2).map(|_| TasksTrace::new()).collect();
        let locks: Vec<_> = (0..length / 2).map(|_| Lock::new("a lock")).collect();
        for n in 0..length / 2 {
            let section = domains[n].read();
            locks[n].waits();
            locks[n].enter();
            locks[n].leave();
            drop(section);
            assert!(told().is_empty());
            locks[n].waits();
            locks[n].enter();
            domains[(n + 1) % (length / 2)].synchronize();
            locks[n].leave();
        }
        let cycles = told();
        assert_eq!(cycles.len(), 1, "length {length}: {cycles:?}");
        assert!(cycles[0].contains("a lock"));
    }

    // Length 1: a lock waited for by who holds it.
    let lock = Lock::new("once");
    lock.enter();
    lock.waits();
    lock.leave();
    assert_eq!(told(), ["possible deadlock: threads have waited in a cycle: once -> once"]);

    // Through a thread that is online, a Tasks registration and a joint wait.
    let (qsbr, tasks) = (Qsbr::named("q"), Tasks::named("t"));
    let mut reader = qsbr.register();
    let online = reader.online();
    wait_all(&[&tasks]);
    drop(online);
    assert!(told().is_empty());
    let task = tasks.register();
    qsbr.synchronize();
    drop(task);
    assert_eq!(told(), ["possible deadlock: threads have waited in a cycle: q -> t -> q"]);

    // What is gone is in no cycle.
    let kept = Srcu::new();
    for _ in 0..3 {
        let passing = Srcu::new();
        let section = kept.read();
        passing.synchronize();
        drop(section);
    }
    let passing = Srcu::new();
    let section = passing.read();
    kept.synchronize();
    drop(section);
    assert!(told().is_empty());
    assert!(check::cycles() >= 16);
}

/// Q1: a reader that asks again while a writer waits for it is told, instead of waiting for itself.
#[test]
fn q1_recursive_reading_with_a_waiting_writer_is_told() {
    static LOCK: PerCpuRwLock<u32> = Options::new().name("table").build(0);
    let outer = LOCK.read();
    // Nobody waits: no harm done.
    drop(LOCK.read());
    thread::scope(|s| {
        let writer = s.spawn(|| *LOCK.write() += 1);
        while !LOCK.is_write_locked() {
            thread::yield_now();
        }
        let again = catch_unwind(AssertUnwindSafe(|| LOCK.read()));
        let told = again.expect_err("it would wait for ever");
        let told = told.downcast::<String>().expect("a message");
        assert!(told.contains("lock \"table\", which this thread holds"), "{told}");
        drop(outer);
        writer.join().expect("no panic");
    });
    // The same for writers.
    let read = LOCK.read();
    assert!(panics(|| LOCK.write()));
    assert!(panics(|| LOCK.upgradable_read().upgrade()));
    assert!(LOCK.try_read().is_some(), "as before");
    drop(read);
    let write = LOCK.write();
    assert!(panics(|| LOCK.read()));
    assert!(panics(|| LOCK.write()));
    drop(write);
    assert!(LOCK.try_write().is_some());
}

/// A wait with a deadline ends, even for oneself: nothing to be told.
#[test]
fn waits_for_oneself_with_a_deadline_are_not_refused() {
    const WHILE: Duration = Duration::from_millis(2);
    static LOCK: PerCpuRwLock<u32> = PerCpuRwLock::new(0);
    let read = LOCK.read();
    assert!(LOCK.try_write_for(WHILE).is_none());
    let upgradable = LOCK.try_upgradable_read_for(WHILE).expect("one reader");
    assert!(upgradable.try_upgrade_for(WHILE).is_err());
    drop(read);
    let write = LOCK.write();
    assert!(LOCK.try_read_for(WHILE).is_none());
    assert!(LOCK.try_write_for(WHILE).is_none());
    assert!(LOCK.try_upgradable_read_for(WHILE).is_none());
    drop(write);
    assert!(LOCK.try_write().is_some());
}

/// A hold that was forgotten is not one of the next lock at that address.
#[test]
fn a_new_lock_at_an_old_address_is_held_by_nobody() {
    let mut place = std::mem::MaybeUninit::<PerCpuRwLock<u32>>::uninit();
    for _ in 0..2 {
        let lock = place.write(PerCpuRwLock::new(0));
        *lock.write() += 1;
        std::mem::forget(lock.read());
        // SAFETY: written above; the guard that borrows it is never used.
        unsafe { place.assume_init_drop() };
    }
}

/// What `retire_with` frees may be one of several references: it may be retired as often as there are.
#[test]
fn references_may_be_retired_each() {
    /// # Safety
    /// `at` came from `Arc::into_raw`, once for each call.
    unsafe fn drop_one(at: *mut ()) {
        // SAFETY: the caller's.
        drop(unsafe { std::sync::Arc::from_raw(at.cast::<u64>()) });
    }
    let domain = Srcu::named("references");
    let object = std::sync::Arc::new(5_u64);
    for _ in 0..3 {
        let at = std::sync::Arc::into_raw(object.clone()).cast_mut().cast();
        // SAFETY: a reference of its own for each.
        unsafe { domain.retire_with(at, 0, drop_one) };
    }
    domain.retire_barrier();
    assert_eq!(std::sync::Arc::strong_count(&object), 1);
    assert_eq!(domain.retire_stats().leaked, 0);
}

/// A wait that a check ends by a panic, with the lock half taken, leaves the lock as it was.
#[test]
fn a_reporter_that_panics_leaves_the_lock_as_it_was() {
    if !alone("a_reporter_that_panics_leaves_the_lock_as_it_was") {
        return;
    }
    check::set_reporter(|cycle| panic!("{cycle}"));
    let policies = [Policy::WriterBurst, Policy::PhaseFair, Policy::ReaderPreferring];
    for (policy, upgrades) in policies.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let lock = || -> &'static PerCpuRwLock<u32> {
            Box::leak(Box::new(Options::new().policy(policy).build(0)))
        };
        let (one, other) = (lock(), lock());
        // With the first held, waits for a reader of the second to leave.
        let wait = |first: &'static PerCpuRwLock<u32>, second: &'static PerCpuRwLock<u32>| {
            let reader = second.read();
            let writer = thread::spawn(move || {
                let _first = first.read();
                if upgrades {
                    drop(second.upgradable_read().upgrade());
                } else {
                    drop(second.write());
                }
            });
            // Nothing shows that it waits where readers are preferred; it does so soon.
            thread::sleep(Duration::from_millis(20));
            drop(reader);
            writer.join().is_ok()
        };
        until("they are refused", || !(wait(one, other) && wait(other, one)));
        for lock in [one, other] {
            assert!(!lock.is_locked() && lock.try_read().is_some(), "{policy:?}: {lock:?}");
            *lock.try_write().expect("free") += 1;
            drop(lock.read());
        }
    }
}

/// The same where what panics is the grace period that the first writer waits for.
#[test]
fn a_refused_grace_period_leaves_the_lock_as_it_was() {
    static DOMAIN: TasksTrace = TasksTrace::named("the lock's");
    static GRACE: Normal<'static> = Normal(&DOMAIN);
    static LOCK: PerCpuRwLock<u32> = Options::new().grace_periods(&GRACE).build(0);
    let section = DOMAIN.read();
    drop(LOCK.read());
    let poll = |future: &mut WriteFuture<'static, u32>| {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    for _ in 0..2 {
        assert!(panics(|| LOCK.write()));
        assert!(panics(|| LOCK.upgradable_read().upgrade()));
        assert!(panics(|| LOCK.hold_slow()));
        let mut future = LOCK.write_async();
        assert!(panics(|| poll(&mut future)));
        assert!(LOCK.try_read().is_some(), "readers need not wait");
        drop(future);
        assert!(LOCK.is_fast() && !LOCK.is_locked());
    }
    drop(section);
    *LOCK.write() += 1;
    assert_eq!(*LOCK.read(), 1);
}
