//! Models of deferred free: a flush takes a block from a CPU whose sequences are putting objects in, a
//! block waits for the right grace period, queues pass blocks on whole, a barrier waits for what was put
//! in before. `queue` and `tally` are the code that ships; a sequence is a critical section of its CPU's
//! mutex, and the heavy fence passes through that mutex, as elsewhere.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use owlet_rcu::free::queue::{Link, Queue};
use owlet_rcu::free::tally::Tally;
use std::ptr::NonNull;

use super::explore;

/// What a model leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The heavy fence between freezing a lane and taking its block.
    Heavy,
    /// The look at the lane's mark in a sequence.
    Frozen,
    /// The grace period more that makes up for a stamp without a fence.
    OneMore,
    /// The snapshot comes before the last object (mutant M7).
    Last,
    /// The moment of the batch in flight is good for a block that joins it (mutant M6).
    Batch,
}

/// One CPU with a lane of one open block, which holds two objects.
struct Lane {
    without: Without,
    cpu: Mutex<()>,
    frozen: AtomicU32,
    open: AtomicUsize,
    blocks: [Block; 2],
}

#[derive(Default)]
struct Block {
    fill: AtomicUsize,
    items: [AtomicUsize; 2],
}

const NONE: usize = 2;

impl Lane {
    fn new(without: Without) -> Arc<Self> {
        let lane = Self {
            without,
            cpu: Mutex::new(()),
            frozen: AtomicU32::new(0),
            open: AtomicUsize::new(0),
            blocks: [Block::default(), Block::default()],
        };
        Arc::new(lane)
    }

    /// `arch::push`: false if there is no open block with room, or none to be touched.
    fn push(&self, object: usize) -> bool {
        let _here = self.cpu.lock().unwrap();
        let frozen = self.frozen.load(Ordering::Acquire) != 0;
        if frozen && self.without != Without::Frozen {
            return false;
        }
        let Some(block) = self.blocks.get(self.open.load(Ordering::Acquire)) else { return false };
        let fill = block.fill.load(Ordering::Relaxed);
        let Some(item) = block.items.get(fill) else { return false };
        item.store(object, Ordering::Relaxed);
        // The commit; x86-64 keeps stores in order.
        block.fill.store(fill + 1, Ordering::Release);
        true
    }

    /// `arch::pull`: false if there is nothing left, or the lane is not to be touched.
    fn pull(&self) -> bool {
        let _here = self.cpu.lock().unwrap();
        let frozen = self.frozen.load(Ordering::Acquire) != 0;
        let block = self.blocks.get(self.open.load(Ordering::Acquire));
        let Some(block) = block.filter(|_| !frozen) else { return false };
        let Some(left) = block.fill.load(Ordering::Relaxed).checked_sub(1) else { return false };
        block.fill.store(left, Ordering::Release);
        true
    }

    /// `Store::take_open`.
    fn take(&self) -> usize {
        // [F3] and what follows.
        self.frozen.store(1, Ordering::Release);
        if self.without != Without::Heavy {
            drop(self.cpu.lock().unwrap());
        }
        let taken = self.open.load(Ordering::Acquire);
        self.open.store(NONE, Ordering::Relaxed);
        taken
    }

    /// The objects of a block that was taken, as whoever frees them finds them.
    fn objects(&self, block: usize) -> usize {
        self.blocks.get(block).map_or(0, |block| block.fill.load(Ordering::Acquire))
    }
}

/// Two sequences put objects in while a flush takes the block: each object is in the block as it was
/// found by the flush, or was not put in.
fn flush(without: Without) {
    explore(3, move || {
        let lane = Lane::new(without);
        let producer = thread::spawn({
            let lane = lane.clone();
            move || usize::from(lane.push(7)) + usize::from(lane.push(8))
        });
        let taken = lane.take();
        let found = lane.objects(taken);
        // It is thawed before the block is looked at again: whoever comes now finds no block.
        lane.frozen.store(0, Ordering::Release);
        let put = producer.join().unwrap();
        assert_eq!(put, found, "an object was put into a block that had been taken");
    });
}

/// KF-04, KF-10: nothing is put into a block that a flush has taken.
#[test]
fn free_flush() {
    flush(Without::Nothing);
}

#[test]
#[should_panic]
fn free_flush_without_heavy_fence_must_fail() {
    flush(Without::Heavy);
}

#[test]
#[should_panic]
fn free_flush_without_look_at_the_mark_must_fail() {
    flush(Without::Frozen);
}

/// `arch::pull` from a block of two addresses, on its CPU, beside `Store::give_ready_back`.
fn ready(without: Without) {
    explore(3, move || {
        let lane = Lane::new(without);
        lane.blocks[0].fill.store(2, Ordering::Relaxed);
        let pulled = thread::spawn({
            let lane = lane.clone();
            move || usize::from(lane.pull()) + usize::from(lane.pull())
        });
        let taken = lane.take();
        let left = lane.objects(taken);
        lane.frozen.store(0, Ordering::Release);
        let pulled = pulled.join().unwrap();
        assert_eq!(pulled + left, 2, "an address was handed out and given back, or neither");
    });
}

/// KF-04, KF-11: memory to be used again is handed out or given back.
#[test]
fn free_ready() {
    ready(Without::Nothing);
}

#[test]
#[should_panic]
fn free_ready_without_heavy_fence_must_fail() {
    ready(Without::Heavy);
}

/// A domain in small: a reader that registers with a rank in a sequence, grace periods that flip, have
/// the heavy fence and wait for the old rank; two objects, one after the other in one place.
struct World {
    without: Without,
    seq: AtomicU64,
    index: AtomicUsize,
    inside: [AtomicU32; 2],
    cpu: [Mutex<()>; 2],
    shared: AtomicUsize,
    objects: [UnsafeCell<u32>; 2],
}

impl World {
    fn new(without: Without) -> Arc<Self> {
        Arc::new(Self {
            without,
            seq: AtomicU64::new(100),
            index: AtomicUsize::new(0),
            inside: [AtomicU32::new(0), AtomicU32::new(0)],
            cpu: [Mutex::new(()), Mutex::new(())],
            shared: AtomicUsize::new(0),
            objects: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn read(&self) {
        let rank = {
            let _here = self.cpu[1].lock().unwrap();
            let rank = self.index.load(Ordering::Acquire);
            self.inside[rank].fetch_add(1, Ordering::Relaxed);
            rank
        };
        let object = self.shared.load(Ordering::Acquire);
        self.objects[object].with(|object| {
            // SAFETY: what the model is about; loom reports a concurrent free.
            let _ = unsafe { *object };
        });
        let _here = self.cpu[1].lock().unwrap();
        self.inside[rank].fetch_sub(1, Ordering::Release);
    }

    /// One grace period.
    fn grace_period(&self) {
        let seq = self.seq.load(Ordering::Relaxed);
        self.seq.store(seq + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let old = self.index.load(Ordering::Relaxed);
        // Release, because loom's full fence releases only what was known before it.
        self.index.store(old ^ 1, Ordering::Release);
        // The heavy fence, on every CPU.
        fence(Ordering::SeqCst);
        self.cpu.iter().for_each(|cpu| drop(cpu.lock().unwrap()));
        while self.inside[old].load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        fence(Ordering::SeqCst);
        self.seq.store(seq + 2, Ordering::Release);
    }

    fn passed(&self, cookie: u64) -> bool {
        self.seq.load(Ordering::Acquire) >= cookie
    }

    fn free(&self, object: usize) {
        self.objects[object].with_mut(|object| {
            // SAFETY: as in read().
            unsafe { *object = 1 };
        });
    }
}

/// A producer unpublishes, and its block gets a moment, by its stamp or by a snapshot; then it is freed as
/// soon as that has passed, while grace periods go on and a reader looks.
fn moment(without: Without, moment: fn(&World) -> u64) {
    explore(3, move || {
        let world = World::new(without);
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read()
        });
        let leader = thread::spawn({
            let world = world.clone();
            move || (0..2).for_each(|_| world.grace_period())
        });
        let cookie = moment(&world);
        if world.passed(cookie) {
            world.free(0);
        }
        leader.join().unwrap();
        if world.passed(cookie) {
            world.free(0);
        }
        reader.join().unwrap();
    });
}

/// A block that is full: the last object is put in, then a snapshot.
fn full(world: &World) -> u64 {
    let early =
        (world.without == Without::Last).then(|| cookie_at(world.seq.load(Ordering::Acquire)));
    if early.is_some() {
        thread::yield_now();
    }
    world.shared.store(1, Ordering::Release);
    fence(Ordering::SeqCst);
    let now = cookie_at(world.seq.load(Ordering::Acquire));
    early.unwrap_or(now)
}

/// `seq::cookie_at`.
fn cookie_at(seq: u64) -> u64 {
    (seq + 3) & !1
}

/// A block that a flush takes: the stamp of its last object, looked at without a fence in a sequence.
fn stamped(world: &World) -> u64 {
    world.shared.store(1, Ordering::Relaxed);
    let stamp = {
        let _here = world.cpu[0].lock().unwrap();
        world.seq.load(Ordering::Acquire)
    };
    let more = if world.without == Without::OneMore { 0 } else { 2 };
    cookie_at(stamp) + more
}

/// KF-01, KF-03: the snapshot comes after the last object.
#[test]
fn free_full() {
    moment(Without::Nothing, full);
}

/// Mutant M7.
#[test]
#[should_panic]
fn free_full_with_an_early_snapshot_must_fail() {
    moment(Without::Last, full);
}

/// KF-01, KF-05: the stamp of an open block, one grace period further.
#[test]
fn free_stamp() {
    moment(Without::Nothing, stamped);
}

#[test]
#[should_panic]
fn free_stamp_taken_at_its_word_must_fail() {
    moment(Without::OneMore, stamped);
}

/// KF-02: a block is closed while a batch is in flight and goes behind it.
fn batch(without: Without) {
    moment(without, |world| {
        let in_flight = cookie_at(world.seq.load(Ordering::Acquire));
        thread::yield_now();
        let own = full(world);
        if world.without == Without::Batch && !world.passed(in_flight) { in_flight } else { own }
    });
}

#[test]
fn free_batch() {
    batch(Without::Nothing);
}

/// Mutant M6.
#[test]
#[should_panic]
fn free_batch_that_gains_a_block_must_fail() {
    batch(Without::Batch);
}

/// A block whose words loom watches.
#[repr(C)]
struct Page {
    link: Link,
    words: UnsafeCell<u32>,
}

impl Page {
    fn leak() -> NonNull<Link> {
        let page = Self { link: Link::new(), words: UnsafeCell::new(0) };
        NonNull::from(Box::leak(Box::new(page))).cast()
    }
}

fn touch(link: NonNull<Link>) {
    // SAFETY: all links here are of leaked pages.
    let page = unsafe { link.cast::<Page>().as_ref() };
    page.words.with_mut(|words| {
        // SAFETY: what the model is about; loom reports whoever else is at it.
        unsafe { *words += 1 };
    });
}

/// Two threads close a block each and take what is ready out: every block comes out once, whole.
fn queues(late_word: bool) {
    explore(3, move || {
        let queue = Arc::new(Queue::new());
        let both = [1, 2].map(|me| {
            let queue = queue.clone();
            thread::spawn(move || {
                let page = Page::leak();
                touch(page);
                let pushed = queue.try_lock(me).is_some_and(|mut queue| {
                    // SAFETY: ours until here.
                    unsafe { queue.push(page) };
                    true
                });
                if pushed && late_word {
                    touch(page);
                }
                let taken = queue.try_lock(me).and_then(|mut queue| queue.pop(|_| true));
                taken.into_iter().for_each(touch);
                usize::from(pushed) - usize::from(taken.is_some() && pushed)
                    + usize::from(taken.is_some() && !pushed) * usize::MAX
            })
        });
        let left: usize = both.into_iter().map(|t| t.join().unwrap()).fold(0, usize::wrapping_add);
        let mut queue = queue.try_lock(3).unwrap();
        let mut found = 0;
        while let Some(page) = queue.pop(|_| true) {
            touch(page);
            found += 1;
        }
        assert_eq!(found, left);
    });
}

/// KF-04: closed blocks pass from thread to thread.
#[test]
fn free_queue() {
    queues(false);
}

#[test]
#[should_panic]
fn free_queue_of_blocks_still_in_use_must_fail() {
    queues(true);
}

/// A block is opened, filled, freed and counted out, while another thread waits at a barrier for what was
/// put in before.
fn barrier(late_count: bool) {
    explore(3, move || {
        let (tally, put) = (Arc::new(Tally::new()), Arc::new(AtomicU32::new(0)));
        let object = Arc::new(UnsafeCell::new(0_u32));
        let producer = thread::spawn({
            let (tally, put, object) = (tally.clone(), put.clone(), object.clone());
            move || {
                let early = (!late_count).then(|| tally.open());
                put.store(1, Ordering::Release);
                let generation = early.unwrap_or_else(|| tally.open());
                object.with_mut(|object| {
                    // SAFETY: what the model is about; loom reports who is at it meanwhile.
                    unsafe { *object = 1 };
                });
                tally.close(generation);
            }
        });
        let before = put.load(Ordering::Acquire) == 1;
        let generation = tally.turn();
        while tally.left(generation) != 0 {
            thread::yield_now();
        }
        if before {
            let freed = object.with(|object| {
                // SAFETY: as above.
                unsafe { *object }
            });
            assert_eq!(freed, 1, "a barrier did not wait");
        }
        producer.join().unwrap();
        assert_eq!(tally.all(), 0);
    });
}

/// KF-10: a barrier waits for the blocks of its generation.
#[test]
fn free_barrier() {
    barrier(false);
}

#[test]
#[should_panic]
fn free_barrier_of_blocks_counted_late_must_fail() {
    barrier(true);
}

/// A forked child finds a queue as it is between two stores of a thread that stayed behind: what was in is
/// in, in order, and the queue works. (The copy is made of the words, at any instant.)
fn fork(half: bool) {
    explore(3, move || {
        let queue = Arc::new(Queue::new());
        let (first, second) = (Page::leak(), Page::leak());
        {
            let mut queue = queue.try_lock(1).unwrap();
            // SAFETY: ours.
            unsafe { queue.push(first) };
        }
        let writer = thread::spawn({
            let (queue, second) = (queue.clone(), second.as_ptr() as usize);
            move || {
                let mut queue = queue.try_lock(2).unwrap();
                let link = NonNull::new(second as *mut Link).unwrap();
                // SAFETY: ours.
                unsafe { queue.push(link) };
                // It stays behind with the lock.
                std::mem::forget(queue);
            }
        });
        if !half {
            // The child of whoever forks: alone from here on.
            writer.join().unwrap();
            let mut found = 0;
            queue.inherit(3, |_| found += 1);
            assert_eq!(found, 2);
        } else {
            writer.join().unwrap();
        }
        let mut queue = queue.try_lock(3).expect("the lock of a thread that stayed behind");
        assert_eq!(queue.pop(|_| true), Some(first));
        assert_eq!(queue.pop(|_| true), Some(second));
        assert_eq!(queue.pop(|_| true), None);
    });
}

/// KF-12: a lock that stayed behind is nobody's in the child.
#[test]
fn free_fork() {
    fork(false);
}

#[test]
#[should_panic]
fn free_fork_without_inheriting_must_fail() {
    fork(true);
}
