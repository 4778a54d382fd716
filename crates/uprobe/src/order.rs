//! Hits in the order of their times.
//!
//! The ring has them in the order in which they were reserved; a program reads the clock after that, and
//! may be interrupted in between, so that times go back a little now and then, on one CPU, too. Readers of
//! traces want them in order. Since a hit's time is read after its record was reserved, this is exact:
//!
//! 1. *Mark*: note the time, then how far records have been reserved.
//! 2. Read records. Once everything up to the mark has been read, whatever is still to come was reserved
//!    after the mark and is later than its time: that is the *horizon*.
//! 3. Hand out, sorted, what is not later than the horizon; keep the rest.
//!
//! A record that is being written holds up reading, and with it the horizon; it is never passed. Between
//! the kernel's store of the position and our load of it lies a store buffer, between two clocks some
//! nanoseconds: [`MARGIN_NS`] is a thousand times what either takes. If that were not enough, the trace
//! writer raises a time that would go back to the one before.

/// Taken from the mark's time.
pub(crate) const MARGIN_NS: u64 = 1_000_000;

/// Something with a time.
pub(crate) trait Timed {
    fn time(&self) -> u64;
}

/// Hits waiting until nothing earlier can come.
#[derive(Debug)]
pub(crate) struct Order<T> {
    waiting: Vec<T>,
    mark: Option<(u64, u64)>,
    horizon: u64,
}

impl<T: Timed> Order<T> {
    pub(crate) fn new() -> Self {
        Self { waiting: Vec::new(), mark: None, horizon: 0 }
    }

    /// To be called before reading: `mark` gives the time and the position, in that order, when a new
    /// one is due.
    pub(crate) fn begin(&mut self, mark: impl FnOnce() -> (u64, u64)) {
        if self.mark.is_none() {
            self.mark = Some(mark());
        }
    }

    pub(crate) fn push(&mut self, hit: T) {
        self.waiting.push(hit);
    }

    /// To be called after reading up to `position`: moves what is due to `out`.
    pub(crate) fn end(&mut self, position: u64, out: &mut Vec<T>) {
        if let Some((time, marked)) = self.mark
            && position >= marked
        {
            self.horizon = self.horizon.max(time.saturating_sub(MARGIN_NS));
            self.mark = None;
        }
        self.release(self.horizon, out);
    }

    /// Moves everything to `out`: no hit comes any more.
    pub(crate) fn finish(&mut self, out: &mut Vec<T>) {
        self.release(u64::MAX, out);
    }

    fn release(&mut self, horizon: u64, out: &mut Vec<T>) {
        // Stable, and quick for what is nearly in order.
        self.waiting.sort_by_key(Timed::time);
        let due = self.waiting.partition_point(|hit| hit.time() <= horizon);
        out.extend(self.waiting.drain(..due));
    }
}

#[cfg(test)]
mod tests {
    use super::{MARGIN_NS, Order, Timed};
    use proptest::prelude::*;

    impl Timed for u64 {
        fn time(&self) -> u64 {
            *self
        }
    }

    /// Hits as a kernel may make them: position n is reserved at time `reserved[n]` (rising), stamped
    /// `late[n]` later and submitted another `long[n]` later.
    fn check(gaps: &[u64], late: &[u64], long: &[u64], rounds: &[u64]) {
        let reserved: Vec<u64> = gaps
            .iter()
            .scan(MARGIN_NS, |now, gap| {
                *now += gap;
                Some(*now)
            })
            .collect();
        let stamp = |n: usize| reserved[n] + late[n];
        let (mut order, mut read, mut out, mut now) = (Order::new(), 0, Vec::new(), MARGIN_NS);
        for step in rounds {
            now += step;
            let seen = |now: u64| reserved.iter().filter(|&&at| at <= now).count();
            // What the other side's store buffer holds back does not matter within the margin.
            order.begin(|| (now + MARGIN_NS, seen(now) as u64));
            while read < seen(now) && stamp(read) + long[read] <= now {
                order.push(stamp(read));
                read += 1;
            }
            order.end(read as u64, &mut out);
        }
        let before = out.len();
        (read..reserved.len()).for_each(|n| order.push(stamp(n)));
        order.finish(&mut out);
        assert!(out.is_sorted(), "{out:?} ({before} before the end)");
        assert_eq!(out.len(), reserved.len());
    }

    proptest! {
        #[test]
        fn times_never_go_back(
            hits in prop::collection::vec((0u64..5, 0u64..40, 0u64..40), 0..60),
            rounds in prop::collection::vec(0u64..30, 0..20),
        ) {
            let part = |of: fn(&(u64, u64, u64)) -> u64| hits.iter().map(of).collect::<Vec<_>>();
            check(&part(|h| h.0), &part(|h| h.1), &part(|h| h.2), &rounds);
        }
    }

    #[test]
    fn a_hit_that_is_being_written_holds_back_what_is_behind_it() {
        let (mut order, mut out) = (Order::new(), Vec::new());
        order.begin(|| (100 + MARGIN_NS, 2));
        // Position 0 is busy.
        order.end(0, &mut out);
        order.begin(|| unreachable!("the mark is not reached yet"));
        order.push(90);
        order.push(80);
        order.end(2, &mut out);
        assert_eq!(out, [80, 90]);
    }
}
