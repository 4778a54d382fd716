//! QSBR: event loops that read for nothing, and say once per turn that they are between two turns.
//!
//! `cargo run -p owlet-rcu --example qsbr`

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc;
use std::thread;

use owlet_rcu::Qsbr;

static DOMAIN: Qsbr = Qsbr::named("routes");
static ROUTES: AtomicPtr<Vec<String>> = AtomicPtr::new(std::ptr::null_mut());

fn serve(requests: &mpsc::Receiver<usize>) -> usize {
    let mut reader = DOMAIN.register();
    let mut online = reader.online();
    let mut bytes = 0;
    // Offline while there is nothing to do: a thread that sleeps delays nobody.
    while let Ok(request) = online.offline(|| requests.recv()) {
        let section = online.read();
        // SAFETY: freed only after a grace period, which waits for this thread's next quiescent
        // state; `section` borrows `online`, so that cannot come before the last use.
        let routes = unsafe { &*ROUTES.load(Ordering::Acquire) };
        bytes += routes[request % routes.len()].len();
        drop(section);
        online.quiescent();
    }
    bytes
}

fn main() {
    let routes = |n: usize| Box::into_raw(Box::new(vec![format!("/v{n}"), format!("/v{n}/items")]));
    ROUTES.store(routes(0), Ordering::Release);
    let loops: Vec<_> = (0..2)
        .map(|_| {
            let (sender, requests) = mpsc::channel();
            (sender, thread::spawn(move || serve(&requests)))
        })
        .collect();
    for n in 1..=100 {
        for (sender, _) in &loops {
            (0..10).for_each(|request| sender.send(request).expect("the loop runs"));
        }
        let old = ROUTES.swap(routes(n), Ordering::AcqRel);
        DOMAIN.synchronize();
        // SAFETY: every loop has been between two turns since the swap.
        drop(unsafe { Box::from_raw(old) });
    }
    for (sender, thread) in loops {
        drop(sender);
        println!("a loop served {} bytes", thread.join().expect("no panic"));
    }
    println!("{:?}", DOMAIN.stats());
    // SAFETY: nobody else is left.
    drop(unsafe { Box::from_raw(ROUTES.load(Ordering::Acquire)) });
}
