//! What the tests have in common. None of them judges by the clock: what must not happen is looked for
//! during [`SOON`], which finds less on a busy machine and nothing that is not there; what must happen
//! may take until [`LATE`], which is a watchdog's patience and says nothing about how long it takes.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test uses a part of it"
)]

pub mod fork;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use owlet_rcu::Domain;

/// How long something is given to go wrong.
pub const SOON: Duration = Duration::from_millis(100);
/// How long something is given to happen that must.
pub const LATE: Duration = Duration::from_secs(120);
/// A window that no test sees the end of: whoever is called was not made to wait for it.
pub const NEVER: Duration = Duration::from_secs(3600);

/// Waits for what must come true.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LATE;
    while !done() {
        assert!(Instant::now() < end, "{what}: not in {LATE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `f` on a thread of its own; tells its answer.
pub fn in_background<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> mpsc::Receiver<T> {
    let (done, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = done.send(f());
    });
    receiver
}

/// What [`in_background`] is doing.
pub trait Background<T> {
    /// Its answer, which must come.
    #[track_caller]
    fn ends(&self, what: &str) -> T;

    /// Makes sure that it is not done, as far as that is seen soon.
    #[track_caller]
    fn goes_on(&self, what: &str);

    /// Does `step` again and again until it is done.
    #[track_caller]
    fn until_done(&self, step: impl FnMut());
}

impl<T> Background<T> for mpsc::Receiver<T> {
    fn ends(&self, what: &str) -> T {
        match self.recv_timeout(LATE) {
            Ok(answer) => answer,
            Err(why) => panic!("{what}: {why}"),
        }
    }

    fn goes_on(&self, what: &str) {
        assert!(self.recv_timeout(SOON).is_err(), "{what}");
    }

    fn until_done(&self, mut step: impl FnMut()) {
        let end = Instant::now() + LATE;
        loop {
            step();
            if self.recv_timeout(Duration::from_millis(5)).is_ok() {
                return;
            }
            assert!(Instant::now() < end, "the wait does not end");
        }
    }
}

/// Runs `f`; ends the process if it does not end. For what would otherwise hang in a place that a panic
/// on another thread does not reach.
pub fn watched<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let (done, ends) = mpsc::channel::<()>();
    thread::scope(|s| {
        s.spawn(move || {
            if ends.recv_timeout(LATE) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what}: not in {LATE:?}");
                std::process::abort();
            }
        });
        let _done = done;
        f()
    })
}

/// True in a process that runs the test `name` and nothing else; runs that process otherwise. For tests
/// that set what is the whole process's: reporters, switches, signal handlers, the lazy window.
pub fn alone(name: &str) -> bool {
    if std::env::var_os("OWLET_TEST_ALONE").is_some() {
        return true;
    }
    let exe = std::env::current_exe().expect("own path");
    let mut again = std::process::Command::new(exe);
    again.args(["--exact", name, "--nocapture"]).env("OWLET_TEST_ALONE", "1");
    let output = again.output().expect("runs");
    let text = [output.stdout, output.stderr].map(|o| String::from_utf8_lossy(&o).into_owned());
    let text = text.join("\n");
    assert!(output.status.success() && text.contains("1 passed"), "{} {text}", output.status);
    false
}

/// A `synchronize` on a thread of its own.
pub fn waiter<D: Domain + Send + 'static>(
    domain: &(impl std::ops::Deref<Target = D> + Clone + Send + 'static),
) -> mpsc::Receiver<()> {
    let domain = domain.clone();
    in_background(move || domain.synchronize())
}

/// The process's pages, resident ones or all.
pub fn pages(resident: bool) -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc");
    let number = statm.split(' ').nth(usize::from(resident));
    number.and_then(|n| n.parse().ok()).expect("a number")
}

/// Has `handler` called at each such signal.
pub fn handle(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: a valid action; the handlers of the tests only use what is async-signal-safe.
    let answer = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(answer, 0);
}

/// Runs `work` on this thread while another thread sends it one signal after the other.
pub fn in_storm(signal: i32, work: impl FnOnce()) {
    let pid = owlet_sys::process::getpid();
    let (tid, stop) = (owlet_sys::process::gettid(), AtomicBool::new(false));
    thread::scope(|s| {
        s.spawn(|| {
            let mut at = 1_u64;
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: takes no pointers.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
                // At another instruction each time.
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (0..(at >> 33) % 4000).for_each(|_| std::hint::spin_loop());
            }
        });
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        work();
    });
}
