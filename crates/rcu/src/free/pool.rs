//! Pools: objects of one type that are freed in one way.

use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::block::{Batch, Free, POOL, Reuse, Ways, fills, weight};
use super::ledger::{self, RetireStats, bump};
use super::put::{NoMemory, put_into, retired_twice};
use super::reclaim::{help, is_freeing};
use super::retire::{Full, drop_box, free_inline};
use super::store::{self, Store};
use super::{arch, barrier, twice};
use crate::domain::Domain;
use crate::engine::EngineRef;

/// A channel of its own for objects of one type: blocks that hold only addresses (twice as many objects
/// a page), a barrier that waits for nobody else's objects, and statistics.
///
/// A pool is a pointer; it can be a `static`. Its objects count towards its domain's cap. Dropping it
/// waits for nothing: what is in it is freed in time.
///
/// ```
/// use owlet_rcu::{Srcu, free::Pool};
///
/// static DOMAIN: Srcu = Srcu::new();
/// static NODES: Pool<[u64; 8]> = Pool::new(&DOMAIN);
///
/// NODES.retire(Box::new([0; 8]));
/// NODES.barrier();
/// assert_eq!(NODES.stats().freed, 1);
/// ```
pub struct Pool<'d, T: Send + 'static> {
    domain: &'d dyn Domain,
    ways: &'static Ways,
    /// `None`: what is retired are boxes.
    free: Option<Free>,
    store: AtomicPtr<Store>,
    _objects: PhantomData<fn(T)>,
}

impl<'d, T: Send + 'static> Pool<'d, T> {
    /// A pool of boxes, freed after grace periods of `domain`.
    #[must_use]
    pub const fn new(domain: &'d dyn Domain) -> Self {
        Self::with(domain, const { &ways::<T>() }, None)
    }

    /// A pool of objects that `free` frees.
    ///
    /// # Safety
    /// `free` may be called on any thread with the address of whatever is retired to the pool.
    #[must_use]
    pub const unsafe fn new_with(domain: &'d dyn Domain, free: unsafe fn(*mut ())) -> Self {
        Self::with(domain, &Ways { free: call_each, reuse: None }, Some(free))
    }

    const fn with(domain: &'d dyn Domain, ways: &'static Ways, free: Option<Free>) -> Self {
        let store = AtomicPtr::new(core::ptr::null_mut());
        Self { domain, ways, free, store, _objects: PhantomData }
    }

    /// Frees a box after a grace period. Only for pools made by [`Pool::new`] (panics otherwise).
    ///
    /// As [`Srcu::retire`](crate::Srcu::retire) in all else.
    #[inline]
    pub fn retire(&self, object: Box<T>) {
        assert!(self.free.is_none(), "a box is retired to a pool of something else");
        // SAFETY: a box, as the pool wants it, and ours.
        unsafe { self.retire_raw(NonNull::from(Box::leak(object))) };
    }

    /// A box, as by [`Box::new`], where there is some in memory of an object of the pool whose grace period is
    /// over. Only for pools made by [`Pool::new`] (others have none: `Box::new`).
    ///
    /// Takes about as long as [`Pool::retire`], half of what the allocator does, and memory comes from where
    /// this CPU last used it. One call in some hundred drops the objects of a block, as retiring does: not
    /// while holding a lock that their destructors take. Inside a destructor of a retired object and without
    /// restartable sequences it is `Box::new`.
    ///
    /// Memory that is ready and not asked for is given back: after one more grace period, at the domain's
    /// cap, by [`trim`](crate::free::trim), and when nothing waits any more.
    #[inline]
    #[must_use]
    pub fn boxed(&self, value: T) -> Box<T> {
        Box::write(self.uninit(), value)
    }

    /// [`Pool::boxed`] without contents, to be written in place.
    #[inline]
    #[must_use]
    pub fn uninit(&self) -> Box<MaybeUninit<T>> {
        if let Some(store) = self.made().filter(|_| size_of::<T>() != 0) {
            // SAFETY: a store.
            let at = unsafe { arch::pull(store) };
            let at = core::ptr::with_exposed_provenance_mut::<MaybeUninit<T>>(at);
            if !at.is_null() {
                // SAFETY: memory of a box of `T` that was dropped in place, ours alone.
                return unsafe { Box::from_raw(at) };
            }
            return self.uninit_slow(store);
        }
        Box::new_uninit()
    }

    #[cold]
    #[inline(never)]
    fn uninit_slow(&self, store: &'static Store) -> Box<MaybeUninit<T>> {
        crate::engine::fork::check();
        match store.refill().filter(|at| !at.is_null()) {
            // SAFETY: as in uninit().
            Some(at) => unsafe { Box::from_raw(at.cast()) },
            None => Box::new_uninit(),
        }
    }

    /// [`Pool::retire`] unless the domain's cap is reached.
    ///
    /// # Errors
    /// The object, if it is and nothing can be freed at once.
    pub fn try_retire(&self, object: Box<T>) -> Result<(), Full<Box<T>>> {
        let engine = self.domain.engine();
        if engine.0.free.is_full() && (is_freeing() || !help(engine)) {
            if let Some(store) = self.made() {
                bump(&store.counts.refused, 1);
            }
            return Err(Full(object));
        }
        self.retire(object);
        Ok(())
    }

    /// Frees what readers may still have a pointer to: [`Pool::retire`] without claiming that nobody
    /// looks at it meanwhile.
    ///
    /// # Safety
    /// `object` came from `Box::into_raw` (or is what the function of [`Pool::new_with`] frees), has been
    /// unpublished, and is retired once.
    #[inline]
    pub unsafe fn retire_raw(&self, object: NonNull<T>) {
        let at = object.as_ptr().cast::<()>();
        let words = [at.expose_provenance(), 0];
        let weight = const { weight(size_of::<T>(), POOL) };
        if !twice::remember(words) {
            return retired_twice(self.domain.engine());
        }
        if let Some(store) = self.made()
            && !fills(weight)
            // SAFETY: the caller's.
            && unsafe { arch::push::<POOL>(store, words, weight) }
        {
            return;
        }
        // SAFETY: the caller's.
        unsafe { self.retire_slow(at, words, weight) };
    }

    /// # Safety
    /// As [`Pool::retire_raw`].
    #[cold]
    #[inline(never)]
    unsafe fn retire_slow(&self, at: *mut (), words: [usize; 2], weight: u64) {
        crate::engine::fork::check();
        let put = || {
            // SAFETY: the caller's.
            let put = |store| unsafe { put_into::<POOL>(store, words, weight) };
            self.store_slow().ok_or(NoMemory).and_then(put).is_ok()
        };
        if !put() {
            twice::forget(at);
            // SAFETY: the caller's: a box, or what the pool's function frees.
            let free = || unsafe { self.free.unwrap_or(drop_box::<T>)(at) };
            free_inline(self.domain.engine(), free, put);
        }
    }

    #[inline(always)]
    fn made(&self) -> Option<&'static Store> {
        // SAFETY: null, or a store, which lives for ever.
        unsafe { self.store.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    #[inline(never)]
    fn store_slow(&self) -> Option<&'static Store> {
        if let Some(store) = self.made() {
            return Some(store);
        }
        let engine = self.domain.engine();
        // The domain's own first: the worker looks there.
        super::put::store_of(engine)?;
        let mine = store::claim(engine, Some((self.ways, self.free)))?;
        let (null, at) = (core::ptr::null_mut(), core::ptr::from_ref(mine).cast_mut());
        match self.store.compare_exchange(null, at, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(mine),
            Err(_) => {
                mine.release();
                self.made()
            }
        }
    }

    /// Waits until everything retired to this pool before, by whatever thread, has been freed.
    ///
    /// Not inside a section of the domain (it would wait for itself: see [`Domain`]), and not in a callback
    /// or a destructor that is run for a retired object (panics).
    pub fn barrier(&self) {
        if let Some(store) = self.made() {
            barrier::barrier(self.domain.engine(), Some(store));
        }
    }

    /// Has what is in the pool freed soon, without waiting for company.
    pub fn flush(&self) {
        if let Some(store) = self.made() {
            store.flush_and_ask();
        }
    }

    /// What the pool holds and has done; `peak_bytes` and `residency_max` are the domain's.
    #[must_use]
    pub fn stats(&self) -> RetireStats {
        let engine: EngineRef = self.domain.engine();
        let passed = |cookie| engine.poll(crate::seq::Cookie(cookie));
        ledger::stats(&engine.0.free, self.made().into_iter(), passed)
    }
}

/// What can be done with boxes of `T`.
const fn ways<T>() -> Ways {
    let reuse = Reuse { empty: drop_in_place::<T>, discard: drop_boxes::<MaybeUninit<T>> };
    Ways { free: drop_boxes::<T>, reuse: if size_of::<T>() == 0 { None } else { Some(reuse) } }
}

/// Drops what is in boxes, and leaves their memory.
///
/// # Safety
/// As [`drop_boxes`].
unsafe fn drop_in_place<T>(batch: Batch<'_>) {
    // SAFETY: the caller's.
    batch.each::<1>(|at, _| unsafe { core::ptr::drop_in_place(at.cast::<T>()) });
}

/// Frees boxes.
///
/// # Safety
/// The batch is of boxes of `T` whose grace period is over, and the caller's alone.
unsafe fn drop_boxes<T>(batch: Batch<'_>) {
    // SAFETY: the caller's.
    batch.each::<1>(|at, _| unsafe { drop_box::<T>(at) });
}

/// Calls a pool's function with each object.
///
/// # Safety
/// As [`drop_boxes`], with what that function frees.
unsafe fn call_each(batch: Batch<'_>) {
    if let Some(free) = batch.free {
        // SAFETY: the caller's.
        batch.each::<1>(|at, _| unsafe { free(at) });
    }
}

impl<T: Send + 'static> Drop for Pool<'_, T> {
    fn drop(&mut self) {
        if let Some(store) = self.made() {
            store.flush_and_ask();
            // The next pool's objects may be of another size.
            while store.give_ready_back().is_none() {
                std::thread::yield_now();
            }
            store.release();
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Pool<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("stats", &self.stats()).finish()
    }
}
