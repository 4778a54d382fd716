//! SR-16: forked children, one after the other (the whole file is one test, so that nobody else's
//! thread holds the allocator's lock while a child is made).

mod common;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use common::fork::{How, comes_true, in_child, protects};
use owlet_rcu::{Srcu, SrcuGuard};

static DOMAIN: Srcu = Srcu::new();

/// A thread that sits in a section until told to leave.
struct Sitter {
    leave: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

fn sit() -> Sitter {
    let (leave, told) = mpsc::channel();
    let (inside_sender, inside) = mpsc::channel();
    let thread = thread::spawn(move || {
        let _section = DOMAIN.read();
        let _ = inside_sender.send(());
        let _ = told.recv();
    });
    inside.recv().expect("inside");
    Sitter { leave, thread }
}

impl Sitter {
    fn stand_up(self) {
        let _ = self.leave.send(());
        self.thread.join().expect("no panic");
    }
}

/// The child's own section protects, and only it.
fn protects_until_dropped(section: SrcuGuard<'_>) -> bool {
    protects(&DOMAIN, || drop(section))
}

#[test]
fn sr_16_forked_children() {
    DOMAIN.synchronize();
    let sitter = sit();

    let outside = in_child(How::Fork, || {
        DOMAIN.synchronize();
        DOMAIN.synchronize_expedited();
        protects_until_dropped(DOMAIN.read())
    });
    assert!(outside, "a child was stalled by a section of a thread it does not have");

    let mut section = Some(DOMAIN.read());
    let own = in_child(How::Fork, || section.take().is_some_and(protects_until_dropped));
    assert!(own, "the forking thread's section does not protect it in the child");
    drop(section);

    // A grandchild, forked inside a section of the child.
    let grandchild = in_child(How::Fork, || {
        let section = DOMAIN.read();
        in_child(How::Fork, move || protects_until_dropped(section))
    });
    assert!(grandchild);

    // Made past the handlers.
    let raw = in_child(How::Raw, || {
        DOMAIN.synchronize();
        true
    });
    assert!(raw, "a child of a raw clone was stalled");

    // A leader that stays behind: the parent is in the middle of a grace period.
    let waiter = thread::spawn(|| DOMAIN.synchronize());
    thread::sleep(Duration::from_millis(50));
    let mid_period = in_child(How::Fork, || {
        DOMAIN.synchronize();
        protects_until_dropped(DOMAIN.read())
    });
    assert!(mid_period, "a grace period of the parent stalled the child");

    // A guard that came from another thread is struck out, and ending it changes nothing.
    let (give, given) = mpsc::channel::<SrcuGuard<'static>>();
    let taker = thread::spawn(move || {
        let _ = give.send(DOMAIN.read());
        thread::park();
    });
    let mut foreign = Some(given.recv().expect("a guard"));
    let moved_in = in_child(How::Fork, || {
        DOMAIN.synchronize();
        drop(foreign.take());
        DOMAIN.synchronize();
        protects_until_dropped(DOMAIN.read())
    });
    assert!(moved_in);
    drop(foreign);
    taker.thread().unpark();
    taker.join().expect("no panic");

    beyond_the_near_domains();
    moved_out(&sitter);
    while_the_worker_runs();

    // The parent is unaffected.
    assert!(!waiter.is_finished(), "the parent's sitter is still inside");
    sitter.stand_up();
    waiter.join().expect("no panic");
    DOMAIN.synchronize();
}

/// SR-16 with more domains than a thread has room for in its thread-local area: each is told apart.
fn beyond_the_near_domains() {
    let domains: Vec<&'static Srcu> = (0..90).map(|_| &*Box::leak(Box::new(Srcu::new()))).collect();
    let (leave, told) = mpsc::channel::<()>();
    let (inside_sender, inside) = mpsc::channel();
    let others = domains.clone();
    let holder = thread::spawn(move || {
        let sections: Vec<_> = others.iter().map(|d| d.read()).collect();
        let _ = inside_sender.send(());
        let _ = told.recv();
        drop(sections);
    });
    inside.recv().expect("inside");
    for at in [0, 40, 89] {
        let own = domains[at];
        let mut section = Some(own.read());
        let right = in_child(How::Fork, || {
            // The other thread's sections hold nobody up; the own one does.
            domains.iter().filter(|d| !std::ptr::eq(**d, own)).for_each(|d| d.synchronize());
            protects(own, || drop(section.take()))
        });
        assert!(right, "domain {at} of 90");
        drop(section);
    }
    let _ = leave.send(());
    holder.join().expect("no panic");
}

/// A thread whose guards are given back elsewhere all the time still has its own told apart.
fn moved_out(_sitter: &Sitter) {
    let (give, given) = mpsc::channel::<SrcuGuard<'static>>();
    let closer = thread::spawn(move || given.into_iter().for_each(drop));
    for _ in 0..100 {
        let _ = give.send(DOMAIN.read());
    }
    drop(give);
    closer.join().expect("no panic");
    let mut section = Some(DOMAIN.read());
    let right = in_child(How::Fork, || section.take().is_some_and(protects_until_dropped));
    assert!(right, "guards given back elsewhere are counted as open");
    drop(section);
}

/// LV-03: the worker stays behind with half its work done; the child's starts over.
fn while_the_worker_runs() {
    static BUSY: Srcu = Srcu::new();
    let section = BUSY.read();
    let cookie = BUSY.start_poll();
    thread::sleep(Duration::from_millis(20));
    let mut section = Some(section);
    let right = in_child(How::Fork, || {
        let waits = !BUSY.poll(cookie);
        drop(section.take());
        // The first that needs the child's worker starts it, and it goes on with what it inherits.
        let other = DOMAIN.start_poll();
        waits && comes_true(|| BUSY.poll(cookie) && DOMAIN.poll(other))
    });
    assert!(right, "cookies of the parent's worker are forgotten");
    drop(section);
    BUSY.wait(cookie);
}

/// LV-05: once warm, sections make no system call: strict seccomp would kill the child.
#[test]
fn lv_05_sections_make_no_system_call() {
    let domain = Arc::new(Srcu::new());
    drop(domain.read());
    let right = in_child(How::Fork, || {
        drop(domain.read());
        // SAFETY: takes no pointers. From here on: read, write, exit, sigreturn.
        let strict = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        if strict != 0 {
            // EINVAL: there is a filter already (the suite runs under some), and no way back from it.
            return std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
        }
        for _ in 0..100_000 {
            drop(domain.read());
        }
        // SAFETY: ends this, the only thread. (`_exit` is exit_group, which strict mode kills.)
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        false
    });
    assert!(right);
}
