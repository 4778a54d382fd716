//! Memory of a pool's objects, used again.
//!
//! A block whose grace period is over is a page of addresses of memory that nobody reads. Instead of going
//! to the allocator one by one, and coming from there one by one, they can be handed out as they are: the
//! block becomes its CPU's *ready* block, and an allocation is one restartable sequence that takes the last
//! address out. (The kernel's sheaves, mm/slub.c since 6.18, do the same with whole blocks of `kvfree_rcu`.)
//!
//! 1. [`pull`](super::arch::pull) takes an address, and commits with the count that is left.
//! 2. If there is none, the oldest block of this CPU's queue is taken out, if it has passed; its objects are
//!    dropped, counted as freed and, being memory from here on, are no longer among what waits.
//! 3. One more sequence makes it the ready block; the one that is used up is an empty block again.
//!
//! All of it is memory of the global allocator, with the layout of the pool's type: what is handed out is a
//! box like any other. So it does not matter where a box came from, and what is not wanted is given back:
//! what has been ready for a grace period without being asked for, what is in the way at the cap, and, by
//! a trim, by the pool's end and by the worker once nothing waits, ready blocks.
//!
//! What threads leave behind on CPUs that they do not come back to is one ready block a CPU, at most
//! 256 KiB of objects or 504 of them, until one of these.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use super::arch::{self, Swap};
use super::block::{Block, Reuse};
use super::lanes::Lane;
use super::ledger::bump;
use super::reclaim::is_freeing;
use super::store::Store;
use crate::held;
use crate::seq::Cookie;

impl Store {
    fn reuse(&self) -> Option<Reuse> {
        self.ways()?.reuse
    }

    /// True if somebody has asked for memory to be used again.
    pub(super) fn reuses(&self) -> bool {
        self.reuses.load(Ordering::Relaxed) != 0
    }

    /// Memory of an object of the pool, and more of it for this CPU; null or `None` if there is none.
    pub(super) fn refill(&'static self) -> Option<*mut ()> {
        let (engine, reuse) = (self.engine()?, self.reuse()?);
        if !self.has_sequences() || is_freeing() {
            return None;
        }
        self.reuses.store(1, Ordering::Relaxed);
        let (me, ready) = (held::identity(), |cookie| engine.poll(Cookie(cookie)));
        // Others' only where memory is short: they come from another cache and another arena.
        let near = if engine.0.free.is_pressed() { usize::MAX } else { 1 };
        let mut queues = self.queues().take(near).filter(|queue| queue.oldest().is_some_and(ready));
        let block = queues.find_map(|queue| queue.try_lock(me)?.pop(ready))?.cast();
        // SAFETY: taken out of the queue, so ours alone; links there are blocks, and its moment has passed.
        let empty = |block: &Block| unsafe { block.empty_objects(reuse) };
        // SAFETY: likewise.
        unsafe { self.work_off(block, empty) };
        // SAFETY: likewise.
        let inner = unsafe { block.as_ref() };
        bump(&self.counts.reused, inner.objects() as u64);
        inner.offer_all();
        let at = inner.take_last();
        self.count_out(inner.generation.load(Ordering::Relaxed));
        // SAFETY: of this store, memory to be used again, and ours alone.
        match unsafe { arch::offer(self, block.as_ptr()) } {
            Swap::Done(old) => {
                // SAFETY: taken out of its place with nothing left in it, so ours alone.
                NonNull::new(old).into_iter().for_each(|old| unsafe { self.put_away(old) });
            }
            // SAFETY: as for the offer.
            Swap::Room | Swap::Closed => unsafe { self.discard(block) },
        }
        Some(at)
    }

    /// Gives back what is left in a block of memory, and the block.
    ///
    /// # Safety
    /// The caller has it to itself.
    unsafe fn discard(&'static self, block: NonNull<Block>) {
        // SAFETY: the caller's.
        let inner = unsafe { block.as_ref() };
        if let Some(reuse) = self.reuse() {
            // SAFETY: the caller's.
            unsafe { inner.discard(reuse) };
        }
        // SAFETY: the caller's.
        unsafe { self.put_away(block) };
    }

    /// Gives back what is ready on all CPUs; says how many bytes. `None` if another thread has lanes
    /// frozen, so that something may have been left.
    pub(super) fn give_ready_back(&'static self) -> Option<u64> {
        let any = |lane: &Lane| !lane.ready.load(Ordering::Relaxed).is_null();
        if self.reuse().is_none() || !self.lanes().iter().any(any) {
            return Some(0);
        }
        let freezer = self.freezer()?;
        let mut bytes = 0;
        freezer.each(any, |lane| {
            let ready = lane.take_ready();
            lane.thaw();
            if let Some(block) = NonNull::new(ready) {
                // SAFETY: taken out of its place, so ours alone.
                bytes += unsafe { block.as_ref() }.bytes_left();
                // SAFETY: likewise.
                unsafe { self.discard(block) };
            }
        });
        Some(bytes)
    }
}
