//! What a domain's grace periods have cost.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use super::Engine;
use crate::seq;

/// What a domain's grace periods have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Grace periods completed.
    pub grace_periods: u64,
    /// Those that somebody wanted expedited.
    pub expedited: u64,
    /// `membarrier` calls: one per grace period at most, none where readers fence for themselves.
    pub membarriers: u64,
    /// Times the thread that ran a grace period slept while it waited for readers.
    pub sleeps: u64,
    /// Waits that had to wait: [`crate::Domain::synchronize`] and its like.
    pub calls: u64,
    /// Those of them that led no grace period themselves: others' were enough.
    pub shared: u64,
    /// Reports of grace periods that took too long (see [`crate::stall`]).
    pub stalls: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grace_periods, expedited, membarriers, sleeps, calls, shared, stalls } = self;
        write!(
            f,
            "grace_periods={grace_periods} expedited={expedited} membarriers={membarriers} \
             sleeps={sleeps} calls={calls} shared={shared} stalls={stalls}"
        )
    }
}

/// A counter.
#[derive(Debug)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The counters behind [`Stats`].
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) expedited: Count,
    pub(crate) membarriers: Count,
    pub(crate) sleeps: Count,
    pub(crate) calls: Count,
    pub(crate) shared: Count,
    pub(crate) stalls: Count,
}

impl Counters {
    pub(super) const fn new() -> Self {
        Self {
            expedited: Count::new(),
            membarriers: Count::new(),
            sleeps: Count::new(),
            calls: Count::new(),
            shared: Count::new(),
            stalls: Count::new(),
        }
    }

    pub(super) fn clear(&self) {
        for count in [
            &self.expedited,
            &self.membarriers,
            &self.sleeps,
            &self.calls,
            &self.shared,
            &self.stalls,
        ] {
            count.clear();
        }
    }
}

impl Engine {
    pub(crate) fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            grace_periods: seq::completed(self.turns.seq()),
            expedited: counters.expedited.get(),
            membarriers: counters.membarriers.get(),
            sleeps: counters.sleeps.get(),
            calls: counters.calls.get(),
            shared: counters.shared.get(),
            stalls: counters.stalls.get(),
        }
    }
}
