//! Torture of the rings: run briefly by the tests, for long by `examples/ring_torture.rs`.
//!
//! Each run judges itself: it returns a report whose `verdict` says what went wrong.

pub(crate) mod kill;
pub(crate) mod single_event;

use owlet_ring::{Clock, Segment, SegmentOptions};
use std::sync::Arc;

/// A segment with rings for this machine.
pub(crate) fn segment(ring_bytes: usize, clock: Clock, deferral_us: u32) -> Arc<Segment> {
    let cpus = owlet_percpu::cpus();
    let options = SegmentOptions { cpus, ring_bytes, clock, deferral_us, ..Default::default() };
    Arc::new(Segment::create(&options).expect("a segment"))
}

/// A small generator of numbers that need not be random, only different (xorshift64).
#[derive(Clone, Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
