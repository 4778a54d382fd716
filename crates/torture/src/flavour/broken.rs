//! Flavours that are wrong on purpose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use owlet_rcu::{Cookie, Srcu};
use owlet_sys::topology;

use super::{Abilities, Cost, Flavour, Gp, Posted, Retire, Waits};

/// Waits return at once.
pub(crate) struct Busted;

/// Waits visit every CPU, as the kernel's own `trivial` flavour does: right for readers that are never
/// preempted, so wrong here.
pub(crate) struct Trivial;

static PASSED: AtomicU64 = AtomicU64::new(0);
/// Only gives cookies of the right type; never asked for anything else.
static NOTHING: Srcu = Srcu::new();

const ABILITIES: Abilities = Abilities { nest: true, anywhere: true, fork: false, cookies: false };

impl Flavour for Busted {
    type Seat = ();
    const ABILITIES: Abilities = ABILITIES;

    fn sit() {}

    fn section<R>((): &mut (), body: impl FnOnce() -> R) -> R {
        body()
    }

    fn section_anywhere<R>(body: impl FnOnce() -> R) -> R {
        body()
    }

    fn waits() -> &'static dyn Waits {
        &Self
    }
}

impl Flavour for Trivial {
    type Seat = ();
    const ABILITIES: Abilities = ABILITIES;

    fn sit() {}

    fn section<R>((): &mut (), body: impl FnOnce() -> R) -> R {
        body()
    }

    fn section_anywhere<R>(body: impl FnOnce() -> R) -> R {
        body()
    }

    fn waits() -> &'static dyn Waits {
        &Self
    }
}

fn visit_every_cpu() {
    let cpus = owlet_percpu::cpus();
    let before = topology::affinity();
    for cpu in 0..cpus {
        // A CPU that is offline or not ours runs none of our readers.
        let _ = topology::set_affinity(Some(cpu), cpus);
    }
    if let Ok(mask) = before {
        let _ = topology::restore_affinity(&mask);
    }
}

/// Implements the waits with one function.
macro_rules! broken_waits {
    ($type:ty, $wait:expr) => {
        impl Waits for $type {
            fn kinds(&self) -> &'static [Gp] {
                &[Gp::Sync]
            }

            fn pass(&self, _: Gp, _: &mut dyn FnMut() -> Duration) {
                PASSED.fetch_add(1, Ordering::Relaxed);
                $wait();
            }

            fn snapshot(&self) -> Cookie {
                NOTHING.snapshot()
            }

            fn poll(&self, _: Cookie) -> bool {
                true
            }

            fn wait(&self, _: Cookie) {}

            fn call(&self, _: bool, task: Posted) {
                task();
            }

            fn barrier(&self) {}

            fn retire(&self, _: Retire, _: *mut (), _: usize) {}

            fn cost(&self) -> Cost {
                Cost { grace_periods: PASSED.load(Ordering::Relaxed), ..Cost::default() }
            }
        }
    };
}

broken_waits!(Busted, || {});
broken_waits!(Trivial, visit_every_cpu);
