//! Deferred free: when objects are freed, how often, and what comes of it when there is no memory, no
//! room, or no end of them (KF-01 to KF-15).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

mod common;
use common::until;
use owlet_rcu::free::queue::{Link, Queue};
use owlet_rcu::free::{Backpressure, Limits, Pool};
use owlet_rcu::{ClassicSrcu, Domain, Head, Qsbr, Srcu, Tasks, TasksTrace};

/// Counts how often something like it was dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counter() -> (Arc<AtomicUsize>, impl Fn() -> Box<Counted>) {
    let count = Arc::new(AtomicUsize::new(0));
    (count.clone(), move || Box::new(Counted(count.clone())))
}

/// Objects for some blocks and a part of one.
const MANY: usize = 2000;

/// KF-01: nothing is freed while a section that was running goes on, in full blocks and open ones, by a
/// flush, a trim, or by those who retire; and all of it afterwards.
#[test]
fn kf_01_nothing_is_freed_under_a_reader() {
    let domain = Srcu::named("kf_01");
    let pool: Pool<Counted> = Pool::new(&domain);
    let (count, new) = counter();
    let section = domain.read();
    for _ in 0..MANY {
        domain.retire(new());
        pool.retire(new());
    }
    domain.retire_flush();
    for _ in 0..MANY {
        domain.retire(new());
        pool.retire(new());
    }
    domain.retire_trim();
    let cookie = domain.start_poll_expedited();
    thread::sleep(Duration::from_millis(30));
    assert!(!domain.poll(cookie));
    assert_eq!(count.load(Ordering::Relaxed), 0, "freed under a reader");
    drop(section);
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), 4 * MANY);
    assert_eq!(domain.retire_stats().freed, 4 * MANY as u64);
    assert_eq!(domain.retire_stats().pending_bytes, 0);
}

/// KF-01, KF-02: an object that comes after a grace period has begun is not freed at its end. (A reader
/// that came in between is still there.)
#[test]
fn kf_02_a_batch_in_flight_gains_nothing() {
    let domain = Srcu::named("kf_02");
    let (first, new_first) = counter();
    let (second, new_second) = counter();
    let early = domain.read();
    let idle = domain.snapshot();
    for _ in 0..MANY {
        domain.retire(new_first());
    }
    domain.retire_flush();
    let _ = domain.start_poll_expedited();
    // A grace period has begun once a later snapshot is another moment.
    until("a grace period's beginning", || domain.snapshot() != idle);
    let late = domain.read();
    for _ in 0..MANY {
        domain.retire(new_second());
    }
    domain.retire_flush();
    drop(early);
    // What was closed before the grace period began; the worker may have begun it amid the first.
    until("the first batch", || {
        domain.retire_flush();
        first.load(Ordering::Relaxed) != 0
    });
    (0..3).for_each(|_| domain.retire_flush());
    assert_eq!(second.load(Ordering::Relaxed), 0, "freed with the batch before");
    drop(late);
    domain.retire_barrier();
    assert_eq!(first.load(Ordering::Relaxed), MANY);
    assert_eq!(second.load(Ordering::Relaxed), MANY);
}

/// KF-03: a block's moment is that of its last object: a reader that came after the first one, and a grace
/// period, still has the last ones.
#[test]
fn kf_03_the_snapshot_comes_after_the_last_object() {
    let domain = Srcu::named("kf_03");
    let (count, new) = counter();
    domain.retire(new());
    domain.synchronize();
    domain.synchronize();
    let section = domain.read();
    (0..MANY).for_each(|_| domain.retire(new()));
    // Nor do open blocks go by their first object.
    domain.retire_flush();
    assert_eq!(count.load(Ordering::Relaxed), 0, "freed with the block's first object");
    drop(section);
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), MANY + 1);
}

/// KF-04: every object is freed once, however many threads retire, in every form.
#[test]
fn kf_04_each_object_is_freed_once() {
    #[repr(C)]
    struct Headed {
        head: Head,
        inner: Counted,
    }
    unsafe fn free_headed(head: NonNull<Head>) {
        // SAFETY: the first field of a box.
        drop(unsafe { Box::from_raw(head.cast::<Headed>().as_ptr()) });
    }
    unsafe fn free(at: *mut ()) {
        // SAFETY: from a box.
        drop(unsafe { Box::from_raw(at.cast::<Counted>()) });
    }
    let domain = Srcu::named("kf_04");
    let pool: Pool<Counted> = Pool::new(&domain);
    let (count, new) = counter();
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..MANY {
                    domain.retire(new());
                    let dynamic: Box<dyn Send> = new();
                    domain.retire(dynamic);
                    pool.retire(new());
                    domain.try_retire(new()).ok().unwrap();
                    // SAFETY: boxes of ours.
                    unsafe { domain.retire_raw(NonNull::from(Box::leak(new()))) };
                    let at = Box::into_raw(new()).cast();
                    // SAFETY: a box of ours, and its function.
                    unsafe { domain.retire_with(at, 8, free) };
                    let headed = Headed { head: Head::new(), inner: *new() };
                    let head = NonNull::from(Box::leak(Box::new(headed))).cast();
                    // SAFETY: the first field of a leaked box, and its function.
                    unsafe { domain.retire_head(head, free_headed) };
                    let inner = new();
                    domain.retire_call(0, move || drop(inner));
                }
            });
        }
    });
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), 4 * 8 * MANY);
    assert_eq!(domain.retire_stats().blocks, 0);
}

/// KF-04: builds with the checks notice an object that is retired twice, and leak it.
#[test]
#[cfg(debug_assertions)]
fn kf_04_an_object_retired_twice_is_leaked() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    // With other tests' objects the table of those that wait may be full; then this one is freed twice.
    if !common::alone("kf_04_an_object_retired_twice_is_leaked") {
        return;
    }
    let domain = Srcu::named("kf_04_twice");
    let (count, new) = counter();
    let object = NonNull::from(Box::leak(new()));
    // SAFETY: a leaked box.
    unsafe { domain.retire_raw(object) };
    // SAFETY: none: that is what is tested. It is never freed.
    let again = catch_unwind(AssertUnwindSafe(|| unsafe { domain.retire_raw(object) }));
    assert!(again.is_err(), "not noticed");
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), 0, "freed though it was retired twice");
    assert_eq!(domain.retire_stats().leaked, 1);
    // SAFETY: leaked by the domain.
    drop(unsafe { Box::from_raw(object.as_ptr()) });
}

/// KF-05: where enough grace periods have come about, none is needed.
#[test]
fn kf_05_no_grace_period_where_enough_have_passed() {
    let domain = Srcu::named("kf_05");
    let (count, new) = counter();
    domain.retire(new());
    // One is enough for the counting kind of a look at the sequence number, two for the sequences'.
    domain.synchronize();
    domain.synchronize();
    let before = domain.stats().grace_periods;
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_eq!(domain.stats().grace_periods, before, "a grace period of its own");
}

/// KF-08: a lone object is freed though nobody does anything.
#[test]
fn kf_08_a_lone_object_is_freed_in_time() {
    let domain = Srcu::named("kf_08");
    domain.set_retire_limits(Limits::DEFAULT.linger(Duration::from_millis(20)));
    let (count, new) = counter();
    for round in 1..=5 {
        domain.retire(new());
        until("a lone object", || count.load(Ordering::Relaxed) == round);
    }
    // And with nothing there, the worker lets go: no grace periods for nobody.
    until("the last block", || domain.retire_stats().blocks == 0);
    let before = domain.stats().grace_periods;
    thread::sleep(Duration::from_millis(60));
    assert_eq!(domain.stats().grace_periods, before);
}

/// KF-08: where what is open is kept changes hands. A pool leaves it to be used again while the worker, which was
/// to come for the pool's domain in an hour, knows of it; the next domain's lone object is freed in time.
#[test]
fn kf_08_a_store_that_changes_hands() {
    for _ in 0..5 {
        let before = Srcu::named("kf_08_before");
        before.set_retire_limits(Limits::DEFAULT.linger(Duration::from_secs(3600)));
        let (count, new) = counter();
        let pool: Pool<Counted> = Pool::new(&before);
        // The domain's own stays in use.
        before.retire(new());
        pool.retire(new());
        pool.barrier();
        drop(pool);
        let next = Srcu::named("kf_08_next");
        next.set_retire_limits(Limits::DEFAULT.linger(Duration::from_millis(10)));
        next.retire(new());
        until("a lone object of the next domain", || count.load(Ordering::Relaxed) == 2);
    }
}

/// KF-08: full blocks that nobody comes by for are freed without waiting for company.
#[test]
fn kf_08_full_blocks_do_not_linger() {
    let domain = Srcu::named("kf_08_full");
    domain.set_retire_limits(Limits::DEFAULT.linger(Duration::from_secs(3600)));
    let (count, new) = counter();
    // So that those who retire cannot free anything.
    let section = domain.read();
    (0..MANY).for_each(|_| domain.retire(new()));
    drop(section);
    until("the full blocks", || count.load(Ordering::Relaxed) > MANY / 2);
    drop(domain);
    until("the rest, once the domain is gone", || count.load(Ordering::Relaxed) == MANY);
}

/// KF-09: on no CPU more than two batches wait for different grace periods, and no more grace periods are
/// asked for than come about (and one).
#[test]
fn kf_09_at_most_two_batches_in_flight() {
    let domain = Srcu::named("kf_09");
    let stop = AtomicBool::new(false);
    let (count, new) = counter();
    let mut retired = 0;
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _section = domain.read();
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for _ in 0..200 {
            for _ in 0..MANY / 4 {
                domain.retire(new());
            }
            retired += MANY / 4;
            assert!(domain.retire_stats().batches <= 2, "{}", domain.retire_stats());
        }
        stop.store(true, Ordering::Relaxed);
    });
    domain.retire_barrier();
    let (free, periods) = (domain.retire_stats(), domain.stats().grace_periods);
    assert!(free.asked <= periods + 1, "asked for {} of {periods}", free.asked);
    assert_eq!(count.load(Ordering::Relaxed), retired);
}

/// KF-10: a barrier waits for what other threads retired, whatever CPU they were on.
#[test]
fn kf_10_a_barrier_waits_for_everything_before_it() {
    let domain = Srcu::named("kf_10");
    let (count, new) = counter();
    for round in 1..=20 {
        let new = &new;
        let domain = &domain;
        thread::scope(|s| {
            for n in 0..3 {
                s.spawn(move || (0..n * 300 + 1).for_each(|_| domain.retire(new())));
            }
        });
        domain.retire_barrier();
        assert_eq!(count.load(Ordering::Relaxed), round * (1 + 301 + 601));
    }
}

/// KF-10: barriers end while others go on retiring, several at once.
#[test]
fn kf_10_barriers_end_beside_producers() {
    let domain = Srcu::named("kf_10_beside");
    let pool: Pool<Counted> = Pool::new(&domain);
    let stop = AtomicBool::new(false);
    let (_, new) = counter();
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    domain.retire(new());
                    pool.retire(new());
                }
            });
        }
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let (own, own_new) = counter();
                    for round in 1..=50 {
                        domain.retire(own_new());
                        domain.retire_barrier();
                        assert_eq!(own.load(Ordering::Relaxed), round);
                    }
                })
            })
            .collect();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
}

/// KF-10: a pool's barrier waits for the pool's objects and no others: here for none, while the domain's
/// cannot be freed.
#[test]
fn kf_10_a_pools_barrier_is_its_own() {
    let domain = Arc::new(Srcu::named("kf_10_pool"));
    let (count, new) = counter();
    let (pooled, new_pooled) = counter();
    let pool: Pool<Counted> = Pool::new(&*domain);
    (0..MANY).for_each(|_| pool.retire(new_pooled()));
    pool.barrier();
    assert_eq!(pooled.load(Ordering::Relaxed), MANY);
    assert_eq!(pool.stats().freed, MANY as u64);
    let (go, went) = mpsc::channel::<()>();
    let reader = thread::spawn({
        let domain = domain.clone();
        let (inside, ready) = mpsc::channel();
        let reader = move || {
            let _section = domain.read();
            inside.send(()).unwrap();
            let _ = went.recv();
        };
        let reader = thread::spawn(reader);
        ready.recv().unwrap();
        move || reader.join().unwrap()
    });
    domain.retire(new());
    pool.barrier();
    assert_eq!(count.load(Ordering::Relaxed), 0);
    drop(go);
    reader.join().unwrap();
    drop(pool);
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// KF-11: trim gives empty blocks back, keeps none for a while, and frees what is ready.
#[test]
fn kf_11_trim_gives_back_what_is_kept() {
    let domain = Srcu::named("kf_11");
    let (count, new) = counter();
    let section = domain.read();
    (0..20 * MANY).for_each(|_| domain.retire(new()));
    drop(section);
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), 20 * MANY);
    assert!(domain.retire_trim() >= 4096, "nothing was kept, or nothing was given back");
    assert_eq!(domain.retire_trim(), 0, "the first left something");
    (0..20 * MANY).for_each(|_| domain.retire(new()));
    domain.retire_barrier();
    assert_eq!(domain.retire_trim(), 0, "something was kept within five seconds");
}

/// KF-12: inside a section, holding a lock, in a callback, in a destructor, while a thread ends.
#[test]
fn kf_12_where_retiring_is_allowed() {
    static DOMAIN: Srcu = Srcu::named("kf_12");
    static FREED: AtomicUsize = AtomicUsize::new(0);
    struct Freed;
    impl Drop for Freed {
        fn drop(&mut self) {
            FREED.fetch_add(1, Ordering::Relaxed);
        }
    }
    struct AtEnd;
    impl Drop for AtEnd {
        fn drop(&mut self) {
            (0..MANY).for_each(|_| DOMAIN.retire(Box::new(Freed)));
        }
    }
    thread_local!(static AT_END: AtEnd = const { AtEnd });
    let lock = Mutex::new(());
    {
        let _section = DOMAIN.read();
        let _held = lock.lock().unwrap();
        (0..MANY).for_each(|_| DOMAIN.retire(Box::new(Freed)));
    }
    DOMAIN.call_hurry(|| (0..MANY).for_each(|_| DOMAIN.retire(Box::new(Freed))));
    DOMAIN.barrier();
    DOMAIN.retire(Box::new(AtEnd));
    thread::spawn(|| AT_END.with(|_| ())).join().unwrap();
    // Twice: the destructor retires.
    DOMAIN.retire_barrier();
    DOMAIN.retire_barrier();
    assert_eq!(FREED.load(Ordering::Relaxed), 4 * MANY);
}

/// A destructor that panics does not take the others with it; a barrier in one is refused.
#[test]
fn kf_12_destructors_that_panic() {
    struct Panics(Arc<AtomicUsize>);
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new(()));
        }
    }
    let domain = Srcu::named("kf_12_panic");
    let count = Arc::new(AtomicUsize::new(0));
    let section = domain.read();
    (0..MANY).for_each(|_| domain.retire(Box::new(Panics(count.clone()))));
    drop(section);
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), MANY);
    assert_eq!(domain.retire_stats().panicked, MANY as u64);
}

/// KF-06: oldest first. Blocks come out as they went in, as long as the first of them has passed, and no block
/// is older than the one before it: one that was overtaken waits for its elder's moment. So nothing that has
/// passed is behind something that has not.
#[test]
fn kf_06_oldest_first_and_no_further_than_the_first_that_waits() {
    let queue = Queue::new();
    // The fourth was overtaken, and joins the third's moment; the fifth begins another.
    let moments = [10, 10, 14, 12, 16, 20].map(|moment| {
        let link = Box::leak(Box::new(Link::new()));
        link.set_cookie(moment);
        NonNull::from(link)
    });
    for link in moments {
        // SAFETY: leaked boxes, in no other queue.
        unsafe { queue.try_lock(1).unwrap().push(link) };
    }
    let mut looked_at = Vec::new();
    let mut pop = |now: u64| {
        queue.try_lock(1).unwrap().pop(|moment| {
            looked_at.push(moment);
            moment <= now
        })
    };
    // SAFETY: leaked boxes, which stay.
    let moment = |link: NonNull<Link>| unsafe { link.as_ref() }.cookie();
    let mut out = Vec::new();
    for now in [9, 12, 14, 15, 30] {
        while let Some(link) = pop(now) {
            out.push((now, moment(link)));
        }
    }
    assert_eq!(out, [(12, 10), (12, 10), (14, 14), (14, 14), (30, 16), (30, 20)]);
    assert!(looked_at.is_sorted(), "moments went back: {looked_at:?}");
    // Each answer, and one more look for each time that nothing was ready.
    assert_eq!(looked_at, [10, 10, 10, 14, 14, 14, 16, 16, 16, 20]);
    let wrapped = Queue::new();
    for (link, moment) in moments.into_iter().zip([u64::MAX - 3, 1]) {
        // SAFETY: as above; out of the first queue.
        unsafe { link.as_ref() }.set_cookie(moment);
        // SAFETY: likewise.
        unsafe { wrapped.try_lock(1).unwrap().push(link) };
    }
    assert_eq!(wrapped.newest(), Some(1), "1 is after the wrap");
    for link in moments {
        // SAFETY: leaked above, and the queues are not used any more.
        drop(unsafe { Box::from_raw(link.as_ptr()) });
    }
}

/// KF-13: counted in grace periods, objects wait for two on average, and none for more than six, with somebody
/// always inside. (Whoever retires is inside, too: however long the scheduler holds it up, grace periods
/// wait with it.)
#[test]
fn kf_13_objects_wait_for_few_grace_periods() {
    static DOMAIN: Srcu = Srcu::named("kf_13");
    static FREED: AtomicU64 = AtomicU64::new(0);
    static WAITED: AtomicU64 = AtomicU64::new(0);
    static LONGEST: AtomicU64 = AtomicU64::new(0);
    fn periods() -> u64 {
        DOMAIN.stats().grace_periods
    }
    struct Dated(u64);
    impl Drop for Dated {
        fn drop(&mut self) {
            let waited = periods() - self.0;
            FREED.fetch_add(1, Ordering::Relaxed);
            WAITED.fetch_add(waited, Ordering::Relaxed);
            LONGEST.fetch_max(waited, Ordering::Relaxed);
        }
    }
    // What a thread leaves on a CPU that it goes away from waits for the worker's tick.
    let _ = owlet_sys::process::set_affinity(&[owlet_percpu::current_cpu()]);
    let mut section = DOMAIN.read();
    for _ in 0..40 {
        (0..2 * MANY).for_each(|_| DOMAIN.retire(Box::new(Dated(periods()))));
        thread::sleep(Duration::from_millis(5));
        let before = periods();
        until("a grace period", || {
            // Sections overlap, so that somebody is always inside; and grace periods get on, one at a time.
            let next = DOMAIN.read();
            drop(std::mem::replace(&mut section, next));
            periods() != before
        });
    }
    let (freed, waited) = (FREED.load(Ordering::Relaxed), WAITED.load(Ordering::Relaxed));
    drop(section);
    DOMAIN.retire_barrier();
    assert!(freed > 100_000, "freed only {freed}");
    let mean = waited as f64 / freed as f64;
    assert!(mean <= 4.0, "objects wait for {mean} grace periods");
    let longest = LONGEST.load(Ordering::Relaxed);
    assert!(longest <= 6, "an object waited for {longest} grace periods");
    println!("{freed} objects, {mean:.2} grace periods, {longest} at most");
}

/// KF-14: with a reader stuck, the cap holds: who would exceed it waits, and goes on once it may.
#[test]
fn kf_14_the_cap_holds() {
    const CAP: u64 = 1 << 20;
    let domain = Arc::new(Srcu::named("kf_14"));
    domain.set_retire_limits(Limits::DEFAULT.cap(CAP).backpressure(Backpressure::Wait));
    let section = domain.read();
    let done = Arc::new(AtomicU64::new(0));
    let producer = thread::spawn({
        let (domain, done) = (domain.clone(), done.clone());
        move || {
            for n in 0..100_000_u64 {
                domain.retire(Box::new([n; 8]));
                done.store(n + 1, Ordering::Relaxed);
            }
        }
    });
    until("the cap", || domain.retire_stats().held_up != 0);
    let stuck = done.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(done.load(Ordering::Relaxed), stuck, "went on at the cap");
    assert!(domain.retire_stats().pending_bytes < CAP + (64 << 10), "{}", domain.retire_stats());
    assert!(domain.try_retire(Box::new(0_u64)).is_err());
    assert_eq!(domain.retire_stats().refused, 1);
    drop(section);
    producer.join().unwrap();
    domain.retire_barrier();
    let stats = domain.retire_stats();
    assert_eq!(stats.freed, 100_000);
    assert!(stats.peak_bytes < CAP + (64 << 10), "{stats}");
    domain.try_retire(Box::new(0_u64)).unwrap();
}

/// chimera#598: threads that help are let go in the end, but the later the more waits: with a reader stuck,
/// sixteen of them that never pause do not get beyond twice the cap by much.
#[test]
fn kf_14_chimera_598_many_producers_crawl_at_twice_the_cap() {
    const CAP: u64 = 8 << 20;
    static DOMAIN: Srcu = Srcu::named("chimera_598");
    DOMAIN.set_retire_limits(Limits::DEFAULT.cap(CAP).backpressure(Backpressure::Help));
    let section = DOMAIN.read();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    DOMAIN.retire(Box::new([0_u64; 8]));
                }
            });
        }
        until("nearly twice the cap", || DOMAIN.retire_stats().pending_bytes > CAP / 8 * 15);
        let over = DOMAIN.retire_stats().over_cap;
        thread::sleep(Duration::from_millis(500));
        until("somebody is let go all the same", || DOMAIN.retire_stats().over_cap >= over + 20);
        stop.store(true, Ordering::Relaxed);
    });
    assert!(DOMAIN.retire_stats().peak_bytes < CAP * 5 / 2, "{}", DOMAIN.retire_stats());
    drop(section);
    DOMAIN.retire_barrier();
    assert_eq!(DOMAIN.retire_stats().pending_bytes, 0);
}

/// KF-14: a cap of nothing lets one object wait at a time, and a closure may be said to hold any number of
/// bytes.
#[test]
fn kf_14_the_least_cap_and_the_largest_object() {
    static DOMAIN: Srcu = Srcu::named("kf_14_least");
    DOMAIN.set_retire_limits(Limits::DEFAULT.cap(0).backpressure(Backpressure::Wait));
    let called = Arc::new(AtomicUsize::new(0));
    for _ in 0..MANY {
        let called = called.clone();
        DOMAIN.retire_call(usize::MAX, move || {
            called.fetch_add(1, Ordering::Relaxed);
        });
    }
    DOMAIN.retire_barrier();
    assert_eq!(called.load(Ordering::Relaxed), MANY);
}

/// KF-14: an object as large as a block's share counts at once, on whichever CPU and however it is freed.
#[test]
fn kf_14_large_objects_count_at_once() {
    static DOMAIN: Srcu = Srcu::named("kf_14_large");
    DOMAIN.set_retire_limits(Limits::DEFAULT.cap(1 << 20));
    let section = DOMAIN.read();
    for kib in [256_u64, 512, 640] {
        let before = DOMAIN.retire_stats().pending_bytes;
        DOMAIN.retire(vec![1_u8; 8].into_boxed_slice());
        let large = vec![1_u8; kib as usize * 1024].into_boxed_slice();
        // The array itself, not a pointer to it.
        let layout = std::alloc::Layout::for_value(&*large);
        let at = NonNull::new(Box::into_raw(large).cast::<u8>()).expect("a box");
        // SAFETY: from a box of bytes with that layout, retired once.
        unsafe { DOMAIN.retire_dealloc(at, layout) };
        assert!(DOMAIN.retire_stats().pending_bytes >= before + kib * 1024, "{kib} KiB");
    }
    let refused = DOMAIN.try_retire(Box::new([0_u64; 8]));
    assert!(refused.is_err(), "{}", DOMAIN.retire_stats());
    drop(section);
    DOMAIN.retire_barrier();
    assert_eq!(DOMAIN.retire_stats().pending_bytes, 0);
}

/// Debug builds look for objects that are retired twice: those without a size share their address.
#[test]
fn objects_without_a_size_are_not_retired_twice() {
    #[repr(align(8192))]
    struct Nothing;
    static DOMAIN: Srcu = Srcu::named("nothing");
    for _ in 0..3 {
        DOMAIN.retire(Box::new(Nothing));
    }
    DOMAIN.retire_barrier();
    assert_eq!(DOMAIN.retire_stats().freed, 3);
}

/// KF-14: who must not wait does not: here inside a section of the domain.
#[test]
fn kf_14_nobody_waits_for_himself() {
    let domain = Srcu::named("kf_14_self");
    domain.set_retire_limits(Limits::DEFAULT.cap(1 << 16).backpressure(Backpressure::Wait));
    let section = domain.read();
    (0..10 * MANY).for_each(|_| domain.retire(Box::new([0_u64; 8])));
    assert!(domain.retire_stats().over_cap != 0);
    assert_eq!(domain.retire_stats().freed, 0);
    drop(section);
    domain.retire_barrier();
    assert_eq!(domain.retire_stats().freed, 10 * MANY as u64);
}

/// KF-15: every flavour frees by its own grace periods.
#[test]
fn kf_15_every_flavour() {
    fn check(domain: &dyn Domain, retire: impl Fn(Box<Counted>), read: impl FnOnce(&dyn Fn())) {
        let (count, new) = counter();
        read(&|| {
            (0..MANY).for_each(|_| retire(new()));
            domain.retire_flush();
            let cookie = domain.start_poll_expedited();
            thread::sleep(Duration::from_millis(10));
            assert!(!domain.poll(cookie), "{}: no reader", domain.name());
            assert_eq!(count.load(Ordering::Relaxed), 0, "{}: freed under a reader", domain.name());
        });
        domain.retire_barrier();
        assert_eq!(count.load(Ordering::Relaxed), MANY, "{}", domain.name());
    }
    let classic = ClassicSrcu::named("kf_15_classic");
    check(
        &classic,
        |o| classic.retire(o),
        |f| {
            let _section = classic.read();
            f();
        },
    );
    let fenced = Srcu::fenced("kf_15_fenced");
    check(
        &fenced,
        |o| fenced.retire(o),
        |f| {
            let _section = fenced.read();
            f();
        },
    );
    let qsbr = Qsbr::named("kf_15_qsbr");
    check(
        &qsbr,
        |o| qsbr.retire(o),
        |f| {
            let mut reader = qsbr.register();
            let _online = reader.online();
            f();
        },
    );
    let trace = TasksTrace::named("kf_15_trace");
    check(
        &trace,
        |o| trace.retire(o),
        |f| {
            let _section = trace.read();
            f();
        },
    );
    let tasks = Tasks::named("kf_15_tasks");
    check(
        &tasks,
        |o| tasks.retire(o),
        |f| {
            let (go, went) = mpsc::channel::<()>();
            let (inside, ready) = mpsc::channel();
            thread::scope(|s| {
                let tasks = &tasks;
                s.spawn(move || {
                    let _task = tasks.register();
                    inside.send(()).unwrap();
                    let _ = went.recv();
                });
                ready.recv().unwrap();
                f();
                drop(go);
            });
        },
    );
}

/// Q4: destructors that retire, 10,000 in a row, without recursion; a barrier waits for one link.
#[test]
fn q4_chains_of_destructors() {
    static DOMAIN: Srcu = Srcu::named("q4");
    static FREED: AtomicUsize = AtomicUsize::new(0);
    struct Chain(usize);
    impl Drop for Chain {
        fn drop(&mut self) {
            FREED.fetch_add(1, Ordering::Relaxed);
            if self.0 != 0 {
                DOMAIN.retire(Box::new(Chain(self.0 - 1)));
            }
        }
    }
    const LINKS: usize = 10_000;
    DOMAIN.retire(Box::new(Chain(LINKS - 1)));
    let mut barriers = 0;
    while FREED.load(Ordering::Relaxed) < LINKS {
        let before = FREED.load(Ordering::Relaxed);
        DOMAIN.retire_barrier();
        barriers += 1;
        assert!(FREED.load(Ordering::Relaxed) > before, "a barrier that waited for nothing");
    }
    assert!(barriers <= LINKS);
    // And many at once that each retire one: not on the stack either.
    for _ in 0..MANY {
        DOMAIN.retire(Box::new(Chain(3)));
    }
    (0..4).for_each(|_| DOMAIN.retire_barrier());
    assert_eq!(FREED.load(Ordering::Relaxed), LINKS + 4 * MANY);
}

/// M4: what a pool holds when it is dropped is freed though its domain lives on, and what a domain holds,
/// though nobody comes by any more and nothing is too old.
#[test]
fn m4_nothing_is_left_of_a_dropped_domain() {
    let (count, new) = counter();
    for round in 0..20 {
        let domain = Srcu::named("m4");
        domain.set_retire_limits(Limits::DEFAULT.linger(Duration::from_secs(3600)));
        let pool: Pool<Counted> = Pool::new(&domain);
        (0..MANY).for_each(|_| pool.retire(new()));
        drop(pool);
        let freed = 2 * MANY * round;
        until("a dropped pool", || count.load(Ordering::Relaxed) == freed + MANY);
        (0..MANY).for_each(|_| domain.retire(new()));
        drop(domain);
        until("a dropped domain", || count.load(Ordering::Relaxed) == freed + 2 * MANY);
    }
}

/// chimera#604: what threads leave on CPUs that they do not come back to is freed.
#[test]
fn chimera_604_nothing_is_stranded_by_migration() {
    let domain = Srcu::named("604");
    let (count, new) = counter();
    let together = Barrier::new(8);
    thread::scope(|s| {
        for cpu in 0..8 {
            let (domain, new, together) = (&domain, &new, &together);
            s.spawn(move || {
                let _ = owlet_sys::process::set_affinity(&[cpu % owlet_percpu::cpus()]);
                together.wait();
                (0..MANY).for_each(|_| domain.retire(new()));
            });
        }
    });
    domain.set_retire_limits(Limits::DEFAULT.linger(Duration::from_millis(10)));
    domain.retire(new());
    until("what was left", || count.load(Ordering::Relaxed) >= 8 * MANY);
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), 8 * MANY + 1);
}

/// KF-07: without memory for a block, at whichever allocation, nothing is lost: with a head it goes to the
/// callbacks, without one it is freed after a wait.
#[test]
fn kf_07_without_memory_nothing_is_lost() {
    use owlet_sys::Family;
    use owlet_sys::fake::{Extent, Scope, fail};
    #[repr(C)]
    struct Headed {
        head: Head,
        inner: Counted,
    }
    unsafe fn free_headed(head: NonNull<Head>) {
        // SAFETY: the first field of a box.
        drop(unsafe { Box::from_raw(head.cast::<Headed>().as_ptr()) });
    }
    for (nth, extent) in (1..12).flat_map(|n| [(n, Extent::Once), (n, Extent::Forever)]) {
        let domain = Srcu::named("kf_07");
        // Its own memory is there.
        drop(domain.read());
        let pool: Pool<Counted> = Pool::new(&domain);
        let (count, new) = counter();
        let plan = fail(Family::Memory, nth, libc::ENOMEM, Scope::Thread, extent);
        for _ in 0..MANY {
            domain.retire(new());
            pool.retire(new());
            let headed = Headed { head: Head::new(), inner: Counted(count.clone()) };
            let head = NonNull::from(Box::leak(Box::new(headed))).cast();
            // SAFETY: the first field of a leaked box, and its function.
            unsafe { domain.retire_head(head, free_headed) };
        }
        drop(plan);
        domain.retire_barrier();
        assert_eq!(count.load(Ordering::Relaxed), 3 * MANY, "{nth} {extent:?}");
    }
}

/// KF-07: and inside a section, where nobody can wait for a grace period, for memory.
#[test]
fn kf_07_without_memory_inside_a_section() {
    use owlet_sys::Family;
    use owlet_sys::fake::{Extent, Scope, fail};
    let domain = Srcu::named("kf_07_inside");
    let (count, new) = counter();
    let section = domain.read();
    for nth in 1..8 {
        let _plan = fail(Family::Memory, nth, libc::ENOMEM, Scope::Thread, Extent::Once);
        (0..MANY).for_each(|_| domain.retire(new()));
    }
    assert_eq!(count.load(Ordering::Relaxed), 0);
    drop(section);
    domain.retire_barrier();
    assert_eq!(count.load(Ordering::Relaxed), 7 * MANY);
}
