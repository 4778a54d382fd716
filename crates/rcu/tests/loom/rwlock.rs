//! `rcu_sync` and the reader-writer lock: memory order with three threads, and wakeups.
//!
//! As elsewhere, a sequence is a critical section of its CPU's mutex, and the membarrier a passage through
//! each of those mutexes. What is added to that is `Relaxed`, so that a missing letter is a data race.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use owlet_rcu::rcu_sync::grace::GracePeriod;
use owlet_rcu::rcu_sync::machine::{Exiting, Passing};
use owlet_rcu::rcu_sync::word::Core;
use owlet_rcu::rwlock::protocol::{self, Counters, Letter, Words};
use owlet_rcu::rwlock::seat::{Announced, Seat};

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// What a model leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lacks {
    Nothing,
    /// The grace period of whoever enters.
    EnterGp,
    /// The grace period before readers are fast again.
    ExitGp,
    Letter(Letter),
    /// `[X]`.
    X,
    /// The second look under the queue's lock.
    Announcement,
}

/// Grace periods of one reader's CPU.
struct Cpu {
    lacks: Lacks,
    sequence: Mutex<()>,
}

impl Cpu {
    fn new(lacks: Lacks) -> Self {
        Self { lacks, sequence: Mutex::new(()) }
    }

    fn heavy(&self) {
        fence(Ordering::SeqCst);
        drop(self.sequence.lock().unwrap());
        fence(Ordering::SeqCst);
    }
}

impl GracePeriod for Cpu {
    fn snapshot(&self) -> u64 {
        0
    }

    /// Brought about by whoever polls.
    fn start(&self) -> u64 {
        0
    }

    fn poll(&self, _: u64) -> bool {
        if self.lacks != Lacks::ExitGp {
            self.heavy();
        }
        true
    }

    fn wait(&self, _: u64) {
        if self.lacks != Lacks::EnterGp {
            self.heavy();
        }
    }

    fn pause(&self) {
        thread::yield_now();
    }
}

/// A value that fast readers read without any barrier, and writers write while readers are slow.
struct Shared {
    core: Core,
    cpu: Cpu,
    value: UnsafeCell<u32>,
}

impl Shared {
    fn new(lacks: Lacks) -> Arc<Self> {
        Arc::new(Self { core: Core::new(), cpu: Cpu::new(lacks), value: UnsafeCell::new(0) })
    }

    /// In one sequence: idle, and the use.
    fn read(&self) {
        let _here = self.cpu.sequence.lock().unwrap();
        if self.core.is_idle() {
            self.value.with(|v| {
                // SAFETY: what the model is about; loom reports a concurrent write.
                let _ = unsafe { *v };
            });
        }
    }

    fn write(&self) {
        self.core.enter(&self.cpu);
        self.value.with_mut(|v| {
            // SAFETY: as in `read`; writers exclude each other in what follows.
            unsafe { *v += 1 };
        });
        if self.core.exit() == Exiting::Last {
            self.core.post(self.cpu.start());
        }
    }

    fn poll(&self) {
        if self.core.poll(&self.cpu) == Passing::Again {
            self.core.post(self.cpu.start());
        }
    }
}

/// RS-02, RS-03: a reader in sequences, a writer, and somebody who polls.
fn sync(lacks: Lacks) {
    explore(3, move || {
        let shared = Shared::new(lacks);
        let writer = thread::spawn({
            let shared = shared.clone();
            move || shared.write()
        });
        let poller = thread::spawn({
            let shared = shared.clone();
            move || shared.poll()
        });
        shared.read();
        shared.read();
        writer.join().unwrap();
        poller.join().unwrap();
    });
}

#[test]
fn sync_fast_readers() {
    sync(Lacks::Nothing);
}

#[test]
#[should_panic]
fn sync_fast_readers_without_the_first_grace_period_must_fail() {
    sync(Lacks::EnterGp);
}

/// RS-02 and RS-03 for the second of two writers, one of whom is there again while a grace period is due
/// (REPLAY): mutants M11 and M12.
fn sync_replayed(after: fn(&Shared)) {
    explore(2, move || {
        let shared = Shared::new(Lacks::Nothing);
        let reader = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.read();
                shared.read();
            }
        });
        shared.write();
        after(&shared);
        reader.join().unwrap();
    });
}

#[test]
fn sync_replay() {
    sync_replayed(|shared| {
        shared.write();
        shared.poll();
        shared.poll();
    });
}

/// Mutant M11: readers are fast as soon as the last writer has left. (What tells them is the word alone,
/// and they read it without a barrier: the grace period is what orders.)
#[test]
#[should_panic]
fn sync_replay_reopened_at_once_must_fail() {
    explore(3, || {
        let shared = Shared::new(Lacks::Nothing);
        let open = Arc::new(AtomicU32::new(0));
        let reader = thread::spawn({
            let (shared, open) = (shared.clone(), open.clone());
            move || {
                let _here = shared.cpu.sequence.lock().unwrap();
                if open.load(Ordering::Relaxed) == 1 {
                    // SAFETY: as in `read`.
                    shared.value.with(|v| unsafe { *v });
                }
            }
        });
        // SAFETY: as in `write`.
        shared.value.with_mut(|v| unsafe { *v += 1 });
        open.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}

/// M12's kind: what was asked for before the last writer left is enough.
#[test]
#[should_panic]
fn sync_replay_treated_as_idle_must_fail() {
    explore(3, || {
        let shared = Shared::new(Lacks::ExitGp);
        let reader = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.read();
                shared.read();
            }
        });
        shared.write();
        shared.poll();
        reader.join().unwrap();
    });
}

/// RS-06: two enter together; each returns after a grace period that began after readers could no longer
/// become fast.
fn sync_together(lacks: Lacks) {
    explore(2, move || {
        let shared = Shared::new(lacks);
        let other = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.core.enter(&shared.cpu);
                assert!(!shared.core.is_idle());
            }
        });
        let reader = thread::spawn({
            let shared = shared.clone();
            move || shared.read()
        });
        shared.core.enter(&shared.cpu);
        // SAFETY: as in `write`; the other one that enters does not write.
        shared.value.with_mut(|v| unsafe { *v += 1 });
        other.join().unwrap();
        reader.join().unwrap();
        assert_eq!(shared.core.look().count(), 2);
    });
}

#[test]
fn sync_together_share() {
    sync_together(Lacks::Nothing);
}

#[test]
#[should_panic]
fn sync_together_without_grace_period_must_fail() {
    sync_together(Lacks::EnterGp);
}

/// A lock's counters, without any order of their own.
struct Counts {
    lacks: Lacks,
    entries: AtomicU32,
    exits: AtomicU32,
}

impl Counts {
    fn new(lacks: Lacks) -> Self {
        Self { lacks, entries: AtomicU32::new(0), exits: AtomicU32::new(0) }
    }
}

impl Counters for Counts {
    fn count_entry(&self) {
        self.entries.fetch_add(1, Ordering::Relaxed);
    }

    fn count_exit(&self) {
        self.exits.fetch_add(1, Ordering::Relaxed);
    }

    fn entries(&self) -> u64 {
        u64::from(self.entries.load(Ordering::Relaxed))
    }

    fn exits(&self) -> u64 {
        u64::from(self.exits.load(Ordering::Relaxed))
    }

    fn fence(&self, letter: Letter) {
        // As strong as the table says, and no stronger: what one letter leaves out another must not make
        // up for.
        match letter {
            _ if self.lacks == Lacks::Letter(letter) => {}
            Letter::B => fence(Ordering::Release),
            Letter::C => fence(Ordering::Acquire),
            Letter::A | Letter::D | Letter::Y | Letter::Z => fence(Ordering::SeqCst),
        }
    }
}

/// A lock in its slow state.
struct Lock {
    counts: Counts,
    words: Words,
    value: UnsafeCell<u32>,
}

impl Lock {
    fn new(lacks: Lacks) -> Arc<Self> {
        Arc::new(Self {
            counts: Counts::new(lacks),
            words: Words::new(),
            value: UnsafeCell::new(0),
        })
    }

    /// One attempt.
    fn try_read(&self) {
        if protocol::enter_slow(&self.counts, &self.words) {
            // SAFETY: what the model is about.
            self.value.with(|v| unsafe { *v });
            let _ = protocol::leave_slow(&self.counts, &self.words);
        }
    }

    /// One attempt.
    fn try_write(&self) {
        protocol::block(&self.counts, &self.words);
        if protocol::is_drained(&self.counts) {
            // SAFETY: what the model is about.
            self.value.with_mut(|v| unsafe { *v += 1 });
        }
        if self.counts.lacks == Lacks::X {
            self.words.block.store(0, Ordering::Relaxed);
        } else {
            protocol::unblock(&self.words);
        }
    }
}

/// RW-01, RW-02: a writer and two readers, one of whom comes twice.
fn exclusion(lacks: Lacks) {
    explore(3, move || {
        let lock = Lock::new(lacks);
        let readers: Vec<_> = (0..2)
            .map(|n| {
                let lock = lock.clone();
                thread::spawn(move || (0..=n).for_each(|_| lock.try_read()))
            })
            .collect();
        lock.try_write();
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn rwlock_exclusion() {
    exclusion(Lacks::Nothing);
}

/// Mutant M13A.
#[test]
#[should_panic]
fn rwlock_exclusion_without_a_must_fail() {
    exclusion(Lacks::Letter(Letter::A));
}

/// Mutant M13B.
#[test]
#[should_panic]
fn rwlock_exclusion_without_b_must_fail() {
    exclusion(Lacks::Letter(Letter::B));
}

/// Mutant M13C.
#[test]
#[should_panic]
fn rwlock_exclusion_without_c_must_fail() {
    exclusion(Lacks::Letter(Letter::C));
}

/// Mutant M13D.
#[test]
#[should_panic]
fn rwlock_exclusion_without_d_must_fail() {
    exclusion(Lacks::Letter(Letter::D));
}

#[test]
#[should_panic]
fn rwlock_exclusion_without_x_must_fail() {
    exclusion(Lacks::X);
}

/// RW-05: the last reader leaves while the writer is about to sleep.
fn last_reader(lacks: Lacks) {
    explore(3, move || {
        let lock = Lock::new(lacks);
        // Two that were there before.
        lock.counts.count_entry();
        lock.counts.count_entry();
        protocol::block(&lock.counts, &lock.words);
        let woken = Arc::new(AtomicU32::new(0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (lock, woken) = (lock.clone(), woken.clone());
                thread::spawn(move || {
                    if protocol::leave_slow(&lock.counts, &lock.words)
                        && protocol::is_drained(&lock.counts)
                    {
                        woken.store(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        protocol::want(&lock.counts, &lock.words, protocol::BY_THREAD);
        let sleeps = !protocol::is_drained(&lock.counts);
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(!sleeps || woken.load(Ordering::Relaxed) == 1, "sleeps for ever");
    });
}

#[test]
fn rwlock_wakeup_of_the_writer() {
    last_reader(Lacks::Nothing);
}

#[test]
#[should_panic(expected = "sleeps for ever")]
fn rwlock_wakeup_of_the_writer_without_y_must_fail() {
    last_reader(Lacks::Letter(Letter::Y));
}

#[test]
#[should_panic(expected = "sleeps for ever")]
fn rwlock_wakeup_of_the_writer_without_z_must_fail() {
    last_reader(Lacks::Letter(Letter::Z));
}

/// The queue, for one who waits.
#[derive(Default)]
struct Line {
    waits: bool,
    granted: bool,
}

/// RW-05: a reader joins the queue while the owner of the seat opens and gives it up.
fn enqueue(lacks: Lacks, keeps_the_seat: bool) {
    explore(3, move || {
        let (words, seat) = (Arc::new(Words::new()), Arc::new(Seat::new()));
        let line = Arc::new(Mutex::new(Line::default()));
        assert!(seat.take(false));
        words.block.store(1, Ordering::Relaxed);
        let reader = thread::spawn({
            let (words, seat, line) = (words.clone(), seat.clone(), line.clone());
            move || {
                let mut held = line.lock().unwrap();
                match seat.announce() {
                    Announced::Free => seat.decline(),
                    Announced::Taken { .. } if words.is_open() && lacks == Lacks::Nothing => {
                        seat.no_queue();
                    }
                    Announced::Taken { .. } => {
                        held.waits = true;
                        drop(held);
                        // Loom's own deadlock report cannot be caught: out of branches instead.
                        while !line.lock().unwrap().granted {
                            thread::yield_now();
                        }
                    }
                }
            }
        });
        protocol::unblock(&words);
        let grant = |leave: bool| {
            let mut held = line.lock().unwrap();
            held.granted = held.waits;
            if leave { seat.leave(&words) } else { seat.no_queue() }
        };
        if keeps_the_seat {
            if seat.has_queue() {
                grant(false);
            }
        } else if !seat.give_up(&words) {
            grant(true);
        }
        reader.join().unwrap();
    });
}

#[test]
fn rwlock_seat_given_up() {
    enqueue(Lacks::Nothing, false);
}

#[test]
fn rwlock_seat_kept() {
    enqueue(Lacks::Nothing, true);
}

#[test]
#[should_panic]
fn rwlock_seat_kept_without_a_second_look_must_fail() {
    enqueue(Lacks::Announcement, true);
}

/// W4: the owner of the seat, after a section, gives it up while somebody in the queue gives
/// up waiting. Without `looks` (mutant L6) the owner, if writers come in `bursts`, leaves the door closed for
/// him, and gives the seat up without another look.
fn gives_up_waiting(bursts: bool, looks: bool) {
    explore(3, move || {
        let (lock, seat) = (Lock::new(Lacks::Nothing), Arc::new(Seat::new()));
        let line = Arc::new(Mutex::new(Line { waits: true, granted: false }));
        // One writes, and one waits for the seat.
        assert!(seat.take(false));
        let _ = seat.announce();
        protocol::block(&lock.counts, &lock.words);
        let leaves = {
            let (line, seat) = (line.clone(), seat.clone());
            move |words: &Words| {
                // Without `looks`: as if the door were open, whatever it is.
                let open = Words::new();
                if seat.give_up(if looks { words } else { &open }) {
                    return;
                }
                let mut held = line.lock().unwrap();
                if held.waits {
                    held.waits = false;
                    held.granted = true;
                    seat.hand_over(false, false);
                } else {
                    seat.leave(words);
                }
            }
        };
        let waiter = thread::spawn({
            let (lock, seat, line, leaves) =
                (lock.clone(), seat.clone(), line.clone(), leaves.clone());
            move || {
                let mut held = line.lock().unwrap();
                if held.granted {
                    // Too late to give up: he has it, and does not want it.
                    drop(held);
                    leaves(&lock.words);
                } else {
                    held.waits = false;
                    seat.no_queue();
                }
            }
        });
        let reader = thread::spawn({
            let lock = lock.clone();
            move || lock.try_read()
        });
        // SAFETY: what the model is about.
        lock.value.with_mut(|v| unsafe { *v += 1 });
        seat.end_section(&lock.words, bursts);
        leaves(&lock.words);
        waiter.join().unwrap();
        reader.join().unwrap();
        assert!(!seat.is_taken() && seat.looks_free());
        let inside = protocol::enter_slow(&lock.counts, &lock.words);
        assert!(inside, "a free lock refuses readers");
    });
}

#[test]
fn rwlock_gives_up_waiting() {
    gives_up_waiting(true, true);
    gives_up_waiting(false, true);
}

/// Mutant L6.
#[test]
#[should_panic(expected = "a free lock refuses readers")]
fn rwlock_gives_up_waiting_with_the_door_closed_must_fail() {
    gives_up_waiting(true, false);
}
