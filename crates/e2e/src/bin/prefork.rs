//! A prefork server in miniature: the parent forks workers, and a worker forks a grandchild; each
//! emits the number of events it was told to. The parent ends when all have.
//!
//! `prefork WORKERS EVENTS` waits for a line on standard input before it forks, so that a recording
//! can be attached first.

use std::io::BufRead;

owlet::tracepoint! {
    /// A prefork server's work.
    mod prefork {
        /// One unit of work.
        work(worker: u32, seq: u64);
    }
}

fn work(worker: u32, events: u64) {
    for seq in 0..events {
        owlet::trace!(prefork::work, worker, seq);
        if seq % 1000 == 999 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

fn fork() -> libc::pid_t {
    // SAFETY: the parent has no thread but the agent's, whose state the library renews in a child.
    unsafe { libc::fork() }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    owlet::init()?;
    let number = |at| std::env::args().nth(at).and_then(|arg| arg.parse::<u64>().ok());
    let (workers, events) = (number(1).unwrap_or(3), number(2).unwrap_or(1000));
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let mut children = Vec::new();
    for worker in 0..workers as u32 {
        match fork() {
            0 => {
                work(worker, events);
                if worker == 0 {
                    let grandchild = fork();
                    if grandchild == 0 {
                        work(workers as u32, events);
                        std::process::exit(0);
                    }
                    wait(grandchild);
                }
                std::process::exit(0);
            }
            child => children.push(child),
        }
    }
    work(u32::MAX, events);
    children.into_iter().for_each(wait);
    println!("done");
    Ok(())
}

fn wait(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` is ours; a child that is not there is an error code, which does not matter.
    unsafe { libc::waitpid(child, &mut status, 0) };
}
