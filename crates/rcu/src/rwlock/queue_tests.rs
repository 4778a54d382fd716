use std::sync::atomic::AtomicBool;
use std::task::Wake;

use super::*;

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A handler that has interrupted the latch's holder, on one thread: it waits for nobody, and what it had
/// to tell is told when the latch is given back.
#[test]
fn rw_10_whoever_interrupts_the_holder_of_the_latch_does_not_wait_for_it() {
    let (queue, flag) = (Queue::new(), Arc::new(Flag(AtomicBool::new(false))));
    let mut line = queue.lock();
    line.drainer = Some((Waker::from(flag.clone()), 0));
    queue.wake_drainer();
    assert!(!flag.0.load(Ordering::Relaxed), "the latch is another's");
    drop(line);
    assert!(flag.0.load(Ordering::Relaxed));
    assert!(queue.lock().drainer.is_none());
    queue.wake_drainer();
    assert_eq!(queue.latch.load(Ordering::Relaxed), 0);
}

/// The latch is a lock.
#[test]
fn the_latch_excludes() {
    let queue = Queue::new();
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for i in 0..2000 {
                    let mut line = queue.lock();
                    let before = line.group;
                    if i % 64 == 0 {
                        std::thread::yield_now();
                    }
                    line.group = before + 1;
                    drop(line);
                    queue.wake_drainer();
                }
            });
        }
    });
    assert_eq!(queue.lock().group, 6000);
}
