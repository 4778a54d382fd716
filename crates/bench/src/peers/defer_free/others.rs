//! Floors and other libraries.

use super::object::{Object, free};
use super::{LATE, Way};
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

/// Freed at once.
pub(super) struct Floor;

impl<const N: usize> Way<N> for Floor {
    type Thread = ();

    fn thread() {}

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        // SAFETY: the caller's.
        unsafe { free::<N>(object.as_ptr().cast()) };
    }
}

/// The allocator's share. What `domain` takes beyond it is the library's.
pub(super) struct Later;

/// Objects of a batch, as in `domain`'s blocks.
const BATCH: usize = 251;

pub(super) struct Ring {
    batches: Vec<Vec<*mut ()>>,
    at: usize,
}

impl<const N: usize> Way<N> for Later {
    type Thread = Ring;

    fn thread() -> Ring {
        let batches = (LATE.load(Ordering::Relaxed) as usize).div_ceil(BATCH).max(2);
        Ring { batches: (0..batches).map(|_| Vec::with_capacity(BATCH)).collect(), at: 0 }
    }

    #[inline(always)]
    unsafe fn retire(ring: &mut Ring, object: NonNull<Object<N>>) {
        let Some(batch) = ring.batches.get_mut(ring.at) else { return };
        batch.push(object.as_ptr().cast());
        if batch.len() == BATCH {
            ring.at = (ring.at + 1) % ring.batches.len();
            let oldest = ring.batches.get_mut(ring.at);
            for at in oldest.into_iter().flat_map(|batch| batch.drain(..)) {
                // SAFETY: the caller's, when it was put in.
                unsafe { free::<N>(at) };
            }
        }
    }

    fn finish(ring: Ring) {
        for at in ring.batches.into_iter().flatten() {
            // SAFETY: as in `retire`.
            unsafe { free::<N>(at) };
        }
    }
}

/// crossbeam-epoch.
pub(super) struct Epoch;

impl<const N: usize> Way<N> for Epoch {
    type Thread = ();

    fn thread() {}

    fn section(body: impl FnOnce()) {
        let _guard = crossbeam_epoch::pin();
        body();
    }

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        let guard = crossbeam_epoch::pin();
        let at = object.as_ptr().expose_provenance();
        let free = move || {
            // SAFETY: a box's, of that type (caller).
            unsafe { free::<N>(std::ptr::with_exposed_provenance_mut(at)) };
        };
        // SAFETY: the caller's.
        unsafe { guard.defer_unchecked(free) };
    }

    fn nudge() {
        crossbeam_epoch::pin().flush();
    }

    fn grace_periods() -> u64 {
        0
    }
}

/// seize.
pub(super) struct Seize;
static COLLECTOR: LazyLock<seize::Collector> = LazyLock::new(seize::Collector::new);

impl<const N: usize> Way<N> for Seize {
    type Thread = ();

    fn thread() {}

    fn section(body: impl FnOnce()) {
        let _guard = COLLECTOR.enter();
        body();
    }

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        use seize::Guard;
        let guard = COLLECTOR.enter();
        // SAFETY: the caller's.
        unsafe { guard.defer_retire(object.as_ptr(), seize::reclaim::boxed) };
    }

    fn finish((): ()) {
        use seize::Guard;
        COLLECTOR.enter().flush();
    }

    fn nudge() {
        use seize::Guard;
        COLLECTOR.enter().flush();
    }

    fn grace_periods() -> u64 {
        0
    }
}
