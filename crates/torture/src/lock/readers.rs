//! Readers, and one who ends holds that others have taken.

use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use owlet_rcu::rwlock::ReadHold;

use super::shaker::{Here, dawdle};
use super::world::{World, note};
use crate::rng::Rng;

impl World {
    pub(super) fn read(&self, rng: &mut Rng, last: &mut u64, others: &Sender<ReadHold>) {
        if self.lock.is_fast() {
            note(&self.fast);
        }
        let hold = match rng.below(8) {
            0 => self.lock.try_read(),
            1 => self.lock.read_until(Some(Instant::now() + Duration::from_micros(rng.below(300)))),
            _ => Some(self.lock.read()),
        };
        let Some(hold) = hold else {
            note(&self.gave_up);
            return;
        };
        self.look(last, || dawdle(rng));
        note(&self.reads);
        if rng.below(16) == 0 && others.send(hold).is_ok() {
            note(&self.moved);
            return;
        }
        // SAFETY: taken above.
        unsafe { self.lock.unlock_read(hold) };
        if rng.below(64) == 0 {
            std::thread::sleep(Duration::from_micros(rng.below(200)));
        }
    }

    /// Ends holds that others have taken.
    pub(super) fn end_others(&self, ends: &Receiver<ReadHold>) {
        let _here = Here::new();
        for hold in ends {
            // SAFETY: taken by the thread that sent it, which has forgotten it.
            unsafe { self.lock.unlock_read(hold) };
        }
    }
}
