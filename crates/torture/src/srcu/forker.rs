//! Forked children: SR-16.
//!
//! A child inherits counters in which threads it does not have are inside. It must not wait for
//! them; and it must wait for the section the forking thread was in.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{DOMAIN, FORK_ERRORS, FORKS, judge, look_up, stopped};
use crate::rng::Rng;

/// A child needs milliseconds; on a machine with dozens of runnable threads per CPU, seconds.
const CHILD_SECONDS: u32 = 8;

/// Forks until the end and judges the children.
pub(super) fn fork_until_stop(mut rng: Rng) {
    while !stopped() {
        std::thread::sleep(Duration::from_millis(20 + rng.below(30)));
        let inside = rng.below(2) == 0;
        let begun = Instant::now();
        let status = fork_once(inside);
        if !(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0) {
            FORK_ERRORS.fetch_add(1, Ordering::Relaxed);
            // Signal 14: the child stalled. Exit status 1: its own section did not hold.
            let time = begun.elapsed();
            eprintln!("child forked inside={inside} ended with status {status:#x} after {time:?}");
        }
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The child's wait status.
fn fork_once(inside: bool) -> i32 {
    let section = inside.then(|| (DOMAIN.read(), look_up(0)));
    // SAFETY: the child calls what works in the forked child of a threaded process under glibc and
    // musl (allocation and threads included), and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: takes no pointers. SIGALRM ends a child that stalls.
        unsafe { libc::alarm(CHILD_SECONDS) };
        let right = match section {
            None => child_outside(),
            Some((guard, element)) => {
                let right = child_inside(|| drop(guard));
                let _ = element;
                right
            }
        };
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    if let Some((guard, element)) = section {
        judge(element);
        drop(guard);
    }
    reap(pid)
}

/// Nothing to wait for.
fn child_outside() -> bool {
    DOMAIN.synchronize();
    DOMAIN.synchronize_expedited();
    true
}

/// Our own section, and nothing else, to wait for.
fn child_inside(end: impl FnOnce()) -> bool {
    let cookie = DOMAIN.snapshot();
    let waiter = std::thread::spawn(|| DOMAIN.synchronize());
    let until = Instant::now() + Duration::from_millis(10);
    let mut right = true;
    while Instant::now() < until {
        right &= !DOMAIN.poll(cookie);
        std::thread::sleep(Duration::from_millis(1));
    }
    end();
    waiter.join().is_ok() && right && DOMAIN.poll(cookie)
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
