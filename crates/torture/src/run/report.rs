//! The verdict.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::world::AGES;

/// What came out of torturing one flavour.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) flavour: String,
    pub(crate) held: bool,
    pub(crate) backend: String,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// How the process ended if not by its own verdict.
    pub(crate) died: Option<String>,
    /// No grace period came to its end for seconds.
    pub(crate) stalled: bool,
    /// Nothing was updated, so nothing was put to the test: a failure.
    pub(crate) idle: bool,
    /// How often readers saw elements of each age; anything from the third on is a failure.
    pub(crate) ages: [u64; AGES],
    /// What must not happen, where it happened.
    pub(crate) faults: Vec<(String, u64)>,
    pub(crate) counts: Vec<(String, u64)>,
    /// How often threads were held up at each of the library's dangerous instants.
    pub(crate) delays: Vec<(String, u64)>,
    pub(crate) grace_periods: u64,
    pub(crate) membarriers: u64,
    pub(crate) sleeps: u64,
    /// Times a single thread was stopped from outside.
    pub(crate) stops: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.held { "PASS" } else { "FAIL" };
        write!(f, "{}: {verdict}", self.flavour)?;
        if let Some(died) = &self.died {
            write!(f, " died={died:?}")?;
        }
        if self.stalled {
            write!(f, " stalled=true")?;
        }
        if self.idle {
            write!(f, " why=\"no updates: nothing was put to the test\"")?;
        }
        for (name, n) in &self.faults {
            write!(f, " FAULT:{name}={n}")?;
        }
        write!(
            f,
            " backend={} seconds={} seed={} ages={:?} grace_periods={} membarriers={} sleeps={} stops={}",
            self.backend,
            self.seconds,
            self.seed,
            self.ages,
            self.grace_periods,
            self.membarriers,
            self.sleeps,
            self.stops
        )?;
        for (name, n) in &self.counts {
            write!(f, " {name}={n}")?;
        }
        for (point, n) in &self.delays {
            write!(f, " at:{point}={n}")?;
        }
        Ok(())
    }
}
