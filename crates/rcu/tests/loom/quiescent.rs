//! Models of `quiescent` and `registry`: each barrier left out in turn must fail.

use super::explore;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;
use owlet_rcu::quiescent::{Clock, Fences, Letter, Scan};
use owlet_rcu::registry::{Chunk, List, Record};

/// All barriers but one.
#[derive(Clone, Copy)]
struct Without(&'static [Letter]);

impl Fences for Without {
    fn full(&self, letter: Letter) {
        if !self.0.contains(&letter) {
            fence(Ordering::SeqCst);
        }
    }

    fn release(&self, letter: Letter) {
        if !self.0.contains(&letter) {
            fence(Ordering::Release);
        }
    }

    fn acquire(&self, letter: Letter) {
        if !self.0.contains(&letter) {
            fence(Ordering::Acquire);
        }
    }
}

/// A domain, and what it protects.
struct World {
    f: Without,
    clock: Clock,
    list: List,
    shared: AtomicUsize,
    objects: [UnsafeCell<u32>; 3],
}

impl World {
    fn new(f: Without) -> Arc<Self> {
        Arc::new(Self {
            f,
            clock: Clock::new(),
            list: List::new(),
            shared: AtomicUsize::new(0),
            objects: [UnsafeCell::new(0), UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn register(&self, owner: usize) -> &'static Record {
        self.list.claim(owner, &self.f, Chunk::leaked)
    }

    fn use_shared(&self) {
        let object = self.shared.load(Ordering::Relaxed);
        self.objects[object].with(|o| {
            // SAFETY: what the model is about; loom reports a concurrent `free`.
            let _ = unsafe { *o };
        });
    }

    fn free(&self, object: usize) {
        self.objects[object].with_mut(|o| {
            // SAFETY: as in `use_shared`.
            unsafe { *o = 1 };
        });
    }

    fn wait(&self, mut scan: Scan) {
        while !scan.step(&self.f) {
            thread::yield_now();
        }
    }

    /// Unpublishes, waits for a grace period, frees.
    fn replace(&self, old: usize) {
        self.shared.store(old + 1, Ordering::Relaxed);
        self.wait(Scan::begin(&self.clock, &self.list, &self.f));
        self.free(old);
    }

    /// A thread that registers, reads, and ends.
    fn visit(&self, owner: usize) {
        let record = self.register(owner);
        record.mark.online(&self.clock, &self.f);
        self.use_shared();
        record.give_back(&self.f);
    }
}

fn share(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || run(&world))
}

/// A thread that registers, reads and unregisters while a grace period walks the list.
fn registering(f: Without) {
    explore(3, move || {
        let world = World::new(f);
        let reader = share(&world, |w| w.visit(1));
        world.replace(0);
        reader.join().unwrap();
    });
}

#[test]
fn qsbr_registering() {
    registering(Without(&[]));
}

#[test]
#[should_panic]
fn qsbr_registering_without_q1_must_fail() {
    registering(Without(&[Letter::Q1]));
}

#[test]
#[should_panic]
fn qsbr_registering_without_q2_must_fail() {
    registering(Without(&[Letter::Q2]));
}

#[test]
#[should_panic]
fn qsbr_registering_without_q4_must_fail() {
    registering(Without(&[Letter::Q4]));
}

#[test]
#[should_panic]
fn qsbr_registering_without_q5_must_fail() {
    // [Q6] of the walk's last step is an acquire too, in chunks of one record.
    registering(Without(&[Letter::Q5, Letter::Q6]));
}

/// Mutant M24: the threads that were registered before the clock moved are all that is waited for.
#[test]
#[should_panic]
fn qsbr_registering_snapshot_m24_must_fail() {
    explore(3, || {
        let f = Without(&[]);
        let world = World::new(f);
        let reader = share(&world, |w| w.visit(1));
        let known = world.list.records(&f);
        world.shared.store(1, Ordering::Relaxed);
        world.wait(Scan::over(&world.clock, known, &f));
        world.free(0);
        reader.join().unwrap();
    });
}

/// A thread that stays online, through a quiescent state, while two grace periods go by.
fn quiescent(f: Without, quiescent: fn(&Record, &World)) {
    explore(3, move || {
        let world = World::new(f);
        let record = world.register(1);
        record.mark.online(&world.clock, &f);
        let reader = share(&world, move |w| {
            for _ in 0..2 {
                w.use_shared();
                quiescent(record, w);
            }
            w.use_shared();
            record.mark.offline(&w.f);
        });
        world.replace(0);
        world.replace(1);
        reader.join().unwrap();
    });
}

fn say(record: &Record, world: &World) {
    record.mark.quiescent(&world.clock, &world.f);
}

#[test]
fn qsbr_quiescent() {
    quiescent(Without(&[]), say);
}

#[test]
#[should_panic]
fn qsbr_quiescent_without_q0_must_fail() {
    quiescent(Without(&[Letter::Q0]), say);
}

#[test]
#[should_panic]
fn qsbr_quiescent_without_q3_must_fail() {
    quiescent(Without(&[Letter::Q3]), say);
}

#[test]
#[should_panic]
fn qsbr_quiescent_without_q4_must_fail() {
    quiescent(Without(&[Letter::Q4]), say);
}

/// Offline and online again: the second section is a new one.
#[test]
fn qsbr_quiescent_by_going_offline() {
    quiescent(Without(&[]), go_out_and_in);
}

#[test]
#[should_panic]
fn qsbr_quiescent_by_going_offline_without_q1_must_fail() {
    quiescent(Without(&[Letter::Q1]), go_out_and_in);
}

fn go_out_and_in(record: &Record, world: &World) {
    record.mark.offline(&world.f);
    record.mark.online(&world.clock, &world.f);
}

/// One record goes from thread to thread. (The last owner's words must not land on the next one's.)
fn reuse(f: Without) {
    explore(3, move || {
        let world = World::new(f);
        let record = world.register(1);
        record.mark.online(&world.clock, &f);
        let second = share(&world, |w| {
            // The free record or one of its own, whichever it finds.
            w.visit(2);
        });
        let updater = share(&world, |w| w.replace(0));
        record.give_back(&f);
        second.join().unwrap();
        updater.join().unwrap();
    });
}

#[test]
fn registry_reuse() {
    reuse(Without(&[]));
}

#[test]
#[should_panic]
fn registry_reuse_without_q7_must_fail() {
    reuse(Without(&[Letter::Q7]));
}

/// Two threads register at once: two records, and a walk that finds one finds the other.
fn pushing(f: Without) {
    explore(3, move || {
        let world = World::new(f);
        let first = world.register(1);
        let other = share(&world, |w| {
            w.register(2);
        });
        // The other thread first: loom does not go back to a load that another thread's load of the
        // same word came after.
        thread::yield_now();
        let all = world.list.records(&f);
        assert!(all.find(&f, |r| r.owner() == 1).is_some(), "the walk misses a thread");
        other.join().unwrap();
        let _ = first;
    });
}

#[test]
fn registry_push() {
    pushing(Without(&[]));
}

#[test]
#[should_panic]
fn registry_push_without_q6_must_fail() {
    pushing(Without(&[Letter::Q6]));
}

/// Two threads at once never share a record.
#[test]
fn registry_push_by_two() {
    explore(3, || {
        let world = World::new(Without(&[]));
        let other = share(&world, |w| {
            let record = w.register(2);
            assert_eq!(record.owner(), 2);
        });
        let mine = world.register(1);
        assert_eq!(mine.owner(), 1);
        other.join().unwrap();
        assert_eq!(mine.owner(), 1, "shared");
    });
}
