//! Tasks and Tasks-Trace, statement by statement (the ids are those of the acceptance list).

mod common;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{Background, NEVER, SOON, alone, handle, in_storm, until, waiter, watched};
use owlet_percpu::{Backend, backend};
use owlet_rcu::tasks::Tuning;
use owlet_rcu::{Tasks, TasksTrace};

fn leaked(tuning: Tuning) -> &'static Tasks {
    Box::leak(Box::new(Tasks::with("", tuning)))
}

/// A thread somewhere in replaceable code, doing what it is told there.
struct Wanderer {
    orders: mpsc::Sender<fn(&mut owlet_rcu::Task<'_>)>,
    done: mpsc::Receiver<()>,
    thread: thread::JoinHandle<()>,
}

fn wander(domain: &'static Tasks) -> Wanderer {
    let (orders, told) = mpsc::channel::<fn(&mut owlet_rcu::Task<'_>)>();
    let (says, done) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut task = domain.register();
        let _ = says.send(());
        while let Ok(order) = told.recv() {
            order(&mut task);
            let _ = says.send(());
        }
    });
    done.recv().expect("registered");
    Wanderer { orders, done, thread }
}

impl Wanderer {
    fn order(&self, order: fn(&mut owlet_rcu::Task<'_>)) {
        let _ = self.orders.send(order);
        self.done.recv().expect("obeys");
    }

    fn end(self) {
        drop(self.orders);
        self.thread.join().expect("no panic");
    }
}

/// TK-01: being descheduled is not a quiescent state; a voluntary point, going offline and the end
/// are.
#[test]
fn tk_01_only_voluntary_points_end_a_section() {
    let domain = leaked(Tuning::DEFAULT);
    let wanderer = wander(domain);
    let waits = waiter(&domain);
    // It is asleep in recv(), without having said so: that is all a preempted thread looks like.
    waits.goes_on("a sleeping thread was taken for a quiet one");
    wanderer.order(|_| thread::yield_now());
    waits.goes_on("giving up the CPU is no voluntary point");
    // More than once: the waiter may not have begun.
    waits.until_done(|| wanderer.order(|task| task.quiescent()));

    let waits = waiter(&domain);
    waits.goes_on("the next section");
    waits.until_done(|| wanderer.order(|task| task.offline(|| ())));

    let waits = waiter(&domain);
    waits.goes_on("and the next");
    wanderer.end();
    waits.ends("the end is one");
}

/// TK-01: waiting for a grace period of the domain is a voluntary point, alone or among others.
#[test]
fn tk_01_waiting_is_a_voluntary_point() {
    let domain = leaked(Tuning::DEFAULT);
    let both = Barrier::new(2);
    let wait_in_pairs = |wait: fn(&Tasks)| {
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    let _task = domain.register();
                    both.wait();
                    // Each is online at its call, and waits for the other.
                    wait(domain);
                    domain.assert_online();
                });
            }
        });
    };
    for _ in 0..20 {
        wait_in_pairs(|domain| domain.synchronize());
        wait_in_pairs(|domain| owlet_rcu::wait_all(&[domain]));
    }
    assert!(domain.holdouts().is_empty());
    // Online again afterwards: somebody else waits for it.
    let task = domain.register();
    domain.synchronize();
    let waits = waiter(&domain);
    waits.goes_on("a wait took the thread offline for good");
    drop(task);
    waits.ends("the thread has unregistered");
}

/// TK-02: a thread that sleeps in a function called from replaceable code is not waited for.
#[test]
fn tk_02_a_sleeper_called_from_an_image_is_not_waited_for() {
    static CODE: Tasks = Tasks::new();
    let (asleep, wake) = (Barrier::new(2), Barrier::new(2));
    let back = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let mut task = CODE.register();
            let image = |task: &mut owlet_rcu::Task<'_>| {
                task.offline(|| {
                    asleep.wait();
                    wake.wait();
                });
                back.store(true, Ordering::Relaxed);
            };
            image(&mut task);
        });
        asleep.wait();
        watched("a grace period beside a sleeper", || CODE.synchronize());
        assert!(!back.load(Ordering::Relaxed), "it still sleeps inside");
        wake.wait();
    });
}

static EXITING: Tasks = Tasks::new();

/// Runs replaceable code in a thread-local destructor that runs after the library's own.
struct LateVisitor(Cell<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>);

impl Drop for LateVisitor {
    fn drop(&mut self) {
        if let Some((inside, leave)) = self.0.take() {
            EXITING.attach();
            let _ = inside.send(());
            let _ = leave.recv();
        }
    }
}

thread_local! {
    static LATE_VISITOR: LateVisitor = const { LateVisitor(Cell::new(None)) };
}

/// TK-03: a thread in its last destructors is waited for until it has really ended.
#[test]
fn tk_03_an_exiting_thread_cannot_slip_away() {
    let (inside, is_inside) = mpsc::channel();
    let (leave, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        // Initialised first, so destroyed last.
        LATE_VISITOR.with(|v| v.0.set(Some((inside, told))));
        EXITING.attach();
        EXITING.attach();
        EXITING.quiescent_attached();
        assert_eq!(EXITING.offline_attached(|| 3), 3);
    });
    is_inside.recv().expect("its destructor runs");
    let waits = waiter(&&EXITING);
    waits.goes_on("the thread is still inside");
    leave.send(()).expect("told");
    waits.ends("the thread has ended");
    thread.join().expect("no panic");
}

/// TK-03: threads that attach and end leave nothing behind.
#[test]
fn tk_03_attached_threads_unregister_at_their_end() {
    static DOMAIN: Tasks = Tasks::new();
    for _ in 0..10 {
        let burst: Vec<_> = (0..16).map(|_| thread::spawn(|| DOMAIN.attach())).collect();
        DOMAIN.synchronize();
        burst.into_iter().for_each(|t| t.join().expect("no panic"));
    }
    waiter(&&DOMAIN).ends("nobody is left");
    assert!(DOMAIN.holdouts().is_empty());
    assert_eq!(DOMAIN.abandoned(), 0);
}

/// TK-04: what nobody waits for gathers for the window and shares one grace period.
#[test]
fn tk_04_lazy_requests_share_one_grace_period() {
    let domain = leaked(Tuning { window: NEVER, ..Tuning::DEFAULT });
    let cookies: Vec<_> = (0..10).map(|_| domain.start_poll()).collect();
    thread::sleep(SOON);
    assert_eq!(domain.stats().grace_periods, 0, "began before the window was over");
    // Somebody in a hurry takes them along.
    let hurried = domain.start_poll_expedited();
    until("the hurried one", || domain.poll(hurried));
    assert!(cookies.iter().all(|c| domain.poll(*c)));
    assert_eq!(domain.stats().grace_periods, 1, "they did not share");
    // A window that is over begins one without further calls, and not before.
    let window = Duration::from_millis(60);
    let domain = leaked(Tuning { window, ..Tuning::DEFAULT });
    let begun = Instant::now();
    let cookie = domain.start_poll();
    until("the window's end", || domain.poll(cookie));
    assert!(begun.elapsed() >= window, "began before the window was over");
}

/// TK-04: a waiter does not sit the window out, and takes the lazy ones along; nor does an expedited
/// request.
#[test]
fn tk_04_a_waiter_makes_it_urgent() {
    let domain = leaked(Tuning { window: NEVER, ..Tuning::DEFAULT });
    let lazy = domain.start_poll();
    thread::sleep(SOON);
    assert!(!domain.poll(lazy));
    waiter(&domain).ends("whoever waits does not sit the window out");
    assert!(domain.poll(lazy));
    let hurried = domain.start_poll_expedited();
    until("nor who is in a hurry", || domain.poll(hurried));
}

/// TK-04: a few callbacks sit the window out, 32 together do not; nor does a barrier.
#[test]
fn tk_04_many_callbacks_make_it_urgent() {
    static RUN: AtomicU32 = AtomicU32::new(0);
    let domain = leaked(Tuning { window: NEVER, ..Tuning::DEFAULT });
    let call = || {
        domain.call(|| {
            RUN.fetch_add(1, Ordering::Relaxed);
        });
    };
    (0..10).for_each(|_| call());
    thread::sleep(4 * SOON);
    assert_eq!(RUN.load(Ordering::Relaxed), 0, "they did not gather");
    (0..54).for_each(|_| call());
    until("32 have run", || RUN.load(Ordering::Relaxed) >= 32);
    assert!(domain.stats().grace_periods <= 10, "they did not share");
    domain.barrier();
    assert_eq!(RUN.load(Ordering::Relaxed), 64);
}

/// TK-04: the least pause between grace periods, and that the expedited ones do without.
#[test]
fn tk_04_the_pause_is_kept() {
    let pause = Duration::from_millis(50);
    let domain = leaked(Tuning { pause, window: Duration::ZERO, ..Tuning::DEFAULT });
    domain.synchronize();
    let begin = Instant::now();
    for _ in 0..4 {
        domain.synchronize();
    }
    assert!(begin.elapsed() >= 4 * pause - pause / 2, "{:?}", begin.elapsed());
    let domain = leaked(Tuning { pause: NEVER, window: Duration::ZERO, ..Tuning::DEFAULT });
    waiter(&domain).ends("there is no pause before the first");
    let waits = waiter(&domain);
    waits.goes_on("the pause is not over");
    domain.synchronize_expedited();
    waits.ends("the expedited one did");
    assert_eq!(Tuning::DEFAULT.pause, Duration::ZERO);
}

/// TK-05: the hold-outs are listed, in the report of a stall too.
#[test]
fn tk_05_holdouts_are_listed() {
    static CODE: Tasks = Tasks::named("code");
    static TOLD: Mutex<Vec<owlet_rcu::stall::Report>> = Mutex::new(Vec::new());
    if !alone("tk_05_holdouts_are_listed") {
        return;
    }
    owlet_rcu::stall::set_timeout(Some(Duration::from_millis(50)));
    owlet_rcu::stall::set_reporter(|report| {
        TOLD.lock().expect("no panic").push(report.clone());
    });
    let (ready, leave) = (Arc::new(Barrier::new(4)), Arc::new(Barrier::new(4)));
    let threads: Vec<_> = (0..3)
        .map(|n| {
            let (ready, leave) = (ready.clone(), leave.clone());
            let name = format!("holdout-{n}");
            let run = move || {
                let mut task = CODE.register();
                ready.wait();
                // The third one is offline, and no hold-out.
                if n == 2 {
                    task.offline(|| leave.wait());
                } else {
                    leave.wait();
                }
            };
            thread::Builder::new().name(name).spawn(run).expect("a thread")
        })
        .collect();
    ready.wait();
    assert!(CODE.holdouts().is_empty(), "nothing is held up yet");
    let waiter = waiter(&&CODE);
    until("a report", || !TOLD.lock().expect("no panic").is_empty());
    assert!(waiter.try_recv().is_err());
    let check = |holders: &[owlet_rcu::Holder]| {
        let mut names: Vec<_> = holders.iter().map(|h| h.thread.clone()).collect();
        names.sort();
        assert_eq!(names, ["holdout-0", "holdout-1"]);
        assert!(holders.iter().all(|h| h.tid != 0 && h.what == "task"));
    };
    check(&CODE.holdouts());
    let told = TOLD.lock().expect("no panic").clone();
    let report = told.first().expect("a report");
    assert_eq!(report.domain, "code");
    check(&report.holders);
    leave.wait();
    waiter.ends("nobody is left inside");
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
}

/// TK-06: a section sleeps, and only its end ends it.
#[test]
fn tk_06_sections_may_sleep() {
    static PROGRAMS: TasksTrace = TasksTrace::new();
    let outer = PROGRAMS.read();
    let cookie = PROGRAMS.snapshot();
    thread::scope(|s| {
        s.spawn(|| PROGRAMS.synchronize());
        for _ in 0..3 {
            let _inner = PROGRAMS.read();
            thread::sleep(Duration::from_millis(20));
        }
        assert!(!PROGRAMS.poll(cookie), "an inner end ended the outer one");
        drop(outer);
    });
    assert!(PROGRAMS.poll(cookie));
}

static STORMED: TasksTrace = TasksTrace::new();
static OBJECT: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static WRONG: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicU32 = AtomicU32::new(0);

fn look() {
    let object = OBJECT.load(Ordering::Acquire);
    // SAFETY: null, or freed only after a grace period that began after it was replaced.
    let Some(object) = (unsafe { object.as_ref() }) else { return };
    for _ in 0..20 {
        if object.load(Ordering::Relaxed) != 1 {
            WRONG.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// TK-06 and GP-13: sections in a handler that interrupts entries and exits of sections.
#[test]
fn tk_06_gp_13_sections_in_a_signal_storm() {
    extern "C" fn handler(_: i32) {
        let _section = STORMED.read();
        look();
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    if !alone("tk_06_gp_13_sections_in_a_signal_storm") {
        return;
    }
    handle(libc::SIGUSR1, handler);
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let fresh = Box::into_raw(Box::new(AtomicU64::new(1)));
                let old = OBJECT.swap(fresh, Ordering::AcqRel);
                STORMED.synchronize_expedited();
                // SAFETY: unpublished before the grace period; null or from a box.
                if let Some(old) = unsafe { old.as_ref() } {
                    old.store(0xdead, Ordering::Relaxed);
                    // SAFETY: as above; nobody has it any more.
                    drop(unsafe { Box::from_raw(std::ptr::from_ref(old).cast_mut()) });
                }
            }
        });
        in_storm(libc::SIGUSR1, || {
            watched("2000 signals", || {
                while HANDLED.load(Ordering::Relaxed) < 2000 {
                    let outer = STORMED.read();
                    look();
                    let inner = STORMED.read();
                    drop(outer);
                    look();
                    drop(inner);
                }
            });
        });
        stop.store(true, Ordering::Relaxed);
    });
    STORMED.synchronize();
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
}

/// TK-07: each grace period contains a plain one: a membarrier that restarts all sequences.
#[test]
fn tk_07_a_grace_period_contains_a_plain_one() {
    let domain = TasksTrace::new();
    for _ in 0..10 {
        domain.synchronize();
    }
    let stats = domain.stats();
    assert_eq!(stats.grace_periods, 10);
    let each = u64::from(backend() == Backend::Rseq);
    assert_eq!(stats.membarriers, 10 * each);
}
