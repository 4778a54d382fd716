//! Updater threads.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{
    AGES, CELLS, COOKIE_ERRORS, DOMAIN, Element, POISON, SHARED, UPDATES, shaker, stopped,
};
use crate::rng::Rng;

/// Unpublishes, waits, and ages or frees until the end.
pub(super) fn update_until_stop(mut rng: Rng) {
    let _registered = shaker::Registered::new();
    let mut ageing: Vec<*mut Element> = Vec::new();
    while !stopped() {
        if rng.below(2) == 0 {
            // Gaps between grace periods: a straggler that enters the old rank while nobody looks
            // at it is the one the next grace period has to find.
            std::thread::sleep(Duration::from_micros(rng.below(1500)));
        }
        let cell = &SHARED[rng.below(CELLS as u64) as usize];
        let old = cell.swap(Element::publishable(), Ordering::AcqRel);
        // SAFETY: unpublished by us; nobody else frees it.
        unsafe { &*old }.age.store(1, Ordering::Relaxed);
        wait_one_grace_period(&mut rng);
        UPDATES.fetch_add(1, Ordering::Relaxed);
        ageing.retain(|element| grow_older(*element));
        if rng.below(2) == 0 {
            poison_and_free(old);
        } else {
            // SAFETY: still ours.
            unsafe { &*old }.age.store(2, Ordering::Relaxed);
            ageing.push(old);
        }
    }
    ageing.into_iter().for_each(poison_and_free);
}

/// Unpublishes and ages as fast as grace periods go. Keeps a few elements and frees none, so that
/// an age is always what it was meant to be.
pub(super) fn sprint_until_stop(mut rng: Rng) {
    const SPARE: usize = 1024;
    let _ = owlet_sys::topology::set_affinity(Some(0), owlet_percpu::cpus());
    let mut spare: std::collections::VecDeque<*mut Element> =
        (0..SPARE).map(|_| Element::publishable()).collect();
    while let Some(new) = spare.pop_front()
        && !stopped()
    {
        // SAFETY: spare elements are ours; the oldest has been so for many grace periods.
        unsafe { &*new }.age.store(0, Ordering::Relaxed);
        for _ in 0..rng.below(50) {
            std::hint::spin_loop();
        }
        let old = SHARED[0].swap(new, Ordering::AcqRel);
        DOMAIN.synchronize_expedited();
        // SAFETY: unpublished by us a grace period ago.
        unsafe { &*old }.age.store(2, Ordering::Relaxed);
        spare.push_back(old);
        UPDATES.fetch_add(1, Ordering::Relaxed);
    }
}

fn wait_one_grace_period(rng: &mut Rng) {
    let cookie = DOMAIN.snapshot();
    match rng.below(10) {
        0..5 => DOMAIN.synchronize_expedited(),
        5..7 => DOMAIN.synchronize(),
        7..9 => DOMAIN.wait(cookie),
        _ => {
            // PO-02: not while a section that was open at the snapshot still is.
            let section = DOMAIN.read();
            let inside = DOMAIN.snapshot();
            if DOMAIN.poll(inside) {
                COOKIE_ERRORS.fetch_add(1, Ordering::Relaxed);
            }
            drop(section);
            DOMAIN.wait(inside);
        }
    }
    // PO-05 and PO-07: one wait of any kind after the snapshot, and for ever after.
    if !DOMAIN.poll(cookie) {
        COOKIE_ERRORS.fetch_add(1, Ordering::Relaxed);
    }
}

/// One grace period older; false (and freed) at the end of the pipe.
fn grow_older(element: *mut Element) -> bool {
    // SAFETY: in the pipe of this updater alone.
    let age = unsafe { &*element }.age.fetch_add(1, Ordering::Relaxed) as usize;
    if age < AGES {
        return true;
    }
    poison_and_free(element);
    false
}

fn poison_and_free(element: *mut Element) {
    // SAFETY: unpublished a grace period ago; ours to free.
    let element = unsafe { Box::from_raw(element) };
    element.magic.store(POISON, Ordering::Relaxed);
    drop(element);
}
