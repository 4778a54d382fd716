//! Models of the grace-period protocol and of the gate, each with twins that must fail.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p owlet-rcu --release --test loom`
//!
//! The models run the shipping code of `protocol` and `gate`. What they carry and what they do not is
//! said in the header of `protocol`.
#![cfg(loom)]

#[path = "loom/callback.rs"]
mod callback;
#[path = "loom/engine.rs"]
mod engine;
#[path = "loom/free.rs"]
mod free;
#[path = "loom/quiescent.rs"]
mod quiescent;
#[path = "loom/rwlock.rs"]
mod rwlock;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use owlet_rcu::gate::{Gate, Kernel};
use owlet_rcu::protocol::{self, Letter, Machine, is_empty};

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// What a model leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    E,
    R1,
    R2,
    Heavy,
}

const CPUS: usize = 2;

/// A domain, what it protects, and a mutex per CPU: a sequence holds its CPU's.
struct World {
    without: Without,
    index: AtomicU32,
    entries: [[AtomicU32; 2]; CPUS],
    exits: [[AtomicU32; 2]; CPUS],
    cpu: [Mutex<()>; CPUS],
    shared: AtomicUsize,
    objects: [UnsafeCell<u32>; 3],
}

impl World {
    fn new(without: Without) -> Arc<Self> {
        let words = || [AtomicU32::new(0), AtomicU32::new(0)];
        Arc::new(Self {
            without,
            index: AtomicU32::new(0),
            entries: [words(), words()],
            exits: [words(), words()],
            cpu: [Mutex::new(()), Mutex::new(())],
            shared: AtomicUsize::new(0),
            objects: [UnsafeCell::new(0), UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn use_shared(&self) {
        self.use_object(self.shared.load(Ordering::Acquire));
    }

    fn use_object(&self, object: usize) {
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

    /// A reader without rseq: looks at the index, and some time later counts itself.
    fn read_atomic(&self, cpu: usize) {
        let rank = self.index.load(Ordering::Relaxed) as usize;
        self.entries[cpu][rank].fetch_add(1, Ordering::Relaxed);
        if self.without != Without::R1 {
            fence(Ordering::SeqCst);
        }
        self.use_shared();
        if self.without != Without::R2 {
            fence(Ordering::SeqCst);
        }
        self.exits[cpu][rank].fetch_add(1, Ordering::Relaxed);
    }

    /// A reader with rseq: index and count in one sequence; a release on exit and nothing else.
    fn read_sequence(&self, cpu: usize) {
        let rank = {
            let _here = self.cpu[cpu].lock().unwrap();
            let rank = self.index.load(Ordering::Acquire) as usize;
            let word = &self.entries[cpu][rank];
            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            rank
        };
        self.use_shared();
        let _here = self.cpu[cpu].lock().unwrap();
        let word = &self.exits[cpu][rank];
        let order = if self.without == Without::R2 { Ordering::Relaxed } else { Ordering::Release };
        word.store(word.load(Ordering::Relaxed) + 1, order);
    }

    fn sum(words: &[[AtomicU32; 2]; CPUS], rank: u32) -> u64 {
        let sum = words.iter().map(|cpu| cpu[rank as usize].load(Ordering::Relaxed)).sum::<u32>();
        // Mutant M3: no barrier between the sums, neither [F] nor this.
        if !owlet_percpu::planted!("M3") {
            fence(Ordering::Acquire);
        }
        u64::from(sum)
    }
}

impl Machine for World {
    fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    fn set_index(&self, rank: u32) {
        self.index.store(rank, Ordering::Relaxed);
    }

    fn entries(&self, rank: u32) -> u64 {
        Self::sum(&self.entries, rank)
    }

    fn exits(&self, rank: u32) -> u64 {
        Self::sum(&self.exits, rank)
    }

    fn fence(&self, letter: Letter) {
        // [F] is as strong a fence as [E] here (all that [F] needs is load-load), so the twin
        // without [E] has the weaker [F].
        match (self.without, letter) {
            (Without::E, Letter::E) => {}
            (Without::E, Letter::F) => fence(Ordering::Acquire),
            _ => fence(Ordering::SeqCst),
        }
    }
}

impl World {
    fn heavy(&self) {
        if self.without == Without::Heavy {
            return;
        }
        fence(Ordering::SeqCst);
        for cpu in &self.cpu {
            drop(cpu.lock().unwrap());
        }
        fence(Ordering::SeqCst);
    }
}

fn grace_period(world: &World) {
    protocol::grace_period(world, || world.heavy(), thread::yield_now);
}

fn one_grace_period(world: &World) {
    world.shared.store(1, Ordering::Release);
    grace_period(world);
    world.free(0);
}

fn atomic_readers(without: Without) {
    explore(3, move || {
        let world = World::new(without);
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read_atomic(0)
        });
        one_grace_period(&world);
        reader.join().unwrap();
    });
}

#[test]
fn atomic_reader() {
    atomic_readers(Without::Nothing);
}

#[test]
#[should_panic]
fn atomic_reader_without_r1_must_fail() {
    atomic_readers(Without::R1);
}

/// A straggler of the grace period before last.
fn straggler(grace_period: fn(&World)) {
    explore(3, move || {
        let world = World::new(Without::Nothing);
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read_atomic(0)
        });
        for round in 1..3 {
            world.shared.store(round, Ordering::Release);
            grace_period(&world);
            world.free(round - 1);
        }
        reader.join().unwrap();
    });
}

/// SR-03: both ranks are drained.
#[test]
fn sr_03_straggler() {
    straggler(grace_period);
}

/// Mutant M1: the rank the index does not name is not looked at.
#[test]
#[should_panic]
fn sr_03_straggler_one_rank_must_fail() {
    straggler(|w| {
        w.fence(Letter::E);
        let old = w.index();
        w.set_index(old ^ 1);
        w.heavy();
        while !is_empty(w, old) {
            thread::yield_now();
        }
        w.fence(Letter::H);
    });
}

/// [E] orders the unpublishing before step 1, whose rank only a straggler can be in.
#[test]
#[should_panic]
fn sr_03_straggler_without_e_must_fail() {
    straggler_without(Without::E);
}

/// [R1] likewise, on the straggler's side.
#[test]
#[should_panic]
fn sr_03_straggler_without_r1_must_fail() {
    straggler_without(Without::R1);
}

fn straggler_without(without: Without) {
    explore(3, move || {
        let world = World::new(without);
        // The index has just been flipped; the reader still goes for the old rank.
        let reader = thread::spawn({
            let world = world.clone();
            move || {
                world.entries[0][1].fetch_add(1, Ordering::Relaxed);
                if without != Without::R1 {
                    fence(Ordering::SeqCst);
                }
                world.use_shared();
                fence(Ordering::SeqCst);
                world.exits[0][1].fetch_add(1, Ordering::Relaxed);
            }
        });
        one_grace_period(&world);
        reader.join().unwrap();
    });
}

#[test]
fn sr_03_straggler_in_flight() {
    straggler_without(Without::Nothing);
}

/// Two stragglers in the old rank while a third party looks whether it is empty.
fn sums(is_empty: fn(&World, u32) -> bool) {
    explore(3, move || {
        let world = World::new(Without::Nothing);
        // One section is open in rank 0 and stays so until the looker is done.
        world.entries[0][0].fetch_add(1, Ordering::Relaxed);
        let other = thread::spawn({
            let world = world.clone();
            move || world.read_atomic(1)
        });
        let empty = is_empty(&world, 0);
        assert!(!empty, "a section is open");
        other.join().unwrap();
    });
}

/// SR-04: exits are summed before entries.
#[test]
fn sr_04_exits_first() {
    sums(|w, rank| is_empty(w, rank));
}

/// Mutant M2: entries first.
#[test]
#[should_panic]
fn sr_04_entries_first_must_fail() {
    sums(|w, rank| {
        let entries = w.entries(rank);
        w.fence(Letter::F);
        w.exits(rank) == entries
    });
}

fn sequence_readers(without: Without) {
    explore(3, move || {
        let world = World::new(without);
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read_sequence(1)
        });
        one_grace_period(&world);
        reader.join().unwrap();
    });
}

/// One flip and one membarrier.
#[test]
fn sequence_reader() {
    sequence_readers(Without::Nothing);
}

/// Mutant L2: no membarrier between the flip and the sums.
#[test]
#[should_panic]
fn sequence_reader_without_membarrier_must_fail() {
    sequence_readers(Without::Heavy);
}

#[test]
#[should_panic]
fn sequence_reader_without_r2_must_fail() {
    // The exit's sequence is a critical section of its CPU's mutex in the model, which nobody else
    // takes after it: the release on the word is all there is.
    sequence_readers(Without::R2);
}

/// Two readers on one CPU and two grace periods, so that both ranks are used.
#[test]
fn sequence_reader_two_grace_periods() {
    explore(2, || {
        let world = World::new(Without::Nothing);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || world.read_sequence(0))
            })
            .collect();
        one_grace_period(&world);
        world.shared.store(2, Ordering::Release);
        grace_period(&world);
        world.free(1);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// A futex: the kernel compares the word and queues the sleeper under one lock. The sleeper polls
/// (loom's own deadlock report cannot be caught); one that is never woken runs out of branches.
struct ModelKernel {
    fences: bool,
    asleep: Mutex<bool>,
}

impl ModelKernel {
    fn new(fences: bool) -> Self {
        Self { fences, asleep: Mutex::new(false) }
    }
}

impl Kernel for ModelKernel {
    fn fence(&self) {
        if self.fences {
            fence(Ordering::SeqCst);
        }
    }

    fn wait(&self, word: &AtomicU32, expected: u32) {
        {
            let mut asleep = self.asleep.lock().unwrap();
            *asleep = word.load(Ordering::Relaxed) == expected;
        }
        while *self.asleep.lock().unwrap() {
            thread::yield_now();
        }
    }

    fn wake_all(&self, _: &AtomicU32) {
        *self.asleep.lock().unwrap() = false;
    }
}

fn gate(fences: bool) {
    explore(3, move || {
        let kernel = Arc::new(ModelKernel::new(fences));
        let gate = Arc::new(Gate::new());
        let done = Arc::new(AtomicBool::new(false));
        let sleeper = thread::spawn({
            let (kernel, gate, done) = (kernel.clone(), gate.clone(), done.clone());
            move || gate.sleep_unless(&*kernel, || done.load(Ordering::Acquire))
        });
        done.store(true, Ordering::Release);
        gate.open(&*kernel);
        sleeper.join().unwrap();
    });
}

/// CB-07's kind: nobody sleeps through the opening.
#[test]
fn gate_sleepers() {
    gate(true);
}

#[test]
#[should_panic]
fn gate_sleepers_without_fences_must_fail() {
    gate(false);
}
