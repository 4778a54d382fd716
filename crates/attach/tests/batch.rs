//! Batches: TR-02, TR-04, TR-07, TR-08, TR-12, and the cases A5, A6, D2, M5.

mod common;

use owlet_attach::{
    AtExit, AttachError, Attached, Batch, Call, Program, fake, find, grace_periods, patch,
    programs, sites, traced,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};

/// Bytes that are allocated.
struct Counting(AtomicUsize);

#[global_allocator]
static HEAP: Counting = Counting(AtomicUsize::new(0));

// SAFETY: the system's, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.0.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) };
    }
}

/// Tests here count grace periods and writes of the whole process: one at a time.
fn one() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn quiet() -> Program {
    Program::entry(|_| ()).build()
}

fn waits() -> u64 {
    let (normal, sleepable) = grace_periods();
    normal.calls + sleepable.calls
}

fn periods() -> u64 {
    let (normal, sleepable) = grace_periods();
    normal.grace_periods + sleepable.grace_periods
}

/// Nothing is attached to functions of that pattern, and their bytes say so.
fn is_off(pattern: &str) -> bool {
    // SAFETY: sites are text, which stays.
    let off = |at: usize| unsafe { (at as *const u8).read_volatile() } == 0xa9;
    find(pattern).into_iter().all(|function| {
        programs(function).is_empty() && !function.is_on() && sites(function).into_iter().all(off)
    })
}

/// Runs every function once.
fn call_all() {
    for (n, function) in common::all().into_iter().enumerate() {
        assert_eq!(function(n as u64), n as u64 + 1);
    }
}

#[test]
fn tr_02_a_batch_waits_for_nobody_writes_each_page_once_and_syncs_once() {
    let _one = one();
    let all = common::all();
    let (first, second) = (quiet(), quiet());
    let before = (waits(), periods(), patch::counts());
    let mut attached = first.attach("*::many::*").unwrap();
    let fresh = patch::counts();
    assert_eq!(attached.len(), all.len());
    assert_eq!((waits(), periods()), (before.0, before.1), "no grace period for a fresh batch");
    if owlet_attach::site::KIND == "toggle" {
        assert_eq!(fresh.syncs - before.2.syncs, 1);
        let pages: std::collections::BTreeSet<_> =
            all.iter().map(|f| *f as *const () as usize / 4096).collect();
        let windows = fresh.windows - before.2.windows;
        assert!(windows >= 1 && windows <= pages.len() as u64, "{windows} windows");
        let written = fresh.window_writes + fresh.mem_writes;
        assert_eq!(written - before.2.window_writes - before.2.mem_writes, all.len() as u64);
    }
    // A second program replaces lists, writes no byte, and waits for nobody either.
    attached.merge(second.attach("*::many::*").unwrap());
    assert_eq!(patch::counts(), fresh);
    assert_eq!(waits(), before.0);
    call_all();
    assert_eq!((first.stats().runs, second.stats().runs), (2000, 2000));
    attached.detach().unwrap();
    call_all();
    assert_eq!((first.stats().runs, second.stats().runs), (2000, 2000));
}

#[test]
fn a5_two_thousand_sites_with_programs_of_both_flavours_are_detached_with_two_grace_periods() {
    let _one = one();
    let made = |n| if n % 2 == 0 { quiet() } else { Program::entry(|_| ()).sleepable().build() };
    let all: Vec<_> = (0..2).map(made).collect();
    let batch = all.iter().fold(Batch::new(), |batch, program| batch.add(program, "*::many::*"));
    let attached = batch.attach().unwrap();
    assert_eq!(attached.len(), 4000);
    call_all();
    let before = (periods(), waits(), patch::counts().syncs);
    attached.detach().unwrap();
    assert!(periods() - before.0 <= 2, "{} grace periods", periods() - before.0);
    assert_eq!(waits() - before.1, 2, "one overlapped wait: one in each domain");
    assert!(patch::counts().syncs - before.2 <= 1);
    call_all();
    assert!(all.iter().all(|program| program.stats().runs == 2000));
}

#[test]
fn m5_a_thousand_rounds_leave_nothing_behind() {
    let _one = one();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let round = |n: usize| {
        let program = quiet();
        let attached = program.attach(&format!("*::many::g{}::m?::f?", n % 10)).unwrap();
        assert_eq!(attached.len(), 100);
        if n.is_multiple_of(2) {
            attached.detach().unwrap()
        } else {
            attached.detach_async().unwrap()
        }
    };
    (0..20).for_each(round);
    owlet_attach::quiesce();
    let before = (descriptors(), maps(), owlet_attach::functions().len());
    let allocated = HEAP.0.load(Ordering::Relaxed);
    (0..1000).for_each(round);
    owlet_attach::quiesce();
    assert_eq!(descriptors(), before.0);
    // Windows split mappings of the text and join them again; the heap may have grown.
    assert!(maps() <= before.1 + 4, "{} maps, then {}", before.1, maps());
    // A hundred thousand lists came and went.
    let more = HEAP.0.load(Ordering::Relaxed).saturating_sub(allocated);
    assert!(more < 1 << 19, "{more} bytes more");
    assert_eq!(owlet_attach::functions().len(), before.2);
    assert!(is_off("*::many::*"));
}

mod faults {
    #[owlet_attach::traced]
    pub(super) fn a() {}
    #[owlet_attach::traced]
    pub(super) fn b() {}
    #[owlet_attach::traced]
    pub(super) fn c() {}

    pub(super) fn all() {
        a();
        b();
        c();
    }
}

/// What every function has, by program names.
fn state(pattern: &str) -> Vec<(String, Vec<String>, bool)> {
    let of = |function: &'static owlet_attach::Function| {
        let names =
            programs(function).into_iter().map(|(p, cookie)| format!("{}/{cookie}", p.name()));
        (function.name().to_owned(), names.collect(), function.is_on())
    };
    find(pattern).into_iter().map(of).collect()
}

#[test]
fn tr_07_a_failure_at_any_step_leaves_every_function_as_it_was() {
    let _one = one();
    let old = Program::entry(|_| ()).named("old").build();
    let kept = Batch::new().add_with_cookie(&old, "*::faults::b", 9).attach().unwrap();
    let before = state("*::faults::*");
    let (new, slow) =
        (Program::entry(|_| ()).named("new").build(), Program::entry(|_| ()).sleepable());
    let slow = slow.named("slow").build();
    let batch = || Batch::new().add(&new, "*::faults::*").add(&slow, "*::faults::*");
    let unchanged = |what: &str| {
        assert_eq!(state("*::faults::*"), before, "{what}");
        let runs = old.stats().runs;
        faults::all();
        assert_eq!((new.stats().runs, slow.stats().runs), (0, 0), "{what}");
        assert_eq!(old.stats().runs, runs + 1, "{what}");
    };
    // Step 1.
    let error = batch().add(&new, "no::such").attach().unwrap_err();
    assert!(matches!(error, AttachError::NoMatch { .. }));
    unchanged("a pattern without a function");
    let error = batch().add(&old, "*::faults::*").attach().unwrap_err();
    assert_eq!(error, AttachError::Duplicate { function: before[1].0.leak_str() });
    unchanged("a duplicate");
    // Step 2: the n-th of six lists.
    for lists in 0..6 {
        let error = fake::memory_for(lists, || batch().attach()).unwrap_err();
        assert_eq!(error, AttachError::OutOfMemory);
        unchanged("no memory for a list");
    }
    // Step 4: the first or the second of the two sites that are off, in either way.
    if owlet_attach::site::KIND == "toggle" {
        for passes in 0..2 {
            let refused = || batch().attach();
            let error = fake::refuse_after(passes, libc::EPERM, libc::EACCES, refused).unwrap_err();
            assert!(matches!(error, AttachError::Sites(_)), "{error}");
            assert_eq!(error.errno(), libc::EACCES);
            // What was written could not be written back: the site is on and finds no programs.
            assert_eq!(state("*::faults::*"), before, "a refused write");
            faults::all();
        }
    }
    let attached = fake::memory_for(6, || batch().attach()).unwrap();
    faults::all();
    assert_eq!((new.stats().runs, slow.stats().runs), (3, 3));
    attached.detach().unwrap();
    kept.detach().unwrap();
}

trait LeakStr {
    fn leak_str(&self) -> &'static str;
}

impl LeakStr for String {
    fn leak_str(&self) -> &'static str {
        find("*").into_iter().map(owlet_attach::Function::name).find(|name| name == self).unwrap()
    }
}

#[test]
fn tr_07_without_memory_for_a_detach_the_programs_still_stop() {
    let _one = one();
    let (going, staying) = (quiet(), quiet());
    let kept = staying.attach("*::faults::*").unwrap();
    let gone = going.attach("*::faults::*").unwrap();
    fake::memory_for(0, || gone.detach()).unwrap();
    faults::all();
    assert_eq!((going.stats().runs, staying.stats().runs), (0, 3));
    // And may come back, though its old entry is still in the list.
    let again = going.attach("*::faults::*").unwrap();
    faults::all();
    assert_eq!((going.stats().runs, staying.stats().runs), (3, 6));
    fake::memory_for(0, || kept.detach()).unwrap();
    again.detach().unwrap();
    faults::all();
    assert_eq!((going.stats().runs, staying.stats().runs), (3, 6));
    assert!(is_off("*::faults::*"));
}

#[test]
fn tr_07_programs_of_a_batch_that_is_rolled_back_are_freed_after_a_wait() {
    if owlet_attach::site::KIND != "toggle" {
        return;
    }
    let _one = one();
    let alive = Arc::new(());
    let owned = Arc::clone(&alive);
    let program = Program::entry(move |_| {
        let _ = &owned;
    })
    .build();
    let refused = || program.attach("*::faults::*");
    fake::refuse(libc::EPERM, libc::EACCES, refused).unwrap_err();
    drop(program);
    owlet_attach::quiesce();
    assert_eq!(Arc::strong_count(&alive), 1);
}

mod overlapping {
    #[owlet_attach::traced]
    pub(super) fn a(n: u64) -> u64 {
        n
    }
    #[owlet_attach::traced]
    pub(super) fn b(n: u64) -> u64 {
        n
    }
}

/// Batches and single programs of several threads on the same two functions, which other threads call:
/// whoever has attached sees each of his own calls once, and whoever has detached none, nor anybody in his
/// program.
#[test]
fn tr_04_concurrent_batches_on_overlapping_functions_are_each_right() {
    let _one = one();
    const THREADS: usize = 4;
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    // Programs that were running when their detach had returned.
    let late = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _done = Done(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                overlapping::a(u64::MAX);
                overlapping::b(u64::MAX);
            }
        });
        let changing: Vec<_> = (0..THREADS)
            .map(|me| {
                let late = Arc::clone(&late);
                scope.spawn(move || {
                    for round in 0..200 {
                        let mine = Arc::new(AtomicU64::new(0));
                        let over = Arc::new(AtomicBool::new(false));
                        let (count, gone, late) =
                            (Arc::clone(&mine), Arc::clone(&over), Arc::clone(&late));
                        // Calls of this thread say who they are.
                        let program = Program::entry(move |call| {
                            if call.arg(0).map(|n| n.word()) == Some(me as u64) {
                                count.fetch_add(1, Ordering::Relaxed);
                            } else {
                                std::thread::yield_now();
                                late.fetch_add(
                                    u64::from(gone.load(Ordering::Relaxed)),
                                    Ordering::Relaxed,
                                );
                            }
                        });
                        let sleepable = (me + round).is_multiple_of(2);
                        let program =
                            if sleepable { program.sleepable().build() } else { program.build() };
                        let which = ["*::overlapping::*", "*::overlapping::a"][round % 2];
                        let batch =
                            Batch::new().add(&program, which).add(&program, "*::overlapping::a");
                        let attached = batch.attach().unwrap();
                        // The second addition to the first function is the first one.
                        let functions = 2 - round as u64 % 2;
                        assert_eq!(attached.len() as u64, functions);
                        let call = || {
                            overlapping::a(me as u64);
                            overlapping::b(me as u64);
                        };
                        call();
                        assert_eq!(mine.load(Ordering::Relaxed), functions);
                        if round.is_multiple_of(3) {
                            attached.detach_async().unwrap();
                        } else {
                            attached.detach().unwrap();
                            over.store(true, Ordering::Relaxed);
                            let left = Arc::strong_count(&mine);
                            drop(program);
                            assert_eq!((left, Arc::strong_count(&mine)), (2, 1));
                        }
                        call();
                        assert_eq!(mine.load(Ordering::Relaxed), functions);
                    }
                })
            })
            .collect();
        changing.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(late.load(Ordering::Relaxed), 0, "programs ran on after a detach had returned");
    assert!(is_off("*::overlapping::*"));
}

mod flavours {
    #[owlet_attach::traced]
    pub(super) fn f() {}
}

/// A sleepable program that sleeps delays the detach of itself, not that of a normal one.
#[test]
fn tr_08_each_flavour_is_waited_for_in_its_own_domain() {
    let _one = one();
    let (inside, out) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (enter, leave) = (Arc::clone(&inside), Arc::clone(&out));
    let sleeper = Program::entry(move |_| {
        enter.wait();
        leave.wait();
    })
    .sleepable()
    .build();
    let sleeping = sleeper.attach("*::flavours::f").unwrap();
    let normal = quiet().attach("*::flavours::f").unwrap();
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(flavours::f);
        inside.wait();
        let before = grace_periods();
        normal.detach().unwrap();
        let after = grace_periods();
        assert!(after.0.calls > before.0.calls && after.1.calls == before.1.calls);
        let waiter = scope.spawn(|| {
            sleeping.detach().unwrap();
            finished.store(true, Ordering::Release);
        });
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(!finished.load(Ordering::Acquire));
        out.wait();
        waiter.join().unwrap();
    });
    assert_eq!(sleeper.stats().runs, 1);
}

mod teardown {
    #[owlet_attach::traced]
    pub(super) fn f() {}
}

/// What a program owns goes with its last link and its last handle, once; attaching while another thread
/// tears down makes a fresh list.
#[test]
fn tr_12_the_last_reference_frees_and_a_new_one_meanwhile_is_fresh() {
    struct Owned(Arc<AtomicUsize>);
    impl Drop for Owned {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let _one = one();
    const ROUNDS: usize = 300;
    let dropped = Arc::new(AtomicUsize::new(0));
    let made = || {
        let owned = Owned(Arc::clone(&dropped));
        Program::session(
            |_| AtExit::Run,
            move |_| {
                let _ = &owned;
            },
        )
        .build()
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let program = made();
                    let attached = program.attach("*::teardown::f").unwrap();
                    teardown::f();
                    assert!(program.stats().runs >= 2);
                    if round.is_multiple_of(2) {
                        drop(program);
                        attached.detach().unwrap();
                    } else {
                        drop(attached);
                    }
                }
            });
        }
    });
    owlet_attach::quiesce();
    assert_eq!(dropped.load(Ordering::Relaxed), 2 * ROUNDS);
    assert!(programs(find("*::teardown::f")[0]).is_empty());
}

mod dropping {
    #[owlet_attach::traced]
    pub(super) fn f() {}
    #[owlet_attach::traced]
    pub(super) fn from_drop() {}
}

/// State of a program whose destructor calls traced functions, attaches and detaches.
#[test]
fn d2_a_destructor_that_calls_attaches_and_detaches_deadlocks_nobody() {
    struct Meddles {
        other: Program,
        _attached: Attached,
        seen: Arc<AtomicUsize>,
    }
    impl Drop for Meddles {
        fn drop(&mut self) {
            let again = Program::entry(|_| ()).build();
            let attached = again.attach("*::dropping::*").unwrap();
            dropping::from_drop();
            dropping::f();
            assert_eq!(again.stats().runs, 2);
            attached.detach_async().unwrap();
            assert!(self.other.stats().runs >= 1);
            self.seen.fetch_add(1, Ordering::Relaxed);
        }
    }
    let _one = one();
    let seen = Arc::new(AtomicUsize::new(0));
    let make = || {
        let other = Program::entry(|_| ()).build();
        let attached = other.attach("*::dropping::from_drop").unwrap();
        let meddles = Meddles { other, _attached: attached, seen: Arc::clone(&seen) };
        let run = move |_: &Call<'_>| {
            let _ = &meddles;
        };
        Program::entry(run).build().attach("*::dropping::f").unwrap()
    };
    make().detach().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1, "dropped by the thread that detaches");
    make().detach_async().unwrap();
    drop(make());
    // Each destructor retires more: a barrier for each link of the chain.
    for _ in 0..4 {
        owlet_attach::quiesce();
    }
    assert_eq!(seen.load(Ordering::Relaxed), 3);
    assert!(is_off("*::dropping::*"));
}

mod first {
    #[owlet_attach::traced]
    pub(super) fn call(n: u64) -> u64 {
        n
    }
}

/// 64 threads' first calls at one barrier, while a program comes: one that is there already sees each of them
/// once, and whoever has attached sees each second call. (A thousand process starts are the torture's.)
#[test]
fn a6_first_calls_of_many_threads_at_once_find_everything_ready() {
    let _one = one();
    const THREADS: u64 = 64;
    let (early, late) = (quiet(), quiet());
    let kept = early.attach("*::first::call").unwrap();
    let (start, again) = (Barrier::new(65), Barrier::new(65));
    let (attached, seen) = std::thread::scope(|scope| {
        for n in 0..THREADS {
            let (start, again) = (&start, &again);
            scope.spawn(move || {
                start.wait();
                assert_eq!(first::call(n), n);
                again.wait();
                again.wait();
                assert_eq!(first::call(n), n);
            });
        }
        start.wait();
        let attached = late.attach("*::first::call").unwrap();
        again.wait();
        // Judged when nobody waits any more.
        let seen = (early.stats().runs, late.stats().runs);
        again.wait();
        (attached, seen)
    });
    assert!(seen.0 == THREADS && seen.1 <= THREADS, "{seen:?}");
    assert_eq!((early.stats().runs, late.stats().runs), (2 * THREADS, seen.1 + THREADS));
    attached.detach().unwrap();
    kept.detach().unwrap();
}

#[test]
fn windows_and_single_writes_do_the_same_and_each_stands_in_for_the_other() {
    #[traced(name = "batch::lone")]
    #[inline(never)]
    fn lone() {}
    if owlet_attach::site::KIND != "toggle" {
        return;
    }
    let _one = one();
    let program = quiet();
    for (mem, mprotect) in [(libc::EPERM, 0), (0, libc::EACCES)] {
        fake::refuse(mem, mprotect, || {
            let before = patch::counts();
            let attached = program.attach("*::many::*").unwrap();
            let lone_too = program.attach("batch::lone").unwrap();
            let after = patch::counts();
            if mem == 0 {
                assert_eq!(after.mem_writes - before.mem_writes, 2001);
                assert_eq!(after.windows, before.windows);
            } else {
                assert_eq!(after.mem_writes, before.mem_writes);
            }
            let runs = program.stats().runs;
            call_all();
            lone();
            assert_eq!(program.stats().runs - runs, 2001);
            attached.detach().unwrap();
            lone_too.detach().unwrap();
        });
        let runs = program.stats().runs;
        call_all();
        lone();
        assert_eq!(program.stats().runs, runs);
    }
}
