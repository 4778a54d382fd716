//! The queue by itself, with grace periods that the test ends.

use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::{Head, Letter, Need, Periods, Policy, Pushed, Queue, SEGMENTS, Urgency};
use crate::callback::Callback;
use crate::gate::Kernel;

/// Grace periods: `seq` as in `crate::seq`, without the running ones.
#[derive(Default)]
struct World {
    seq: Cell<u64>,
    window_ns: u64,
    turn: u32,
}

impl Periods for World {
    fn snapshot(&self) -> u64 {
        self.seq.get() + 2
    }

    fn passed(&self, cookie: u64) -> bool {
        self.seq.get() >= cookie
    }

    fn fence(&self, _: Letter) {
        fence(Ordering::SeqCst);
    }

    unsafe fn invoke(&self, func: Callback, head: NonNull<Head>) -> bool {
        // SAFETY: the caller's.
        unsafe { func(head) };
        true
    }

    fn policy(&self) -> Policy {
        Policy { window_ns: self.window_ns, many: 8, bytes: 1000, turn: self.turn.max(1) }
    }
}

struct Nobody;

impl Kernel for Nobody {
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn wait(&self, _: &AtomicU32, _: u32) {}

    fn wake_all(&self, _: &AtomicU32) {}
}

#[repr(C)]
struct Object {
    head: Head,
    calls: AtomicU64,
}

fn object() -> &'static Object {
    Box::leak(Box::new(Object { head: Head::sized(100), calls: AtomicU64::new(0) }))
}

unsafe fn count(head: NonNull<Head>) {
    // SAFETY: heads here are of leaked objects.
    unsafe { head.cast::<Object>().as_ref() }.calls.fetch_add(1, Ordering::Relaxed);
}

impl Object {
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn push(&'static self, queue: &Queue, p: &World, urgency: Urgency) -> Pushed {
        // SAFETY: leaked.
        unsafe { queue.push(p, 0, NonNull::from(self).cast(), count, urgency) }
    }
}

fn ignore<T>(_: T) {}

fn advance(queue: &Queue, p: &World, now: u64) -> Need {
    queue.advance(p, &Nobody, 1, now)
}

#[test]
fn cb_05_waits_for_the_window_and_then_for_a_grace_period() {
    let (queue, p) = (Queue::new(), World { window_ns: 50, turn: 10, ..World::default() });
    let [a, b] = [object(), object()];
    assert_eq!(a.push(&queue, &p, Urgency::Lazy), Pushed::Ring);
    assert_eq!(b.push(&queue, &p, Urgency::Lazy), Pushed::Quiet);
    assert!(queue.calls());
    let need = advance(&queue, &p, 1000);
    assert_eq!((need.cookie, need.at), (None, Some(1050)));
    assert_eq!(advance(&queue, &p, 1049).cookie, None);
    let need = advance(&queue, &p, 1050);
    assert_eq!((need.cookie, need.at, need.urgent), (Some(2), None, false));
    p.seq.set(1);
    assert_eq!((advance(&queue, &p, 2000).cookie, a.calls()), (Some(2), 0));
    p.seq.set(2);
    assert_eq!(advance(&queue, &p, 2000), Need::default());
    assert_eq!((a.calls(), b.calls(), queue.is_idle()), (1, 1, true));
}

/// Two cookies ahead and one segment being run; what comes then stays in the shards.
#[test]
fn segments_by_cookie() {
    let (queue, p) = (Queue::new(), World { turn: 1, ..World::default() });
    let objects = [(); 8].map(|()| object());
    let mut pushed = objects.into_iter();
    let mut push = || pushed.next().map(|o| o.push(&queue, &p, Urgency::Hurry));
    // Cookie 2, twice: one segment.
    push();
    let _ = advance(&queue, &p, 1);
    push();
    assert_eq!(advance(&queue, &p, 1).cookie, Some(2));
    assert_eq!(queue.span(), (0, 1));
    // It is being run, one callback a turn; meanwhile two more cookies.
    p.seq.set(2);
    push();
    let need = advance(&queue, &p, 1);
    assert_eq!((need.cookie, need.again, queue.span()), (Some(4), true, (0, 2)));
    assert_eq!(objects.map(Object::calls).iter().sum::<u64>(), 1);
    push();
    p.seq.set(3);
    let _ = advance(&queue, &p, 1);
    assert!(queue.span().1 <= SEGMENTS);
    for _ in 0..10 {
        p.seq.set(p.seq.get() + 2);
        let _ = advance(&queue, &p, 1);
        let _ = advance(&queue, &p, 1);
    }
    assert_eq!(objects.map(Object::calls), [1, 1, 1, 1, 0, 0, 0, 0]);
    assert!(queue.is_idle());
}

#[test]
fn without_room_nothing_is_collected() {
    let (queue, p) = (Queue::new(), World { turn: 1, ..World::default() });
    let objects = [(); 9].map(|()| object());
    // Five in the first segment, which is run one by one; two more segments behind it.
    objects[..5].iter().for_each(|o| ignore(o.push(&queue, &p, Urgency::Hurry)));
    let _ = advance(&queue, &p, 1);
    for object in &objects[5..7] {
        p.seq.set(p.seq.get() + 2);
        let _ = object.push(&queue, &p, Urgency::Hurry);
        let _ = advance(&queue, &p, 1);
    }
    assert_eq!(queue.span(), (0, SEGMENTS));
    let begun = queue.stats().batches;
    p.seq.set(p.seq.get() + 2);
    let _ = objects[7].push(&queue, &p, Urgency::Hurry);
    let batch = queue.last_batch();
    assert!(advance(&queue, &p, 1).again);
    assert_eq!((queue.stats().batches, queue.span()), (begun, (0, SEGMENTS)), "no room");
    for _ in 0..10 {
        let _ = advance(&queue, &p, 1);
        p.seq.set(p.seq.get() + 2);
    }
    assert_eq!(objects.map(Object::calls), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert!(queue.is_finished(batch) && queue.is_idle());
}

/// CB-05: a number or a size that is reached hurries.
#[test]
fn cb_05_much_is_collected_at_once() {
    let (queue, p) = (Queue::new(), World { window_ns: 1 << 40, turn: 100, ..World::default() });
    let pushed: Vec<_> = (0..8).map(|_| object().push(&queue, &p, Urgency::Lazy)).collect();
    assert_eq!(pushed[0], Pushed::Ring);
    assert_eq!(pushed[1..7], [Pushed::Quiet; 6]);
    assert_eq!(pushed[7], Pushed::Full, "eight heads");
    let need = advance(&queue, &p, 1);
    assert_eq!((need.cookie, need.urgent), (Some(2), true));
    assert_eq!(queue.stats().pending_bytes, 800);
    // 100 bytes each: the tenth makes a thousand, but eight come first.
    let pushed: Vec<_> = (0..8).map(|_| object().push(&queue, &p, Urgency::Lazy)).collect();
    assert_eq!(pushed.iter().filter(|&&p| p == Pushed::Full).count(), 1);
}

#[test]
fn ba_01_batches() {
    let (queue, p) = (Queue::new(), World { window_ns: 1 << 40, turn: 1, ..World::default() });
    assert!(queue.is_finished(queue.last_batch()), "nothing was ever queued");
    let objects = [object(), object(), object()];
    objects[..2].iter().for_each(|o| ignore(o.push(&queue, &p, Urgency::Lazy)));
    let batch = queue.last_batch();
    assert!(!queue.is_finished(batch));
    queue.want(batch);
    assert!(advance(&queue, &p, 1).urgent);
    // Collected: the next barrier wants the same batch.
    assert_eq!(queue.last_batch(), batch);
    let _ = objects[2].push(&queue, &p, Urgency::Lazy);
    assert_eq!(queue.last_batch(), batch + 1);
    p.seq.set(2);
    assert!(advance(&queue, &p, 1).again);
    assert!(!queue.is_finished(batch), "one of two");
    let _ = advance(&queue, &p, 1);
    assert!(queue.is_finished(batch) && !queue.is_finished(batch + 1));
    // A batch that turns out empty behind others is finished with them.
    queue.want(batch + 2);
    let _ = (advance(&queue, &p, 1), advance(&queue, &p, 1));
    assert_eq!(queue.begun.load(Ordering::Relaxed), batch + 2);
    p.seq.set(4);
    let _ = advance(&queue, &p, 1);
    assert!(queue.is_finished(batch + 2));
}

/// BA-05: a child goes on from every state that a worker leaves between two stores of a move.
#[test]
fn ba_05_inherits_a_move_at_each_step() {
    for (step, late) in (0..6).flat_map(|step| [(step, false), (step, true)]) {
        let (queue, p) = (Queue::new(), World { turn: 100, ..World::default() });
        let objects = [(); 4].map(|()| object());
        // Two are collected already, two are about to be, under the same cookie.
        let _ = objects[0].push(&queue, &p, Urgency::Hurry);
        let _ = objects[1].push(&queue, &p, Urgency::Hurry);
        let _ = advance(&queue, &p, 1);
        let _ = objects[2].push(&queue, &p, Urgency::Hurry);
        let _ = objects[3].push(&queue, &p, Urgency::Hurry);
        // The worker enters, and stops after `step` stores.
        queue.owner.store(1, Ordering::Relaxed);
        queue.calls.store(0, Ordering::Relaxed);
        queue.begun.store(2, Ordering::Relaxed);
        let (shard, Some(segment)) = (&queue.shards[0], queue.last_segment()) else {
            panic!("collected")
        };
        let list = shard.top.load(Ordering::Relaxed);
        let old = segment.top.load(Ordering::Relaxed);
        let stores: [&dyn Fn(); 5] = [
            &|| queue.moving.store(list, Ordering::Relaxed),
            &|| shard.top.store(core::ptr::null_mut(), Ordering::Relaxed),
            &|| objects[2].head.next.store(old, Ordering::Relaxed),
            &|| segment.top.store(list, Ordering::Relaxed),
            &|| queue.moving.store(core::ptr::null_mut(), Ordering::Relaxed),
        ];
        stores.iter().take(step).for_each(|store| store());
        queue.inherit(&p, 2);
        // The child's own worker, which may come by before a barrier calls it.
        if late {
            p.seq.set(p.seq.get() + 2);
            let _ = queue.advance(&p, &Nobody, 2, 1);
        }
        let batch = queue.last_batch();
        queue.want(batch);
        for _ in 0..4 {
            let _ = queue.advance(&p, &Nobody, 2, 1);
            p.seq.set(p.seq.get() + 2);
        }
        assert_eq!(objects.map(Object::calls), [1; 4], "step {step} {late}");
        // Touched twice would be one more, even if not called.
        assert_eq!(queue.stats().invoked, 4, "step {step} {late}");
        assert!(queue.is_finished(batch), "step {step} {late}");
    }
}

/// Invariant 3: the cookie is one asked for after the last head was taken, in a child too.
#[test]
fn ba_05_an_inherited_cookie_is_the_child_s() {
    let (queue, p) = (Queue::new(), World { turn: 100, ..World::default() });
    let object = object();
    let _ = object.push(&queue, &p, Urgency::Hurry);
    let _ = advance(&queue, &p, 1);
    queue.owner.store(1, Ordering::Relaxed);
    p.seq.set(2);
    queue.inherit(&p, 2);
    let _ = queue.advance(&p, &Nobody, 2, 1);
    assert_eq!(object.calls(), 0);
    p.seq.set(4);
    let _ = queue.advance(&p, &Nobody, 2, 1);
    assert_eq!(object.calls(), 1);
}

#[test]
fn only_one_thread_is_the_worker() {
    let (queue, p) = (Queue::new(), World { turn: 100, ..World::default() });
    let _ = object().push(&queue, &p, Urgency::Hurry);
    queue.owner.store(7, Ordering::Relaxed);
    assert_eq!(queue.advance(&p, &Nobody, 1, 1), Need::default());
    assert_eq!(queue.stats().batches, 0);
}
