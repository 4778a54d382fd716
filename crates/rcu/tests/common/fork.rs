//! Forked children that judge themselves.
//!
//! Tests that use this are one to a file: a child made past the handlers must not find the allocator's
//! lock taken by a thread that it does not have.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use owlet_rcu::{Cookie, Domain};

/// How a child is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By `fork`.
    Fork,
    /// By a bare `clone`, past the handlers of `pthread_atfork`.
    Raw,
}

/// 0 in the child, which ends, as stalled, when a watchdog's patience is over.
pub fn fork(how: How) -> i32 {
    let pid = match how {
        // SAFETY: the child leaves by _exit.
        How::Fork => unsafe { libc::fork() },
        // SAFETY: fork without handlers; the child is single-threaded and leaves by _exit.
        How::Raw => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 },
    };
    if pid == 0 {
        // SAFETY: takes no pointers; ends a child that stalls.
        unsafe { libc::alarm(60) };
    }
    pid
}

/// Ends a child.
pub fn exit(well: bool) -> ! {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(i32::from(!well)) }
}

/// A child's status.
pub fn reap(pid: i32) -> i32 {
    let mut status = -1;
    // SAFETY: `status` is a valid int.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// True if a child ended by itself, with true.
pub fn ended_well(pid: i32) -> bool {
    let status = reap(pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Runs `child` in a forked child and says whether it ended with true. (A panic that left it would end the
/// child's only thread, and the child with success.)
pub fn in_child(how: How, child: impl FnOnce() -> bool) -> bool {
    let pid = fork(how);
    if pid == 0 {
        exit(catch_unwind(AssertUnwindSafe(child)).unwrap_or(false));
    }
    ended_well(pid)
}

/// Waits for what must come true in a child, whose watchdog is its alarm.
pub fn comes_true(done: impl Fn() -> bool) -> bool {
    while !done() {
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// True if the moment does not pass soon.
pub fn stays_open(domain: &dyn Domain, cookie: Cookie) -> bool {
    let until = Instant::now() + Duration::from_millis(30);
    let mut open = true;
    while Instant::now() < until {
        open &= !domain.poll(cookie);
        thread::sleep(Duration::from_millis(1));
    }
    open
}

/// True if a grace period of `domain` waits for what `end` ends, and for nothing else.
pub fn protects(domain: &'static dyn Domain, end: impl FnOnce()) -> bool {
    let cookie = domain.snapshot();
    let waiter = thread::spawn(move || domain.synchronize());
    let open = stays_open(domain, cookie);
    end();
    waiter.join().is_ok() && open && domain.poll(cookie)
}
