//! What a domain has of deferred free: its methods, its end, a forked child.

use super::barrier::{self, barrier};
use super::{RetireStats, ledger, store};
use crate::engine::{self, EngineRef};

/// Has everything that was retired, in all domains, freed soon: closes blocks that wait for company and
/// asks for grace periods. Waits for nothing.
pub fn flush() {
    engine::all().for_each(barrier::flush);
}

/// Waits until everything that was retired before, in all domains, has been freed. As
/// [`crate::Domain::retire_barrier`] of each of them.
pub fn barrier_all() {
    for engine in engine::all().filter(|engine| engine.0.free.store().is_some()) {
        barrier(engine, None);
    }
}

/// What a domain's retired objects hold and what became of them.
pub(crate) fn stats(engine: EngineRef) -> RetireStats {
    let passed = |cookie| engine.poll(crate::seq::Cookie(cookie));
    ledger::stats(&engine.0.free, store::of(engine), passed)
}

/// A domain is dropped: what waits is not to wait for company.
pub(crate) fn dropped(engine: EngineRef) {
    if engine.0.free.store().is_some() {
        flush_dropped(engine);
    }
}

#[cold]
fn flush_dropped(engine: EngineRef) {
    barrier::flush(engine);
}

/// True if nothing of a domain waits to be freed.
pub(crate) fn is_idle(engine: EngineRef) -> bool {
    engine.0.free.store().is_none() || store::of(engine).all(|store| store.is_empty())
}

/// In a forked child: see the module's header.
pub(crate) fn inherit(me: usize) {
    for engine in engine::all() {
        if engine.0.free.store().is_some() {
            let bytes: u64 = store::of(engine).map(|store| store.inherit(me)).sum();
            engine.0.free.inherit(bytes);
        }
    }
}

/// The methods of retiring as inherent ones; use inside an `impl` block of a domain type.
macro_rules! inherent_retire {
    () => {
        /// Has a box dropped after a grace period, together with others; see [`crate::free`].
        ///
        /// [`Self::retire_barrier`] waits until it has been; [`Self::barrier`], which is for callbacks, does
        /// not. The old value of an [`Rcu`](crate::Rcu) cell goes the same way by
        /// [`Retired::retire`](crate::Retired::retire).
        ///
        /// For a box that readers may still have a pointer to, get it back with `Box::from_raw` after
        /// unpublishing, or use [`Self::retire_raw`], which does not claim that nobody looks at it.
        /// Boxes of slices and trait objects get a box of their own first.
        ///
        /// Allowed inside sections, in callbacks and destructors, while a thread ends; not in signal
        /// handlers. Costs some thirty instructions, none of them locked where there are restartable sequences
        /// and the domain is SRCU's fast kind; the call that fills a block also frees two or so blocks of
        /// objects: not while holding a lock that their destructors take. At the domain's cap it may be held
        /// up: [`crate::free::Backpressure`].
        #[inline]
        pub fn retire<T: ?Sized + Send + 'static>(&self, object: Box<T>) {
            $crate::free::retire($crate::Domain::engine(self), object);
        }

        /// [`Self::retire`] unless the domain's cap is reached.
        ///
        /// # Errors
        /// The object, if it is and nothing can be freed at once.
        pub fn try_retire<T: ?Sized + Send + 'static>(
            &self,
            object: Box<T>,
        ) -> Result<(), $crate::free::Full<Box<T>>> {
            $crate::free::try_retire($crate::Domain::engine(self), object)
        }

        /// [`Self::retire`] of what came from `Box::into_raw`, and is awaited as that.
        ///
        /// # Safety
        /// `object` came from there, has been unpublished, and is retired once.
        #[inline]
        pub unsafe fn retire_raw<T: Send + 'static>(&self, object: core::ptr::NonNull<T>) {
            let engine = $crate::Domain::engine(self);
            let at = object.as_ptr().cast();
            // SAFETY: the caller's; `T` is `Send`.
            unsafe { $crate::free::retire_box(engine, at, object) };
        }

        /// Has `free(at)` called after a grace period; `bytes` is what that gives back.
        ///
        /// # Safety
        /// `free(at)` may be called once, on any thread, after a grace period that begins now.
        #[inline]
        pub unsafe fn retire_with(&self, at: *mut (), bytes: usize, free: unsafe fn(*mut ())) {
            let engine = $crate::Domain::engine(self);
            // SAFETY: the caller's.
            unsafe { $crate::free::retire_with(engine, at, bytes, free) };
        }

        /// Has memory given back to the global allocator after a grace period; drops nothing. Such
        /// memory has blocks of its own.
        ///
        /// # Safety
        /// `at` came from the global allocator with that layout, has been unpublished, and is retired
        /// once.
        #[inline]
        pub unsafe fn retire_dealloc(
            &self,
            at: core::ptr::NonNull<u8>,
            layout: core::alloc::Layout,
        ) {
            let engine = $crate::Domain::engine(self);
            // SAFETY: the caller's.
            unsafe { $crate::free::retire_dealloc(engine, at, layout) };
        }

        /// Has a closure called after a grace period, together with others; `bytes` is what that gives
        /// back. Allocates. (For a callback of which one can say when it has run, see [`Self::call`].)
        pub fn retire_call(&self, bytes: usize, call: impl FnOnce() + Send + 'static) {
            $crate::free::retire_call($crate::Domain::engine(self), bytes, call);
        }

        /// Has `func` called with a head after a grace period, together with others. Where there is no
        /// memory for a block it goes to the domain's callbacks, which need none. A head that is
        /// queued already is leaked (debug builds panic). In signal handlers:
        /// [`Self::call_head_in_handler`].
        ///
        /// # Safety
        /// `head` stays valid and in place until `func` is called with it; `func` may then be called
        /// with it, on any thread.
        pub unsafe fn retire_head(
            &self,
            head: core::ptr::NonNull<$crate::callback::Head>,
            func: $crate::callback::Callback,
        ) {
            let engine = $crate::Domain::engine(self);
            // SAFETY: the caller's.
            unsafe { $crate::free::retire_head(engine, head, func) };
        }
    };
}
pub(crate) use inherent_retire;
