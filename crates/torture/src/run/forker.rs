//! Forked children: SR-16, GP-12.
//!
//! A child inherits counters in which threads it does not have are inside. It must not wait for
//! them; and it must wait for the section the forking thread was in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::retire::child_frees;
use super::world::{Count, Fault, go_on_seated, judge, look_up};
use crate::flavour::{Flavour, Gp, Waits};
use crate::rng::Rng;

/// Seconds after which a child has stalled.
static LIMIT: AtomicU32 = AtomicU32::new(8);

/// Forks until the end and judges the children.
pub(super) fn fork_until_stop<F: Flavour>(mut rng: Rng, limit: u32) {
    LIMIT.store(limit, Ordering::Relaxed);
    let mut seat = F::sit();
    while go_on_seated::<F>(&mut seat) {
        let time = Duration::from_millis(20 + rng.below(30));
        F::rest(&mut seat, || std::thread::sleep(time));
        let inside = rng.below(2) == 0;
        let begun = Instant::now();
        let status =
            if inside { fork_inside::<F>(&mut seat) } else { fork_outside::<F>(&mut seat) };
        if !(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0) {
            Fault::Fork.note();
            // Signal 14: the child stalled. Exit status 1: its own section did not hold.
            let time = begun.elapsed();
            eprintln!("child forked inside={inside} ended with status {status:#x} after {time:?}");
        }
        Count::Forks.note();
    }
}

/// Forks; the child runs `child` and exits with 0 if it answers true. The child's wait status.
fn fork(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child calls what works in the forked child of a threaded process under glibc and
    // musl (allocation and threads included), and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: takes no pointers. SIGALRM ends a child that stalls.
        unsafe { libc::alarm(LIMIT.load(Ordering::Relaxed)) };
        let right = child();
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    reap(pid)
}

/// Nothing to wait for.
fn fork_outside<F: Flavour>(seat: &mut F::Seat) -> i32 {
    fork(|| {
        for how in F::waits().kinds() {
            pass::<F>(seat, *how);
        }
        let called = !F::waits().calls() || calls_back::<F>(seat) && frees::<F>(seat);
        // And the child's own sections are sections.
        let held = F::section(seat, || child_inside(F::waits()));
        pass::<F>(seat, Gp::Sync);
        held && called
    })
}

fn pass<F: Flavour>(seat: &mut F::Seat, how: Gp) {
    F::rest(seat, || F::waits().pass(how, &mut || Duration::from_micros(100)));
}

/// BA-05: what the child posts is called, by the time a barrier returns.
fn calls_back<F: Flavour>(seat: &mut F::Seat) -> bool {
    let called = Arc::new(AtomicBool::new(false));
    let flag = called.clone();
    F::waits().call(false, Box::new(move || flag.store(true, Ordering::Relaxed)));
    F::rest(seat, || F::waits().barrier());
    called.load(Ordering::Relaxed)
}

/// Deferred free works in the child, and it does not wait for what stayed behind.
fn frees<F: Flavour>(seat: &mut F::Seat) -> bool {
    let mut freed = false;
    F::rest(seat, || freed = child_frees(F::waits()));
    freed
}

/// The forking thread's own section, and nothing else, to wait for. Both processes run the closure: each
/// ends its own copy of the section.
fn fork_inside<F: Flavour>(seat: &mut F::Seat) -> i32 {
    let pid = F::section(seat, || {
        let element = look_up(0);
        // SAFETY: as in `fork`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as in `fork`.
            unsafe { libc::alarm(LIMIT.load(Ordering::Relaxed)) };
            if !child_inside(F::waits()) {
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(1) };
            }
        } else {
            judge(element);
        }
        pid
    });
    if pid == 0 {
        pass::<F>(seat, Gp::Sync);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    reap(pid)
}

/// True if the section around this holds a grace period up for a while.
fn child_inside(waits: &'static dyn Waits) -> bool {
    let cookie = waits.snapshot();
    let waiter = std::thread::spawn(move || waits.wait(cookie));
    let until = Instant::now() + Duration::from_millis(10);
    let mut right = true;
    while Instant::now() < until {
        right &= !waits.poll(cookie);
        std::thread::sleep(Duration::from_millis(1));
    }
    right && !waiter.is_finished()
}

fn reap(pid: i32) -> i32 {
    let mut status = -1;
    loop {
        // SAFETY: `status` is a valid int.
        let answer = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        let interrupted = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
        if answer == pid || !interrupted {
            return status;
        }
    }
}
