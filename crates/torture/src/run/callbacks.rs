//! Callbacks: freeing by them, barriers, floods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::world::{Count, Element, Fault, go_on, inspect, poison_and_free, stopped};
use crate::flavour::Waits;
use crate::rng::Rng;

/// Elements handed to callbacks, and those that callbacks have freed.
static HANDED: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

/// An element on its way to a callback.
struct Handed(*mut Element);

// SAFETY: nobody else has it (see `world::replace`).
unsafe impl Send for Handed {}

/// CB-01, CB-04: has a callback free an element that has just been unpublished.
pub(super) fn free_later(waits: &dyn Waits, hurry: bool, element: *mut Element) {
    HANDED.fetch_add(1, Ordering::Relaxed);
    let handed = Handed(element);
    waits.call(
        hurry,
        Box::new(move || {
            let Handed(element) = { handed };
            inspect(element);
            // SAFETY: freed below, by this callback, which is the only one that has it.
            let age = unsafe { &*element }.age.swap(2, Ordering::Relaxed);
            if age != 1 {
                Fault::Callback.note();
            }
            poison_and_free(element);
            FREED.fetch_add(1, Ordering::Relaxed);
            Count::Callbacks.note();
        }),
    );
}

/// After a last barrier: each callback has run, once.
pub(super) fn check_all_called() {
    if HANDED.load(Ordering::Relaxed) != FREED.load(Ordering::Relaxed) {
        Fault::Callback.note();
    }
}

/// BA-01, CB-07: posts a few, waits at a barrier, and looks whether they have all been called. Then is
/// quiet for a while, so that the worker falls asleep.
pub(super) fn barrier_until_stop(waits: &'static dyn Waits, mut rng: Rng) {
    while go_on() {
        let posted = rng.below(12);
        let called = Arc::new(AtomicU64::new(0));
        for _ in 0..posted {
            let called = called.clone();
            let slow = rng.below(20) == 0;
            let task = move || {
                if slow {
                    std::thread::sleep(Duration::from_micros(300));
                }
                called.fetch_add(1, Ordering::Relaxed);
            };
            waits.call(rng.below(2) == 0, Box::new(task));
            if rng.below(4) == 0 {
                std::thread::sleep(Duration::from_micros(rng.below(300)));
            }
        }
        waits.barrier();
        if called.load(Ordering::Relaxed) != posted {
            Fault::Barrier.note();
        }
        Count::Barriers.note();
        std::thread::sleep(Duration::from_micros(rng.below(20) * rng.below(1000)));
    }
}

/// CB-03, CB-06: callbacks that post themselves again, and more callbacks than can be called at once.
pub(super) fn flood_until_stop(waits: &'static dyn Waits, mut rng: Rng) {
    const LAUNDRY: u64 = 100;
    while go_on() {
        let open = Arc::new(AtomicBool::new(true));
        let laundered = Arc::new(AtomicU64::new(0));
        for _ in 0..LAUNDRY {
            launder(waits, open.clone(), laundered.clone());
        }
        let called = Arc::new(AtomicU64::new(0));
        let until = Instant::now() + Duration::from_millis(50 + rng.below(100));
        let mut posted = 0;
        while Instant::now() < until && !stopped() {
            for _ in 0..256 {
                let called = called.clone();
                waits.call(
                    false,
                    Box::new(move || {
                        called.fetch_add(1, Ordering::Relaxed);
                    }),
                );
                posted += 1;
            }
        }
        // Each of the laundry at least three times, however long it takes.
        while laundered.load(Ordering::Relaxed) < 3 * LAUNDRY && !stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
        open.store(false, Ordering::Relaxed);
        waits.barrier();
        if called.load(Ordering::Relaxed) != posted {
            Fault::Barrier.note();
        }
        Count::Floods.note();
        std::thread::sleep(Duration::from_millis(rng.below(500)));
    }
}

/// A callback that posts itself again as long as `open` says so.
fn launder(waits: &'static dyn Waits, open: Arc<AtomicBool>, laundered: Arc<AtomicU64>) {
    waits.call(
        true,
        Box::new(move || {
            laundered.fetch_add(1, Ordering::Relaxed);
            Count::Laundered.note();
            if open.load(Ordering::Relaxed) {
                launder(waits, open, laundered);
            }
        }),
    );
}
