//! Callbacks: what is to be done after a grace period, by somebody else.
//!
//! `call` queues a closure, `call_head` a [`Head`] inside the object itself; a grace period that
//! begins later ends, and then the library's worker thread calls it, once. Posting takes no lock and
//! waits for nobody, so it is allowed inside sections, and, in the form without allocation, in signal
//! handlers.
//!
//! # What a callback may do
//! It runs on the worker thread (or, if no thread can be made, on one that waits at a barrier), after
//! others and before others in no particular order. It may post: itself again, or another head, to the
//! same domain or to another (*chaining*). It must not wait for grace periods or at barriers: the
//! worker is what would bring them about (a wait panics in debug builds, a barrier in all), and should
//! not block otherwise, since
//! the callbacks of all domains wait behind it. If it panics, the panic is counted and the worker goes
//! on.
//!
//! # When
//! Plain `call` may wait for company: its grace period is asked for within [`lazy_window`] (100 ms
//! unless [`set_lazy_window`] says otherwise), sooner if much is queued. `call_hurry` and `barrier`
//! make everything queued so far be collected at once, [`flush`] that of all domains. A callback that was collected is called about
//! one and a half grace periods later. At most [`TURN`] of a domain's callbacks run before other
//! domains have their turn and grace periods their next step.
//!
//! # How much
//! Posting never fails. Who posts closures faster than they can be called is slowed down once
//! [`FLOOD_COUNT`] of them or [`FLOOD_BYTES`] are queued: then a `call` sleeps now and then, some
//! milliseconds at most. Heads are never slowed down. Grace periods are expedited long before.
//!
//! # Barriers
//! `barrier` waits for every callback queued before it, by whatever thread, to have returned; not for
//! later ones, except that some which come while it is just beginning may be taken along. It waits for
//! no grace period if nothing is queued. Before code is unloaded, both are needed: a grace period (for
//! readers inside that code) and a barrier (for callbacks in it): `quiesce`, which waits for what was
//! retired ([`crate::free`]) too. A chain of callbacks of
//! which each posts the next may need as many barriers as it is long: [`quiesce_all`]. What has this crate
//! linked into it has the worker thread in it and is never to be unloaded.
//!
//! # Fork
//! A forked child has a copy of what was queued, and its own worker calls it, once, after grace periods
//! of its own, from the first time that the child posts, polls by the worker, or waits at a barrier. The
//! callback that was being called at the instant of the fork is the parent's. If the forking thread is
//! the worker (a callback forked), its child goes on after that callback.
//!
//! # Modules
//! - `head`: what is queued, and that it is queued once.
//! - `queue`: posting without a lock, collecting, segments by cookie, barriers; modelled.
//! - `post`: closures, posting to a domain, waiting at a barrier.
//! - `serve`: the worker's side.

#[doc(hidden)]
pub mod head;
#[cfg(not(loom))]
mod post;
#[doc(hidden)]
pub mod queue;
#[cfg(not(loom))]
mod serve;

#[cfg(not(loom))]
pub use post::{FLOOD_BYTES, FLOOD_COUNT, flush, quiesce_all, start_worker};
#[cfg(not(loom))]
pub(crate) use post::{barrier, call, post, post_in_handler, quiesce};
#[cfg(not(loom))]
pub(crate) use serve::serve;
#[cfg(not(loom))]
pub use serve::{TURN, is_running, lazy_window, set_lazy_window};

#[cfg(not(loom))]
macro_rules! inherent_calls {
    () => {
        /// Has `f` called once, after a grace period that begins later, on the library's worker
        /// thread; see [`crate::callback`]. It may wait for company first.
        ///
        /// Takes no lock and waits for nobody; allocates. Allowed inside sections, not in signal
        /// handlers. Where no thread can be made, every later post tries again to make one, and
        /// until then whoever waits at [`Self::barrier`] calls what is queued; nobody else does.
        pub fn call(&self, f: impl FnOnce() + Send + 'static) {
            $crate::callback::call(
                $crate::Domain::engine(self),
                $crate::callback::queue::Urgency::Lazy,
                f,
            );
        }

        /// [`Self::call`] that does not wait for company.
        pub fn call_hurry(&self, f: impl FnOnce() + Send + 'static) {
            $crate::callback::call(
                $crate::Domain::engine(self),
                $crate::callback::queue::Urgency::Hurry,
                f,
            );
        }

        /// [`Self::call`] without an allocation: queues a head, for `func` to be called with.
        ///
        /// Lock-free. Starts the worker if there is none; so not for signal handlers, which have
        /// [`Self::call_head_in_handler`]. A head that is queued already is leaked, and is not called
        /// at all (debug builds panic).
        ///
        /// # Safety
        /// `head` stays valid and in place until `func` is called with it; `func` may then be called
        /// with it, on any thread.
        pub unsafe fn call_head(
            &self,
            head: core::ptr::NonNull<$crate::callback::Head>,
            func: $crate::callback::Callback,
        ) {
            let engine = $crate::Domain::engine(self);
            // SAFETY: the caller's.
            let _ = unsafe {
                $crate::callback::post(engine, head, func, $crate::callback::queue::Urgency::Lazy)
            };
        }

        /// [`Self::call_head`] for signal handlers: lock-free, allocates nothing, starts no thread.
        /// If the process has no worker yet ([`crate::callback::start_worker`]), the head waits until
        /// it has.
        ///
        /// # Safety
        /// As [`Self::call_head`].
        pub unsafe fn call_head_in_handler(
            &self,
            head: core::ptr::NonNull<$crate::callback::Head>,
            func: $crate::callback::Callback,
        ) {
            let engine = $crate::Domain::engine(self);
            // SAFETY: the caller's.
            unsafe { $crate::callback::post_in_handler(engine, head, func) };
        }
    };
}
#[cfg(not(loom))]
pub(crate) use inherent_calls;

pub use head::{Callback, Head};
pub use queue::CallbackStats;
