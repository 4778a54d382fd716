//! What goes back to the allocator, and what does not: pools whose memory is used again, memory that is given
//! back by its layout.
//!
//! The allocator counts what is out of each size that a test has for itself, so that tests can share a
//! process; and it is told what to look for. Without restartable sequences boxes are the allocator's, and only that nothing is lost is
//! looked at.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

mod common;
use common::until;
use owlet_percpu::{Backend, backend};
use owlet_rcu::Srcu;
use owlet_rcu::free::{Backpressure, Limits, Pool};

/// Sizes that are counted: multiples of this, from 1.
const STEP: usize = 4000;
static LIVE: [AtomicI64; 8] = [const { AtomicI64::new(0) }; 8];

/// Objects of a size that no other test has.
struct Sized<const N: usize> {
    dropped: Arc<AtomicUsize>,
    _room: [u8; N],
}

/// Bytes beside the counter.
const fn room(test: usize) -> usize {
    STEP * test - 8
}

struct Counting;

/// Addresses that are to come back, and by which layouts: of one test.
static EXPECTED: [(AtomicUsize, AtomicUsize); 300] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 300];
static EXPECTING: AtomicBool = AtomicBool::new(false);
/// How many have, as expected and otherwise.
static CAME_BACK: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

fn packed(layout: Layout) -> usize {
    layout.size() << 16 | layout.align()
}

fn comes_back(at: usize, layout: Layout) {
    let expected = EXPECTED.iter().find(|(address, _)| address.load(Ordering::Relaxed) == at);
    if let Some((address, by)) = expected {
        let wrong = by.load(Ordering::Relaxed) != packed(layout);
        CAME_BACK[usize::from(wrong)].fetch_add(1, Ordering::Relaxed);
        address.store(0, Ordering::Relaxed);
    }
}

fn count(layout: Layout, n: i64) {
    if layout.size().is_multiple_of(STEP)
        && let Some(live) = LIVE.get(layout.size() / STEP)
    {
        live.fetch_add(n, Ordering::Relaxed);
    }
}

// SAFETY: the system's, and a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout, -1);
        if EXPECTING.load(Ordering::Relaxed) {
            comes_back(at.addr(), layout);
        }
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live(test: usize) -> i64 {
    LIVE[test].load(Ordering::Relaxed)
}

impl<const N: usize> Sized<N> {
    fn new(dropped: &Arc<AtomicUsize>) -> Self {
        Self { dropped: dropped.clone(), _room: [0; N] }
    }
}

impl<const N: usize> Drop for Sized<N> {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Objects for some blocks of 256 KiB and a part of one.
const MANY: usize = 400;

fn reuses() -> bool {
    backend() == Backend::Rseq && cfg!(target_arch = "x86_64")
}

/// KF-01: memory is not handed out while a section that was running goes on; afterwards it is.
#[test]
fn kf_01_memory_is_not_used_again_under_a_reader() {
    let domain = Srcu::named("kf_01_pool");
    let pool: Pool<Sized<{ room(1) }>> = Pool::new(&domain);
    let dropped = Arc::new(AtomicUsize::new(0));
    // On one CPU, so that it can be told whose memory is whose.
    let _ = owlet_sys::process::set_affinity(&[0]);
    let section = domain.read();
    let mut gone = HashSet::new();
    let retire = |gone: &mut HashSet<usize>| {
        for _ in 0..MANY {
            let object = pool.boxed(Sized::new(&dropped));
            gone.insert(std::ptr::from_ref(&*object).addr());
            pool.retire(object);
        }
    };
    retire(&mut gone);
    retire(&mut gone);
    assert_eq!(gone.len(), 2 * MANY, "memory was used again under a reader");
    assert_eq!(dropped.load(Ordering::Relaxed), 0, "dropped under a reader");
    drop(section);
    domain.synchronize();
    let again = pool.boxed(Sized::new(&dropped));
    if reuses() {
        assert!(gone.contains(&std::ptr::from_ref(&*again).addr()), "memory was not used again");
        let reused = pool.stats().reused as usize;
        assert!(reused != 0 && reused <= dropped.load(Ordering::Relaxed));
    }
    drop(again);
    pool.barrier();
    assert_eq!(dropped.load(Ordering::Relaxed), 2 * MANY + 1);
    drop(pool);
    assert_eq!(live(1), 0, "memory was lost");
}

/// KF-04: with threads that make and retire, on their CPUs and others, boxes are whole, each object is dropped
/// once, and all memory comes back; trims and flushes beside them.
#[test]
fn kf_04_each_piece_of_memory_has_one_owner() {
    let domain = Srcu::named("kf_04_pool");
    let pool: Pool<Sized<{ room(2) }>> = Pool::new(&domain);
    let dropped = Arc::new(AtomicUsize::new(0));
    let out = [const { AtomicUsize::new(0) }; 64];
    const ROUNDS: usize = 40;
    thread::scope(|s| {
        for thread in 0..4 {
            let (domain, pool, dropped, out) = (&domain, &pool, &dropped, &out);
            s.spawn(move || {
                for round in 0..ROUNDS {
                    let cpu = (thread + round) % owlet_percpu::cpus();
                    let _ = owlet_sys::process::set_affinity(&[cpu]);
                    let mine: Vec<_> = (0..100)
                        .map(|_| {
                            let mut object = pool.boxed(Sized::new(dropped));
                            object._room[0] = thread as u8;
                            object
                        })
                        .collect();
                    for object in mine {
                        assert_eq!(object._room[0], thread as u8, "somebody else has it, too");
                        out[thread].fetch_add(1, Ordering::Relaxed);
                        pool.retire(object);
                    }
                    match (thread + round) % 8 {
                        0 => drop(domain.retire_trim()),
                        1 => domain.synchronize(),
                        _ => {}
                    }
                }
            });
        }
    });
    pool.barrier();
    assert_eq!(dropped.load(Ordering::Relaxed), 4 * 100 * ROUNDS);
    drop(pool);
    assert_eq!(live(2), 0, "memory was lost, or given back twice");
}

/// KF-04: an object that was retired twice is leaked, memory included: it is not handed out.
#[test]
#[cfg(debug_assertions)]
fn kf_04_memory_of_a_leaked_object_is_not_used_again() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    // As in `free`: the table may be full.
    if !common::alone("kf_04_memory_of_a_leaked_object_is_not_used_again") {
        return;
    }
    let domain = Srcu::named("kf_04_leaked");
    let pool: Pool<Sized<{ room(3) }>> = Pool::new(&domain);
    let dropped = Arc::new(AtomicUsize::new(0));
    let _ = owlet_sys::process::set_affinity(&[0]);
    let leaked = NonNull::from(Box::leak(pool.boxed(Sized::new(&dropped))));
    // SAFETY: a leaked box.
    unsafe { pool.retire_raw(leaked) };
    // SAFETY: none: that is what is tested. It is never freed.
    let again = catch_unwind(AssertUnwindSafe(|| unsafe { pool.retire_raw(leaked) }));
    assert!(again.is_err(), "not noticed");
    let section = domain.read();
    (0..MANY).for_each(|_| pool.retire(pool.boxed(Sized::new(&dropped))));
    drop(section);
    domain.synchronize();
    let all: Vec<_> = (0..MANY).map(|_| pool.boxed(Sized::new(&dropped))).collect();
    let theirs = all.iter().any(|object| std::ptr::eq(&raw const **object, leaked.as_ptr()));
    assert!(!theirs, "memory of a leaked object is somebody's");
    assert!(!reuses() || pool.stats().reused != 0);
    drop(all);
    pool.barrier();
    drop(pool);
    assert_eq!(live(3), 1);
    // SAFETY: leaked by the pool.
    drop(unsafe { Box::from_raw(leaked.as_ptr()) });
}

/// KF-11, M4, chimera#604: what is kept ready on CPUs that nobody comes back to goes back by a trim, once
/// nothing waits, and with the pool.
#[test]
fn kf_11_chimera_604_memory_does_not_stay_on_a_cpu() {
    let domain = Srcu::named("kf_11_pool");
    let dropped = Arc::new(AtomicUsize::new(0));
    for round in 0..3 {
        let pool: Pool<Sized<{ room(4) }>> = Pool::new(&domain);
        let together = Barrier::new(4);
        thread::scope(|s| {
            for cpu in 0..4 {
                let (domain, pool, dropped, together) = (&domain, &pool, &dropped, &together);
                s.spawn(move || {
                    let _ = owlet_sys::process::set_affinity(&[cpu % owlet_percpu::cpus()]);
                    together.wait();
                    for _ in 0..3 {
                        (0..MANY).for_each(|_| pool.retire(pool.boxed(Sized::new(dropped))));
                        domain.synchronize();
                    }
                    drop(pool.boxed(Sized::new(dropped)));
                });
            }
        });
        match round {
            0 => until("memory that nobody wants", || {
                // Lone objects in time, then the memory.
                domain.retire_flush();
                live(4) == 0
            }),
            1 => {
                pool.barrier();
                until("a trim", || {
                    domain.retire_trim();
                    live(4) == 0
                });
            }
            _ => pool.barrier(),
        }
        drop(pool);
        assert_eq!(live(4), 0, "round {round}");
    }
}

/// KF-12: destructors that panic or want a box themselves, while their memory is being got.
#[test]
fn kf_12_destructors_while_memory_is_got() {
    static DOMAIN: Srcu = Srcu::named("kf_12_pool");
    static POOL: Pool<Odd> = Pool::new(&DOMAIN);
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Odd(usize, [u8; 1000]);
    impl Drop for Odd {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            match self.0 % 4 {
                1 => std::panic::resume_unwind(Box::new(())),
                2 => POOL.retire(POOL.boxed(Odd(0, self.1))),
                _ => {}
            }
        }
    }
    let section = DOMAIN.read();
    (0..1000).for_each(|n| POOL.retire(POOL.boxed(Odd(n, [0; 1000]))));
    drop(section);
    DOMAIN.synchronize();
    // More than what waits, so that all of it is dropped on the way.
    let all: Vec<_> = (0..2000).map(|_| POOL.boxed(Odd(0, [0; 1000]))).collect();
    assert!(!reuses() || DROPPED.load(Ordering::Relaxed) >= 250, "nothing was dropped");
    drop(all);
    POOL.barrier();
    POOL.barrier();
    assert_eq!(DROPPED.load(Ordering::Relaxed), 2000 + 1000 + 250);
    assert_eq!(POOL.stats().panicked, 250);
}

/// KF-14: the cap is kept where memory is used again, and who comes to it gets on as soon as some is ready.
#[test]
fn kf_14_the_cap_holds_where_memory_is_used_again() {
    const CAP: u64 = 8 << 20;
    let domain = Srcu::named("kf_14_pool");
    domain.set_retire_limits(Limits::DEFAULT.cap(CAP).backpressure(Backpressure::Wait));
    let pool: Pool<Sized<{ room(5) }>> = Pool::new(&domain);
    let dropped = Arc::new(AtomicUsize::new(0));
    let done = AtomicUsize::new(0);
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                (0..20_000).for_each(|_| pool.retire(pool.boxed(Sized::new(&dropped))));
                done.fetch_add(1, Ordering::Relaxed);
            });
            s.spawn(|| {
                while done.load(Ordering::Relaxed) != 2 {
                    let _section = domain.read();
                    thread::sleep(std::time::Duration::from_millis(2));
                }
            });
        }
    });
    let stats = domain.retire_stats();
    assert!(stats.peak_bytes < CAP + (1 << 20), "{stats}");
    pool.barrier();
    assert_eq!(dropped.load(Ordering::Relaxed), 40_000);
}

/// KF-04: memory without destructor goes back by its layout, once, and not before a grace period.
#[test]
fn kf_04_memory_is_given_back_by_its_layout() {
    let domain = Srcu::named("kf_04_layout");
    let section = domain.read();
    EXPECTING.store(true, Ordering::Relaxed);
    for (size, (address, by)) in EXPECTED.iter().enumerate().skip(1) {
        let layout = Layout::from_size_align(size, 1 << (size % 8)).unwrap();
        // SAFETY: not empty.
        let at = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
        by.store(packed(layout), Ordering::Relaxed);
        address.store(at.addr().get(), Ordering::Relaxed);
        // SAFETY: just allocated with it.
        unsafe { domain.retire_dealloc(at, layout) };
    }
    domain.retire_flush();
    let came_back = || CAME_BACK.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(came_back(), [0, 0], "given back under a reader");
    drop(section);
    domain.retire_barrier();
    EXPECTING.store(false, Ordering::Relaxed);
    assert_eq!(came_back(), [299, 0], "as expected, and by another layout");
    assert_eq!(domain.retire_stats().freed, 299);
}
