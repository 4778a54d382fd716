//! Deferred free: elements that are retired, in every form, by threads that move and by such as come and
//! go; freed by them, by the worker, at barriers (KF-01, KF-02, KF-04, KF-10).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::shaker;
use super::world::{Count, Element, Fault, go_on, inspect, poison_and_free, replace};
use crate::flavour::{Retire, Waits};
use crate::rng::Rng;

/// Elements retired, and those that have been freed.
static RETIRED: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

/// Frees a retired element, and judges it first.
///
/// # Safety
/// `at` is an element that was unpublished and retired once.
pub(crate) unsafe fn free_retired(at: *mut ()) {
    let element = at.cast::<Element>();
    inspect(element);
    // SAFETY: the caller's; freed below.
    let age = unsafe { &*element }.age.swap(2, Ordering::Relaxed);
    if age != 1 {
        Fault::Retired.note();
    }
    poison_and_free(element);
    FREED.fetch_add(1, Ordering::Relaxed);
    Count::Retired.note();
}

/// Retires bursts of elements, some of them from threads that end, until the end.
pub(super) fn retire_until_stop(waits: &'static dyn Waits, mut rng: Rng) {
    let _registered = shaker::Registered::new();
    while go_on() {
        // Some bursts fill blocks, others leave them open for a flush or the worker.
        let burst = rng.below(8).pow(3) + 1;
        if rng.below(8) == 0 {
            let mut rng = Rng::new(rng.next(), 0);
            let thread = std::thread::spawn(move || retire_some(waits, &mut rng, burst));
            let _ = thread.join();
        } else {
            retire_some(waits, &mut rng, burst);
        }
        match rng.below(40) {
            0 => wait_at_barrier(waits),
            1..4 => waits.retire(Retire::Flush, std::ptr::null_mut(), 0),
            4 => waits.retire(Retire::Trim, std::ptr::null_mut(), 0),
            _ => {}
        }
        std::thread::sleep(Duration::from_micros(rng.below(12) * rng.below(200)));
    }
}

fn retire_some(waits: &dyn Waits, rng: &mut Rng, burst: u64) {
    for _ in 0..burst {
        RETIRED.fetch_add(1, Ordering::Relaxed);
        let how = if rng.below(3) == 0 { Retire::Pool } else { Retire::Domain };
        let old = replace(rng.next(), Element::new());
        waits.retire(how, old.cast(), size_of::<Element>());
    }
}

/// What this thread has retired has been freed when a barrier returns. (Others' goes on.)
fn wait_at_barrier(waits: &dyn Waits) {
    let before = RETIRED.load(Ordering::Relaxed);
    let freed = FREED.load(Ordering::Relaxed);
    waits.retire(Retire::Barrier, std::ptr::null_mut(), 0);
    if freed > before {
        Fault::Retired.note();
    }
    Count::RetireBarriers.note();
}

/// After a last barrier: each has been freed, once.
pub(super) fn check_all_freed(waits: &dyn Waits) {
    waits.retire(Retire::Barrier, std::ptr::null_mut(), 0);
    if RETIRED.load(Ordering::Relaxed) != FREED.load(Ordering::Relaxed) {
        Fault::Retired.note();
    }
}

/// In a forked child: what it inherited and what it retires itself is freed by the time a barrier returns.
pub(super) fn child_frees(waits: &dyn Waits) -> bool {
    let before = FREED.load(Ordering::Relaxed);
    let element = Element::new();
    // SAFETY: ours, and never published.
    unsafe { &*element }.age.store(1, Ordering::Relaxed);
    waits.retire(Retire::Domain, element.cast(), size_of::<Element>());
    waits.retire(Retire::Barrier, std::ptr::null_mut(), 0);
    FREED.load(Ordering::Relaxed) > before
}
