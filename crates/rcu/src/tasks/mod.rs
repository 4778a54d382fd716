//! Tasks: has every thread passed a voluntary point?
//!
//! For what readers cannot mark: code that is about to be unmapped or reused (a patched call site, a
//! trampoline, a plug-in's entry). A thread may have been preempted in the middle of it, between any
//! two instructions, also before the first line that could have entered a section and after the last
//! that could have left one. So *being somewhere* is the section, and only a point that the thread
//! reaches on purpose, outside such code, ends it:
//!
//! | what the thread does | a quiescent state? |
//! |---|---|
//! | is preempted, takes a signal, faults | no |
//! | [`Task::quiescent`] | yes |
//! | is inside [`Task::offline`] (sleeping, waiting for input) | yes, all the while |
//! | waits for a grace period of the same domain | yes, all the while |
//! | is not registered, or has ended | yes |
//!
//! A thread that sleeps in a function *called from* such code, inside [`Task::offline`], is not waited
//! for: code that functions return into needs a reference count of its own beside the grace period.
//!
//! # Registration
//! A thread registers and is online from then on ([`Tasks::register`]), or attaches for the rest of
//! its life ([`Tasks::attach`]); what it runs while it is neither is not protected. An attached
//! thread's registration ends with its thread-local destructors, and destructors that run later may
//! attach again: that registration ends when the kernel no longer knows the thread, so that no
//! thread slips away between two looks.
//!
//! # Patience
//! Such grace periods are long (a thread may not pass a point for milliseconds), nobody should run
//! many of them, and those who ask seldom wait. So what nobody waits for is *put off*: polled cookies
//! and callbacks gather for [`Tuning::window`] and share one grace period, unless
//! [`Tuning::urgent_at`] callbacks have come together. Whoever waits ([`Tasks::synchronize`]) starts
//! one at once, for all. [`Tuning::pause`] is the least time between two grace periods; the kernel has
//! 100 ms there (`tasks_gp_kthread`, kernel/rcu/tasks.h), which makes detaching things one after the
//! other ten a second at best, however fast the threads are. It is 0 here: batch by the window, and
//! detach many things with one wait.
//!
//! See `quiescent` (when is a grace period over), `registry` (records), `roster` (memory, patience).

mod attach;
mod trace;

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use core::time::Duration;

use crate::check;
use crate::domain::{Domain, inherent_domain, sealed};
use crate::engine::{EngineRef, Flavour, Holder};
use crate::registry::Record;
use crate::registry::pool::Real;
use crate::roster::{self, Kind, Place, Roster};
use crate::worker;

pub use trace::{TasksTrace, TraceGuard};

/// A Tasks domain: registered threads are readers until they pass a voluntary point.
///
/// ```
/// use owlet_rcu::Tasks;
///
/// static CODE: Tasks = Tasks::new();
///
/// let mut task = CODE.register();
/// for _round in 0..3 {
///     // .. run code that may be replaced ..
///     task.quiescent();
/// }
/// task.offline(|| std::thread::sleep(std::time::Duration::from_millis(1)));
/// // After this no thread is in code that was unreachable before it.
/// CODE.synchronize();
/// ```
pub struct Tasks {
    place: Place,
    tuning: Tuning,
}

/// How patient a [`Tasks`] domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How long a grace period that nobody waits for is put off, so that others can share it.
    pub window: Duration,
    /// With so many callbacks waiting it is no longer put off. (They are counted by CPU: the number
    /// divided by that of the CPUs is enough on one of them.)
    pub urgent_at: u64,
    /// The least time between two grace periods; the expedited ones do without.
    pub pause: Duration,
}

impl Tuning {
    /// 250 ms, 32 callbacks, no pause.
    pub const DEFAULT: Self =
        Self { window: Duration::from_millis(250), urgent_at: 32, pause: Duration::ZERO };
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A thread's registration with a [`Tasks`] domain. Ends when dropped.
pub struct Task<'d> {
    roster: &'static Roster,
    record: &'static Record,
    _domain: PhantomData<&'d Tasks>,
    _thread: PhantomData<*mut ()>,
}

impl Tasks {
    /// A domain without threads.
    #[must_use]
    pub const fn new() -> Self {
        Self::with("", Tuning::DEFAULT)
    }

    /// [`Tasks::new`] with a name for reports and statistics.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self::with(name, Tuning::DEFAULT)
    }

    /// [`Tasks::named`], as patient as told.
    #[must_use]
    pub const fn with(name: &'static str, tuning: Tuning) -> Self {
        Self { place: Place::new(Kind::Tasks, name), tuning }
    }

    inherent_domain!();

    /// Registers the calling thread, online. A thread may register more than once.
    ///
    /// Lock-free and async-signal-safe; two system calls.
    #[must_use = "the registration ends when this is dropped"]
    pub fn register(&self) -> Task<'_> {
        let roster = self.roster();
        Task { roster, record: join(roster), _domain: PhantomData, _thread: PhantomData }
    }

    /// Registers the calling thread until it ends, if it is not already so registered. Its voluntary
    /// points are [`Tasks::quiescent_attached`] and [`Tasks::offline_attached`]. Allocates; not for
    /// signal handlers.
    ///
    /// In a callback that the library's worker thread runs, this does nothing: that thread runs callbacks
    /// for ever, passes no voluntary point, and would hold every grace period up that it has to bring
    /// about. Such code is not protected by this; let it [`Tasks::register`].
    pub fn attach(&'static self) {
        if !worker::is_me() {
            attach::attach(self.roster());
        }
    }

    /// A voluntary point of a thread that has attached; of others, and inside
    /// [`Tasks::offline_attached`], nothing.
    pub fn quiescent_attached(&'static self) {
        let roster = self.roster();
        let online = |record: &&Record| record.mark.is_online();
        if let Some(record) = attach::record(roster).filter(online) {
            // [Q3], [Q4] as in `quiescent`.
            record.mark.quiescent(&roster.clock, &Real);
        }
    }

    /// Runs `f` with an attached thread offline; for others, just runs it.
    pub fn offline_attached<T>(&'static self, f: impl FnOnce() -> T) -> T {
        let roster = self.roster();
        match attach::record(roster) {
            Some(record) if record.mark.is_online() => offline(roster, record, f),
            _ => f(),
        }
    }

    /// The threads that the grace period in progress still waits for.
    #[must_use]
    pub fn holdouts(&self) -> Vec<Holder> {
        let mut out = Vec::new();
        self.roster().holders(&mut out);
        out
    }

    /// Number of threads that ended while registered ([`core::mem::forget`], `pthread_exit` past the
    /// destructors): found, and no longer waited for, when they were in a grace period's way.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.roster().buried()
    }

    /// Debug builds: makes sure that the calling thread is online.
    ///
    /// # Panics
    /// If it is not, and the checks are compiled in.
    #[track_caller]
    pub fn assert_online(&self) {
        assert!(
            self.roster().seems_online(),
            "use of domain {:?} by a thread that is offline or not registered",
            self.name()
        );
    }

    #[inline]
    fn roster(&self) -> &'static Roster {
        self.place.roster(|to| self.tune(to))
    }

    fn tune(&self, to: &roster::Tuning) {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2);
        to.window.store(ns(self.tuning.window), Ordering::Relaxed);
        to.urgent_at.store(self.tuning.urgent_at, Ordering::Relaxed);
        to.pause.store(ns(self.tuning.pause), Ordering::Relaxed);
    }
}

/// A new registration, online.
fn join(roster: &'static Roster) -> &'static Record {
    let record = roster.register();
    check::enter(&roster.engine);
    // [Q1] as in `quiescent`.
    record.mark.online(&roster.clock, &Real);
    record
}

/// The end of one.
fn leave(roster: &'static Roster, record: &'static Record) {
    record.give_back(&Real);
    check::leave(&roster.engine);
}

fn offline<T>(roster: &'static Roster, record: &'static Record, f: impl FnOnce() -> T) -> T {
    struct Back(&'static Roster, &'static Record);
    impl Drop for Back {
        fn drop(&mut self) {
            check::enter(&self.0.engine);
            self.1.mark.online(&self.0.clock, &Real);
        }
    }
    record.mark.offline(&Real);
    check::leave(&roster.engine);
    let _back = Back(roster, record);
    f()
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl sealed::Sealed for Tasks {}

impl Domain for Tasks {
    #[inline]
    fn engine(&self) -> EngineRef {
        EngineRef(&self.roster().engine)
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("tuning", &self.tuning).finish_non_exhaustive()
    }
}

impl Task<'_> {
    /// A voluntary point: this thread is in no code that may be taken away. A load and a compare, and
    /// a store the first time after a grace period began.
    #[inline]
    pub fn quiescent(&mut self) {
        // [Q3], [Q4] as in `quiescent`.
        self.record.mark.quiescent(&self.roster.clock, &Real);
    }

    /// Offline while `f` runs: for whatever sleeps. Online again also when `f` panics.
    #[inline]
    pub fn offline<T>(&mut self, f: impl FnOnce() -> T) -> T {
        offline(self.roster, self.record, f)
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        leave(self.roster, self.record);
    }
}

impl fmt::Debug for Task<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("tid", &self.record.tid()).finish_non_exhaustive()
    }
}
