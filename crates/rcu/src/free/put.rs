//! Putting an object in: the slow way, when the CPU's block is full or missing.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use owlet_sys::clock::monotonic_ns;

use super::arch::{self, Swap, Words};
use super::block::{Block, fills};
use super::lanes::Banked;
use super::ledger::bump;
use super::store::{self, Store, TIMER};
use super::twice;
use crate::engine::EngineRef;
use crate::held;
use crate::seq::{self, Cookie};

/// There is no memory for a block, and nothing has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// Puts an object of a domain in.
///
/// # Safety
/// `words` are an object of the kind, which is freed once, on any thread.
#[inline(always)]
pub(crate) unsafe fn put<const KIND: usize>(
    engine: EngineRef,
    words: Words,
    weight: u64,
) -> Result<(), NoMemory> {
    if !twice::remember(words) {
        retired_twice(engine);
        return Ok(());
    }
    // SAFETY: the caller's.
    unsafe { put_unchecked::<KIND>(engine, words, weight) }
}

/// [`put`] of what may be retired several times: the number of times that it is freed is its owner's
/// business.
///
/// # Safety
/// As [`put`], each time.
#[inline(always)]
pub(crate) unsafe fn put_unchecked<const KIND: usize>(
    engine: EngineRef,
    words: Words,
    weight: u64,
) -> Result<(), NoMemory> {
    if !fills(weight)
        && let Some(store) = engine.0.free.store()
        // SAFETY: the caller's.
        && unsafe { arch::push::<KIND>(store, words, weight) }
    {
        return Ok(());
    }
    // SAFETY: the caller's.
    unsafe { put_slow::<KIND>(engine, words, weight) }
}

/// An object was retired while it waits.
#[cold]
pub(super) fn retired_twice(engine: EngineRef) {
    super::retire::count(engine, |counts| &counts.leaked);
    debug_assert!(false, "an object was retired while it waits to be freed; it is leaked");
}

/// # Safety
/// As [`put`].
#[cold]
#[inline(never)]
unsafe fn put_slow<const KIND: usize>(
    engine: EngineRef,
    words: Words,
    weight: u64,
) -> Result<(), NoMemory> {
    crate::engine::fork::check();
    // SAFETY: the caller's.
    let put = |store| unsafe { put_into::<KIND>(store, words, weight) };
    let done = store_of(engine).ok_or(NoMemory).and_then(put);
    if done.is_err() {
        let [at, _] = words;
        twice::forget(core::ptr::with_exposed_provenance_mut(at));
    }
    done
}

/// The domain's store; made when first asked for.
pub(super) fn store_of(engine: EngineRef) -> Option<&'static Store> {
    let place = &engine.0.free.store.0;
    if let Some(store) = engine.0.free.store() {
        return Some(store);
    }
    let mine = store::claim(engine, None)?;
    let (null, at) = (core::ptr::null_mut(), core::ptr::from_ref(mine).cast_mut());
    match place.compare_exchange(null, at, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(mine),
        Err(_) => {
            mine.release();
            engine.0.free.store()
        }
    }
}

/// Puts an object into a store whose CPU's block is full or missing.
///
/// # Safety
/// As [`put`].
#[cold]
#[inline(never)]
pub(super) unsafe fn put_into<const KIND: usize>(
    store: &'static Store,
    words: Words,
    weight: u64,
) -> Result<(), NoMemory> {
    if fills(weight) {
        // SAFETY: the caller's.
        return unsafe { store.put_alone(KIND, words, weight) };
    }
    loop {
        // SAFETY: the caller's.
        if unsafe { arch::push::<KIND>(store, words, weight) } {
            return Ok(());
        }
        let fresh = store.fresh(KIND);
        let new = fresh.map_or(core::ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: the caller's; the new block is ours alone, empty and of this kind.
        let swapped = unsafe { arch::swap::<KIND>(store, new) };
        match swapped {
            Swap::Room => {
                // SAFETY: nobody else has seen it.
                fresh.into_iter().for_each(|block| unsafe { store.give_back(block) });
            }
            Swap::Done(old) => {
                store.arm(TIMER);
                if let Some(old) = NonNull::new(old) {
                    // SAFETY: taken out of its bank, so ours alone (invariant 1 of `lanes`).
                    unsafe { store.close(old) };
                }
                if fresh.is_none() && !store.scrape() {
                    return Err(NoMemory);
                }
            }
            // SAFETY: as for the swap.
            Swap::Closed => return unsafe { store.put_banked(KIND, fresh, words, weight) },
        }
    }
}

impl Store {
    /// Puts an object in without a sequence: into whichever bank can be had, or else a block of its own.
    ///
    /// # Safety
    /// As [`put`]; `fresh` is an empty block of the kind that the caller has to itself.
    unsafe fn put_banked(
        &'static self,
        kind: usize,
        fresh: Option<NonNull<Block>>,
        words: Words,
        weight: u64,
    ) -> Result<(), NoMemory> {
        let (me, engine) = (held::identity(), self.engine().ok_or(NoMemory)?);
        let mut fresh = fresh;
        let mut put = false;
        let mut old = core::ptr::null_mut();
        for lane in self.lanes_from_here() {
            let Some(bank) = lane.bank.try_lock(me) else { continue };
            // [L] as in a snapshot; the fence is the lock's, [F5].
            let stamp = engine.0.seq_now();
            put = bank.put(kind, words, weight, stamp) == Banked::Done;
            if !put {
                let new = fresh.map_or(core::ptr::null_mut(), NonNull::as_ptr);
                if let Some(full) = bank.swap(kind, new) {
                    old = full;
                    fresh = None;
                    put = bank.put(kind, words, weight, stamp) == Banked::Done;
                }
            }
            break;
        }
        if let Some(block) = fresh {
            if put {
                // SAFETY: nobody else has seen it.
                unsafe { self.give_back(block) };
            } else {
                // Every bank is somebody else's: a block of its own.
                // SAFETY: as above.
                unsafe { block.as_ref() }.put(words, weight);
                // SAFETY: as above; not ours any more afterwards.
                unsafe { self.close(block) };
                put = true;
            }
        }
        self.arm(TIMER);
        if let Some(old) = NonNull::new(old) {
            // SAFETY: taken out of its bank, so ours alone.
            unsafe { self.close(old) };
        }
        if put { Ok(()) } else { Err(NoMemory) }
    }

    /// Puts an object in a block of its own, which is closed at once: so that what is as heavy counts against
    /// the cap from the beginning.
    ///
    /// # Safety
    /// As [`put`].
    unsafe fn put_alone(
        &'static self,
        kind: usize,
        words: Words,
        weight: u64,
    ) -> Result<(), NoMemory> {
        let block = loop {
            match self.fresh(kind) {
                Some(block) => break block,
                None if self.scrape() => {}
                None => return Err(NoMemory),
            }
        };
        // SAFETY: nobody else has seen it.
        unsafe { block.as_ref() }.put(words, weight);
        self.arm(TIMER);
        // SAFETY: as above; not ours any more afterwards.
        unsafe { self.close(block) };
        Ok(())
    }

    /// Without memory for a block: frees what is ready. True if that has left empty blocks.
    fn scrape(&'static self) -> bool {
        self.reclaim(usize::MAX);
        self.queues().any(|queue| queue.spares() != 0)
    }

    /// The moment of a block that is full: now, after its last object. Then it waits in a queue; what is
    /// ready is freed, and grace periods are asked for.
    ///
    /// # Safety
    /// The caller has the block to itself; not any more afterwards.
    pub(super) unsafe fn close(&'static self, block: NonNull<Block>) {
        let Some(engine) = self.engine() else { return };
        // SAFETY: the caller's.
        let inner = unsafe { block.as_ref() };
        // [L] a snapshot after the last object was put in, by this CPU: its fence comes after what was
        // unpublished for all of them. Mutant M7 took it when the block was opened.
        let cookie = if owlet_percpu::planted!("M7") {
            Cookie(inner.link.cookie())
        } else {
            engine.snapshot_here()
        };
        // SAFETY: the caller's.
        let cookie = unsafe { self.file(engine, block, cookie) };
        self.after_close(engine, cookie);
    }

    /// The moment of an open block that was taken away from a CPU: by its stamp, if that is earlier than
    /// now.
    ///
    /// The stamp is the sequence number as it was when the last object came. A bank's is exact. A
    /// sequence looks without a fence: what was unpublished may have been in a store buffer, and a grace
    /// period that began just then does not count. But its heavy fence, [G], emptied the buffer, so the
    /// next one does: one more than a snapshot would say (invariant 3 of `free`).
    pub(super) fn moment_of(&self, engine: EngineRef, block: &Block, by_sequence: bool) -> Cookie {
        let stamp = seq::cookie_at(block.stamp.load(Ordering::Relaxed));
        let stamp = Cookie(stamp.0.wrapping_add(if by_sequence { 2 } else { 0 }));
        if engine.poll(stamp) {
            return stamp;
        }
        let now = engine.snapshot_here();
        if seq::is_at_or_after(stamp.0, now.0) { now } else { stamp }
    }

    /// Books a closed block and puts it into a queue.
    ///
    /// # Safety
    /// As [`Store::close`].
    pub(super) unsafe fn file(
        &'static self,
        engine: EngineRef,
        block: NonNull<Block>,
        cookie: Cookie,
    ) -> Cookie {
        // SAFETY: the caller's.
        let inner = unsafe { block.as_ref() };
        let (opened, now) = (inner.since.load(Ordering::Relaxed), monotonic_ns());
        inner.since.store(opened.midpoint(now), Ordering::Relaxed);
        bump(&self.counts.closed, inner.objects() as u64);
        bump(&self.counts.bytes, inner.bytes());
        let ledger = &engine.0.free;
        let bytes = bump(&ledger.bytes, inner.bytes());
        if bytes > ledger.peak.load(Ordering::Relaxed) {
            ledger.peak.fetch_max(bytes, Ordering::Relaxed);
        }
        let cookie = self.planted_batch(engine).unwrap_or(cookie);
        inner.link.set_cookie(cookie.0);
        // SAFETY: the caller's.
        unsafe { self.enqueue(block) };
        cookie
    }

    /// Mutant M6: a block joins the batch that is in flight, and waits for that one's moment.
    fn planted_batch(&'static self, engine: EngineRef) -> Option<Cookie> {
        if !owlet_percpu::planted!("M6") {
            return None;
        }
        self.newest().filter(|cookie| !engine.poll(*cookie))
    }
}
