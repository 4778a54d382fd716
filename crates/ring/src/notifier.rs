//! The notifier: the thread of the recorder that turns marks left by writers into wakeups.
//!
//! It looks every deferral while anybody waits, and sleeps otherwise. So wakeups are at most one
//! per deferral whatever the event rate, and the traced threads make no system call. It lives in
//! the recorder and nowhere else: a traced process gets no thread, timer or wakeup from it.
//!
//! | notifier word | meaning | next |
//! |---|---|---|
//! | 0 | writers wake waiters themselves | a time (notifier starts or comes back) |
//! | time of its last look | writers leave a mark | later times; 0 (it leaves, or a waiter finds it dead) |

use crate::Segment;
use crate::sync::{AtomicBool, Ordering};
use owlet_sys::futex::{self, Reach};
use owlet_sys::{clock, process};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long it sleeps, at most, while nobody waits.
const IDLE: Duration = Duration::from_secs(1);

/// How the notifier thread runs.
#[derive(Clone, Debug, Default)]
pub struct NotifierOptions {
    /// CPUs it may run on, for machines with isolated ones; empty = wherever the process may.
    pub cpus: Vec<usize>,
}

/// The notifier thread. Stops when dropped; writers then wake readers themselves.
#[derive(Debug)]
pub struct Notifier {
    segment: Arc<Segment>,
    stop: Arc<AtomicBool>,
    pid: u32,
    thread: Option<JoinHandle<()>>,
}

impl Notifier {
    /// Starts the thread. When this returns, writers know of it.
    ///
    /// # Errors
    /// When the thread cannot be started, or none of the CPUs can be used.
    pub fn start(segment: &Arc<Segment>, options: &NotifierOptions) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, confined) = std::sync::mpsc::sync_channel(1);
        let run = {
            let (segment, stop, cpus) =
                (Arc::clone(segment), Arc::clone(&stop), options.cpus.clone());
            move || {
                process::block_signals();
                let answer = if cpus.is_empty() { Ok(()) } else { process::set_affinity(&cpus) };
                let usable = answer.is_ok();
                if usable {
                    let now = clock::monotonic_ns().max(1);
                    segment.wake_words().notifier.store(now, Ordering::Release);
                }
                let _ = ready.send(answer);
                if usable {
                    run(&segment, &stop);
                }
            }
        };
        let thread = thread::Builder::new().name("owlet-notify".into()).spawn(run)?;
        let answer = confined.recv().map_err(|_| io::Error::other("the notifier has died"))?;
        answer?;
        let pid = process::getpid();
        Ok(Self { segment: Arc::clone(segment), stop, pid, thread: Some(thread) })
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        // A forked child has the handle but not the thread, which is its parent's business.
        if self.pid != process::getpid() {
            return;
        }
        self.stop.store(true, Ordering::Release);
        futex::wake_all(self.segment.wake_words().waiters, Reach::Shared);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(segment: &Segment, stop: &AtomicBool) {
    let words = segment.wake_words();
    let deferral = segment.deferral();
    while !stop.load(Ordering::Acquire) {
        words.notifier.store(clock::monotonic_ns().max(1), Ordering::Release);
        if words.waiters.load(Ordering::Acquire) == 0 {
            let _ = futex::wait(words.waiters, 0, Some(IDLE), Reach::Shared);
            continue;
        }
        if deferral.is_zero() {
            thread::yield_now();
        } else {
            thread::sleep(deferral);
        }
        words.sweep();
    }
    words.leave();
}
