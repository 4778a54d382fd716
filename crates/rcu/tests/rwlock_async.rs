//! Locks taken by tasks: in line with threads, handed on when dropped.

mod common;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::watched;
use owlet_rcu::PerCpuRwLock;
use owlet_rcu::rwlock::{Options, Policy, ReadFuture, WriteGuard};

const POLICIES: [Policy; 3] = [Policy::WriterBurst, Policy::PhaseFair, Policy::ReaderPreferring];

/// Counts wakeups.
#[derive(Default)]
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    fn rung(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn expect(&self) {
        while self.rung() == 0 {
            thread::yield_now();
        }
    }
}

fn bell() -> (Arc<Bell>, Waker) {
    let bell = Arc::new(Bell::default());
    (bell.clone(), Waker::from(bell))
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

#[expect(clippy::panic, reason = "a test")]
fn ready<F: Future>(future: Pin<&mut F>, waker: &Waker) -> F::Output {
    match poll(future, waker) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("not ready"),
    }
}

#[test]
fn tasks_wait_for_a_writer_and_are_woken() {
    let lock = PerCpuRwLock::new(0);
    let ((readers, read_waker), (writers, write_waker)) = (bell(), bell());
    let mut write = ready(pin!(lock.write_async()), &write_waker);
    *write = 1;
    let (mut reader, mut second) = (pin!(lock.read_async()), pin!(lock.write_async()));
    assert!(poll(reader.as_mut(), &read_waker).is_pending());
    assert!(poll(second.as_mut(), &write_waker).is_pending());
    assert!(poll(reader.as_mut(), &read_waker).is_pending());
    assert_eq!((readers.rung(), writers.rung()), (0, 0));
    drop(write);
    assert_eq!((readers.rung(), writers.rung()), (1, 1), "both have something to do");
    assert!(poll(second.as_mut(), &write_waker).is_pending(), "the reader is before it");
    let read = ready(reader.as_mut(), &read_waker);
    assert_eq!(*read, 1);
    drop(read);
    assert_eq!(writers.rung(), 2, "the last reader has left");
    *ready(second.as_mut(), &write_waker) = 2;
    assert_eq!(*lock.try_read().expect("free"), 2);
}

/// Dropped in every stage: nobody waits for what is gone.
#[test]
fn dropped_futures_leave_nothing_behind() {
    for policy in POLICIES {
        let lock = Options::new().policy(policy).build(0);
        let (_, waker) = bell();
        // Never polled.
        drop((lock.read_async(), lock.write_async()));

        // In the queue.
        let write = lock.write();
        {
            let (mut reader, mut writer) = (pin!(lock.read_async()), pin!(lock.write_async()));
            assert!(poll(writer.as_mut(), &waker).is_pending());
            assert!(poll(reader.as_mut(), &waker).is_pending());
            assert_eq!(lock.raw().queued(), 2);
        }
        assert!(!lock.raw().has_waiters(), "{policy:?}");
        drop(write);
        assert!(lock.try_write().is_some());

        // Granted and not polled again.
        let write = lock.write();
        {
            let (mut reader, mut writer) = (pin!(lock.read_async()), pin!(lock.write_async()));
            assert!(poll(reader.as_mut(), &waker).is_pending());
            assert!(poll(writer.as_mut(), &waker).is_pending());
            drop(write);
        }
        assert!(!lock.is_locked(), "{policy:?}");
        assert!(lock.try_write().is_some(), "{policy:?}");

        // With the seat, waiting for a reader.
        let read = lock.read();
        {
            let mut writer = pin!(lock.write_async());
            assert!(poll(writer.as_mut(), &waker).is_pending());
            thread::scope(|s| {
                s.spawn(|| assert_eq!(lock.try_read().is_some(), policy == POLICIES[2]));
            });
        }
        assert!(lock.try_read().is_some(), "{policy:?}");
        drop(read);
        assert!(lock.try_write().is_some(), "{policy:?}");
    }
}

/// A dropped future that was handed the lock hands it on to a thread.
#[test]
fn what_a_dropped_future_was_handed_is_handed_on() {
    let lock = PerCpuRwLock::new(0);
    let (_, waker) = bell();
    let write = lock.write();
    thread::scope(|s| {
        let mut writer = Box::pin(lock.write_async());
        assert!(poll(writer.as_mut(), &waker).is_pending());
        let thread = s.spawn(|| *lock.write() += 1);
        while lock.raw().queued() < 2 {
            thread::yield_now();
        }
        drop(write);
        assert!(!thread.is_finished());
        drop(writer);
        thread.join().expect("no panic");
    });
    assert_eq!(*lock.read(), 1);
}

/// A small executor: polls when woken.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match poll(future.as_mut(), &waker) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(Duration::from_secs(120)),
        }
    }
}

/// Tasks, threads and futures that are dropped, against each other.
#[test]
fn tasks_and_threads_exclude_each_other() {
    for policy in POLICIES {
        let reopen = Duration::from_micros(100);
        let lock = Options::new().policy(policy).reopen_after(reopen).build((0_u64, 0_u64));
        thread::scope(|s| {
            for i in 0..2 {
                let lock = &lock;
                s.spawn(move || {
                    for _ in 0..200 {
                        let mut pair = block_on(lock.write_async());
                        pair.0 += 1;
                        thread::yield_now();
                        pair.1 += 1;
                        drop(pair);
                        // Begun and given up.
                        let (_, waker) = bell();
                        let _ = poll(pin!(lock.write_async()), &waker).is_ready();
                        if i == 0 {
                            let mut pair = lock.write();
                            pair.0 += 1;
                            pair.1 += 1;
                        }
                    }
                });
                s.spawn(move || {
                    for _ in 0..400 {
                        let pair = block_on(lock.read_async());
                        assert_eq!(pair.0, pair.1);
                        drop(pair);
                        let (_, waker) = bell();
                        let _ = poll(pin!(lock.read_async()), &waker).is_ready();
                    }
                });
            }
        });
        assert!(!lock.is_locked() && !lock.raw().has_waiters(), "{policy:?}");
        assert_eq!(lock.into_inner(), (600, 600), "{policy:?}");
    }
}

/// The worker of a runtime may change between polls: the last waker counts.
#[test]
fn the_last_waker_is_woken() {
    let lock = PerCpuRwLock::new(());
    let ((first, first_waker), (second, second_waker)) = (bell(), bell());
    let write = lock.write();
    let mut reader = pin!(lock.read_async());
    assert!(poll(reader.as_mut(), &first_waker).is_pending());
    assert!(poll(reader.as_mut(), &second_waker).is_pending());
    drop(write);
    second.expect();
    assert_eq!(first.rung(), 0);
    drop(ready(reader.as_mut(), &second_waker));
}

#[test]
fn futures_are_send() {
    fn is_send<T: Send>(_: T) {}
    static LOCK: PerCpuRwLock<u32> = PerCpuRwLock::new(0);
    is_send(async {
        let read = LOCK.read_async().await;
        std::future::ready(()).await;
        drop(read);
        *LOCK.write_async().await += 1;
    });
}

/// A task that owns what it waits with, as tasks do.
struct Task(Mutex<Option<Pin<Box<ReadFuture<'static, u32>>>>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// The waker that a writer waits for readers with is another task's last handle, and that task waits for
/// the same lock: with the waker goes a future that leaves the queue.
#[test]
fn a_waker_that_is_dropped_may_take_a_future_of_the_lock_with_it() {
    for again in [false, true] {
        let lock: &'static PerCpuRwLock<u32> = Box::leak(Box::default());
        let read = lock.read();
        let task = Arc::new(Task(Mutex::new(None)));
        let waker = Waker::from(task.clone());
        let mut write = Box::pin(lock.write_async());
        assert!(poll(write.as_mut(), Waker::noop()).is_pending());
        let mut reader = Box::pin(lock.read_async());
        assert!(poll(reader.as_mut(), Waker::noop()).is_pending());
        *task.0.lock().expect("no panic") = Some(reader);
        assert!(poll(write.as_mut(), &waker).is_pending());
        drop((task, waker));
        assert_eq!(lock.raw().queued(), 1);
        watched("a waker dropped", || {
            if again {
                assert!(poll(write.as_mut(), Waker::noop()).is_pending());
            } else {
                drop(write);
            }
        });
        assert_eq!(lock.raw().queued(), 0);
        drop(read);
    }

    // The same of one who waits in the queue: what goes is what he himself is to be woken with, by a hold
    // that ends there.
    struct Holder(#[expect(dead_code, reason = "kept for its drop")] WriteGuard<'static, u32>);
    impl Wake for Holder {
        fn wake(self: Arc<Self>) {}
    }
    let lock: &'static PerCpuRwLock<u32> = Box::leak(Box::default());
    let waker = Waker::from(Arc::new(Holder(lock.write())));
    let mut reader = pin!(lock.read_async());
    assert!(poll(reader.as_mut(), &waker).is_pending());
    drop(waker);
    let read = watched("a waker dropped", || ready(reader.as_mut(), Waker::noop()));
    assert_eq!(*read, 0);
}

/// Wakers are cloned, called and dropped where they may ask about the lock.
#[test]
fn wakers_may_use_the_lock() {
    static LOCK: PerCpuRwLock<u32> = PerCpuRwLock::new(0);
    fn use_it(_: *const ()) {
        let _ = (LOCK.raw().queued(), LOCK.try_read().is_some());
    }
    fn clone(_: *const ()) -> RawWaker {
        use_it(std::ptr::null());
        RawWaker::new(std::ptr::null(), &VTABLE)
    }
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, use_it, use_it, use_it);
    // SAFETY: the functions use no data, and may be called on any thread.
    let waker = unsafe { Waker::from_raw(clone(std::ptr::null())) };
    watched("wakers use the lock", || {
        for _ in 0..2 {
            let write = LOCK.write();
            let (mut reader, mut writer) = (pin!(LOCK.read_async()), pin!(LOCK.write_async()));
            for _ in 0..2 {
                assert!(poll(reader.as_mut(), &waker).is_pending());
                assert!(poll(writer.as_mut(), &waker).is_pending());
            }
            drop(write);
            let read = ready(reader.as_mut(), &waker);
            for _ in 0..2 {
                assert!(poll(writer.as_mut(), &waker).is_pending());
            }
            drop(read);
            *ready(writer.as_mut(), &waker) += 1;
        }
    });
    assert_eq!(*LOCK.read(), 2);
}

/// A waker that panics, when called or dropped.
struct Throws;

impl Wake for Throws {
    fn wake(self: Arc<Self>) {
        panic!("a waker");
    }
}

impl Drop for Throws {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("a waker that is dropped");
        }
    }
}

/// It keeps nobody from being woken, and whoever called it from nothing.
#[test]
fn a_waker_that_panics_costs_nobody_else_his_turn() {
    for policy in POLICIES {
        let lock = Options::new().policy(policy).build(0);
        let (bell, waker) = bell();
        let throws = || Waker::from(Arc::new(Throws));

        // In the queue, before another.
        let write = lock.write();
        let (mut first, mut second) = (pin!(lock.read_async()), pin!(lock.read_async()));
        assert!(poll(first.as_mut(), &throws()).is_pending());
        assert!(poll(second.as_mut(), &waker).is_pending());
        drop(write);
        assert_eq!((bell.rung(), lock.stats().waker_panics), (1, 1), "{policy:?}");
        let read = (ready(first.as_mut(), &waker), ready(second.as_mut(), &waker));

        // Waiting for readers to leave: called by the last of them, and dropped by the writer.
        let mut writer = pin!(lock.write_async());
        assert!(poll(writer.as_mut(), &throws()).is_pending());
        drop(read);
        assert_eq!(lock.stats().waker_panics, 2);
        let write = ready(writer.as_mut(), &waker);
        drop(write);
        let read = lock.read();
        {
            let mut writer = Box::pin(lock.write_async());
            assert!(poll(writer.as_mut(), &throws()).is_pending());
            assert!(poll(writer.as_mut(), &throws()).is_pending());
            drop(writer);
        }
        drop(read);
        assert_eq!(lock.stats().waker_panics, 4);
        assert!(!lock.is_locked() && lock.try_write().is_some(), "{policy:?}");
    }
}
