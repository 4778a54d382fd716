//! BA-05: callbacks in forked children. The whole file is one test, so that nobody else's thread holds
//! the allocator's lock while a child is made past the handlers.

mod common;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::Background;
use common::fork::{How, comes_true, ended_well, exit, fork, in_child, reap};
use owlet_rcu::{Head, Srcu, callback};

static DOMAIN: Srcu = Srcu::new();

/// An object with a head, which knows that it was posted and how often it was called.
#[repr(C)]
struct Object {
    head: Head,
    calls: AtomicU32,
    posted: AtomicBool,
}

unsafe fn count(head: NonNull<Head>) {
    // SAFETY: heads here are of leaked objects.
    let object = unsafe { head.cast::<Object>().as_ref() };
    object.calls.fetch_add(1, Ordering::Relaxed);
}

fn objects(n: usize) -> &'static [Object] {
    let new =
        || Object { head: Head::new(), calls: AtomicU32::new(0), posted: AtomicBool::new(false) };
    (0..n).map(|_| new()).collect::<Vec<_>>().leak()
}

fn post(objects: &'static [Object]) {
    for object in objects {
        // SAFETY: leaked.
        unsafe { DOMAIN.call_head(NonNull::from(object).cast(), count) };
        object.posted.store(true, Ordering::Relaxed);
    }
}

fn all_called_once(objects: &[Object]) -> bool {
    objects.iter().all(|o| o.calls.load(Ordering::Relaxed) == 1)
}

/// Queued, and in the child's copy too.
fn queued(window: Duration, how: How) {
    callback::set_lazy_window(window);
    let mine = objects(1000);
    post(mine);
    let child = in_child(how, || {
        DOMAIN.barrier();
        let inherited = all_called_once(mine);
        let own = objects(10);
        post(own);
        DOMAIN.barrier();
        // A grandchild's worker is the third.
        let grandchild = in_child(How::Fork, || {
            post(own);
            DOMAIN.barrier();
            own.iter().all(|o| o.calls.load(Ordering::Relaxed) == 2)
        });
        inherited && all_called_once(own) && all_called_once(mine) && grandchild
    });
    assert!(child, "window {window:?}, {how:?}");
    DOMAIN.barrier();
    assert!(all_called_once(mine), "the parent's");
}

/// Collected, and waiting for a section of a thread that the child does not have.
fn waiting() {
    callback::set_lazy_window(Duration::ZERO);
    let (leave, told) = mpsc::channel::<()>();
    let (inside, sits) = mpsc::channel();
    let sitter = thread::spawn(move || {
        let _section = DOMAIN.read();
        let _ = inside.send(());
        let _ = told.recv();
    });
    sits.recv().expect("inside");
    let mine = objects(1000);
    post(mine);
    thread::sleep(Duration::from_millis(50));
    let child = in_child(How::Fork, || {
        DOMAIN.barrier();
        all_called_once(mine)
    });
    assert!(child);
    // Nobody waits at a barrier in this one: its worker starts with the first posting.
    let lazily = in_child(How::Fork, || {
        let last = objects(1);
        post(last);
        comes_true(|| all_called_once(mine) && all_called_once(last))
    });
    assert!(lazily);
    assert!(mine.iter().all(|o| o.calls.load(Ordering::Relaxed) == 0), "the sitter is inside");
    drop(leave);
    sitter.join().expect("no panic");
    DOMAIN.barrier();
    assert!(all_called_once(mine));
}

/// While another thread posts and the worker collects and calls: every head that was queued at the
/// instant of the fork is called once in the child, except one that was just being called.
fn at_any_instant(rounds: usize) {
    callback::set_lazy_window(Duration::ZERO);
    static STOP: AtomicBool = AtomicBool::new(false);
    static ROUND: AtomicUsize = AtomicUsize::new(0);
    static POSTED: AtomicU64 = AtomicU64::new(0);
    const N: usize = 3000;
    let all: &'static [&'static [Object]] = (0..8).map(|_| objects(N)).collect::<Vec<_>>().leak();
    let poster = thread::spawn(move || {
        while !STOP.load(Ordering::Relaxed) {
            for objects in all {
                for object in *objects {
                    object.posted.store(false, Ordering::Relaxed);
                    object.calls.store(0, Ordering::Relaxed);
                    // SAFETY: leaked, and called (below) before it is posted again.
                    unsafe { DOMAIN.call_head(NonNull::from(object).cast(), count) };
                    object.posted.store(true, Ordering::Relaxed);
                }
                POSTED.fetch_add(N as u64, Ordering::Relaxed);
            }
            DOMAIN.barrier();
            ROUND.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut lost = 0;
    for round in 0..rounds {
        // Anywhere in a round.
        thread::sleep(Duration::from_micros((round as u64 * 37) % 700));
        let pid = fork(How::Fork);
        if pid == 0 {
            DOMAIN.barrier();
            let posted =
                || all.iter().copied().flatten().filter(|o| o.posted.load(Ordering::Relaxed));
            let never = posted().filter(|o| o.calls.load(Ordering::Relaxed) == 0).count();
            let twice = all.iter().copied().flatten();
            let twice = twice.filter(|o| o.calls.load(Ordering::Relaxed) > 1).count();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(if twice != 0 { 100 } else { never.min(50) as i32 }) };
        }
        let status = reap(pid);
        assert!(libc::WIFEXITED(status), "round {round}: a child stalled");
        let code = libc::WEXITSTATUS(status);
        assert!(code != 100, "round {round}: called twice");
        assert!(code <= 1, "round {round}: {code} queued heads were never called");
        lost += code;
    }
    STOP.store(true, Ordering::Relaxed);
    poster.join().expect("no panic");
    let (posted, round) = (POSTED.load(Ordering::Relaxed), ROUND.load(Ordering::Relaxed));
    println!("{rounds} forks, {posted} posted in {round} rounds, {lost} were just being called");
}

/// A callback forks: the child is the worker, goes on after it, and calls what is queued.
fn in_a_callback() {
    let (done, forked) = mpsc::channel();
    DOMAIN.call_hurry(move || {
        let pid = fork(How::Fork);
        if pid == 0 {
            DOMAIN.call_hurry(|| exit(true));
        } else {
            let _ = done.send(ended_well(pid));
        }
    });
    assert!(forked.ends("the callback"));
    DOMAIN.barrier();
}

#[test]
fn ba_05_forked_children() {
    queued(common::NEVER, How::Fork);
    queued(Duration::ZERO, How::Fork);
    queued(common::NEVER, How::Raw);
    waiting();
    at_any_instant(400);
    in_a_callback();
    // A child that has nothing to wait for.
    assert!(in_child(How::Fork, || {
        DOMAIN.barrier();
        DOMAIN.quiesce();
        true
    }));
}
