//! SRCU's part of grace periods: the sums, the index, and what a forked child strikes out.

use core::sync::atomic::{Ordering, fence};

use owlet_percpu::{Backend, backend};

use super::block::{BlockRef, Handle, entries, exits};
use crate::engine::{Flavour, Holder, Run};
use crate::protocol::{Letter, Machine, Step};
use crate::{held, sections};

impl Flavour for Handle {
    fn step(&self, run: &mut Run) -> Step {
        let Some(block) = self.block() else { return Step::Done };
        loop {
            match run.stepper.step(&Sums(block)) {
                // Where readers are atomic ones, their entry is a full barrier.
                Step::Fence if block.is_fenced() || backend() == Backend::Portable => {
                    fence(Ordering::SeqCst);
                    run.stepper.fenced();
                }
                step => return step,
            }
        }
    }

    fn fenced(&self, run: &mut Run) {
        run.stepper.fenced();
    }

    fn fences_everywhere(&self) -> bool {
        self.block().is_some_and(|block| !block.is_fenced())
    }

    fn is_quiet(&self) -> bool {
        self.block().is_some_and(BlockRef::is_quiet)
    }

    fn holds(&self) -> bool {
        self.block().is_some_and(|block| {
            let id = block.id.load(Ordering::Relaxed);
            held::count(id, 0) + held::count(id, held::RANK) != 0
        })
    }

    fn holders(&self, out: &mut Vec<Holder>) {
        if let Some(block) = self.block() {
            sections::holders(&block.engine, out);
        }
    }

    /// For each rank the child adds, to the exits, what is open and not its own:
    /// `entries - exits - held`. What is left open is the surviving thread's own.
    fn forked(&self, alone: bool) {
        let Some(block) = self.block() else { return };
        // Mutant M19: the child keeps the counters.
        if !alone || owlet_percpu::planted!("M19") {
            return;
        }
        let slots = block.slots();
        let id = block.id.load(Ordering::Relaxed);
        for rank in [0, held::RANK] {
            let open = slots.sum(entries(rank)).wrapping_sub(slots.sum(exits(rank)));
            let dead = open.wrapping_sub(u64::from(held::count(id, rank)));
            // `held` may be too high; then the difference is "negative" and nothing is struck.
            if dead <= u64::MAX / 2 && dead != 0 {
                slots.add_atomic(exits(rank), dead);
            }
        }
    }
}

/// A domain as its leader sees it.
struct Sums(BlockRef);

impl Machine for Sums {
    fn index(&self) -> u32 {
        u32::from(self.0.index.load(Ordering::Relaxed) & held::RANK != 0)
    }

    fn set_index(&self, rank: u32) {
        let rest = self.0.index.load(Ordering::Relaxed) & !held::RANK;
        self.0.index.store(rest | (rank * held::RANK), Ordering::Relaxed);
    }

    fn entries(&self, rank: u32) -> u64 {
        self.sum(entries(rank * held::RANK))
    }

    fn exits(&self, rank: u32) -> u64 {
        self.sum(exits(rank * held::RANK))
    }

    fn fence(&self, letter: Letter) {
        match letter {
            // The loads of the sums are all there is to order.
            Letter::F => fence(Ordering::Acquire),
            Letter::E | Letter::H => fence(Ordering::SeqCst),
        }
    }
}

impl Sums {
    fn sum(&self, word: usize) -> u64 {
        let sum = self.0.slots().sum(word);
        // Acquire for all the loads of the sum: what its exits or entries released is visible.
        fence(Ordering::Acquire);
        sum
    }
}
