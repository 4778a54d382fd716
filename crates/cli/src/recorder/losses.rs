//! What a recording lost, by ring and cause. Every cause is a running count, so that a ring read
//! twice never counts twice.

use owlet_store::{Loss, StreamName};
use std::collections::BTreeMap;

/// Losses of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    counts: BTreeMap<(Option<StreamName>, &'static str), u64>,
}

impl Losses {
    /// Sets the running count of one ring and cause; a count never goes back, whatever a hostile
    /// segment says.
    pub(crate) fn set(&mut self, stream: StreamName, cause: &'static str, events: u64) {
        if events > 0 {
            let known = self.counts.entry((Some(stream), cause)).or_default();
            *known = events.max(*known);
        }
    }

    /// Sets the running count of what was lost outside any ring.
    pub(crate) fn set_outside(&mut self, cause: &'static str, events: u64) {
        if events > 0 {
            let known = self.counts.entry((None, cause)).or_default();
            *known = events.max(*known);
        }
    }

    /// Counts events lost on this side.
    pub(crate) fn add(&mut self, stream: StreamName, cause: &'static str, events: u64) {
        if events > 0 {
            let known = self.counts.entry((Some(stream), cause)).or_default();
            *known = known.saturating_add(events);
        }
    }

    /// All events lost.
    pub(crate) fn total(&self) -> u64 {
        self.counts.values().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Events lost for one cause.
    pub(crate) fn of(&self, cause: &str) -> u64 {
        let counts = self.counts.iter().filter(|((_, known), _)| *known == cause);
        counts.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// For the trace directory.
    pub(crate) fn to_store(&self) -> Vec<Loss> {
        let loss = |(&(stream, cause), &events): (&(Option<StreamName>, &'static str), &u64)| {
            Loss { stream, cause: cause.to_string(), events }
        };
        self.counts.iter().map(loss).collect()
    }

    /// By cause over all rings, most first.
    pub(crate) fn by_cause(&self) -> Vec<(&'static str, u64)> {
        let mut causes: BTreeMap<&'static str, u64> = BTreeMap::new();
        for (&(_, cause), &events) in &self.counts {
            let sum = causes.entry(cause).or_default();
            *sum = sum.saturating_add(events);
        }
        let mut causes: Vec<_> = causes.into_iter().collect();
        causes.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        causes
    }
}

/// `0`, or `1017 (full 1012, busy 5)`: plain digits, scripts read it.
impl std::fmt::Display for Losses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.total())?;
        let causes: Vec<_> =
            self.by_cause().iter().map(|(cause, n)| format!("{cause} {n}")).collect();
        if causes.is_empty() { Ok(()) } else { write!(f, " ({})", causes.join(", ")) }
    }
}

#[cfg(test)]
#[path = "losses_tests.rs"]
mod tests;
