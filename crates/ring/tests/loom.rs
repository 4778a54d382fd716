//! Models of the ring's protocols, on the product's own code: `wake.rs` and `positions.rs` are
//! compiled into this test with loom's atomics. Each model has twins with one fence or one order
//! taken away; a twin that passes means that the model proves nothing.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p owlet-ring --release --test loom`
//!
//! A membarrier is modelled as a pair of fences. A sleep is modelled by its condition: the waiter
//! would sleep if `seq` still has the token's value, and at the end, with everybody done and a last
//! sweep of the notifier, a waiter that still would sleep although its ring has reached the
//! threshold has lost its wakeup.
#![cfg(loom)]

#[path = "../src/positions.rs"]
#[expect(dead_code, reason = "a model uses a part of it")]
mod positions;
#[path = "../src/sync.rs"]
#[expect(unused_imports, reason = "a model uses a part of it")]
mod sync;
#[path = "../src/wake.rs"]
#[expect(dead_code, reason = "a model uses a part of it")]
mod wake;

use loom::cell::UnsafeCell;
use loom::thread;
use positions::Control;
use std::sync::Arc;
use sync::{AtomicU32, AtomicU64, Ordering};

/// The shared words of one ring and its header.
struct Shared {
    head: AtomicU64,
    tail: AtomicU64,
    wake_at: AtomicU64,
    last_time: AtomicU64,
    owner: AtomicU64,
    seq: AtomicU32,
    pending: AtomicU32,
    notifier: AtomicU64,
    waiters: AtomicU32,
    wakes: AtomicU64,
    direct_wakes: AtomicU64,
    /// Stands for the ring's data.
    data: UnsafeCell<u64>,
}

// SAFETY: loom checks every access to the cells; that is what the models are for.
unsafe impl Sync for Shared {}
// SAFETY: as for Sync.
unsafe impl Send for Shared {}

impl Shared {
    fn new(notifier: bool) -> Arc<Self> {
        let long = |value| AtomicU64::new(value);
        Arc::new(Self {
            head: long(0),
            tail: long(0),
            wake_at: long(wake::NOBODY),
            last_time: long(0),
            owner: long(0),
            seq: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            notifier: long(u64::from(notifier)),
            waiters: AtomicU32::new(0),
            wakes: long(0),
            direct_wakes: long(0),
            data: UnsafeCell::new(0),
        })
    }

    fn words(&self) -> wake::Words<'_> {
        wake::Words {
            seq: &self.seq,
            pending: &self.pending,
            notifier: &self.notifier,
            waiters: &self.waiters,
            wakes: &self.wakes,
            direct_wakes: &self.direct_wakes,
        }
    }

    fn control(&self) -> Control<'_> {
        Control {
            head: &self.head,
            tail: &self.tail,
            wake_at: &self.wake_at,
            last_time: &self.last_time,
            owner: &self.owner,
        }
    }

    /// The writer: moves head to `head`, then looks at `wake_at`.
    fn write(&self, head: u64) {
        self.control().commit(head);
        if wake::reached(&self.wake_at, head, false) {
            wake::fire_slow(&self.words(), &self.wake_at);
        }
    }

    /// The waiter: `None` if it sees its threshold reached, else the token it sleeps on.
    fn wait(&self, threshold: u64) -> Option<u32> {
        let token = self.words().token();
        wake::arm(&self.wake_at, threshold);
        assert!(wake::heavy());
        self.sleeps(threshold, token)
    }

    fn sleeps(&self, threshold: u64, token: u32) -> Option<u32> {
        (self.control().head_for_reader() < threshold).then_some(token)
    }

    /// After everybody is done: has a sleeper been forgotten?
    fn judge(&self, threshold: u64, sleeps: Option<u32>) {
        self.words().sweep();
        if let Some(token) = sleeps
            && self.seq.load(Ordering::Relaxed) == token
        {
            assert!(self.head.load(Ordering::Relaxed) < threshold, "lost wakeup");
        }
    }
}

fn spawn<T: 'static>(
    shared: &Arc<Shared>,
    run: impl FnOnce(&Shared) -> T + 'static,
) -> thread::JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || run(&shared))
}

/// One writer, one waiter; `write` and `wait` are the product's or a twin's.
fn one_and_one(
    notifier: bool,
    write: impl Fn(&Shared) + Sync + Send + Copy + 'static,
    wait: impl Fn(&Shared) -> Option<u32> + Sync + Send + Copy + 'static,
) {
    loom::model(move || {
        let shared = Shared::new(notifier);
        let writer = spawn(&shared, write);
        let sleeps = wait(&shared);
        writer.join().expect("no panic");
        shared.judge(1, sleeps);
    });
}

#[test]
fn wake() {
    for notifier in [false, true] {
        one_and_one(notifier, |shared| shared.write(1), |shared| shared.wait(1));
    }
}

/// The kernel's way: no barrier on the writer's side ("reader-only fence", mutant M9).
#[test]
#[should_panic(expected = "lost wakeup")]
fn wake_without_writer_fence_must_fail() {
    let write = |shared: &Shared| {
        shared.control().commit(1);
        if 1 >= shared.wake_at.load(Ordering::Relaxed) {
            wake::fire_slow(&shared.words(), &shared.wake_at);
        }
    };
    one_and_one(false, write, |shared| shared.wait(1));
}

#[test]
#[should_panic(expected = "lost wakeup")]
fn wake_without_waiter_fence_must_fail() {
    let wait = |shared: &Shared| {
        let token = shared.words().token();
        wake::arm(&shared.wake_at, 1);
        shared.sleeps(1, token)
    };
    one_and_one(false, |shared| shared.write(1), wait);
}

/// The token taken after the look hides the wakeup in between.
#[test]
#[should_panic(expected = "lost wakeup")]
fn wake_with_late_token_must_fail() {
    let wait = |shared: &Shared| {
        wake::arm(&shared.wake_at, 1);
        assert!(wake::heavy());
        let sleeps = shared.sleeps(1, 0);
        sleeps.map(|_| shared.words().token())
    };
    one_and_one(false, |shared| shared.write(1), wait);
}

/// Two events, a waiter that comes back for the second, and a notifier that sweeps in between.
fn notified(sweep: impl Fn(&Shared) + Sync + Send + Copy + 'static) {
    loom::model(move || {
        let shared = Shared::new(true);
        let writer = spawn(&shared, |shared| {
            shared.write(1);
            shared.write(2);
        });
        let notifier = spawn(&shared, sweep);
        let sleeps = shared.wait(2);
        writer.join().expect("no panic");
        notifier.join().expect("no panic");
        shared.judge(2, sleeps);
    });
}

#[test]
fn notifier() {
    notified(|shared| {
        shared.words().sweep();
    });
}

/// Mutant M10: the mark cleared after the wakeup takes a later mark with it.
#[test]
#[should_panic(expected = "lost wakeup")]
fn notifier_clearing_late_must_fail() {
    loom::model(|| {
        let shared = Shared::new(true);
        // A wakeup is due from an earlier event.
        shared.pending.store(1, Ordering::Relaxed);
        let writer = spawn(&shared, |shared| shared.write(1));
        let notifier = spawn(&shared, |shared| {
            if shared.pending.load(Ordering::Relaxed) != 0 {
                shared.words().wake_everybody();
                shared.pending.store(0, Ordering::Relaxed);
            }
        });
        let sleeps = shared.wait(1);
        writer.join().expect("no panic");
        notifier.join().expect("no panic");
        shared.judge(1, sleeps);
    });
}

/// A notifier that leaves while a writer decides who wakes.
fn leaving(leave: impl Fn(&Shared) + Sync + Send + Copy + 'static) {
    loom::model(move || {
        let shared = Shared::new(true);
        let writer = spawn(&shared, |shared| shared.write(1));
        let notifier = spawn(&shared, leave);
        let sleeps = shared.wait(1);
        writer.join().expect("no panic");
        notifier.join().expect("no panic");
        // Nobody sweeps any more; a woken waiter would look again.
        if let Some(token) = sleeps
            && shared.seq.load(Ordering::Relaxed) == token
        {
            assert!(shared.head.load(Ordering::Relaxed) < 1, "lost wakeup");
        }
    });
}

#[test]
fn leave() {
    leaving(|shared| shared.words().leave());
}

/// Without its last wakeup a leaving notifier takes a mark with it.
#[test]
#[should_panic(expected = "lost wakeup")]
fn leave_without_last_wakeup_must_fail() {
    leaving(|shared| shared.notifier.store(0, Ordering::Relaxed));
}

/// Two waiters with different thresholds share the one word; the first to be satisfied must not
/// take the other's arming away.
fn thresholds(arm: impl Fn(&AtomicU64, u64) + Sync + Send + Copy + 'static) {
    loom::model(move || {
        let shared = Shared::new(false);
        let wait = move |shared: &Shared, threshold| {
            let token = shared.words().token();
            arm(&shared.wake_at, threshold);
            assert!(wake::heavy());
            shared.sleeps(threshold, token)
        };
        let modest = spawn(&shared, move |shared| wait(shared, 1));
        let greedy = wait(&shared, 2);
        let modest = modest.join().expect("no panic");
        shared.write(1);
        if modest.is_some() {
            assert_ne!(modest, Some(shared.seq.load(Ordering::Relaxed)), "lost wakeup");
        }
        // The greedy one was woken for nothing and arms again.
        let token = shared.seq.load(Ordering::Relaxed);
        let greedy = match greedy {
            Some(old) if old != token => wait(&shared, 2),
            other => other,
        };
        shared.write(2);
        shared.judge(2, greedy);
    });
}

#[test]
fn two_waiters() {
    thresholds(wake::arm);
}

#[test]
#[should_panic(expected = "lost wakeup")]
fn two_waiters_overwriting_each_other_must_fail() {
    thresholds(|wake_at, threshold| wake_at.store(threshold, Ordering::Release));
}

/// Data of a portable ring with room for one word: two writers, one reader.
///
/// loom looks for other orders only between an access and the last one to the same word, so that
/// a writer's own load of head hides the reader's. The gate, a relaxed counter that orders nothing
/// in the program, makes it try every order of the steps.
fn data(
    commit: impl Fn(&Control<'_>, u64) + Sync + Send + Copy + 'static,
    release: impl Fn(&Control<'_>, u64, u64) -> bool + Sync + Send + Copy + 'static,
) {
    loom::model(move || {
        let shared = Shared::new(false);
        let gate = |shared: &Shared| {
            shared.wakes.fetch_add(1, Ordering::Relaxed);
        };
        let write = move |shared: &Shared, tag: u64, times: usize| {
            let control = shared.control();
            let mut written = 0;
            for _ in 0..times {
                gate(shared);
                if control.lock(tag).is_ok() {
                    if let Some(head) = control.room(1, 1) {
                        // SAFETY: loom checks that nobody else is there.
                        shared.data.with_mut(|word| unsafe { *word = head + 7 });
                        commit(&control, head + 1);
                        written += 1;
                    }
                    control.unlock();
                }
            }
            written
        };
        let read = move |shared: &Shared| {
            gate(shared);
            let control = shared.control();
            let (tail, head) = (control.tail_for_reader(), control.head_for_reader());
            if tail == head {
                return 0;
            }
            // SAFETY: loom checks that nobody else is there.
            let word = shared.data.with(|word| unsafe { *word });
            assert_eq!(word, tail + 7, "another record than the one committed");
            u64::from(release(&control, tail, head))
        };
        let writer = spawn(&shared, move |shared| write(shared, 1, 2));
        let mut seen = read(&shared);
        let mut written = write(&shared, 2, 1);
        written += writer.join().expect("no panic");
        seen += read(&shared);
        assert_eq!(seen, written, "each record is read once");
    });
}

#[test]
fn records() {
    data(|control, head| control.commit(head), |control, from, to| control.release(from, to));
}

#[test]
#[should_panic]
fn records_without_commit_order_must_fail() {
    let commit = |control: &Control<'_>, head| control.head.store(head, Ordering::Relaxed);
    data(commit, |control, from, to| control.release(from, to));
}

#[test]
#[should_panic]
fn records_without_release_order_must_fail() {
    data(
        |control, head| control.commit(head),
        |control, from, to| {
            let tail = control.tail;
            tail.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        },
    );
}
