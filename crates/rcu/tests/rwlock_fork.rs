//! RW-11: forked children (one test, so that nobody else's thread holds the allocator's lock while a child
//! is made).

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use common::fork::{How, in_child};
use owlet_rcu::PerCpuRwLock;
use owlet_rcu::rwlock::{Options, SeveralWriters};

/// Works in all ways, with a thread beside.
fn works(lock: &PerCpuRwLock<u32>) -> bool {
    *lock.write() += 1;
    let before = *lock.read();
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| (0..100).for_each(|_| *lock.write() += 1));
        }
        (0..100).for_each(|_| drop(lock.read()));
    });
    *lock.read() == before + 200 && lock.try_write().is_some() && lock.raw().readers() == 0
}

/// A thread that does something with a lock until let go.
struct Other {
    leave: Arc<Barrier>,
    thread: thread::JoinHandle<()>,
}

impl Other {
    fn with<G: 'static>(
        lock: &'static PerCpuRwLock<u32>,
        take: fn(&'static PerCpuRwLock<u32>) -> G,
    ) -> Self {
        let leave = Arc::new(Barrier::new(2));
        let (inside, entered) = std::sync::mpsc::channel();
        let thread = thread::spawn({
            let leave = leave.clone();
            move || {
                let guard = take(lock);
                inside.send(()).expect("waited for");
                leave.wait();
                drop(guard);
            }
        });
        entered.recv().expect("inside");
        Self { leave, thread }
    }

    fn end(self) {
        self.leave.wait();
        self.thread.join().expect("no panic");
    }
}

fn new() -> &'static PerCpuRwLock<u32> {
    Box::leak(Box::new(Options::new().reopen_after(Duration::from_micros(100)).build(0)))
}

#[test]
fn rw_11_forked_children() {
    // Counts of threads that stayed behind are reset; those of the parent are not.
    for how in [How::Fork, How::Raw] {
        let lock = new();
        let other = Other::with(lock, PerCpuRwLock::read);
        assert!(in_child(how, || works(lock)), "a reader that stayed behind holds the child up");
        assert!(lock.try_write().is_none(), "the parent's reader is inside");
        other.end();
        assert!(works(lock));
    }

    // So is the forking thread's own; its guard then counts nothing.
    let lock = new();
    let own = lock.read();
    assert!(in_child(How::Fork, || {
        // (Neither try refuses nor do the checks take it for a wait for oneself.)
        *lock.write() += 1;
        let wrote = lock.try_write().is_some();
        // SAFETY: a copy that the parent's does not know of; ended once in this process.
        drop(unsafe { std::ptr::read(&raw const own) });
        wrote && works(lock)
    }));
    assert!(lock.try_write().is_none());
    drop(own);

    // A lock that another thread was writing under stays locked.
    let lock = new();
    let other = Other::with(lock, PerCpuRwLock::write);
    assert!(in_child(How::Fork, || {
        lock.try_write_for(Duration::from_millis(50)).is_none() && lock.try_read().is_none()
    }));
    other.end();
    assert!(works(lock));

    // One that the forking thread writes under does not, after it.
    let lock = new();
    let own = lock.write();
    assert!(in_child(How::Fork, || {
        let locked = lock.try_read().is_none();
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const own) });
        locked && works(lock)
    }));
    drop(own);

    // Nor with somebody who stayed behind in its queue.
    let lock = new();
    let own = lock.write();
    let writer = thread::spawn(|| *lock.write() += 1);
    while lock.raw().queued() == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(in_child(How::Fork, || {
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const own) });
        works(lock)
    }));
    drop(own);
    writer.join().expect("no panic");

    // One that the forking thread has just handed to another, who has not got to it, is free.
    let lock = new();
    let own = lock.write();
    let mut writer = Box::pin(lock.write_async());
    assert!(writer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(own);
    assert!(in_child(How::Fork, || works(lock)));
    drop(writer);
    assert!(works(lock));

    // Several writers: those that stayed behind are inside for ever.
    static SEVERAL: SeveralWriters<()> = SeveralWriters::new(Options::new(), 3, ());
    let own = SEVERAL.write();
    assert!(in_child(How::Fork, || {
        let both = SEVERAL.try_write().is_some() && SEVERAL.writers() == 1;
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const own) });
        both && SEVERAL.try_read().is_some()
    }));
    let (stay, stays) = std::sync::mpsc::channel::<()>();
    let other = thread::spawn(move || {
        let _guard = SEVERAL.write();
        let _ = stays.recv();
    });
    while SEVERAL.writers() != 2 {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(in_child(How::Fork, || {
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const own) });
        SEVERAL.writers() == 1 && SEVERAL.try_read().is_none()
    }));
    drop((own, stay));
    other.join().expect("no panic");
    assert!(SEVERAL.try_read().is_some());

    // One that another holds upgradable is free, and so is one that others wait for: a writer with the
    // seat that waits for a reader, and one in the queue behind it.
    let lock = new();
    let other = Other::with(lock, PerCpuRwLock::upgradable_read);
    assert!(in_child(How::Fork, || works(lock)));
    other.end();
    let lock = new();
    let reader = Other::with(lock, PerCpuRwLock::read);
    let writers: Vec<_> = (0..2).map(|_| thread::spawn(|| *lock.write() += 1)).collect();
    while !lock.is_write_locked() || lock.raw().queued() == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(in_child(How::Fork, || works(lock)), "a writer that stayed behind holds the child up");
    // Nothing but tries, from the first.
    assert!(in_child(How::Fork, || (0..3).all(|_| lock.try_read().is_some())));
    assert!(in_child(How::Fork, || !lock.is_write_locked() && !lock.raw().has_waiters()));
    reader.end();
    writers.into_iter().for_each(|w| w.join().expect("no panic"));
    assert!(works(lock));

    upgradable_holds_that_were_moved();
    tasks();
}

/// The guard of an upgradable hold that was moved to the thread that forks is over in the child, and finds
/// out: it gives back nobody else's hold, and is taken anew to be upgraded.
fn upgradable_holds_that_were_moved() {
    let lock = new();
    let guard = thread::spawn(|| lock.upgradable_read()).join().expect("no panic");
    // SAFETY: a copy that the parent's does not know of; used once in each child.
    let copy = || unsafe { std::ptr::read(&raw const guard) };
    assert!(in_child(How::Fork, || {
        let write = lock.try_write().expect("free");
        let refused = copy().try_upgrade().is_err();
        drop(copy());
        let held = lock.try_read().is_none() && lock.try_write().is_none();
        drop(write);
        refused && held && works(lock)
    }));
    assert!(in_child(How::Fork, || {
        let mut write = copy().upgrade();
        *write += 1;
        let one = lock.try_write().is_none() && lock.try_read().is_none();
        drop(write);
        let read = copy().downgrade();
        let shared = lock.try_write().is_none() && lock.try_upgradable_read().is_some();
        drop(read);
        one && shared && works(lock)
    }));
    // One's own goes on.
    let own = lock.try_upgradable_read();
    assert!(own.is_none(), "the moved one is as good in the parent as any");
    drop(guard);
    let own = lock.upgradable_read();
    assert!(in_child(How::Fork, || {
        let held = lock.try_upgradable_read().is_none() && lock.try_write().is_none();
        // SAFETY: as above.
        *unsafe { std::ptr::read(&raw const own) }.upgrade() += 1;
        held && works(lock)
    }));
    *own.upgrade() += 1;
    assert!(works(lock));
}

fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Futures that wait when the process is forked: whoever polls them in the child finds them in line anew,
/// whatever they had been granted, and none takes or gives back what is another's.
fn tasks() {
    // In the queue, of the forking thread.
    let lock = new();
    let own = lock.write();
    let (mut reader, mut writer) = (lock.read_async(), lock.write_async());
    assert!(poll(&mut reader).is_none() && poll(&mut writer).is_none());
    assert!(in_child(How::Fork, || {
        let waits = poll(&mut reader).is_none() && lock.raw().queued() == 1;
        let told = lock.stats().forgotten == 2;
        // SAFETY: a copy that the parent's does not know of; ended once in this process.
        drop(unsafe { std::ptr::read(&raw const own) });
        let read = poll(&mut reader).is_some();
        waits && told && read && poll(&mut writer).is_some() && works(lock)
    }));
    assert_eq!(lock.stats().forgotten, 0);

    // Granted, and not polled since.
    drop(own);
    let read = poll(&mut reader).expect("granted");
    drop(read);
    assert!(in_child(How::Fork, || {
        let write = lock.try_write().expect("nobody has got to it");
        let one = poll(&mut writer).is_none();
        drop(write);
        one && poll(&mut writer).is_some() && works(lock)
    }));
    assert!(in_child(How::Fork, || {
        let write = lock.try_write().expect("nobody has got to it");
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const writer) });
        let held = lock.try_read().is_none() && lock.try_write().is_none();
        drop(write);
        held && works(lock)
    }));
    drop(writer);

    // A reader that was let in, and not polled since, is over; its guard would be.
    let own = lock.write();
    let mut reader = lock.read_async();
    assert!(poll(&mut reader).is_none());
    drop(own);
    assert!(lock.raw().readers() == 1);
    assert!(in_child(How::Fork, || {
        let read = poll(&mut reader).expect("free");
        let counted = lock.raw().readers() == 1 && lock.try_write().is_none();
        drop(read);
        counted && works(lock)
    }));
    drop(reader);
    assert!(works(lock));

    // With the seat, waiting for readers: the forking thread's goes on, another's begins anew.
    let reader = Other::with(lock, PerCpuRwLock::read);
    let mut writer = lock.write_async();
    assert!(poll(&mut writer).is_none());
    assert!(in_child(How::Fork, || {
        let closed = lock.try_read().is_none() && lock.stats().forgotten == 1;
        closed && poll(&mut writer).is_some() && works(lock)
    }));
    writer = thread::spawn(move || {
        assert!(poll(&mut writer).is_none());
        writer
    })
    .join()
    .expect("no panic");
    assert!(in_child(How::Fork, || {
        let write = lock.try_write().expect("whoever had the seat has stayed behind");
        let one = poll(&mut writer).is_none();
        drop(write);
        one && poll(&mut writer).is_some() && works(lock)
    }));
    assert!(in_child(How::Fork, || {
        let write = lock.try_write().expect("as above");
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const writer) });
        let held = lock.try_read().is_none();
        drop(write);
        held && works(lock)
    }));
    reader.end();
    assert!(poll(&mut writer).is_some());
    assert!(works(lock));
}
