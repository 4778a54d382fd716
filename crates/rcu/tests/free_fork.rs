//! KF-12: deferred free in forked children. The whole file is one test, so that nobody else's thread is
//! in the way.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use owlet_rcu::Srcu;
use owlet_rcu::free::Pool;

static DOMAIN: Srcu = Srcu::named("free_fork");
static POOL: Pool<Counted> = Pool::new(&DOMAIN);
static FREED: AtomicUsize = AtomicUsize::new(0);

struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        FREED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `child` in a forked child and says whether it ended, in time, with true.
fn in_child(raw: bool, child: impl FnOnce() -> bool) -> bool {
    let pid = if raw {
        // SAFETY: fork without handlers; the child leaves by _exit.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
    } else {
        // SAFETY: the child leaves by _exit.
        unsafe { libc::fork() }
    };
    if pid == 0 {
        // SAFETY: takes no pointers; ends a child that stalls.
        unsafe { libc::alarm(60) };
        let well = child();
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!well)) }
    }
    ended_well(pid)
}

fn ended_well(pid: i32) -> bool {
    let mut status = 0;
    // SAFETY: `status` is a valid int.
    let answer = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    answer == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

const MANY: usize = 3000;

fn retire_many() {
    (0..MANY).for_each(|_| DOMAIN.retire(Box::new(Counted)));
    (0..MANY).for_each(|_| POOL.retire(Box::new(Counted)));
}

/// What waits is the child's as well as the parent's: freed once in each, whoever was inside in the parent.
fn what_waited_is_freed_in_both(raw: bool) {
    FREED.store(0, Ordering::Relaxed);
    let (inside, ready) = mpsc::channel();
    let (go, went) = mpsc::channel::<()>();
    thread::scope(|s| {
        s.spawn(move || {
            let _section = DOMAIN.read();
            inside.send(()).unwrap();
            let _ = went.recv();
        });
        ready.recv().unwrap();
        retire_many();
        assert_eq!(FREED.load(Ordering::Relaxed), 0);
        let child = || {
            retire_many();
            DOMAIN.retire_barrier();
            FREED.load(Ordering::Relaxed) == 4 * MANY && DOMAIN.retire_stats().blocks == 0
        };
        // Past the handlers, the sections of threads that stayed behind are known by the one thread.
        assert!(in_child(raw, child), "raw {raw}");
        drop(go);
    });
    DOMAIN.retire_barrier();
    assert_eq!(FREED.load(Ordering::Relaxed), 2 * MANY);
}

/// A destructor that forks: the child goes on with the block that it was in.
fn a_destructor_that_forks() {
    struct Forks;
    impl Drop for Forks {
        fn drop(&mut self) {
            // SAFETY: the child leaves by _exit.
            CHILD.store(unsafe { libc::fork() } as usize, Ordering::Relaxed);
        }
    }
    static CHILD: AtomicUsize = AtomicUsize::new(0);
    FREED.store(0, Ordering::Relaxed);
    let section = DOMAIN.read();
    (0..50).for_each(|_| DOMAIN.retire(Box::new(Counted)));
    DOMAIN.retire(Box::new(Forks));
    (0..50).for_each(|_| DOMAIN.retire(Box::new(Counted)));
    drop(section);
    DOMAIN.synchronize();
    DOMAIN.synchronize();
    // So that it is this thread that frees, and forks.
    DOMAIN.retire_flush();
    DOMAIN.retire_barrier();
    let pid = CHILD.load(Ordering::Relaxed) as i32;
    let well = FREED.load(Ordering::Relaxed) == 100 && DOMAIN.retire_stats().blocks == 0;
    if pid == 0 {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!well)) }
    }
    assert!(ended_well(pid));
    assert!(well, "{} freed, {}", FREED.load(Ordering::Relaxed), DOMAIN.retire_stats());
}

/// Others are at it at the instant of the fork: the child loses what they had in hand, and nothing else
/// happens to it.
fn forks_amid_producers() {
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    retire_many();
                }
            });
        }
        let failed = (0..60).find(|_| {
            let child = || {
                let before = FREED.load(Ordering::Relaxed);
                retire_many();
                DOMAIN.retire_barrier();
                // What was lost does not count as waiting for ever.
                let none = DOMAIN.retire_stats().pending == 0;
                none && FREED.load(Ordering::Relaxed) >= before + 2 * MANY
            };
            !in_child(false, child)
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failed, None, "of the rounds");
    });
    DOMAIN.retire_barrier();
}

#[test]
fn kf_12_forked_children() {
    what_waited_is_freed_in_both(false);
    what_waited_is_freed_in_both(true);
    a_destructor_that_forks();
    forks_amid_producers();
}
