//! Forked children of processes with registered threads (GP-12, LV-03). One test, so that nobody
//! else's thread holds the allocator's lock while a child is made.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use owlet_rcu::{Cookie, Qsbr, Tasks, TasksTrace};

static DOMAIN: Qsbr = Qsbr::new();
static CODE: Tasks = Tasks::new();
static PROGRAMS: TasksTrace = TasksTrace::new();

/// Runs `child` in a forked child and says whether it ended, in time, with true.
fn in_child(raw: bool, child: impl FnOnce() -> bool) -> bool {
    let pid = if raw {
        // SAFETY: fork without handlers; the child is single-threaded and leaves by _exit.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
    } else {
        // SAFETY: the child leaves by _exit.
        unsafe { libc::fork() }
    };
    if pid == 0 {
        // SAFETY: takes no pointers; ends a child that stalls.
        unsafe { libc::alarm(10) };
        let code = i32::from(!child());
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid int.
    let answer = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    answer == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn stays_open(poll: impl Fn(Cookie) -> bool, cookie: Cookie) -> bool {
    let until = Instant::now() + Duration::from_millis(30);
    let mut open = true;
    while Instant::now() < until {
        open &= !poll(cookie);
        thread::sleep(Duration::from_millis(1));
    }
    open
}

fn waits() -> bool {
    DOMAIN.synchronize();
    CODE.synchronize();
    PROGRAMS.synchronize();
    DOMAIN.synchronize_expedited();
    owlet_rcu::wait_all(&[&DOMAIN, &CODE, &PROGRAMS]);
    true
}

#[test]
fn gp_12_forked_children_of_registered_threads() {
    // A thread inside everything.
    let (leave, told) = mpsc::channel::<()>();
    let (inside, is_inside) = mpsc::channel();
    let sitter = thread::spawn(move || {
        let mut reader = DOMAIN.register();
        let _online = reader.online();
        let _task = CODE.register();
        let _section = PROGRAMS.read();
        let _ = inside.send(());
        let _ = told.recv();
    });
    is_inside.recv().expect("inside");

    assert!(in_child(false, waits), "a child was stalled by a thread it does not have");
    assert!(in_child(true, waits), "a child of a raw clone was stalled");

    // The forking thread's own registration goes on protecting it, and ends as usual.
    let mut reader = DOMAIN.register();
    let mut online = reader.online();
    let own = in_child(false, || {
        let cookie = DOMAIN.snapshot();
        let waiter = thread::spawn(|| DOMAIN.synchronize());
        let open = stays_open(|c| DOMAIN.poll(c), cookie);
        online.quiescent();
        let once = waiter.join().is_ok() && DOMAIN.poll(cookie);
        // A grandchild.
        let cookie = DOMAIN.snapshot();
        let grandchild = in_child(false, || {
            let waiter = thread::spawn(|| DOMAIN.synchronize());
            let open = stays_open(|c| DOMAIN.poll(c), cookie);
            online.offline(|| waiter.join().is_ok()) && open
        });
        open && once && grandchild
    });
    assert!(own, "the own section does not protect in the child");
    drop(online);

    // Registrations in the child are new, and bring their own thread number.
    let fresh = in_child(false, || {
        let mut mine = DOMAIN.register();
        let online = mine.online();
        let task = CODE.register();
        let cookie = DOMAIN.snapshot();
        let waiter = thread::spawn(|| DOMAIN.synchronize());
        let open = stays_open(|c| DOMAIN.poll(c), cookie);
        drop(online);
        drop(task);
        waiter.join().is_ok() && open && DOMAIN.abandoned() == 0 && CODE.abandoned() == 0
    });
    assert!(fresh);

    // In the middle of a grace period of the parent.
    let waiter = thread::spawn(|| DOMAIN.synchronize());
    thread::sleep(Duration::from_millis(50));
    assert!(in_child(false, waits), "a grace period of the parent stalled the child");
    assert!(!waiter.is_finished(), "the parent's sitter is still inside");
    leave.send(()).expect("told");
    sitter.join().expect("no panic");
    waiter.join().expect("no panic");
    assert!(waits());
}
