//! Forked children of processes with registered threads (GP-12, LV-03). One test, so that nobody
//! else's thread holds the allocator's lock while a child is made.

mod common;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::fork::{How, in_child, protects};
use owlet_rcu::{Qsbr, Tasks, TasksTrace};

static DOMAIN: Qsbr = Qsbr::new();
static CODE: Tasks = Tasks::new();
static PROGRAMS: TasksTrace = TasksTrace::new();

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

    assert!(in_child(How::Fork, waits), "a child was stalled by a thread it does not have");
    assert!(in_child(How::Raw, waits), "a child of a raw clone was stalled");

    // The forking thread's own registration goes on protecting it, and ends as usual.
    let mut reader = DOMAIN.register();
    let mut online = reader.online();
    let own = in_child(How::Fork, || {
        let once = protects(&DOMAIN, || online.quiescent());
        // A grandchild.
        once && in_child(How::Fork, || protects(&DOMAIN, || online.quiescent()))
    });
    assert!(own, "the own section does not protect in the child");
    drop(online);

    // Registrations in the child are new, and bring their own thread number.
    let fresh = in_child(How::Fork, || {
        let mut mine = DOMAIN.register();
        let online = mine.online();
        let task = CODE.register();
        let held = protects(&DOMAIN, || {
            drop(online);
            drop(task);
        });
        held && DOMAIN.abandoned() == 0 && CODE.abandoned() == 0
    });
    assert!(fresh);

    // In the middle of a grace period of the parent.
    let waiter = thread::spawn(|| DOMAIN.synchronize());
    thread::sleep(Duration::from_millis(50));
    assert!(in_child(How::Fork, waits), "a grace period of the parent stalled the child");
    assert!(!waiter.is_finished(), "the parent's sitter is still inside");
    leave.send(()).expect("told");
    sitter.join().expect("no panic");
    waiter.join().expect("no panic");
    assert!(waits());
}
