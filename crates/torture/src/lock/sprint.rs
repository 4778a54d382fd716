//! The run for the membarrier: short holds, one thread to a CPU.

use std::sync::atomic::Ordering;

use super::world::{World, note};
use crate::rng::Rng;

impl World {
    pub(super) fn sprint_writing(&self, mut rng: Rng) {
        while !self.is_over() {
            self.lock.write();
            self.writers.add();
            self.first.add();
            (0..rng.below(200)).for_each(|_| std::hint::spin_loop());
            self.second.add();
            self.writers.0.store(0, Ordering::Relaxed);
            note(&self.writes);
            // SAFETY: held exclusively.
            unsafe { self.lock.unlock_write() };
            // Until readers are fast again.
            while !self.lock.is_fast() && !self.is_over() {
                std::hint::spin_loop();
            }
            (0..rng.below(100)).for_each(|_| std::hint::spin_loop());
        }
    }

    /// Each behind a run of stores that miss the cache: the entry's store then waits in the store buffer
    /// while the section's loads are done already, which is what the membarrier is for.
    pub(super) fn sprint_reading(&self, mut rng: Rng) {
        const LINES: u64 = 1 << 19;
        let mut cold = vec![[0_u64; 8]; LINES as usize];
        let mut last = 0;
        while !self.is_over() {
            for _ in 0..rng.below(40) {
                let line = rng.below(LINES) as usize;
                // A store the compiler keeps, in order.
                std::hint::black_box(&mut cold[line])[0] = 1;
            }
            let spins = rng.below(60);
            if self.lock.is_fast() {
                self.fast.store(self.fast.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            let hold = self.lock.read();
            self.look(&mut last, || (0..spins).for_each(|_| std::hint::spin_loop()));
            // SAFETY: taken above.
            unsafe { self.lock.unlock_read(hold) };
            self.reads.store(self.reads.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}
