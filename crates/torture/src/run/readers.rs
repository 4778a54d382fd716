//! Reader threads: sections held in every way the flavour allows.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::Duration;

use super::world::{
    Count, Element, Fault, cross_check, find, go_on, go_on_seated, judge, leave, look_up, stopped,
};
use super::{delays, shaker};
use crate::flavour::{Flavour, Movable};
use crate::rng::Rng;

/// A section on its way to another thread.
pub(super) struct Moved {
    section: Movable,
    element: *const Element,
}

// SAFETY: the element is protected by the section that travels with it.
unsafe impl Send for Moved {}

/// A thread that ends sections others began.
pub(super) fn spawn_closer<'scope>(s: &'scope Scope<'scope, '_>) -> Sender<Moved> {
    let (sender, receiver): (Sender<Moved>, Receiver<Moved>) = channel();
    s.spawn(move || {
        for moved in receiver {
            judge(moved.element);
            drop(moved.section);
        }
    });
    sender
}

/// A long-lived reader.
pub(super) struct Reader {
    /// Which pair of marks is its own.
    pub(super) seat: usize,
    pub(super) rng: Rng,
    pub(super) closer: Sender<Moved>,
    /// Gives its rseq registration up first.
    pub(super) no_rseq: bool,
}

impl Reader {
    /// Reads in every way until the end.
    pub(super) fn read_until_stop<F: Flavour>(mut self) {
        if self.no_rseq
            && let Ok(area) = owlet_sys::rseq::area()
        {
            let _ = owlet_sys::rseq::unregister_this_thread(area);
        }
        let _registered = shaker::Registered::new();
        let mut seat = F::sit();
        while go_on_seated::<F>(&mut seat) {
            for _ in 0..64 {
                self.read_once::<F>(&mut seat);
            }
            if self.rng.below(200) == 0 {
                let time = Duration::from_micros(self.rng.below(2000));
                F::rest(&mut seat, || std::thread::sleep(time));
            }
        }
    }

    fn read_once<F: Flavour>(&mut self, seat: &mut F::Seat) {
        let cell = self.rng.next();
        let me = self.seat;
        match self.rng.below(1000) {
            0..650 => plain::<F>(seat, me, cell, self.rng.below(20)),
            650..850 => {
                let spins = self.rng.below(40);
                F::burst(seat, cell % 12, || one(me, cell, spins));
            }
            850..910 if F::ABILITIES.nest => nested::<F>(seat, cell),
            910..940 if F::ABILITIES.cookies => with_cookie::<F>(seat, me, cell),
            940..960 => cross_check(),
            960..990 => held::<F>(seat, me, cell, std::thread::yield_now),
            990..993 => {
                let time = Duration::from_micros(self.rng.below(300));
                held::<F>(seat, me, cell, || std::thread::sleep(time));
            }
            993..996 => {
                if let Some(section) = F::movable() {
                    let element = look_up(cell);
                    Count::Moved.note();
                    // The receiver outlives the readers.
                    let _ = self.closer.send(Moved { section, element });
                }
            }
            _ => plain::<F>(seat, me, cell, self.rng.below(2000)),
        }
    }
}

#[inline]
fn plain<F: Flavour>(seat: &mut F::Seat, me: usize, cell: u64, spins: u64) {
    F::section(seat, || one(me, cell, spins));
}

#[inline]
fn one(me: usize, cell: u64, spins: u64) {
    let element = look_up(cell);
    find(me, element);
    for _ in 0..spins {
        std::hint::spin_loop();
    }
    if delays::is_straggler() {
        std::thread::sleep(Duration::from_millis(1));
    }
    judge(element);
    leave(me, element);
}

fn held<F: Flavour>(seat: &mut F::Seat, me: usize, cell: u64, hold: impl FnOnce()) {
    F::section(seat, || {
        let element = look_up(cell);
        find(me, element);
        hold();
        judge(element);
        leave(me, element);
    });
}

fn nested<F: Flavour>(seat: &mut F::Seat, cell: u64) {
    F::section(seat, || {
        let outer = look_up(cell);
        F::section_anywhere(|| {
            let inner = look_up(cell + 1);
            F::section_anywhere(|| judge(look_up(cell)));
            judge(inner);
        });
        judge(outer);
    });
}

/// PO-02: a cookie taken inside a section stays closed until the section ends.
fn with_cookie<F: Flavour>(seat: &mut F::Seat, me: usize, cell: u64) {
    F::section(seat, || {
        let element = look_up(cell);
        find(me, element);
        let cookie = F::waits().snapshot();
        for i in 0..cell % 64 {
            std::hint::black_box(i);
        }
        if cell.is_multiple_of(16) {
            std::thread::yield_now();
        }
        if F::waits().poll(cookie) {
            Fault::Cookie.note();
        }
        Count::Cookies.note();
        judge(element);
        leave(me, element);
    });
}

/// Threads that live for a few sections: 16 at a time that read and exit.
pub(super) fn churn_until_stop<F: Flavour>(mut rng: Rng) {
    while go_on() {
        let sections = [1, 1, 50][rng.below(3) as usize];
        let batch: Vec<_> = (0..16).map(|_| spawn_short::<F>(rng.next(), sections)).collect();
        for thread in batch {
            let _ = thread.join();
            Count::Threads.note();
        }
        std::thread::sleep(Duration::from_millis(1 + rng.below(5)));
    }
}

fn spawn_short<F: Flavour>(cell: u64, sections: u64) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let _registered = shaker::Registered::new();
        let mut seat = F::sit();
        for i in 0..sections {
            F::section(&mut seat, || {
                let element = look_up(cell.wrapping_add(i));
                if i.is_multiple_of(8) {
                    std::thread::yield_now();
                }
                judge(element);
            });
        }
    })
}

/// Short sections, each behind a run of stores that miss the cache: the entry's store then waits in
/// the store buffer while the section's loads are done already, which is what the heavy fence is for.
pub(super) fn sprint_until_stop<F: Flavour>(mut rng: Rng, cpu: usize) {
    const LINES: u64 = 1 << 19;
    let mut cold = vec![[0_u64; 8]; LINES as usize];
    let _ = owlet_sys::topology::set_affinity(Some(cpu), owlet_percpu::cpus());
    let mut seat = F::sit();
    while !stopped() {
        for _ in 0..rng.below(40) {
            let line = rng.below(LINES) as usize;
            // A store the compiler keeps, in order.
            std::hint::black_box(&mut cold[line])[0] = 1;
        }
        let spins = rng.below(60);
        F::section(&mut seat, || {
            let element = look_up(0);
            for _ in 0..spins {
                std::hint::spin_loop();
            }
            judge(element);
        });
    }
}
