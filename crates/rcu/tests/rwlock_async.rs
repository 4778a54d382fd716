//! Locks taken by tasks: in line with threads, handed on when dropped.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use owlet_rcu::PerCpuRwLock;
use owlet_rcu::rwlock::{Options, Policy};

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
