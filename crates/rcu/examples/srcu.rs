//! SRCU: readers anywhere, an updater that waits, and one that does not.
//!
//! `cargo run -p owlet-rcu --example srcu`

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread;

use owlet_rcu::Srcu;

static DOMAIN: Srcu = Srcu::named("limits");
static LIMITS: AtomicPtr<[u32; 2]> = AtomicPtr::new(std::ptr::null_mut());

fn publish(limits: [u32; 2]) -> *mut [u32; 2] {
    LIMITS.swap(Box::into_raw(Box::new(limits)), Ordering::AcqRel)
}

/// # Safety
/// `old` was unpublished before a grace period that is over.
unsafe fn free(old: *mut [u32; 2]) {
    // SAFETY: it came from a box, and no reader has it any more (caller).
    drop(unsafe { Box::from_raw(old) });
}

fn main() {
    publish([0, 0]);
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _section = DOMAIN.read();
                    // SAFETY: never null once published, and freed only after a grace period.
                    let limits = unsafe { *LIMITS.load(Ordering::Acquire) };
                    assert_eq!(limits[0], limits[1]);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 1..=1000 {
            let old = publish([n, n]);
            DOMAIN.synchronize();
            // SAFETY: unpublished before the wait.
            unsafe { free(old) };
        }
        // Without waiting: a cookie now, a look later. The worker brings the moment about.
        let old = publish([7, 7]);
        let cookie = DOMAIN.start_poll();
        while !DOMAIN.poll(cookie) {
            thread::yield_now();
        }
        // SAFETY: the moment has passed.
        unsafe { free(old) };
        stop.store(true, Ordering::Relaxed);
    });
    println!("{} sections; {:?}", reads.load(Ordering::Relaxed), DOMAIN.stats());
    // SAFETY: nobody else is left.
    unsafe { free(LIMITS.load(Ordering::Acquire)) };
}
