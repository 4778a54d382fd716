//! RW-01 to RW-08, RW-10, RW-11, by threads and counts. Under `OWLET_BACKEND=portable` too.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::watched;
use owlet_rcu::rcu_sync::grace::Normal;
use owlet_rcu::rwlock::{Options, Policy, RawRwLock, SeveralWriters};
use owlet_rcu::{PerCpuRwLock, Srcu};

const POLICIES: [Policy; 3] = [Policy::WriterBurst, Policy::PhaseFair, Policy::ReaderPreferring];
/// Long enough for a thread that could run to have run.
const A_WHILE: Duration = Duration::from_millis(30);

fn until(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(120), "never came about");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Readers fast again.
fn fast<T>(lock: &PerCpuRwLock<T>) {
    until(|| {
        drop(lock.read());
        lock.is_fast()
    });
}

/// RW-01, RW-02: two words that are equal whenever nobody writes.
#[test]
fn rw_01_readers_and_writers_exclude_each_other() {
    for policy in POLICIES {
        let reopen = Duration::from_micros(50);
        let lock = Options::new().policy(policy).reopen_after(reopen).build((0_u64, 0_u64));
        let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    let mut last = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let pair = lock.read();
                        assert_eq!(pair.0, pair.1);
                        assert!(pair.0 >= last, "RW-02: a reader saw an old value");
                        last = pair.0;
                        drop(pair);
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    s.spawn(|| {
                        for i in 0..400 {
                            let mut pair = lock.write();
                            pair.0 += 1;
                            std::hint::spin_loop();
                            pair.1 += 1;
                            drop(pair);
                            if i % 20 == 0 {
                                // Let readers become fast.
                                thread::sleep(Duration::from_micros(300));
                            }
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|w| w.join().unwrap());
            until(|| reads.load(Ordering::Relaxed) > 1000);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(lock.into_inner(), (800, 800), "{policy:?}");
    }
}

/// RW-01: many inside at once, and a hold that ends on another thread.
#[test]
fn rw_01_readers_share_and_guards_move() {
    let lock = PerCpuRwLock::new(5);
    let (first, second) = (lock.read(), lock.try_read().expect("shared"));
    thread::scope(|s| {
        s.spawn(|| assert_eq!(*first + *lock.try_read().expect("shared"), 10)).join().unwrap();
        s.spawn(move || drop(second));
    });
    assert!(lock.try_write().is_none());
    thread::scope(|s| {
        s.spawn(move || drop(first));
    });
    // (Nor do the checks take holds that ended elsewhere for this thread's own.)
    let mut write = lock.write();
    *write = 6;
    assert!(lock.try_read().is_none());
    assert!(lock.try_write().is_none());
    thread::scope(|s| {
        s.spawn(move || drop(write));
    });
    assert_eq!(*lock.read(), 6);
}

/// RW-01: a writer gets in when the last reader has left, and not before.
#[test]
fn rw_01_a_writer_waits_for_who_is_inside() {
    for policy in POLICIES {
        let lock = Options::new().policy(policy).build(0);
        let (first, second) = (lock.read(), lock.read());
        let wrote = AtomicBool::new(false);
        thread::scope(|s| {
            s.spawn(|| {
                *lock.write() += 1;
                wrote.store(true, Ordering::SeqCst);
            });
            thread::sleep(A_WHILE);
            drop(first);
            thread::sleep(A_WHILE);
            assert!(!wrote.load(Ordering::SeqCst) && *second == 0, "{policy:?}");
            drop(second);
        });
        assert!(wrote.into_inner(), "{policy:?}");
    }
}

/// RW-03: a writer's exit does not make readers fast; time does.
#[test]
fn rw_03_readers_are_fast_again_only_after_a_while() {
    let lock = Options::new().reopen_after(Duration::from_secs(3600)).build(());
    drop(lock.read());
    assert!(lock.is_fast());
    drop(lock.write());
    for _ in 0..1000 {
        drop(lock.read());
    }
    assert!(!lock.is_fast());
    assert_eq!(lock.stats().membarriers, 1);

    let lock = Options::new().reopen_after(Duration::ZERO).build(());
    drop(lock.write());
    assert!(!lock.is_fast());
    fast(&lock);
    assert_eq!(lock.stats().blocking, 1);
    assert_eq!(lock.stats().membarriers, 2);
}

/// RS-04: a burst of writers waits for one grace period.
#[test]
fn rs_04_a_burst_of_writers_has_one_membarrier() {
    let lock = Options::new().reopen_after(Duration::from_secs(3600)).build(0);
    for _ in 0..1000 {
        *lock.write() += 1;
        drop(lock.read());
    }
    assert_eq!((lock.stats().blocking, lock.stats().membarriers), (1, 1));
}

/// RW-05: readers queued before a writer run before it, and waking stops at it.
#[test]
fn rw_05_first_come_first_served() {
    let lock = Arc::new(PerCpuRwLock::new(Vec::new()));
    let spawn = |who: &'static str, write: bool| {
        let lock = lock.clone();
        thread::spawn(move || {
            if write {
                lock.write().push(who);
            } else {
                let len = lock.read().len();
                assert_eq!(len, if who == "early" { 1 } else { 2 }, "{who}");
            }
        })
    };
    let mut first = lock.write();
    let mut threads = Vec::new();
    for (who, write) in [("early", false), ("early", false), ("second", true), ("late", false)] {
        let before = lock.raw().queued();
        threads.push(spawn(who, write));
        until(|| lock.raw().queued() == before + 1);
    }
    first.push("first");
    drop(first);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*lock.read(), ["first", "second"]);
    assert!(!lock.raw().has_waiters() && !lock.is_locked());
}

/// RW-05: a waiting writer is not overtaken for ever, and a waiting reader neither.
#[test]
fn rw_05_nobody_starves() {
    for policy in [Policy::WriterBurst, Policy::PhaseFair] {
        let lock = Options::new().policy(policy).build(0_u64);
        let stop = AtomicBool::new(false);
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = lock.read();
                        std::hint::black_box(*guard);
                    }
                });
            }
            for _ in 0..50 {
                *lock.write() += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        stop.store(false, Ordering::Relaxed);
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        *lock.write() += 1;
                    }
                });
            }
            for _ in 0..200 {
                drop(lock.read());
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// RW-05: whoever sleeps is woken. (A sleep looks again after a second by itself: what is lost each time
/// takes longer than the watchdog allows.)
#[test]
fn rw_05_no_wakeup_is_lost() {
    const ROUNDS: u32 = 150;
    for policy in POLICIES {
        let lock = Options::new().policy(policy).build(0_u32);
        let (send, writers) = mpsc::channel();
        watched("wakeups", || {
            thread::scope(|s| {
                let lock = &lock;
                s.spawn(move || {
                    for () in writers {
                        *lock.write() += 1;
                    }
                });
                // The last reader wakes the writer.
                for round in 1..=ROUNDS {
                    let read = lock.read();
                    send.send(()).unwrap();
                    thread::sleep(Duration::from_millis(1));
                    drop(read);
                    until(|| lock.try_read().is_some_and(|now| *now == round));
                }
                drop(send);
            });
        });
        // A writer wakes readers and writers in the queue.
        let barrier = Barrier::new(3);
        watched("wakeups", || {
            thread::scope(|s| {
                for writes in [true, false] {
                    let (lock, barrier) = (&lock, &barrier);
                    s.spawn(move || {
                        for _ in 0..ROUNDS {
                            barrier.wait();
                            if writes {
                                *lock.write() += 1
                            } else {
                                drop(lock.read())
                            }
                            barrier.wait();
                        }
                    });
                }
                for _ in 0..ROUNDS {
                    let write = lock.write();
                    barrier.wait();
                    until(|| lock.raw().queued() == 2);
                    drop(write);
                    barrier.wait();
                }
            });
        });
    }
}

/// RW-06.
#[test]
fn rw_06_try_read_does_not_wait() {
    let lock = PerCpuRwLock::new(1);
    for _ in 0..100 {
        assert!(lock.try_read().is_some());
    }
    let write = lock.write();
    assert!(lock.try_read().is_none());
    drop(write);
    // Slow, but free.
    assert!(!lock.is_fast());
    for _ in 0..100 {
        assert!(lock.try_read().is_some());
    }
}

/// W4: waiters that give up, against everybody else; nothing is left behind.
#[test]
fn w4_timed_out_waiters_leave_nothing_behind() {
    for policy in POLICIES {
        let reopen = Duration::from_micros(100);
        let lock = Options::new().policy(policy).reopen_after(reopen).build(0_u64);
        let (stop, wrote, gave_up) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|s| {
            for i in 0..3 {
                let (lock, stop, gave_up) = (&lock, &stop, &gave_up);
                s.spawn(move || {
                    let mut n = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        n += 1;
                        let time = Duration::from_micros(n % 7 * 40);
                        match lock.try_read_for(time) {
                            Some(guard) => {
                                std::hint::black_box(*guard);
                                if n.is_multiple_of(16) {
                                    thread::sleep(Duration::from_micros(100 * i));
                                }
                            }
                            None => drop(gave_up.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                });
            }
            for i in 0..3 {
                let (lock, stop, wrote, gave_up) = (&lock, &stop, &wrote, &gave_up);
                s.spawn(move || {
                    let mut n = i;
                    while !stop.load(Ordering::Relaxed) {
                        n += 1;
                        match lock.try_write_for(Duration::from_micros(n % 5 * 100)) {
                            Some(mut guard) => {
                                *guard += 1;
                                wrote.fetch_add(1, Ordering::Relaxed);
                                if n % 16 == 0 {
                                    thread::sleep(Duration::from_micros(150));
                                }
                            }
                            None => drop(gave_up.fetch_add(1, Ordering::Relaxed)),
                        }
                        if n % 8 == 0 {
                            thread::sleep(Duration::from_micros(100));
                        }
                    }
                });
            }
            until(|| {
                // Where readers are preferred, writers may starve.
                let wrote = wrote.load(Ordering::Relaxed);
                let enough = wrote > 300 || policy == Policy::ReaderPreferring;
                enough && gave_up.load(Ordering::Relaxed) > 300
            });
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!lock.raw().has_waiters() && !lock.is_locked(), "{policy:?}: {lock:?}");
        assert_eq!(*lock.try_read().expect("free"), wrote.into_inner(), "{policy:?}");
        assert!(lock.try_write().is_some());
    }
}

/// How long a stress test looks for what must not happen; it finds less on a busy machine.
const SOAK: Duration = Duration::from_secs(2);

/// Pseudo-random numbers.
fn next(x: &mut u64) -> u64 {
    *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *x >> 33
}

/// W4: somebody gives up waiting just as the owner gives the lock back. Then nobody has it or waits for it,
/// and whoever asks must get it.
#[test]
fn w4_whoever_gives_up_as_the_lock_becomes_free_leaves_it_free() {
    type Wait = fn(&PerCpuRwLock<u64>, Duration);
    let waits: [Wait; 3] = [
        |lock, time| drop(lock.try_write_for(time)),
        |lock, time| drop(lock.try_read_for(time)),
        |lock, time| drop(lock.try_upgradable_read_for(time)),
    ];
    for wait in waits {
        let lock = PerCpuRwLock::new(0_u64);
        let (stop, barrier) = (AtomicBool::new(false), Barrier::new(2));
        let refused = thread::scope(|s| {
            s.spawn(|| {
                let mut seed = 1;
                loop {
                    barrier.wait();
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    wait(&lock, Duration::from_nanos(20_000 + next(&mut seed) % 60_000));
                    barrier.wait();
                }
            });
            let (begun, mut seed, mut refused) = (Instant::now(), 7, false);
            while begun.elapsed() < SOAK && !refused {
                let guard = lock.write();
                barrier.wait();
                let (since, time) = (Instant::now(), 20_000 + next(&mut seed) % 120_000);
                while since.elapsed() < Duration::from_nanos(time) {
                    std::hint::spin_loop();
                }
                drop(guard);
                barrier.wait();
                refused = lock.try_read().is_none() || lock.try_read_for(A_WHILE).is_none();
            }
            stop.store(true, Ordering::Relaxed);
            barrier.wait();
            refused
        });
        assert!(!refused, "nobody has it: {lock:?}, {} wait", lock.raw().queued());
    }
}

/// W4: a writer that has a deadline gives up in every wait, that for a grace period included, and leaves
/// readers as they were.
#[test]
fn w4_a_timed_writer_does_not_wait_for_a_grace_period_beyond_its_deadline() {
    static DOMAIN: Srcu = Srcu::named("lock's");
    static GRACE: Normal<'static> = Normal(&DOMAIN);
    for policy in POLICIES {
        let lock = Options::new().policy(policy).grace_periods(&GRACE).build(0);
        drop(lock.read());
        let section = DOMAIN.read();
        assert!(lock.try_write_for(A_WHILE).is_none(), "a section is open");
        let upgradable = lock.upgradable_read();
        let upgradable = upgradable.try_upgrade_for(A_WHILE).expect_err("a section is open");
        assert!(lock.try_read().is_some());
        drop(upgradable);
        assert!(!lock.is_locked() && lock.is_fast(), "{policy:?}: {lock:?}");
        drop(section);
        *lock.try_write_for(Duration::from_secs(120)).expect("nothing to wait for") += 1;
        assert!(lock.stats().blocking == 1 && !lock.is_fast());
    }
}

/// RW-08.
#[test]
fn rw_08_held_slow_no_writer_waits_for_a_grace_period() {
    let lock = Options::new().reopen_after(Duration::ZERO).build(0);
    let slow = lock.hold_slow();
    let before = lock.stats();
    for _ in 0..100 {
        *lock.write() += 1;
        (0..100).for_each(|_| drop(lock.read()));
    }
    assert_eq!(lock.stats(), before);
    assert!(!lock.is_fast());
    drop(slow);
    fast(&lock);
    assert_eq!(lock.stats().membarriers, before.membarriers + 1);
}

/// RW-10: a writer that waits for a long reader sleeps.
#[test]
fn rw_10_a_writer_sleeps_while_readers_are_inside() {
    let lock = Arc::new(PerCpuRwLock::new(0));
    let reader = lock.read();
    let (cpu_sender, cpu) = mpsc::channel();
    let writer = thread::spawn({
        let lock = lock.clone();
        move || {
            let before = owlet_sys::clock::thread_cpu_ns();
            *lock.write() += 1;
            cpu_sender.send(owlet_sys::clock::thread_cpu_ns() - before).unwrap();
        }
    });
    let begun = Instant::now();
    until(|| lock.is_write_locked());
    thread::sleep(Duration::from_secs(2));
    drop(reader);
    writer.join().unwrap();
    let (cpu, wall) = (cpu.recv().unwrap(), begun.elapsed().as_nanos() as u64);
    assert!(cpu < wall / 20, "used {cpu} ns of CPU in {wall}");
}

/// RW-10: no readers at all, and everybody on one CPU.
#[test]
fn rw_10_on_one_cpu() {
    for policy in [Policy::WriterBurst, Policy::PhaseFair] {
        let lock = Options::new().policy(policy).reopen_after(Duration::from_micros(20)).build(0);
        let barrier = Barrier::new(4);
        thread::scope(|s| {
            for i in 0..4 {
                let (lock, barrier) = (&lock, &barrier);
                s.spawn(move || {
                    let cpus = owlet_percpu::cpus();
                    let _ = owlet_sys::topology::set_affinity(Some(0), cpus);
                    barrier.wait();
                    for _ in 0..200 {
                        if i % 2 == 0 {
                            let mut write = lock.write();
                            let before = *write;
                            thread::yield_now();
                            *write = before + 1;
                        } else {
                            drop(lock.read());
                        }
                    }
                });
            }
        });
        assert_eq!(lock.into_inner(), 400);
    }
}

/// RW-11: a panic in a section gives the lock back, and does not poison it.
#[test]
fn rw_11_a_panic_gives_the_lock_back() {
    let lock = PerCpuRwLock::new(0);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut guard = lock.write();
        *guard = 1;
        panic!("in the middle");
    }));
    assert!(caught.is_err());
    assert_eq!(*lock.try_read().expect("given back"), 1);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = lock.read();
        panic!("in the middle");
    }));
    assert!(caught.is_err());
    assert!(lock.try_write().is_some());
}

/// RW-11: a hold that a thread has forgotten lasts, and others can give up.
#[test]
fn rw_11_a_thread_that_ends_inside() {
    let lock = Arc::new(PerCpuRwLock::new(0));
    thread::spawn({
        let lock = lock.clone();
        move || std::mem::forget(lock.read())
    })
    .join()
    .unwrap();
    assert!(lock.try_write_for(A_WHILE).is_none());
    assert!(lock.try_read().is_some(), "the writer has left no trace");
    fast(&lock);
    assert_eq!(lock.raw().readers(), 1);
}

#[test]
fn downgrade_and_upgrade() {
    for policy in POLICIES {
        let lock = Options::new().policy(policy).build(1);
        let mut write = lock.write();
        *write = 2;
        let read = write.downgrade();
        assert_eq!((*read, *lock.try_read().expect("shared")), (2, 2));
        assert!(lock.try_write().is_none());
        drop(read);

        let upgradable = lock.upgradable_read();
        let other = lock.try_read().expect("readers are let in");
        assert!(lock.try_upgradable_read().is_none());
        assert!(lock.try_write().is_none());
        let upgradable = upgradable.try_upgrade().expect_err("there is a reader");
        assert!(lock.try_read().is_some(), "as before");
        thread::scope(|s| {
            let writer = s.spawn(move || *upgradable.upgrade() += 1);
            drop(other);
            writer.join().unwrap();
        });
        let write = lock.upgradable_read().try_upgrade().expect("nobody reads");
        assert!(lock.try_read().is_none());
        let upgradable = write.downgrade_to_upgradable();
        assert_eq!(*lock.try_read().expect("let in"), 3);
        let read = upgradable.downgrade();
        let again = lock.try_upgradable_read().expect("the seat is free");
        assert_eq!((*read, *again), (3, 3));
        drop((read, again));
        assert!(lock.try_write().is_some(), "{policy:?}");
    }
}

/// Readers that waited for a writer are let in when it makes its hold upgradable, or fails to upgrade.
#[test]
fn readers_wait_for_no_upgradable_hold() {
    for policy in POLICIES {
        let lock = Options::new().policy(policy).build(0);
        let write = lock.write();
        thread::scope(|s| {
            let reader = s.spawn(|| drop(lock.read()));
            until(|| lock.raw().has_waiters());
            let upgradable = write.downgrade_to_upgradable();
            reader.join().unwrap();
            drop(upgradable);
        });
        let (inside, upgradable) = (lock.read(), lock.upgradable_read());
        thread::scope(|s| {
            s.spawn(move || upgradable.try_upgrade_for(A_WHILE).map_err(drop).expect_err("no"));
            s.spawn(|| drop(lock.read()));
        });
        drop(inside);
        assert!(lock.try_write().is_some());
    }
}

#[test]
fn mapped_guards_and_plain_access() {
    let mut lock = PerCpuRwLock::from((1, String::from("a")));
    lock.get_mut().0 = 2;
    lock.write().map(|pair| &mut pair.1).map(|text| text).push('b');
    assert_eq!(*lock.read().map(|pair| &pair.1).map(String::as_str).to_string(), *"ab");
    assert!(format!("{lock:?}").contains("ab"));
    let write = lock.write();
    assert!(format!("{lock:?}").contains("<locked>"));
    drop(write);
    assert_eq!(lock.into_inner().0, 2);
    assert_eq!(*PerCpuRwLock::<u8>::default().read(), 0);
}

#[test]
fn raw_locks() {
    static LOCK: RawRwLock = Options::new().name("raw").build_raw();
    let hold = LOCK.read();
    assert!(!LOCK.try_write());
    // SAFETY: just taken.
    unsafe { LOCK.unlock_read(hold) };
    assert!(LOCK.try_write());
    // SAFETY: just taken.
    unsafe { LOCK.unlock_write() };
    assert_eq!(LOCK.readers(), 0);
}

/// More locks than a slot has room for, dropped and made again: counters of one are never another's.
#[test]
fn counters_are_used_again() {
    for _ in 0..20 {
        let locks: Vec<_> = (0..9).map(PerCpuRwLock::new).collect();
        let guards: Vec<_> = locks.iter().map(PerCpuRwLock::read).collect();
        assert!(locks.iter().all(|lock| lock.raw().readers() == 1 && lock.try_write().is_none()));
        drop(guards);
        assert!(locks.iter().all(|lock| lock.try_write().is_some()));
        std::mem::forget(locks[0].read());
    }
}

/// The lock as a whole goes where its value may go.
#[test]
fn send_and_sync() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<PerCpuRwLock<Box<u8>>>();
    is_sync::<PerCpuRwLock<Box<u8>>>();
    is_send::<owlet_rcu::rwlock::ReadGuard<'static, u8>>();
    is_send::<owlet_rcu::rwlock::WriteGuard<'static, u8>>();
    is_send::<owlet_rcu::rwlock::UpgradableGuard<'static, u8>>();
}

#[test]
fn arc_guards_keep_the_lock_alive() {
    let lock = Arc::new(PerCpuRwLock::new(1));
    let mut write = lock.write_arc();
    assert!(lock.try_read_arc().is_none() && lock.try_write_arc().is_none());
    *write = 2;
    let read = write.downgrade();
    let again = lock.try_read_arc().expect("shared");
    let weak = Arc::downgrade(&lock);
    drop(lock);
    thread::spawn(move || assert_eq!((*read, *again), (2, 2))).join().unwrap();
    assert!(weak.upgrade().is_none());
}

/// RW-09: never more than k writers, no reader beside one, and k do meet.
#[test]
fn rw_09_several_writers() {
    for limit in [1, 3] {
        let lock = SeveralWriters::new(Options::new(), limit, ());
        let (writers, most, readers) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (together, start) =
            (Barrier::new(limit as usize), Barrier::new(2 * (limit as usize + 1)));
        thread::scope(|s| {
            for i in 0..=limit {
                let (lock, together, start) = (&lock, &together, &start);
                let (writers, most, readers) = (&writers, &most, &readers);
                s.spawn(move || {
                    if i < limit {
                        let guard = lock.write();
                        // All of them are inside at once, or this never ends.
                        together.wait();
                        drop(guard);
                    }
                    start.wait();
                    for n in 0..200 {
                        let guard = match (n + i) % 3 {
                            0 => lock.try_write(),
                            1 => lock.try_write_until(Instant::now() + Duration::from_micros(50)),
                            _ => Some(lock.write()),
                        };
                        let Some(guard) = guard else { continue };
                        let now = writers.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        assert_eq!(readers.load(Ordering::SeqCst), 0);
                        thread::yield_now();
                        writers.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                    }
                });
                s.spawn(move || {
                    start.wait();
                    for _ in 0..200 {
                        let guard = lock.read();
                        readers.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(writers.load(Ordering::SeqCst), 0);
                        readers.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                    }
                });
            }
        });
        assert!(most.into_inner() <= u64::from(limit));
        assert_eq!(lock.writers(), 0);
        assert!(lock.try_read().is_some());
    }
}

/// RW-09: who comes to a group while a reader waits, waits behind it.
#[test]
fn rw_09_readers_see_the_group_end() {
    let lock = SeveralWriters::new(Options::new(), 2, ());
    let first = lock.write();
    thread::scope(|s| {
        let reader = s.spawn(|| drop(lock.read()));
        until(|| lock.has_waiters());
        assert!(lock.try_write().is_none(), "there is room, but a reader waits");
        drop(first);
        reader.join().unwrap();
    });
    let (first, second) = (lock.write(), lock.write());
    assert!(lock.try_write().is_none(), "full");
    thread::scope(|s| {
        let third = s.spawn(|| drop(lock.write()));
        until(|| lock.has_waiters());
        drop(first);
        third.join().unwrap();
    });
    drop(second);
    assert!(lock.try_read().is_some());
}

#[cfg(feature = "serde")]
#[test]
fn a_lock_is_written_as_its_value() {
    let lock = PerCpuRwLock::new(vec![1, 2]);
    let text = serde_json::to_string(&lock).unwrap();
    assert_eq!(text, "[1,2]");
    let read: PerCpuRwLock<Vec<u32>> = serde_json::from_str(&text).unwrap();
    assert_eq!(read.into_inner(), [1, 2]);
}
