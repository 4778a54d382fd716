//! Freeing what is ready, asking for grace periods, and what happens at the cap.

use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use std::panic::catch_unwind;

use owlet_sys::clock::monotonic_ns;

use super::block::Block;
use super::ledger::{Backpressure, Ledger, bump};
use super::queue::Queue;
use super::store::{self, Store, TICK, TICK_NS};
use crate::engine::EngineRef;
use crate::engine::pace::Futex;
use crate::seq::{Cookie, is_at_or_after};
use crate::{callback, stall, worker};

/// Blocks of one CPU that wait for one moment before it is asked for at once; fewer wait for the worker's
/// next tick. A membarrier beside a busy CPU costs what freeing some hundred objects does; sixteen blocks
/// still fit the second-level cache (8, 12, 32: dearer).
pub(super) const START: u32 = 16;
/// Blocks that a thread frees for each one that it closes: enough to catch up within the time of the next
/// grace period, and no more, so that the allocator hands out again what is still in the cache. Where much
/// waits, and what is freed would fill the caches: one, and a second one only if it is late.
const SHARE: usize = 2;
/// For how many grace periods blocks are kept ready where memory is used again.
const KEPT: u64 = 2;
/// For how long [`Backpressure::Help`] holds a thread up at the cap; beyond it, see [`patience`].
const HELP: Duration = Duration::from_millis(2);
/// From twice the cap on the wait is no longer than there.
const LONGEST: u64 = 8;
/// A cap below this doubles the wait in the steps of one that large: blocks are no smaller.
const LEAST_CAP: u64 = 1 << 20;
/// After how long a wait at the cap is reported.
const REPORT: Duration = Duration::from_millis(100);

thread_local! {
    /// The block whose objects this thread is freeing, and its store.
    static IN_HAND: Cell<Option<(&'static Store, NonNull<Block>)>> = const { Cell::new(None) };
}

/// True while this thread frees objects: their destructors may retire, but not wait.
pub(crate) fn is_freeing() -> bool {
    IN_HAND.with(Cell::get).is_some()
}

/// The block in this thread's hands, if it is `store`'s.
pub(super) fn in_hand(store: &Store) -> Option<NonNull<Block>> {
    let (of, block) = IN_HAND.with(Cell::get)?;
    core::ptr::eq(of, store).then_some(block)
}

impl Store {
    /// Frees the objects of a block and gives it back.
    ///
    /// # Safety
    /// The caller has the block to itself, and the grace period of its last object is over.
    pub(super) unsafe fn free_block(&'static self, block: NonNull<Block>) {
        // SAFETY: the caller's.
        let free = |block: &Block| unsafe { block.free_objects(self.ways(), self.free()) };
        // SAFETY: the caller's.
        unsafe { self.work_off(block, free) };
        // SAFETY: the caller's; its objects are gone.
        unsafe { self.give_back(block) };
    }

    /// Calls `free` until all objects of a block are done with, and books that.
    ///
    /// # Safety
    /// As [`Store::free_block`].
    pub(super) unsafe fn work_off(&'static self, block: NonNull<Block>, free: impl Fn(&Block)) {
        let Some(engine) = self.engine() else { return };
        // SAFETY: the caller's.
        let inner = unsafe { block.as_ref() };
        let before = IN_HAND.with(|hand| hand.replace(Some((self, block))));
        loop {
            // What a destructor that panics was working on is as good as freed; the others go on.
            match catch_unwind(AssertUnwindSafe(|| free(inner))) {
                Ok(()) => break,
                // What was thrown may panic again when dropped, so it is not.
                Err(thrown) => core::mem::forget(thrown),
            }
            bump(&self.counts.panicked, 1);
        }
        IN_HAND.with(|hand| hand.set(before));
        let (objects, bytes) = (inner.objects() as u64, inner.bytes());
        let age = monotonic_ns().saturating_sub(inner.since.load(Ordering::Relaxed));
        let ledger = &engine.0.free;
        bump(&self.counts.freed, objects);
        bump(&self.counts.blocks_freed, 1);
        bump(&self.counts.residency_ns, age.saturating_mul(objects));
        if age > ledger.residency_max.load(Ordering::Relaxed) {
            ledger.residency_max.fetch_max(age, Ordering::Relaxed);
        }
        self.counts.bytes.fetch_sub(bytes, Ordering::Relaxed);
        ledger.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if ledger.waiting.load(Ordering::Relaxed) != 0 {
            ledger.gate.open(&Futex::default());
        }
    }

    /// Frees ready blocks, at most so many, the present CPU's first and each CPU's oldest first; says how
    /// many. Nothing inside a destructor: the loop around that one goes on.
    pub(super) fn reclaim(&'static self, most: usize) -> usize {
        self.reclaim_from(most, |_| true)
    }

    /// [`Store::reclaim`] from those queues that `whose` accepts.
    pub(super) fn reclaim_from(
        &'static self,
        most: usize,
        whose: impl Fn(&Queue) -> bool,
    ) -> usize {
        self.reclaim_late(most, 0, whose)
    }

    /// [`Store::reclaim_from`] of what has been ready for so many grace periods.
    fn reclaim_late(
        &'static self,
        most: usize,
        periods: u64,
        whose: impl Fn(&Queue) -> bool,
    ) -> usize {
        let Some(engine) = self.engine().filter(|_| !is_freeing()) else { return 0 };
        self.drain_overflow();
        let (me, mut freed) = (crate::held::identity(), 0);
        for queue in self.queues().filter(|queue| whose(queue)) {
            // Only as long as the first is ready: the others are no older (invariant 1 of `queue`).
            let ready = |cookie: u64| engine.poll(Cookie(cookie.wrapping_add(2 * periods)));
            while freed < most && queue.oldest().is_some_and(ready) {
                let Some(link) = queue.try_lock(me).and_then(|mut queue| queue.pop(ready)) else {
                    break;
                };
                freed += 1;
                // SAFETY: taken out of the queue, so ours alone; links there are blocks, and its moment
                // has passed.
                unsafe { self.free_block(link.cast()) };
            }
        }
        freed
    }

    /// [`Store::reclaim`] by somebody who is not the worker.
    pub(super) fn reclaim_here(&'static self, most: usize) -> usize {
        let freed = self.reclaim(most);
        bump(&self.counts.by_producers, freed as u64);
        freed
    }

    /// [`Store::reclaim_here`], from the present CPU's queue only; says how many.
    fn reclaim_own(&'static self, most: usize, periods: u64) -> usize {
        let Some(own) = self.queues().next() else { return 0 };
        let freed = self.reclaim_late(most, periods, |queue| core::ptr::eq(own, queue));
        bump(&self.counts.by_producers, freed as u64);
        freed
    }

    /// A block has been closed, with that moment.
    pub(super) fn after_close(&'static self, engine: EngineRef, cookie: Cookie) {
        let ledger = &engine.0.free;
        let pressed = ledger.is_pressed();
        // What nobody has wanted as memory for some grace periods.
        let periods = if self.reuses() { KEPT } else { 0 };
        if pressed {
            self.reclaim_own(1, periods);
            self.reclaim_own(1, periods + 1);
        } else {
            self.reclaim_own(SHARE, periods);
        }
        let own = self.queues().next();
        let few = own.is_some_and(|own| own.batch() < START) && !self.is_short(engine);
        if few || self.gathers(engine) != 0 {
            self.arm(TICK);
        } else if !is_at_or_after(engine.wanted().0, cookie.0) && !engine.poll(cookie) {
            self.ask(engine, cookie, false);
            self.reclaim_own(SHARE, periods);
        }
        while ledger.is_full() {
            // No more than there has to be room for: memory is better used again than given back.
            if self.reclaim_own(1, 0) == 0 {
                self.at_cap(engine);
                break;
            }
        }
    }

    /// For how long (ns) what waits is still to gather company before a grace period is asked for: see
    /// [`crate::engine::Engine::gathering_until`]. Not at all where there is no room for more.
    pub(super) fn gathers(&'static self, engine: EngineRef) -> u64 {
        if engine.seq_now() & 1 == 1 {
            // What this one does not cover is looked at again when it ends.
            return TICK_NS;
        }
        let until = engine.gathering_until(TICK_NS);
        if until == 0 || engine.0.free.is_full() && !self.has_ready(engine) {
            return 0;
        }
        until.saturating_sub(monotonic_ns())
    }

    /// True if much waits and nothing can be freed: then nothing waits for company.
    pub(super) fn is_short(&'static self, engine: EngineRef) -> bool {
        engine.0.free.is_pressed() && !self.has_ready(engine)
    }

    /// True if blocks wait that can be freed.
    pub(super) fn has_ready(&'static self, engine: EngineRef) -> bool {
        let ready = |cookie| engine.poll(Cookie(cookie));
        self.queues().any(|queue| queue.oldest().is_some_and(ready))
    }

    /// Has a grace period brought about: on the spot if nobody is inside, otherwise by the worker.
    pub(super) fn ask(&self, engine: EngineRef, cookie: Cookie, hurry: bool) {
        self.arm(TICK);
        if engine.try_once(cookie) {
            bump(&self.counts.asked, 1);
        } else if !is_at_or_after(engine.wanted().0, cookie.0) {
            bump(&self.counts.asked, 1);
            engine.ask(cookie, hurry);
        } else if hurry {
            engine.hurry_up(cookie);
        }
    }

    #[cold]
    #[inline(never)]
    fn at_cap(&'static self, engine: EngineRef) {
        let ledger = &engine.0.free;
        let backpressure = ledger.limits().backpressure;
        let _aside = engine.flavour().aside();
        let own = is_freeing() || callback::is_running() || engine.flavour().holds();
        if own || backpressure == Backpressure::Expedite {
            if let Some(cookie) = self.moment(engine) {
                self.ask(engine, cookie, true);
            }
            bump(&self.counts.over_cap, 1);
            return;
        }
        bump(&self.counts.held_up, 1);
        let begun = monotonic_ns();
        while !help(engine) {
            let age = Duration::from_nanos(monotonic_ns().saturating_sub(begun));
            if backpressure == Backpressure::Help && age >= patience(ledger) {
                bump(&self.counts.over_cap, 1);
                return;
            }
            if age >= REPORT && ledger.reported.swap(1, Ordering::Relaxed) == 0 {
                stall::report_full(engine.0, age);
            }
            wait_for_room(engine);
        }
        if ledger.bytes() < ledger.limits().cap / 2 {
            ledger.reported.store(0, Ordering::Relaxed);
        }
    }
}

/// How long a thread that helps is held up: twice as long for each eighth of the cap that is exceeded. So
/// threads without end come to a crawl at twice the cap, whatever their number, and none is stuck.
fn patience(ledger: &Ledger) -> Duration {
    let cap = ledger.limits().cap;
    let eighth = cap.max(LEAST_CAP) / 8;
    HELP * (1 << (ledger.bytes().saturating_sub(cap) / eighth).min(LONGEST))
}

/// Frees what is ready in all of a domain's stores and hurries grace periods; true if there is room now.
pub(super) fn help(engine: EngineRef) -> bool {
    let ledger = &engine.0.free;
    for store in store::of(engine) {
        // No more than there has to be room for: what is freed just before it is allocated again is in the
        // cache, and memory is better used again than given back.
        while ledger.is_full() && store.reclaim_here(1) != 0 {}
        // Not for what waits for the one after: that begins when there is something in it.
        if ledger.is_full()
            && let Some(cookie) = store.moment(engine)
        {
            store.ask(engine, cookie, true);
        }
    }
    !ledger.is_full()
}

/// Sleeps until something has been freed, for a moment at most.
fn wait_for_room(engine: EngineRef) {
    const LOOK: Duration = Duration::from_millis(1);
    let ledger = &engine.0.free;
    if !worker::is_running() {
        // Nobody else brings grace periods about.
        engine.wait(engine.snapshot(), true);
        return;
    }
    ledger.waiting.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    ledger.gate.sleep_unless(&Futex(LOOK), || !ledger.is_full());
    ledger.waiting.fetch_sub(1, Ordering::Relaxed);
}
