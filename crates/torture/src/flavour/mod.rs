//! What is tortured: one table entry per flavour of grace period.
//!
//! The engine in `run` is written against two traits. [`Flavour`] is the readers' side, generic so that
//! a section costs what it costs a user; [`Waits`] is the other side, an object. Two flavours of the
//! table are wrong on purpose: a torture that does not catch them proves nothing.

pub(crate) mod broken;
pub(crate) mod quiescent;
pub(crate) mod real;
pub(crate) mod srcu;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use owlet_rcu::Cookie;

/// The flavours, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// SRCU: per-CPU counters, no registration.
    Srcu,
    /// SRCU whose sections begin and end with full barriers.
    SrcuClassic,
    /// SRCU without membarrier: readers count by atomics.
    SrcuFenced,
    /// QSBR: registered threads that say when they use nothing.
    Qsbr,
    /// Tasks: registered threads and their voluntary points.
    Tasks,
    /// Tasks-Trace: sections that may sleep, cheap when nested.
    TasksTrace,
    /// Wrong on purpose: waits return at once.
    Busted,
    /// Wrong on purpose: waits visit every CPU, which does for readers that are never preempted.
    Trivial,
}

impl Name {
    /// Those that must hold.
    pub(crate) const REAL: &'static [Self] = &[
        Self::Srcu,
        Self::SrcuClassic,
        Self::SrcuFenced,
        Self::Qsbr,
        Self::Tasks,
        Self::TasksTrace,
    ];

    pub(crate) fn text(self) -> String {
        self.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
    }
}

/// Ways to wait for a grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Gp {
    /// `synchronize`.
    Sync,
    /// `synchronize_expedited`.
    Exp,
    /// `snapshot`, then `wait`.
    Cond,
    /// `snapshot`, then `wait_expedited`.
    CondExp,
    /// `start_poll`, then `poll` until true.
    Poll,
    /// `start_poll_expedited`, then `poll` until true.
    PollExp,
    /// `snapshot_full`; after somebody's grace period it must have passed.
    Full,
    /// `synchronize_async`, on an executor of one thread.
    Async,
    /// `wait_all` of this domain, twice, and another.
    Several,
    /// `wait_all_expedited` of this domain and another.
    SeveralExp,
    /// `start_poll`, then `expedite_current`, then `wait`.
    Nudged,
    /// `quiesce`: a grace period and a barrier.
    Quiesce,
}

impl Gp {
    /// Every way.
    pub(crate) const ALL: &'static [Self] = &[
        Self::Sync,
        Self::Exp,
        Self::Cond,
        Self::CondExp,
        Self::Poll,
        Self::PollExp,
        Self::Full,
        Self::Async,
        Self::Several,
        Self::SeveralExp,
        Self::Nudged,
        Self::Quiesce,
    ];
}

/// What sections of a flavour may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Sections nest.
    pub(crate) nest: bool,
    /// Threads that never told the library of their existence may read, in signal handlers too.
    pub(crate) anywhere: bool,
    /// A forked child may go on using the domain.
    pub(crate) fork: bool,
    /// There are cookies.
    pub(crate) cookies: bool,
}

/// A section that another thread may end.
pub(crate) type Movable = Box<dyn Send>;

/// A callback.
pub(crate) type Posted = Box<dyn FnOnce() + Send>;

/// The readers' side of a flavour.
pub(crate) trait Flavour: 'static {
    /// What a reader thread keeps from its first section to its last.
    type Seat;
    /// See [`Abilities`].
    const ABILITIES: Abilities;

    /// Called once by every reader thread.
    fn sit() -> Self::Seat;

    /// Runs `body` in a section.
    fn section<R>(seat: &mut Self::Seat, body: impl FnOnce() -> R) -> R;

    /// Runs `body` in so many sections, one after the other.
    fn burst(seat: &mut Self::Seat, sections: u64, mut body: impl FnMut()) {
        for _ in 0..sections {
            Self::section(seat, &mut body);
        }
    }

    /// Runs `body` in a section inside whatever sections the thread is in, from any context. Only with
    /// [`Abilities::anywhere`].
    fn section_anywhere<R>(body: impl FnOnce() -> R) -> R;

    /// Opens a section that another thread may end, if there are such.
    fn movable() -> Option<Movable> {
        None
    }

    /// Between sections: runs `body`, which may block for long.
    fn rest(_: &mut Self::Seat, body: impl FnOnce()) {
        body();
    }

    /// The other side.
    fn waits() -> &'static dyn Waits;
}

/// What a flavour's grace periods have cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) grace_periods: u64,
    pub(crate) membarriers: u64,
    pub(crate) sleeps: u64,
}

/// What to do with deferred free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retire {
    /// Retire an element to the domain.
    Domain,
    /// Retire an element to a pool.
    Pool,
    /// Have what was retired freed soon.
    Flush,
    /// The same, and give memory back.
    Trim,
    /// Wait until it has been freed.
    Barrier,
}

/// The updaters' side of a flavour.
pub(crate) trait Waits: Sync {
    /// Ways that [`Waits::pass`] knows.
    fn kinds(&self) -> &'static [Gp];

    /// Returns once every section that was running at the call has ended.
    fn pass(&self, how: Gp, pause: &mut dyn FnMut() -> Duration);

    /// The moment at which every section running now has ended.
    fn snapshot(&self) -> Cookie;

    /// True once the moment has passed.
    fn poll(&self, cookie: Cookie) -> bool;

    /// Returns once the moment has passed.
    fn wait(&self, cookie: Cookie);

    /// True if callbacks can be posted.
    fn calls(&self) -> bool {
        false
    }

    /// Has `task` called after a grace period.
    fn call(&self, hurry: bool, task: Posted);

    /// Returns once everything posted before has been called.
    fn barrier(&self);

    /// Deferred free; see [`Retire`].
    fn retire(&self, how: Retire, at: *mut (), bytes: usize);

    /// For the verdict.
    fn cost(&self) -> Cost;
}

impl fmt::Display for Gp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |v| v.get_name()))
    }
}
