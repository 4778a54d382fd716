//! The worker's part of a queue: collecting, running, and taking over after a fork.

use owlet_percpu::testpoint::{Point, reached};

use super::{
    AtomicU64, Head, Kernel, Letter, Need, NonNull, Ordering, Periods, Queue, SEGMENTS, Segment,
    Taken,
};

/// Bytes waiting from which on grace periods are hurried.
const PRESSURE_BYTES: u64 = 32 << 20;
/// Callbacks likewise.
const PRESSURE_COUNT: u64 = 200_000;

impl Queue {
    /// One turn of the worker, which is the thread `me`: collects what is due, runs what may run (at
    /// most a turn's worth), and says what it needs. Nothing if another thread is at it.
    pub fn advance(&self, p: &impl Periods, kernel: &impl Kernel, me: usize, now: u64) -> Need {
        // [C4] Acquire: pairs with the release of the last worker.
        let entered = self.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
        if entered.is_err() {
            return Need::default();
        }
        let calls = &self.calls;
        // Acquire: pairs with the release in hurry() and want(), for `flush`.
        let called = calls.compare_exchange(1, 2, Ordering::Acquire, Ordering::Relaxed);
        if called.is_ok() && self.since.load(Ordering::Relaxed) == 0 {
            self.since.store(now.max(1), Ordering::Relaxed);
        }
        self.retire_empty(p, kernel);
        if self.is_due(p, now) && self.has_room(p) {
            self.collect(p, kernel);
        }
        let more = self.run(p, kernel);
        let need = self.need(p, now, more);
        // [C4] Release: pairs with the acquire above, of the next worker.
        self.owner.store(0, Ordering::Release);
        need
    }

    /// A forked child takes over, on the thread that does what must be done before anybody uses the
    /// domain: the worker stayed behind, at any instant, unless it is this thread. The callback that
    /// the worker was calling belongs to the parent.
    pub fn inherit(&self, p: &impl Periods, me: usize) {
        if self.owner.load(Ordering::Relaxed) == me {
            return;
        }
        let list = self.moving.load(Ordering::Relaxed);
        let from = self.moving_from.load(Ordering::Relaxed);
        // SAFETY: valid until called, and not called while in `moving` (invariant 4).
        if let (Some(head), Some(segment)) = (unsafe { list.as_ref() }, self.last_segment()) {
            if !self.shard_holds(from, list) {
                segment.adopt(head, NonNull::from(head));
            }
            self.moving.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
        if let Some(segment) = self.last_segment() {
            // Its cookie may be older than the last heads in it (invariant 3).
            segment.cookie.store(p.snapshot(), Ordering::Relaxed);
            segment.upto.store(self.begun.load(Ordering::Relaxed), Ordering::Relaxed);
        } else {
            self.finished.store(self.begun.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // Whoever posts or waits next calls the child's own worker.
        self.calls.store(0, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
        self.owner.store(0, Ordering::Release);
    }

    /// True if the worker is not to let go of this queue: it has been told and has not yet collected
    /// (invariant 5), or there are heads, in a forked child without having been told.
    #[must_use]
    pub fn has_work(&self) -> bool {
        // Acquire: pairs with the release in hurry() and want().
        self.calls.load(Ordering::Acquire) != 0
            || self.span.load(Ordering::Relaxed) != 0
            || self.shards.iter().any(|s| !s.top.load(Ordering::Relaxed).is_null())
    }

    fn shard_holds(&self, shard: usize, wanted: *mut Head) -> bool {
        let top = self.shards.get(shard).map(|s| s.top.load(Ordering::Relaxed));
        let mut at = top.unwrap_or(core::ptr::null_mut());
        // SAFETY: heads in a shard have not been called, so they are valid.
        while let Some(head) = unsafe { at.as_ref() } {
            if core::ptr::eq(at, wanted) {
                return true;
            }
            at = head.next.load(Ordering::Relaxed);
        }
        false
    }

    /// First segment in use, and how many are.
    pub(super) fn span(&self) -> (u32, u32) {
        let span = self.span.load(Ordering::Relaxed);
        (span >> 8, span & 0xff)
    }

    fn set_span(&self, first: u32, count: u32) {
        // Release: the segments before the word that says they are in use, as a fork sees them.
        self.span.store((first % SEGMENTS) << 8 | count, Ordering::Release);
    }

    fn segment(&self, at: u32) -> Option<&Segment> {
        self.segments.get((at % SEGMENTS) as usize)
    }

    fn oldest_segment(&self) -> Option<&Segment> {
        let (first, count) = self.span();
        if count == 0 { None } else { self.segment(first) }
    }

    pub(super) fn last_segment(&self) -> Option<&Segment> {
        let (first, count) = self.span();
        if count == 0 { None } else { self.segment(first + count - 1) }
    }

    /// The first cookie that has not passed: while one segment is run, the next one's grace period is.
    fn next_cookie(&self, p: &impl Periods) -> Option<u64> {
        let (first, count) = self.span();
        let segments = (first..first + count).filter_map(|at| self.segment(at));
        segments.map(|s| s.cookie.load(Ordering::Relaxed)).find(|&cookie| !p.passed(cookie))
    }

    fn is_due(&self, p: &impl Periods, now: u64) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        let flush = self.flush.load(Ordering::Relaxed);
        let wanted = self.begun.load(Ordering::Relaxed).wrapping_sub(flush) > u64::MAX / 2;
        wanted || (since != 0 && now.saturating_sub(since) >= p.policy().window_ns)
    }

    fn has_room(&self, p: &impl Periods) -> bool {
        let (_, count) = self.span();
        count < SEGMENTS
            || self
                .last_segment()
                .is_some_and(|last| last.cookie.load(Ordering::Relaxed) == p.snapshot())
    }

    /// Takes everything out of the shards.
    fn collect(&self, p: &impl Periods, kernel: &impl Kernel) {
        let batch = self.begun.load(Ordering::Relaxed).wrapping_add(1);
        self.since.store(0, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
        // Release: who sees the number and calls after it is not overwritten by the line above.
        self.begun.store(batch, Ordering::Release);
        // [C2] pairs with [C1]: who finds the old `calls` or the old number has its head
        // seen below. Without it: a head is in a shard, and nobody is going to tell the worker.
        p.fence(Letter::C2);
        reached(Point::BeforeCollect);
        let mut taken = None;
        for (place, shard) in self.shards.iter().enumerate() {
            let mut top = shard.top.load(Ordering::Relaxed);
            while let Some(at) = NonNull::new(top) {
                let target = match taken {
                    Some(segment) => segment,
                    None => *taken.insert(self.open_segment(p, batch)),
                };
                self.moving_from.store(place, Ordering::Relaxed);
                self.moving.store(top, Ordering::Release);
                // [C0] Acquire: pairs with the release in link(). Release: an empty shard shows
                // `begun` to a barrier.
                let emptied = shard.top.compare_exchange(
                    top,
                    core::ptr::null_mut(),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                if let Err(now) = emptied {
                    top = now;
                    continue;
                }
                // SAFETY: just taken out of the shard, so not called and valid (invariant 4).
                target.adopt(unsafe { at.as_ref() }, at);
                self.moving.store(core::ptr::null_mut(), Ordering::Release);
                shard.mark();
                break;
            }
        }
        if let Some(segment) = taken {
            // Keeps invariant 3: asked for after the last head was taken.
            segment.cookie.store(p.snapshot(), Ordering::Relaxed);
        }
        match self.last_segment() {
            Some(last) => last.upto.store(batch, Ordering::Relaxed),
            None => self.finish(kernel, batch),
        }
    }

    /// The segment for heads that are about to be taken.
    fn open_segment(&self, p: &impl Periods, batch: u64) -> &Segment {
        let (first, count) = self.span();
        let cookie = p.snapshot();
        if let Some(last) = self.last_segment()
            && (count == SEGMENTS || last.cookie.load(Ordering::Relaxed) == cookie)
        {
            return last;
        }
        let index = ((first + count) % SEGMENTS) as usize;
        let [a, b, c] = &self.segments;
        let segment = [a, b, c].into_iter().nth(index).unwrap_or(a);
        segment.top.store(core::ptr::null_mut(), Ordering::Relaxed);
        segment.cookie.store(cookie, Ordering::Relaxed);
        segment.upto.store(batch, Ordering::Relaxed);
        self.set_span(first, count + 1);
        segment
    }

    /// Drops segments that are done from the front; true if the first one may be run.
    fn retire_empty(&self, p: &impl Periods, kernel: &impl Kernel) -> bool {
        while let Some(segment) = self.oldest_segment() {
            if !p.passed(segment.cookie.load(Ordering::Relaxed)) {
                return false;
            }
            if !segment.top.load(Ordering::Relaxed).is_null() {
                return true;
            }
            let batch = segment.upto.load(Ordering::Relaxed);
            let (first, count) = self.span();
            self.set_span(first + 1, count - 1);
            self.finish(kernel, batch);
        }
        false
    }

    fn finish(&self, kernel: &impl Kernel, batch: u64) {
        // [C3] Release: pairs with the acquire in is_finished(): the callbacks before their barrier's
        // return. Without it: the barrier's caller unloads what a callback still uses.
        self.finished.store(batch, Ordering::Release);
        self.gate.open(kernel);
    }

    /// Runs a turn's worth of callbacks; true if more may run.
    fn run(&self, p: &impl Periods, kernel: &impl Kernel) -> bool {
        let mut left = p.policy().turn.max(1);
        while self.retire_empty(p, kernel) {
            let Some(segment) = self.oldest_segment() else { return false };
            while let Some(at) = NonNull::new(segment.top.load(Ordering::Relaxed)) {
                if left == 0 {
                    return true;
                }
                left -= 1;
                self.call(p, kernel, segment, at);
            }
        }
        false
    }

    /// Calls the first callback of a segment whose cookie has passed.
    fn call(&self, p: &impl Periods, kernel: &impl Kernel, segment: &Segment, at: NonNull<Head>) {
        // SAFETY: in a segment, so not called and valid (invariant 4).
        let head = unsafe { at.as_ref() };
        let next = head.next.load(Ordering::Relaxed);
        let bytes = head.bytes();
        // From here on the callback is in flight: a forked child leaves it to its parent.
        segment.top.store(next, Ordering::Release);
        // Mutant M22: the queue looks idle while its last callback runs.
        if owlet_percpu::planted!("M22") && next.is_null() {
            self.finish(kernel, segment.upto.load(Ordering::Relaxed));
        }
        let well = match head.take() {
            // SAFETY: posted with this function; the segment's cookie has passed.
            Taken::Call(func) => unsafe { p.invoke(func, at) },
            Taken::Leak => true,
        };
        // Only the worker writes these.
        let add = |count: &AtomicU64, more: u64| {
            count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
        };
        add(&self.counts.invoked, 1);
        add(&self.counts.bytes, bytes);
        if !well {
            self.note_panic();
        }
    }

    fn need(&self, p: &impl Periods, now: u64, more: bool) -> Need {
        let room = self.has_room(p);
        let again = more || (room && self.is_due(p, now));
        let mut need = Need { again, ..Need::default() };
        if self.last_segment().is_some() {
            need.cookie = self.next_cookie(p);
            let stats = self.stats();
            need.pressure =
                stats.pending_bytes > PRESSURE_BYTES || stats.pending() > PRESSURE_COUNT;
            let flush = self.flush.load(Ordering::Relaxed);
            need.urgent = self.finished.load(Ordering::Relaxed).wrapping_sub(flush) > u64::MAX / 2;
        }
        let since = self.since.load(Ordering::Relaxed);
        if since != 0 && room {
            need.at = Some(since.saturating_add(p.policy().window_ns));
        }
        need
    }
}
