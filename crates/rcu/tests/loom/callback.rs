//! Models of the callback queue: nothing is forgotten between posting, collecting and sleeping, and a
//! barrier waits for what was posted before it. Grace periods are a counter here; when one is over is
//! the matter of other models.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use owlet_rcu::callback::head::{Callback, Head};
use owlet_rcu::callback::queue::{Letter, Periods, Policy, Pushed, Queue, Urgency};
use owlet_rcu::gate::{Gate, Kernel};
use std::ptr::NonNull;

/// As elsewhere, but the worker's turns are long: they need more branches than loom allows by itself.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 5_000;
    builder.check(model);
}

/// What a model leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    C1,
    C2,
    /// The worker's second look before it sleeps.
    Recheck,
}

/// A domain with a queue, and a worker's doorbell. The futexes are the model's own: one that is never
/// woken runs out of branches.
struct World {
    without: Without,
    seq: AtomicU64,
    queue: Queue,
    door: Gate,
    door_asleep: Mutex<bool>,
    stop: AtomicBool,
}

/// A queued object: counts its calls where loom sees races.
#[repr(C)]
struct Object {
    head: Head,
    calls: UnsafeCell<u32>,
    /// The cookie of the poster's own snapshot.
    cookie: AtomicU64,
}

impl Object {
    fn new() -> Arc<Self> {
        Arc::new(Self { head: Head::new(), calls: UnsafeCell::new(0), cookie: AtomicU64::new(0) })
    }

    fn calls(&self) -> u32 {
        self.calls.with(|calls| {
            // SAFETY: what the models are about; loom reports a callback that is still running.
            unsafe { *calls }
        })
    }
}

unsafe fn count(head: NonNull<Head>) {
    // SAFETY: the head is the first field of an object that its test keeps.
    let object = unsafe { head.cast::<Object>().as_ref() };
    object.calls.with_mut(|calls| {
        // SAFETY: as in `calls`.
        unsafe { *calls += 1 };
    });
}

struct Futex<'a>(&'a Mutex<bool>);

impl Kernel for Futex<'_> {
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn wait(&self, word: &AtomicU32, expected: u32) {
        {
            let mut asleep = self.0.lock().unwrap();
            *asleep = word.load(Ordering::Relaxed) == expected;
        }
        while *self.0.lock().unwrap() {
            thread::yield_now();
        }
    }

    fn wake_all(&self, _: &AtomicU32) {
        *self.0.lock().unwrap() = false;
    }
}

impl Periods for World {
    fn snapshot(&self) -> u64 {
        self.seq.load(Ordering::Relaxed) + 1
    }

    fn passed(&self, cookie: u64) -> bool {
        self.seq.load(Ordering::Acquire) >= cookie
    }

    fn fence(&self, letter: Letter) {
        match (self.without, letter) {
            (Without::C1, Letter::C1) | (Without::C2, Letter::C2) => {}
            _ => fence(Ordering::SeqCst),
        }
    }

    unsafe fn invoke(&self, func: Callback, head: NonNull<Head>) -> bool {
        // SAFETY: all heads here are of objects.
        let object = unsafe { head.cast::<Object>().as_ref() };
        let cookie = object.cookie.load(Ordering::Relaxed);
        assert!(self.passed(cookie), "called before a grace period that began after it was posted");
        // SAFETY: the caller's.
        unsafe { func(head) };
        true
    }

    fn policy(&self) -> Policy {
        Policy { window_ns: 0, many: 100, bytes: 100, turn: 10 }
    }
}

impl World {
    fn new(without: Without) -> Arc<Self> {
        Arc::new(Self {
            without,
            seq: AtomicU64::new(1),
            queue: Queue::new(),
            door: Gate::new(),
            door_asleep: Mutex::new(false),
            stop: AtomicBool::new(false),
        })
    }

    fn post(&self, object: &Object) {
        object.cookie.store(self.snapshot(), Ordering::Relaxed);
        // SAFETY: objects outlive the worker.
        let pushed =
            unsafe { self.queue.push(self, 0, NonNull::from(&object.head), count, Urgency::Lazy) };
        if pushed == Pushed::Ring {
            self.ring();
        }
    }

    fn ring(&self) {
        self.door.open(&Futex(&self.door_asleep));
    }

    /// The worker, until it is told to stop and `enough`.
    fn work(&self, enough: impl Fn() -> bool) {
        let nobody = Mutex::new(false);
        while !enough() {
            let need = self.queue.advance(self, &Futex(&nobody), 7, 1);
            if let Some(cookie) = need.cookie {
                self.seq.store(cookie, Ordering::Release);
            } else if !need.again && !enough() {
                let awake = || self.queue.calls() || self.stop.load(Ordering::Relaxed);
                let look = || self.without != Without::Recheck && awake();
                self.door.sleep_unless(&Futex(&self.door_asleep), look);
            }
        }
    }
}

/// Threads post while the worker, called by somebody else, collects, runs and falls asleep.
fn posters<const N: usize>(preemptions: usize, without: Without) {
    explore(preemptions, move || {
        let world = World::new(without);
        let objects = [(); N].map(|()| Object::new());
        if N == 1 {
            world.queue.want(1);
        }
        let posters = objects.clone().map(|object| {
            let world = world.clone();
            thread::spawn(move || world.post(&object))
        });
        // `stats` is the worker's own count.
        world.work(|| world.queue.stats().invoked == N as u64);
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        assert_eq!(objects.each_ref().map(|o| o.calls()), [1; N]);
    });
}

/// CB-01, CB-07: each callback is called, once, and the worker does not sleep through one.
#[test]
fn callback_posters() {
    posters::<1>(3, Without::Nothing);
}

#[test]
#[should_panic]
fn callback_posters_without_c1_must_fail() {
    posters::<1>(3, Without::C1);
}

#[test]
#[should_panic]
fn callback_posters_without_c2_must_fail() {
    posters::<1>(3, Without::C2);
}

/// Mutant M20: the worker sleeps without a second look.
#[test]
#[should_panic]
fn callback_posters_without_second_look_must_fail() {
    posters::<1>(3, Without::Recheck);
}

/// Two that link into one shard.
#[test]
fn callback_posters_two() {
    posters::<2>(1, Without::Nothing);
}

/// A thread posts and is joined by (here: is) one that then waits at a barrier, while another call
/// has the worker collecting already.
fn barrier(without: Without, wait: fn(&World)) {
    explore(3, move || {
        let world = World::new(without);
        let object = Object::new();
        world.queue.want(1);
        let worker = thread::spawn({
            let world = world.clone();
            move || world.work(|| world.stop.load(Ordering::Relaxed))
        });
        world.post(&object);
        wait(&world);
        let calls = object.calls();
        world.stop.store(true, Ordering::Relaxed);
        world.ring();
        worker.join().unwrap();
        assert_eq!(calls, 1);
    });
}

fn wait_for_batch(world: &World) {
    let batch = world.queue.last_batch();
    while !world.queue.is_finished(batch) {
        world.queue.want(batch);
        world.ring();
        thread::yield_now();
    }
}

/// BA-01: a barrier returns after the callbacks posted before it.
#[test]
fn callback_barrier() {
    barrier(Without::Nothing, wait_for_batch);
}

#[test]
#[should_panic]
fn callback_barrier_without_c1_must_fail() {
    barrier(Without::C1, wait_for_batch);
}

#[test]
#[should_panic]
fn callback_barrier_without_c2_must_fail() {
    barrier(Without::C2, wait_for_batch);
}

/// Mutant M22: a queue that holds nothing is taken for idle, though a callback is in flight.
#[test]
#[should_panic]
fn callback_barrier_that_skips_empty_queues_must_fail() {
    barrier(Without::Nothing, |world| {
        while world.queue.has_work() {
            world.ring();
            thread::yield_now();
        }
    });
}
