//! Updater threads: unpublish, wait in one of many ways, and age or free.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use owlet_rcu::Cookie;

use super::world::{Count, Element, Fault, go_on, grow_older, poison_and_free, replace, stopped};
use super::{callbacks, shaker};
use crate::flavour::{Gp, Waits};
use crate::rng::Rng;

/// An updater.
pub(super) struct Writer {
    pub(super) waits: &'static dyn Waits,
    /// Ways to wait, one at random each time.
    pub(super) kinds: Vec<Gp>,
    pub(super) cookies: bool,
    pub(super) rng: Rng,
}

impl Writer {
    /// Unpublishes, waits, and ages or frees until the end.
    pub(super) fn update_until_stop(mut self) {
        let _registered = shaker::Registered::new();
        let mut ageing: Vec<*mut Element> = Vec::new();
        let mut recent: VecDeque<Cookie> = VecDeque::new();
        while go_on() {
            if self.rng.below(2) == 0 {
                // Gaps between grace periods: a straggler that enters the old rank while nobody looks
                // at it is the one the next grace period has to find.
                std::thread::sleep(Duration::from_micros(self.rng.below(1500)));
            }
            let old = replace(self.rng.next(), Element::new());
            if self.waits.calls() && self.rng.below(4) == 0 {
                callbacks::free_later(self.waits, self.rng.below(2) == 0, old);
                Count::Updates.note();
                continue;
            }
            if self.cookies {
                self.wait_with_cookies(&mut recent);
            } else {
                self.wait();
            }
            Count::Updates.note();
            ageing.retain(|element| grow_older(*element));
            if self.rng.below(2) == 0 {
                poison_and_free(old);
            } else {
                super::world::inspect(old);
                // SAFETY: still ours.
                unsafe { &*old }.age.store(2, Ordering::Relaxed);
                ageing.push(old);
            }
        }
        ageing.into_iter().for_each(poison_and_free);
    }

    fn wait(&mut self) {
        let how = self.kinds[self.rng.below(self.kinds.len() as u64) as usize];
        let rng = &mut self.rng;
        self.waits.pass(how, &mut || Duration::from_micros(rng.below(200)));
    }

    fn wait_with_cookies(&mut self, recent: &mut VecDeque<Cookie>) {
        let cookie = self.waits.snapshot();
        recent.push_back(cookie);
        if recent.len() > 8 {
            recent.pop_front();
        }
        self.check_distinct(recent);
        self.wait();
        // PO-05 and PO-07: one wait of any kind after the snapshot, and for ever after.
        if !self.waits.poll(cookie) {
            Fault::Cookie.note();
        }
        Count::Cookies.note();
    }

    /// PO-06: at most two different moments are still to come.
    fn check_distinct(&self, recent: &VecDeque<Cookie>) {
        let mut open: Vec<Cookie> = Vec::new();
        for cookie in recent {
            if !self.waits.poll(*cookie) && !open.contains(cookie) {
                open.push(*cookie);
            }
        }
        if open.len() > 2 {
            Fault::Cookie.note();
        }
    }
}

/// Unpublishes and ages as fast as grace periods go. Keeps a few elements and frees none, so that
/// an age is always what it was meant to be.
pub(super) fn sprint_until_stop(waits: &'static dyn Waits, mut rng: Rng) {
    const SPARE: usize = 1024;
    let how = if waits.kinds().contains(&Gp::Exp) { Gp::Exp } else { Gp::Sync };
    let _ = owlet_sys::topology::set_affinity(Some(0), owlet_percpu::cpus());
    let mut spare: VecDeque<*mut Element> = (0..SPARE).map(|_| Element::new()).collect();
    while let Some(new) = spare.pop_front()
        && !stopped()
    {
        // SAFETY: spare elements are ours; the oldest has been so for many grace periods.
        unsafe { &*new }.age.store(0, Ordering::Relaxed);
        for _ in 0..rng.below(50) {
            std::hint::spin_loop();
        }
        let old = replace(0, new);
        waits.pass(how, &mut || Duration::ZERO);
        // SAFETY: unpublished by us a grace period ago.
        unsafe { &*old }.age.store(2, Ordering::Relaxed);
        spare.push_back(old);
        Count::Updates.note();
    }
}
