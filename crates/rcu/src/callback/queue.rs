//! A domain's queue of callbacks: many post, one worker runs.
//!
//! # The protocol
//! *Poster*: link the head into a shard (one compare-and-exchange), `[C1]`, and if the worker has not
//! been told (`calls` is 0) tell it. Any thread, any context, any time; no lock, no allocation.
//!
//! *Worker*, alone (`owner`): now and then *collects*: takes everything out of the shards as *batch*
//! number n, asks for the cookie at which a grace period that begins now has passed, and appends what
//! it took to the last *segment* if that has the same cookie, else to a new one. Segments are run in
//! order, oldest first, each after its cookie has passed. At most two cookies of a domain are ahead at
//! any time, so three segments are enough: one being run, two waiting. (The kernel's
//! `rcu_segcblist`: `DONE`, `WAIT`, `NEXT_READY`, `NEXT`, where the shards are `NEXT`.)
//!
//! *Barrier*: everything that was posted before is in a batch up to `begun`, if the shards are empty,
//! or up to `begun + 1`. Wait until that batch is `finished`. Any number of barriers that want the
//! same batch wait for one collection and one wake.
//!
//! # Words
//! | word | written by | meaning |
//! |---|---|---|
//! | `Shard::top` | posters, worker | heads not yet collected, newest first |
//! | `calls` | posters and barriers: 1; worker: 2, 0 | 0 nothing; 1 the worker is to look; 2 it has, and waits for a time or a cookie |
//! | `flush` | barriers, hurried posters, upwards | the batch that must not wait for more company |
//! | `begun` | worker, upwards | number of the last collection |
//! | `finished` | worker, upwards | every callback of every batch up to this one has returned |
//! | `span` | worker | which segments are in use: first and count in one word |
//! | `moving`, `moving_from` | worker | the list it is about to move out of a shard, and the shard |
//! | `owner` | whoever becomes the worker | `identity` of the thread that acts as the worker, 0 = nobody |
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[C0]` | `top`: `Queue::push`, `Queue::collect` | release of the head and of all that its poster did before; acquire by the worker |
//! | `[C1]` | `Queue::push`, after the link | full: the link before the look at `calls` |
//! | `[C2]` | `Queue::collect`, before the first shard | full: `calls` = 0 and `begun` before the look at the shards |
//! | `[C3]` | `finished`: `Queue::finish`, `Queue::is_finished` | release of what the callbacks did; acquire by whoever waited for them |
//! | `[C4]` | `owner` | acquire, release: one worker's work before the next one's |
//!
//! # Invariants
//! 1. A poster that finds `calls` not 0 has its head collected by the collection that resets it, or by
//!    an earlier one (`[C1]`, `[C2]`): so whoever told the worker told it of this head too.
//! 2. What was posted before a barrier is in a batch that the barrier waits for. Either it is still in
//!    a shard when the barrier looks; then a collection whose number the barrier does not see takes it
//!    (the poster's `[C1]`, which is before the look at `begun`, and `[C2]`). Or it is in a collection
//!    that had begun when its shard was found empty (`[C0]`).
//! 3. A segment's cookie is at or after one asked for after its last head was taken.
//! 4. Only `owner` writes what the table above gives to the worker, and takes heads out of shards. A
//!    head that it has taken is reachable from `moving` or a segment until just before it is called.
//! 5. While `calls` is not 0 the worker has the queue in hand ([`Queue::has_work`]), also if the heads
//!    that it was told of have been collected already: a poster that finds 1 or 2 tells nobody.
//!
//! # A fork at any instant
//! A forked child has a copy of these words as they were between two of the worker's stores, which are
//! releases in program order, each leaving a state that `Queue::inherit` can go on from (invariant
//! 4). The copy respects that order even though the kernel copies page by page while the worker runs:
//! from the first write-protected page on, every store of the worker waits for the fork to end or is
//! made through a stale translation, to memory the child shares (mm/memory.c, `copy_page_range`).

use core::ptr::NonNull;

use owlet_percpu::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use owlet_percpu::testpoint::{Point, reached};

use super::head::{Callback, Head, Posting, Taken};
use crate::gate::{Gate, Kernel};

/// Places to post to, one cache line each.
pub const SHARDS: usize = if cfg!(loom) { 1 } else { 8 };
/// One segment being run, and two cookies ahead.
const SEGMENTS: u32 = 3;

/// What the queue needs of its domain.
pub trait Periods {
    /// The cookie at which a grace period that begins now has passed. A full barrier before the look.
    fn snapshot(&self) -> u64;
    /// True once it has; then an acquire of that grace period.
    fn passed(&self, cookie: u64) -> bool;
    /// A `SeqCst` fence (a trait method so that a model can leave one out).
    fn fence(&self, letter: Letter);
    /// Calls a callback; false if it panicked.
    ///
    /// # Safety
    /// As for calling `func`.
    unsafe fn invoke(&self, func: Callback, head: NonNull<Head>) -> bool;
    /// How long and how much may wait.
    fn policy(&self) -> Policy;
}

/// The full fences of the table in the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// `[C1]`
    C1,
    /// `[C2]`
    C2,
}

/// How long and how much a queue may wait for company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Nanoseconds an unhurried callback may wait before its grace period is asked for.
    pub window_ns: u64,
    /// Heads in a shard from which on they are collected at once.
    pub many: u64,
    /// Bytes likewise.
    pub bytes: u64,
    /// Callbacks run in one turn, before other domains have theirs.
    pub turn: u32,
}

/// Whether a head may wait for company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// For the window.
    Lazy,
    /// No.
    Hurry,
}

/// What a poster has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Pushed {
    /// Nothing: the worker has been told.
    Quiet,
    /// Tell the worker that this queue has something for it.
    Ring,
    /// The same; and much is queued.
    Full,
    /// The head was in a queue already: it is leaked, and nothing was queued.
    Twice,
}

/// What the worker should do for a queue next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Need {
    /// Come back at once, after the others had their turn.
    pub again: bool,
    /// Bring grace periods about until this cookie has passed, and come back.
    pub cookie: Option<u64>,
    /// Come back at this time (monotonic clock, ns).
    pub at: Option<u64>,
    /// Somebody waits for what is collected, or said that it is not to wait.
    pub urgent: bool,
    /// Much is waiting: hurry.
    pub pressure: bool,
}

#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    top: AtomicPtr<Head>,
    queued: AtomicU64,
    bytes: AtomicU64,
    /// `queued` and `bytes` at the last collection.
    queued_mark: AtomicU64,
    bytes_mark: AtomicU64,
}

/// Heads that wait for one cookie.
#[derive(Debug)]
struct Segment {
    top: AtomicPtr<Head>,
    cookie: AtomicU64,
    /// The last batch that has heads here.
    upto: AtomicU64,
}

/// See the module's header.
#[derive(Debug)]
pub struct Queue {
    shards: [Shard; SHARDS],
    calls: AtomicU32,
    flush: AtomicU64,
    begun: AtomicU64,
    finished: AtomicU64,
    gate: Gate,
    owner: AtomicUsize,
    /// When the worker first saw heads that wait for company, 0 = there are none.
    since: AtomicU64,
    span: AtomicU32,
    segments: [Segment; SEGMENTS as usize],
    moving: AtomicPtr<Head>,
    moving_from: AtomicUsize,
    counts: Counts,
}

#[derive(Debug)]
struct Counts {
    invoked: AtomicU64,
    bytes: AtomicU64,
    panicked: AtomicU64,
    leaked: AtomicU64,
}

/// What a queue holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallbackStats {
    /// Callbacks queued so far.
    pub queued: u64,
    /// Of these, those that have been called, or leaked.
    pub invoked: u64,
    /// Bytes that callbacks not yet called are going to free, as far as they said.
    pub pending_bytes: u64,
    /// Collections: how often something was taken together.
    pub batches: u64,
    /// Callbacks that panicked, and wakers of async waits.
    pub panicked: u64,
    /// Heads posted while queued, and therefore leaked.
    pub leaked: u64,
}

impl CallbackStats {
    /// Callbacks queued and not yet called.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.queued.saturating_sub(self.invoked)
    }
}

impl core::fmt::Display for CallbackStats {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { queued, invoked, pending_bytes, batches, panicked, leaked } = self;
        write!(
            f,
            "queued={queued} invoked={invoked} pending_bytes={pending_bytes} batches={batches} \
             panicked={panicked} leaked={leaked}"
        )
    }
}

/// A const fn, except in models: loom's atomics are no constants.
macro_rules! constructor {
    ($(#[$doc:meta])* $vis:vis fn $name:ident() -> Self $body:block) => {
        $(#[$doc])* #[cfg(not(loom))] $vis const fn $name() -> Self $body
        $(#[$doc])* #[cfg(loom)] $vis fn $name() -> Self $body
    };
}

impl Shard {
    constructor! {
        fn new() -> Self {
            Self {
                top: AtomicPtr::new(core::ptr::null_mut()),
                queued: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                queued_mark: AtomicU64::new(0),
                bytes_mark: AtomicU64::new(0),
            }
        }
    }

    /// Links a head, and says whether the shard now holds so much that it should be collected.
    fn link(&self, at: NonNull<Head>, head: &Head, policy: Policy) -> bool {
        let mut top = self.top.load(Ordering::Relaxed);
        let bytes = head.bytes();
        loop {
            head.next.store(top, Ordering::Relaxed);
            // [C0] Release: pairs with the acquire in collect(). Orders the head, and what the poster
            // did before, before the callback. Without it: the callback frees what is still written.
            let linked = self.top.compare_exchange_weak(
                top,
                at.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            );
            match linked {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
        // The head may be gone from here on.
        let count = |total: &AtomicU64, mark: &AtomicU64, more: u64, limit: u64| {
            let before = total.fetch_add(more, Ordering::Relaxed);
            let before = before.saturating_sub(mark.load(Ordering::Relaxed));
            before / limit.max(1) != (before + more) / limit.max(1)
        };
        let many = count(&self.queued, &self.queued_mark, 1, policy.many);
        (bytes != 0 && count(&self.bytes, &self.bytes_mark, bytes, policy.bytes)) || many
    }

    fn mark(&self) {
        self.queued_mark.store(self.queued.load(Ordering::Relaxed), Ordering::Relaxed);
        self.bytes_mark.store(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Segment {
    constructor! {
        fn new() -> Self {
            Self {
                top: AtomicPtr::new(core::ptr::null_mut()),
                cookie: AtomicU64::new(0),
                upto: AtomicU64::new(0),
            }
        }
    }

    /// Puts the list that begins with `list` before what is here, if that has not been done.
    fn adopt(&self, list: &Head, at: NonNull<Head>) {
        let top = self.top.load(Ordering::Relaxed);
        if core::ptr::eq(top, at.as_ptr()) {
            return;
        }
        let mut last = list;
        loop {
            let next = last.next.load(Ordering::Relaxed);
            if core::ptr::eq(next, top) {
                break;
            }
            // SAFETY: in a list that only the worker has, so not called and valid (invariant 4).
            match unsafe { next.as_ref() } {
                Some(next) => last = next,
                None => break,
            }
        }
        last.next.store(top, Ordering::Release);
        self.top.store(at.as_ptr(), Ordering::Release);
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl Queue {
    constructor! {
        /// An empty queue.
        #[must_use]
        pub fn new() -> Self {
            Self {
                #[cfg(not(loom))]
                shards: [const { Shard::new() }; SHARDS],
                #[cfg(loom)]
                shards: core::array::from_fn(|_| Shard::new()),
                calls: AtomicU32::new(0),
                flush: AtomicU64::new(0),
                begun: AtomicU64::new(0),
                finished: AtomicU64::new(0),
                gate: Gate::new(),
                owner: AtomicUsize::new(0),
                since: AtomicU64::new(0),
                span: AtomicU32::new(0),
                segments: [Segment::new(), Segment::new(), Segment::new()],
                moving: AtomicPtr::new(core::ptr::null_mut()),
                moving_from: AtomicUsize::new(0),
                counts: Counts {
                    invoked: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                    panicked: AtomicU64::new(0),
                    leaked: AtomicU64::new(0),
                },
            }
        }
    }

    /// Queues a head. `place` picks the shard: a CPU number, or anything. Lock-free; async-signal-safe.
    ///
    /// # Safety
    /// `head` stays valid and in place until its callback is called.
    pub unsafe fn push(
        &self,
        p: &impl Periods,
        place: usize,
        head: NonNull<Head>,
        func: Callback,
        urgency: Urgency,
    ) -> Pushed {
        // SAFETY: the caller's.
        let inner = unsafe { head.as_ref() };
        if inner.post(func) == Posting::Twice {
            self.counts.leaked.fetch_add(1, Ordering::Relaxed);
            return Pushed::Twice;
        }
        let Some(shard) = self.shards.get(place % SHARDS) else { return Pushed::Quiet };
        let full = shard.link(head, inner, p.policy());
        // [C1] pairs with [C2]: the head is linked before we look whether the worker knows, and before
        // a barrier that comes after us looks at the number. Without it: we see the call that a
        // collection answers which does not see the head.
        p.fence(Letter::C1);
        reached(Point::AfterLink);
        if full || urgency == Urgency::Hurry {
            self.hurry();
            return if full { Pushed::Full } else { Pushed::Ring };
        }
        let (relaxed, calls) = (Ordering::Relaxed, &self.calls);
        if calls.load(relaxed) == 0 && calls.compare_exchange(0, 1, relaxed, relaxed).is_ok() {
            Pushed::Ring
        } else {
            Pushed::Quiet
        }
    }

    /// Asks for everything posted so far to be collected soon. The caller has fenced, and tells the
    /// worker.
    fn hurry(&self) {
        // Acquire: a collection whose number we see has reset `calls` before.
        let begun = self.begun.load(Ordering::Acquire);
        self.flush.fetch_max(begun.wrapping_add(1), Ordering::Relaxed);
        // Release: the worker that sees the call sees `flush`.
        self.calls.store(1, Ordering::Release);
    }

    /// The batch up to which everything is that was posted before. Exact, or one more.
    #[must_use]
    pub fn last_batch(&self) -> u64 {
        // [C0] Acquire: a shard that is empty because it was collected shows that collection's number.
        let empty = self.shards.iter().all(|s| s.top.load(Ordering::Acquire).is_null());
        let begun = self.begun.load(Ordering::Relaxed);
        if empty { begun } else { begun.wrapping_add(1) }
    }

    /// True once every callback of every batch up to `batch` has returned.
    #[must_use]
    pub fn is_finished(&self, batch: u64) -> bool {
        // [C3] Acquire: pairs with the release in finish(): what the callbacks did is visible.
        let finished = self.finished.load(Ordering::Acquire);
        finished.wrapping_sub(batch) <= u64::MAX / 2
    }

    /// Asks for a batch to be collected without delay; then the caller tells the worker.
    pub fn want(&self, batch: u64) {
        self.flush.fetch_max(batch, Ordering::Relaxed);
        // Release: as in hurry().
        self.calls.store(1, Ordering::Release);
    }

    /// Sleeps until some batch is finished, unless this one is. May return early.
    pub fn sleep_unless_finished(&self, kernel: &impl Kernel, batch: u64) {
        self.gate.sleep_unless(kernel, || self.is_finished(batch));
    }

    /// True if the worker has been called since it last looked.
    #[must_use]
    pub fn calls(&self) -> bool {
        // Acquire: pairs with the release in hurry() and want().
        self.calls.load(Ordering::Acquire) == 1
    }

    /// True if nothing is queued and nothing is running.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_finished(self.last_batch())
    }

    /// Something of the user's panicked.
    pub fn note_panic(&self) {
        self.counts.panicked.fetch_add(1, Ordering::Relaxed);
    }

    /// For a new domain: counts begin at zero. The queue is idle.
    pub fn renew(&self) {
        let counts = &self.counts;
        let zero = [&counts.invoked, &counts.bytes, &counts.panicked, &counts.leaked];
        let shards = self.shards.iter();
        let marks = shards.flat_map(|s| [&s.queued, &s.bytes, &s.queued_mark, &s.bytes_mark]);
        zero.into_iter().chain(marks).for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// What the queue holds and has done.
    #[must_use]
    pub fn stats(&self) -> CallbackStats {
        let counts = &self.counts;
        // What is done first: it is then never more than what was queued.
        let invoked = counts.invoked.load(Ordering::Acquire);
        let done = counts.bytes.load(Ordering::Acquire);
        let sum = |of: fn(&Shard) -> &AtomicU64| {
            self.shards.iter().map(|s| of(s).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
        };
        CallbackStats {
            queued: sum(|s| &s.queued),
            invoked,
            pending_bytes: sum(|s| &s.bytes).saturating_sub(done),
            batches: self.begun.load(Ordering::Relaxed),
            panicked: counts.panicked.load(Ordering::Relaxed),
            leaked: counts.leaked.load(Ordering::Relaxed),
        }
    }
}

mod run;
#[cfg(all(test, not(loom)))]
mod tests;
