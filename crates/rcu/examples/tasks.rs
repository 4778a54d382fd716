//! Tasks: code that threads may be anywhere in is taken away; and Tasks-Trace: sections that sleep.
//!
//! `cargo run -p owlet-rcu --example tasks`

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use owlet_rcu::{Tasks, TasksTrace};

static CODE: Tasks = Tasks::named("plug-in code");
static PROGRAMS: TasksTrace = TasksTrace::named("programs");

/// What a plug-in's entry would be; the second one replaces the first.
static PLUG_INS: [fn(u64) -> u64; 2] = [|x| x + 1, |x| x + 2];
static CURRENT: AtomicUsize = AtomicUsize::new(0);

fn main() {
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                // From here to the voluntary point the thread may be inside any plug-in's code,
                // though nothing marks its entry and its exit.
                let mut task = CODE.register();
                let mut sum = 0;
                while !stop.load(Ordering::Relaxed) {
                    sum = PLUG_INS[CURRENT.load(Ordering::Acquire)](sum);
                    task.quiescent();
                    if sum % 1000 < 2 {
                        task.offline(|| thread::sleep(Duration::from_millis(1)));
                    }
                }
            });
        }
        thread::sleep(Duration::from_millis(10));
        CURRENT.store(1, Ordering::Release);
        CODE.synchronize();
        println!("nobody is in the old plug-in any more: it can be unmapped");

        // Many at once share one grace period that begins within the window.
        let cookies: Vec<_> = (0..100).map(|_| CODE.start_poll()).collect();
        while !cookies.iter().all(|cookie| CODE.poll(*cookie)) {
            thread::sleep(Duration::from_millis(1));
        }
        println!("100 more took {} grace periods in all", CODE.stats().grace_periods);

        // A section that sleeps, inside another: only the outer one touches a counter.
        let outer = PROGRAMS.read();
        let inner = PROGRAMS.read();
        thread::sleep(Duration::from_millis(1));
        drop(inner);
        drop(outer);
        PROGRAMS.synchronize();
        stop.store(true, Ordering::Relaxed);
    });
}
