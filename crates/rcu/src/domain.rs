//! What all flavours have in common.

use crate::callback::{self, CallbackStats};
use crate::engine::{EngineRef, Stats};
use crate::free::{self, Limits, RetireStats};
use crate::seq::{Cookie, FullCookie};

pub(crate) mod sealed {
    /// Only this crate's flavours are domains.
    pub trait Sealed {}
}

/// A domain of any flavour: its grace periods.
///
/// Every domain type has these as inherent methods too. Waiting is for threads that are not inside a
/// section of the same domain and not in a signal handler; taking and polling cookies is for anybody.
///
/// # What waits for what
/// | method | waits for |
/// |---|---|
/// | [`Domain::synchronize`], [`Domain::wait`] | sections |
/// | [`Domain::barrier`] | callbacks (`call`, `call_head`) |
/// | [`Domain::retire_barrier`] | what was retired (`retire`, [`Retired::retire`](crate::Retired::retire), pools, ..), and callbacks |
/// | [`Domain::quiesce`] | sections, then what was retired and callbacks |
///
/// # Waiting inside a section of the same domain
/// A thread that does so waits for itself. (If the moment has passed already, [`Domain::wait`] returns all
/// the same.)
///
/// | it is | debug builds, feature `checks` | otherwise |
/// |---|---|---|
/// | in a section that cannot leave the thread: a token's ([`Srcu::read_lock`](crate::Srcu::read_lock)), one of [`TasksTrace`](crate::TasksTrace), online in a [`Qsbr`](crate::Qsbr) | the wait panics | it waits for ever |
/// | the taker of a guard of [`Srcu`](crate::Srcu) or [`ClassicSrcu`](crate::ClassicSrcu), which may be another thread's by now | it waits for ever; after 1 s that is reported ([`Kind::OwnSection`](crate::stall::Kind::OwnSection)), unless another thread leads the grace period or has ended a guard of this domain before | it waits for ever |
/// | registered in [`Tasks`](crate::Tasks) | no section in the way: waiting is a quiescent state | the same |
///
/// In every build a grace period that is not over after 10 s is reported, too ([`crate::stall`]). Barriers
/// panic in the first case even if nothing is queued. In the second [`Domain::barrier`] has the worker lead
/// the grace period, so the report is that after 10 s.
pub trait Domain: Sync + sealed::Sealed {
    /// How the engine knows the domain.
    #[doc(hidden)]
    fn engine(&self) -> EngineRef;

    /// The moment at which every section running now will have ended. Starts nothing: somebody must
    /// wait, or ask with [`Domain::start_poll`]. Full barrier; async-signal-safe.
    fn snapshot(&self) -> Cookie {
        self.engine().snapshot()
    }

    /// [`Domain::snapshot`], and the moment comes about without further calls: the library's worker
    /// thread sees to it (started now if it does not run). Not for signal handlers.
    ///
    /// Where no thread can be made, the caller does what can be done without waiting. If a section is
    /// in the way, the moment comes about when somebody waits for a grace period of this domain, or
    /// calls this again, or posts a callback, after the section's end; [`Domain::poll`] alone does not
    /// bring it about.
    fn start_poll(&self) -> Cookie {
        self.engine().start_poll(false)
    }

    /// [`Domain::start_poll`] in a hurry.
    fn start_poll_expedited(&self) -> Cookie {
        self.engine().start_poll(true)
    }

    /// True once the moment has passed; from then on for 2^62 grace periods. Starts nothing.
    /// Lock-free, without allocation, async-signal-safe; two loads and a comparison.
    ///
    /// When true, what the caller does next comes after every section that was running at the
    /// snapshot, and, with the snapshot's fence, like after a [`Domain::synchronize`] that began
    /// there.
    fn poll(&self, cookie: Cookie) -> bool {
        self.engine().poll(cookie)
    }

    /// [`Domain::snapshot`] that remembers the domain.
    fn snapshot_full(&self) -> FullCookie {
        self.engine().snapshot_full()
    }

    /// [`Domain::poll`]; false for a cookie of another domain (debug builds panic).
    fn poll_full(&self, cookie: &FullCookie) -> bool {
        self.engine().poll_full(cookie)
    }

    /// Waits until the moment has passed; returns at once if it has. Not inside a section of the same
    /// domain, as [`Domain::synchronize`].
    fn wait(&self, cookie: Cookie) {
        self.engine().wait(cookie, false);
    }

    /// [`Domain::wait`] in a hurry.
    fn wait_expedited(&self, cookie: Cookie) {
        self.engine().wait(cookie, true);
    }

    /// Waits until every section of this domain that was running at the call has ended.
    ///
    /// Full barrier. Sleeps; shares grace periods with others that wait. Do not call inside a section
    /// of the same domain: it would wait for itself. Builds with the checks panic there if the section
    /// cannot have left the thread; for a guard of [`Srcu`](crate::Srcu) or
    /// [`ClassicSrcu`](crate::ClassicSrcu) they report it after a second. See [the trait](Domain).
    fn synchronize(&self) {
        let engine = self.engine();
        engine.wait(engine.snapshot(), false);
    }

    /// [`Domain::synchronize`] for the impatient: runs in the caller, spins before it sleeps, and
    /// hurries a grace period that another thread is running.
    fn synchronize_expedited(&self) {
        let engine = self.engine();
        engine.wait(engine.snapshot(), true);
    }

    /// Expedites the grace period in progress or, if none is, the next. Starts none. Takes effect at
    /// once, also while its leader sleeps; repeated requests are one.
    fn expedite_current(&self) {
        self.engine().expedite_current();
    }

    /// Waits for every callback queued on this domain before, by whatever thread, to have returned.
    ///
    /// Not for later ones, and for no grace period if nothing is queued. Callbacks are what was posted by
    /// `call` and `call_head`; for what was *retired*, [`Rcu`](crate::Rcu) cells' old values included, there
    /// is [`Domain::retire_barrier`], which waits for callbacks as well.
    ///
    /// Not inside a section of this domain (it would wait for itself: see [the trait](Domain)), and not
    /// from a callback (panics).
    fn barrier(&self) {
        callback::barrier(self.engine());
    }

    /// [`Domain::synchronize`], then [`Domain::retire_barrier`]: what must be waited for before code is
    /// unloaded that readers of this domain run in, or that its callbacks or destructors of what was
    /// retired are in. See also [`callback::quiesce_all`].
    ///
    /// Not inside a section of this domain, in a callback or in a retired object's destructor, as these.
    fn quiesce(&self) {
        callback::quiesce(self.engine());
    }

    /// Has everything retired before freed soon: closes blocks that wait for company and asks for a
    /// grace period if one is needed. Waits for nothing.
    fn retire_flush(&self) {
        free::flush_domain(self.engine());
    }

    /// Waits until everything retired before, by whatever thread, to this domain and its pools, has been
    /// freed, and callbacks posted before have returned. Old values of [`Rcu`](crate::Rcu) cells are retired
    /// too ([`Retired::retire`](crate::Retired::retire)). Needs no grace period if those that have come about
    /// are enough.
    ///
    /// Objects retired meanwhile are not waited for, even by destructors of those that are: a chain of
    /// objects of which each retires the next may need as many barriers as it is long. Not inside a section
    /// of this domain (it would wait for itself: see [the trait](Domain)), and not in a callback or a
    /// retired object's destructor (panics).
    fn retire_barrier(&self) {
        free::barrier(self.engine(), None);
    }

    /// [`Domain::retire_flush`], and gives empty blocks back to the system, keeping none for five
    /// seconds. Returns how many bytes. See also [`free::trim`](crate::free::trim).
    fn retire_trim(&self) -> usize {
        free::trim_domain(self.engine())
    }

    /// How much retired memory may wait, and what happens then.
    fn retire_limits(&self) -> Limits {
        self.engine().0.free.limits()
    }

    /// Sets [`Domain::retire_limits`]. Takes effect at once.
    fn set_retire_limits(&self, limits: Limits) {
        self.engine().0.free.set_limits(limits);
    }

    /// What retired objects hold, and what became of those that were.
    fn retire_stats(&self) -> RetireStats {
        free::stats(self.engine())
    }

    /// What is queued, and what became of what was.
    fn callback_stats(&self) -> CallbackStats {
        self.engine().callbacks.stats()
    }

    /// What the domain's grace periods have cost so far.
    fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// The name the domain was made with, or "".
    fn name(&self) -> &'static str {
        self.engine().name()
    }
}

/// Gives a type the methods of [`Domain`] as its own.
macro_rules! inherent {
    ($($(#[$meta:meta])* fn $name:ident(&self $(, $arg:ident: $ty:ty)?) $(-> $ret:ty)?;)*) => {
        $(
            $(#[$meta])*
            #[inline]
            pub fn $name(&self $(, $arg: $ty)?) $(-> $ret)? {
                $crate::domain::Domain::$name(self $(, $arg)?)
            }
        )*
    };
}

/// The methods of [`Domain`] as inherent ones; use inside an `impl` block of a domain type.
macro_rules! inherent_domain {
    () => {
        $crate::domain::inherent! {
            /// See [`Domain::snapshot`](crate::Domain::snapshot).
            #[must_use]
            fn snapshot(&self) -> $crate::seq::Cookie;
            /// See [`Domain::start_poll`](crate::Domain::start_poll).
            #[must_use]
            fn start_poll(&self) -> $crate::seq::Cookie;
            /// See [`Domain::start_poll_expedited`](crate::Domain::start_poll_expedited).
            #[must_use]
            fn start_poll_expedited(&self) -> $crate::seq::Cookie;
            /// See [`Domain::poll`](crate::Domain::poll).
            #[must_use]
            fn poll(&self, cookie: $crate::seq::Cookie) -> bool;
            /// See [`Domain::snapshot_full`](crate::Domain::snapshot_full).
            #[must_use]
            fn snapshot_full(&self) -> $crate::seq::FullCookie;
            /// See [`Domain::poll_full`](crate::Domain::poll_full).
            #[must_use]
            fn poll_full(&self, cookie: &$crate::seq::FullCookie) -> bool;
            /// See [`Domain::wait`](crate::Domain::wait).
            fn wait(&self, cookie: $crate::seq::Cookie);
            /// See [`Domain::wait_expedited`](crate::Domain::wait_expedited).
            fn wait_expedited(&self, cookie: $crate::seq::Cookie);
            /// See [`Domain::synchronize`](crate::Domain::synchronize).
            fn synchronize(&self);
            /// See [`Domain::synchronize_expedited`](crate::Domain::synchronize_expedited).
            fn synchronize_expedited(&self);
            /// See [`Domain::expedite_current`](crate::Domain::expedite_current).
            fn expedite_current(&self);
            /// See [`Domain::barrier`](crate::Domain::barrier).
            fn barrier(&self);
            /// See [`Domain::quiesce`](crate::Domain::quiesce).
            fn quiesce(&self);
            /// See [`Domain::retire_flush`](crate::Domain::retire_flush).
            fn retire_flush(&self);
            /// See [`Domain::retire_barrier`](crate::Domain::retire_barrier).
            fn retire_barrier(&self);
            /// See [`Domain::retire_trim`](crate::Domain::retire_trim).
            fn retire_trim(&self) -> usize;
            /// See [`Domain::retire_limits`](crate::Domain::retire_limits).
            #[must_use]
            fn retire_limits(&self) -> $crate::free::Limits;
            /// See [`Domain::set_retire_limits`](crate::Domain::set_retire_limits).
            fn set_retire_limits(&self, limits: $crate::free::Limits);
            /// See [`Domain::retire_stats`](crate::Domain::retire_stats).
            #[must_use]
            fn retire_stats(&self) -> $crate::free::RetireStats;
            /// See [`Domain::callback_stats`](crate::Domain::callback_stats).
            #[must_use]
            fn callback_stats(&self) -> $crate::callback::CallbackStats;
            /// See [`Domain::stats`](crate::Domain::stats).
            #[must_use]
            fn stats(&self) -> $crate::engine::Stats;
            /// See [`Domain::name`](crate::Domain::name).
            #[must_use]
            fn name(&self) -> &'static str;
        }

        /// [`Domain::synchronize`](crate::Domain::synchronize) for async code: `.await` it on any
        /// runtime. The sections it waits for are those running now, when it is made. Where no thread
        /// can be made, the task is polled again and again: see [`crate::Synchronize`].
        pub fn synchronize_async(&self) -> $crate::future::Synchronize<'_> {
            $crate::future::Synchronize::new(self)
        }

        $crate::callback::inherent_calls!();
        $crate::free::inherent_retire!();
    };
}

pub(crate) use {inherent, inherent_domain};
