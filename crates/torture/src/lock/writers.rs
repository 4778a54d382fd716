//! Writers, and upgradable readers.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::shaker::dawdle;
use super::world::{World, note};
use crate::rng::Rng;

impl World {
    pub(super) fn write(&self, rng: &mut Rng) {
        let deadline = Instant::now() + Duration::from_micros(rng.below(500));
        let (taken, upgraded) = match rng.below(8) {
            0 => (self.lock.try_write(), false),
            1..4 => (self.lock.write_until(deadline), false),
            4 => (self.lock.upgradable_until(deadline), true),
            _ => {
                self.lock.write();
                (true, false)
            }
        };
        if !taken {
            note(&self.gave_up);
        } else if upgraded {
            self.upgrade(rng);
        } else {
            self.write_both(rng);
            self.give_back(rng);
        }
        if rng.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(rng.below(400)));
        }
    }

    fn upgrade(&self, rng: &mut Rng) {
        let mut last = 0;
        self.look(&mut last, || dawdle(rng));
        if rng.below(2) == 0 {
            // SAFETY: held upgradable.
            unsafe { self.lock.upgrade() };
            self.write_both(rng);
            self.give_back(rng);
        } else {
            // SAFETY: held upgradable.
            unsafe { self.lock.unlock_upgradable() };
        }
    }

    fn give_back(&self, rng: &mut Rng) {
        if rng.below(4) != 0 {
            // SAFETY: held exclusively.
            unsafe { self.lock.unlock_write() };
            return;
        }
        // SAFETY: held exclusively.
        let hold = unsafe { self.lock.downgrade() };
        let mut last = 0;
        self.look(&mut last, || dawdle(rng));
        // SAFETY: taken above.
        unsafe { self.lock.unlock_read(hold) };
    }

    fn write_both(&self, rng: &mut Rng) {
        if self.writers.get() != 0 {
            note(&self.met);
        }
        self.writers.add();
        self.first.add();
        dawdle(rng);
        self.second.add();
        self.writers.0.store(0, Ordering::Relaxed);
        note(&self.writes);
    }
}
