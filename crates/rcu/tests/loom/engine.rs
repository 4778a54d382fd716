//! Who leads, who follows, what a cookie means (`turns`), and how work reaches a worker that is about
//! to let go of it or to sleep (`link`).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use owlet_rcu::gate::{Gate, Kernel};
use owlet_rcu::link::{Link, Pokes};
use owlet_rcu::seq::{cookie_at, passed};
use owlet_rcu::turns::Turns;

use super::{ModelKernel, Without, World, grace_period};

/// As elsewhere, but waiting takes more branches than loom allows by itself.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// What an engine's model leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lacks {
    Nothing,
    /// The fence of the snapshot.
    L,
    /// The acquire of the poll.
    N,
    /// Mutant M4: a grace period in progress counts.
    Rounding,
}

fn lead(world: &World, turns: &Turns) {
    turns.begin();
    grace_period(world);
    turns.end();
}

/// One thread unpublishes, takes a cookie and polls it; another runs grace periods for reasons of its
/// own; a third reads.
fn engine_cookie(lacks: Lacks) {
    explore(3, move || {
        let world = World::new(Without::Nothing);
        let turns = Arc::new(Turns::new());
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read_atomic(0)
        });
        let updater = thread::spawn({
            let (world, turns) = (world.clone(), turns.clone());
            move || {
                world.shared.store(1, Ordering::Release);
                let cookie = match lacks {
                    Lacks::L => turns.snapshot(|| {}),
                    Lacks::Rounding => {
                        fence(Ordering::SeqCst);
                        cookie_at(turns.seq() & !1)
                    }
                    _ => turns.snapshot(|| fence(Ordering::SeqCst)),
                };
                if turns.poll(cookie) {
                    world.free(0);
                }
            }
        });
        lead(&world, &turns);
        lead(&world, &turns);
        reader.join().unwrap();
        updater.join().unwrap();
    });
}

/// GP-01, PO-02, PO-03: a cookie's moment is not too early.
#[test]
fn engine_snapshot() {
    engine_cookie(Lacks::Nothing);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn engine_snapshot_without_l_must_fail() {
    engine_cookie(Lacks::L);
}

/// Mutant M4.
#[test]
#[should_panic(expected = "Causality violation")]
fn engine_snapshot_one_short_must_fail() {
    engine_cookie(Lacks::Rounding);
}

/// One thread polls, another leads: what the leader saw the end of is over for the poller (PO-04).
fn engine_polled(lacks: Lacks) {
    explore(3, move || {
        let world = World::new(Without::Nothing);
        let turns = Arc::new(Turns::new());
        world.shared.store(1, Ordering::Release);
        let cookie = turns.snapshot(|| fence(Ordering::SeqCst));
        // A section that was there before, and ends some time.
        world.entries[0][0].fetch_add(1, Ordering::Relaxed);
        let reader = thread::spawn({
            let world = world.clone();
            move || {
                world.use_object(0);
                fence(Ordering::SeqCst);
                world.exits[0][0].fetch_add(1, Ordering::Relaxed);
            }
        });
        let poller = thread::spawn({
            let (world, turns) = (world.clone(), turns.clone());
            move || {
                let over = match lacks {
                    Lacks::N => passed(turns.seq(), cookie),
                    _ => turns.poll(cookie),
                };
                if over {
                    world.free(0);
                }
            }
        });
        lead(&world, &turns);
        reader.join().unwrap();
        poller.join().unwrap();
    });
}

#[test]
fn engine_poll() {
    engine_polled(Lacks::Nothing);
}

/// Mutant M5.
#[test]
#[should_panic(expected = "Causality violation")]
fn engine_poll_relaxed_must_fail() {
    engine_polled(Lacks::N);
}

/// Three wait at once: all come back, whoever leads and whoever sleeps.
fn engine_followers(fences: bool) {
    explore(2, move || {
        let turns = Arc::new(Turns::new());
        let kernel = Arc::new(ModelKernel::new(fences));
        let wait = move |turns: &Turns, kernel: &ModelKernel, me| {
            let cookie = turns.snapshot(|| fence(Ordering::SeqCst));
            turns.wait(kernel, me, cookie, || {
                turns.begin();
                turns.end();
                true
            });
        };
        let other = thread::spawn({
            let (turns, kernel) = (turns.clone(), kernel.clone());
            move || wait(&turns, &kernel, 1)
        });
        wait(&turns, &kernel, 2);
        other.join().unwrap();
    });
}

#[test]
fn engine_follow() {
    engine_followers(true);
}

#[test]
#[should_panic]
fn engine_follow_without_fences_must_fail() {
    engine_followers(false);
}

/// A kernel whose fences can be left out for the link alone.
struct Fences(bool);

impl Kernel for Fences {
    fn fence(&self) {
        if self.0 {
            fence(Ordering::SeqCst);
        }
    }

    fn wait(&self, _: &AtomicU32, _: u32) {}

    fn wake_all(&self, _: &AtomicU32) {}
}

/// A worker with one engine in its hands lets go of it while something is put down: it is found, or
/// on the stack.
fn letting_go(fences: bool) {
    explore(3, move || {
        let link = Arc::new(Link::new());
        let item = Arc::new(AtomicU32::new(0));
        link.take();
        let poster = thread::spawn({
            let (link, item) = (link.clone(), item.clone());
            move || {
                item.store(1, Ordering::Relaxed);
                link.offer(&Fences(fences))
            }
        });
        let ask = || (item.load(Ordering::Relaxed) != 0).then_some(());
        let found = link.let_go(&Fences(fences), ask).is_some();
        let on_stack = poster.join().unwrap();
        assert!(found || on_stack || ask().is_none() || !link.is_idle(), "lost");
    });
}

#[test]
fn worker_lets_go() {
    letting_go(true);
}

#[test]
#[should_panic]
fn worker_lets_go_without_fences_must_fail() {
    letting_go(false);
}

/// A worker that arrives, or looks and sleeps, while somebody pokes it.
fn sleep(fences: bool, second_look: bool) {
    explore(3, move || {
        let pokes = Arc::new(Pokes::new());
        let gate: &'static Gate = Box::leak(Box::new(Gate::new()));
        let kernel = Arc::new(ModelKernel::new(true));
        let item = Arc::new(AtomicU32::new(0));
        let worker = thread::spawn({
            let (pokes, item, kernel) = (pokes.clone(), item.clone(), kernel.clone());
            move || {
                pokes.arrive(&Fences(fences), 7);
                loop {
                    let seen = pokes.seen();
                    if item.load(Ordering::Relaxed) != 0 {
                        return;
                    }
                    if second_look {
                        pokes.sleep(&*kernel, gate, seen, || false);
                    } else {
                        gate.sleep_unless(&*kernel, || false);
                    }
                }
            }
        });
        item.store(1, Ordering::Relaxed);
        if fences {
            pokes.poke(&*kernel, |_| gate);
        } else {
            pokes.poke(&HalfFenced(&kernel), |_| gate);
        }
        worker.join().unwrap();
    });
}

/// Fences for the gate, none for the poke before it.
struct HalfFenced<'a>(&'a ModelKernel);

impl Kernel for HalfFenced<'_> {
    fn fence(&self) {}

    fn wait(&self, word: &AtomicU32, expected: u32) {
        self.0.wait(word, expected);
    }

    fn wake_all(&self, word: &AtomicU32) {
        self.0.wake_all(word);
    }
}

/// CB-07's kind: nothing is put down while the worker sleeps for good.
#[test]
fn worker_sleeps() {
    sleep(true, true);
}

#[test]
#[should_panic]
fn worker_sleeps_without_fences_must_fail() {
    sleep(false, true);
}

/// Mutant M20.
#[test]
#[should_panic]
fn worker_sleeps_without_second_look_must_fail() {
    sleep(true, false);
}
