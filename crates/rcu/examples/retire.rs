//! Deferred free: what was replaced is freed together with others, after a grace period, in bounded
//! memory.
//!
//! `cargo run -p owlet-rcu --example retire`

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use owlet_rcu::Srcu;
use owlet_rcu::free::{Backpressure, Limits, Pool};

/// What readers look up.
struct Route {
    hops: [u32; 14],
}

static DOMAIN: Srcu = Srcu::named("routes");
/// A pool: blocks of its own, half the memory for each object that waits, a barrier of its own.
static ROUTES: Pool<Route> = Pool::new(&DOMAIN);
static CURRENT: AtomicPtr<Route> = AtomicPtr::new(std::ptr::null_mut());

fn publish(n: u32) {
    let new = Box::into_raw(Box::new(Route { hops: [n; 14] }));
    if let Some(old) = NonNull::new(CURRENT.swap(new, Ordering::AcqRel)) {
        // Some nanoseconds. Now and then this frees what others, and itself, retired a while ago.
        // SAFETY: from a box, unpublished just now, by whoever got it from the exchange.
        unsafe { ROUTES.retire_raw(old) };
    }
}

fn main() {
    // At most 1 MB waits, whatever readers do: who retires more waits too.
    let limits = Limits::DEFAULT.cap(1 << 20).backpressure(Backpressure::Wait);
    DOMAIN.set_retire_limits(limits);
    publish(0);
    std::thread::scope(|s| {
        s.spawn(|| (1..200_000).for_each(publish));
        for _ in 0..2 {
            s.spawn(|| {
                for _ in 0..1000 {
                    let _section = DOMAIN.read();
                    // SAFETY: not null, and freed only after this section.
                    let route = unsafe { &*CURRENT.load(Ordering::Acquire) };
                    assert!(route.hops.iter().all(|hop| *hop == route.hops[0]));
                }
            });
        }
    });
    // Whatever owns itself can be retired: closures, trait objects, memory by its layout.
    DOMAIN.retire_call(0, || println!("after a grace period"));
    DOMAIN.retire(Box::new(String::from("a string")));
    // Everything that was retired before, here and in pools, has been freed after this.
    DOMAIN.retire_barrier();
    println!("{}", DOMAIN.retire_stats());
    // SAFETY: nobody else is left.
    drop(unsafe { Box::from_raw(CURRENT.load(Ordering::Acquire)) });
}
