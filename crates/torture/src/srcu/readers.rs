//! Reader threads.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::Duration;

use owlet_rcu::SrcuGuard;

use super::{DOMAIN, Element, THREADS, judge, look_up, shaker, stopped};
use crate::rng::Rng;

/// A section on its way to another thread.
pub(super) struct Moved {
    guard: SrcuGuard<'static>,
    element: *const Element,
}

// SAFETY: the element is protected by the guard that travels with it.
unsafe impl Send for Moved {}

/// A thread that ends sections others began.
pub(super) fn spawn_closer<'scope>(s: &'scope Scope<'scope, '_>) -> Sender<Moved> {
    let (sender, receiver): (Sender<Moved>, Receiver<Moved>) = channel();
    s.spawn(move || {
        for moved in receiver {
            judge(moved.element);
            drop(moved.guard);
        }
    });
    sender
}

/// Reads in every way until the end. With `no_rseq`, gives this thread's registration up first.
pub(super) fn read_until_stop(mut rng: Rng, closer: Sender<Moved>, no_rseq: bool) {
    if no_rseq && let Ok(area) = owlet_sys::rseq::area() {
        let _ = owlet_sys::rseq::unregister_this_thread(area);
    }
    let _registered = shaker::Registered::new();
    while !stopped() {
        for _ in 0..64 {
            read_once(&mut rng, &closer);
        }
    }
}

fn read_once(rng: &mut Rng, closer: &Sender<Moved>) {
    let cell = rng.next();
    match rng.below(1000) {
        0..900 => raw(cell, rng.below(20)),
        900..960 => nested(cell),
        960..995 => guarded(cell, std::thread::yield_now),
        995..998 => {
            let time = Duration::from_micros(rng.below(300));
            guarded(cell, || std::thread::sleep(time));
        }
        _ => {
            let guard = DOMAIN.read();
            let element = look_up(cell);
            // The receiver outlives the readers.
            let _ = closer.send(Moved { guard, element });
        }
    }
}

fn raw(cell: u64, spins: u64) {
    let token = DOMAIN.read_lock();
    let element = look_up(cell);
    for _ in 0..spins {
        std::hint::spin_loop();
    }
    if shaker::is_straggler() {
        std::thread::sleep(Duration::from_millis(1));
    }
    judge(element);
    // SAFETY: this thread's own token, given back once.
    unsafe { DOMAIN.read_unlock(token) };
}

fn nested(cell: u64) {
    let outer = DOMAIN.read();
    let element = look_up(cell);
    let inner = DOMAIN.read();
    let other = look_up(cell + 1);
    // Out of order: sections are counted, not stacked.
    drop(outer);
    judge(other);
    let again = DOMAIN.read();
    let _ = element;
    drop(inner);
    judge(look_up(cell));
    drop(again);
}

fn guarded(cell: u64, hold: impl FnOnce()) {
    let guard = DOMAIN.read();
    let element = look_up(cell);
    hold();
    judge(element);
    drop(guard);
}

/// Threads that live for a few sections.
pub(super) fn churn_until_stop(mut rng: Rng) {
    while !stopped() {
        let batch: Vec<_> = (0..8)
            .map(|_| {
                let cell = rng.next();
                std::thread::spawn(move || {
                    let _registered = shaker::Registered::new();
                    for i in 0..50 {
                        raw(cell + i, i % 7);
                    }
                    guarded(cell, std::thread::yield_now);
                })
            })
            .collect();
        for thread in batch {
            let _ = thread.join();
            THREADS.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Short sections, each behind a run of stores that miss the cache: the entry's store then waits in
/// the store buffer while the section's loads are done already, which is what the heavy fence is for.
pub(super) fn sprint_until_stop(mut rng: Rng, cpu: usize) {
    const LINES: u64 = 1 << 19;
    let mut cold = vec![[0_u64; 8]; LINES as usize];
    let _ = owlet_sys::topology::set_affinity(Some(cpu), owlet_percpu::cpus());
    while !stopped() {
        for _ in 0..rng.below(40) {
            let line = rng.below(LINES) as usize;
            // A store the compiler keeps, in order.
            std::hint::black_box(&mut cold[line])[0] = 1;
        }
        raw(0, rng.below(60));
    }
}
