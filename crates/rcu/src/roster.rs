//! The memory and the grace periods of domains whose threads register: `qsbr` and `tasks`.
//!
//! A roster is a domain's clock, its list of records and its engine. Like SRCU's blocks, rosters are
//! mapped when a domain is first used, linked into one list for ever, and recycled when the domain is
//! dropped.
//!
//! | `used` | meaning | who moves it on |
//! |---|---|---|
//! | `FREE` | free | [`Roster::take`], to `USED` |
//! | `USED` | belongs to one domain | [`Roster::release`], to `FREE` if nothing is under way, else to `ORPHANED` |
//! | `ORPHANED` | its domain is gone; the worker frees what it left | [`Roster::take`], to `USED`, once it is at rest |
//!
//! # Who may touch what
//! | field | who |
//! |---|---|
//! | `clock`, `scan`, `since`, `ended_at` | the domain's leader |
//! | `list` | everybody; its records as told in `registry` |
//! | `kind`, `tuning` | the domain |
//!
//! # Invariants
//! 1. Rosters are never unmapped; a reference to one is valid for ever.
//! 2. A registration borrows its domain, so a roster that is released has none that could be used.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use owlet_sys::clock::monotonic_ns;
use owlet_sys::memory::Mapping;

use crate::check;
use crate::engine::{Engine, EngineRef, Flavour, Holder, Run};
use crate::protocol::Step;
use crate::quiescent::{Clock, Scan};
use crate::registry::pool::{self, Real};
use crate::registry::{List, Record};

/// Which flavour a roster is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Qsbr,
    Tasks,
}

/// A domain whose threads register.
#[repr(align(128))]
pub(crate) struct Roster {
    pub(crate) clock: Clock,
    pub(crate) list: List,
    pub(crate) tuning: Tuning,
    scan: UnsafeCell<Scan>,
    /// When the last grace period ended.
    ended_at: AtomicU64,
    /// Since when something waits for a grace period that may be put off; 0 = nothing does.
    since: AtomicU64,
    /// Registrations of tasks that ended without unregistering.
    abandoned: AtomicU64,
    kind: AtomicU32,
    used: AtomicU32,
    next: AtomicPtr<Roster>,
    pub(crate) engine: Engine,
}

/// How patient a domain is; see `tasks`.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// Nanoseconds.
    pub(crate) window: AtomicU64,
    /// Callbacks.
    pub(crate) urgent_at: AtomicU64,
    /// Nanoseconds.
    pub(crate) pause: AtomicU64,
}

// SAFETY: everything but `scan` is atomic, and that is the leader's, of whom there is one at a time
// (the engine hands leadership on with release and acquire).
unsafe impl Sync for Roster {}

/// Looks in vain after which the leader asks whether the threads in the way still exist.
const ORPHAN_LOOKS: u64 = 8;

const FREE: u32 = 0;
const USED: u32 = 1;
const ORPHANED: u32 = 2;

static HEAD: AtomicPtr<Roster> = AtomicPtr::new(core::ptr::null_mut());

impl Roster {
    const fn new() -> Self {
        Self {
            clock: Clock::new(),
            list: List::new(),
            tuning: Tuning {
                window: AtomicU64::new(0),
                urgent_at: AtomicU64::new(u64::MAX),
                pause: AtomicU64::new(0),
            },
            scan: UnsafeCell::new(Scan::NOTHING),
            ended_at: AtomicU64::new(0),
            since: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            kind: AtomicU32::new(0),
            used: AtomicU32::new(USED),
            next: AtomicPtr::new(core::ptr::null_mut()),
            engine: Engine::new(),
        }
    }

    /// Registers the calling thread.
    pub(crate) fn register(&self) -> &'static Record {
        let record = self.list.register();
        #[cfg(owlet_mutants)]
        record.since().store(self.clock.now(), Ordering::Relaxed);
        record
    }

    /// Gives the roster of a dropped domain back. If the domain is still in use (objects that wait, a
    /// callback, a grace period that is only polled for), it is kept until it no longer is.
    pub(crate) fn release(&'static self) {
        crate::free::dropped(EngineRef(&self.engine));
        if let Some(why) = self.engine.unrest() {
            crate::stall::report_leak(&self.engine, why);
        }
        let free = self.engine.is_at_rest();
        if free {
            self.list.give_up();
        }
        self.used.store(if free { FREE } else { ORPHANED }, Ordering::Release);
    }

    /// Takes the roster for a new domain, if it is free or has come to rest since its domain was dropped.
    fn take(&'static self) -> bool {
        let taken = |from| {
            self.used.compare_exchange(from, USED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if taken(FREE) {
            return true;
        }
        let rests = || self.engine.is_at_rest();
        if self.used.load(Ordering::Acquire) != ORPHANED || !rests() || !taken(ORPHANED) {
            return false;
        }
        // Another domain may have had it since we looked.
        if rests() {
            self.list.give_up();
            return true;
        }
        self.used.store(ORPHANED, Ordering::Release);
        false
    }

    fn kind(&self) -> Kind {
        if self.kind.load(Ordering::Relaxed) == 0 { Kind::Qsbr } else { Kind::Tasks }
    }

    /// Registrations of tasks that were ended because their thread was gone.
    pub(crate) fn buried(&self) -> u64 {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Registrations that are online and whose thread is gone. A system call each.
    pub(crate) fn orphans(&self) -> u64 {
        self.list.iter().filter(|r| r.mark.is_online() && r.is_orphan()).count() as u64
    }

    /// The calling thread's registrations that grace periods wait for.
    pub(crate) fn own(&self) -> impl Iterator<Item = &'static Record> {
        self.list.iter().filter(|record| record.is_mine() && record.mark.is_online())
    }

    /// True if the calling thread is online; true without the checks.
    pub(crate) fn seems_online(&self) -> bool {
        !check::ON || self.own().next().is_some()
    }

    /// Registrations the grace period in progress waits for.
    pub(crate) fn holdouts(&self) -> impl Iterator<Item = &'static Record> {
        let now = self.clock.now();
        self.list.iter().filter(move |record| !record.mark.is_quiet(now))
    }

    /// How long until the pause after the last grace period is over.
    fn pause_left(&self) -> u64 {
        let pause = self.tuning.pause.load(Ordering::Relaxed);
        if pause == 0 {
            return 0;
        }
        let ended = self.ended_at.load(Ordering::Relaxed);
        if ended == 0 { 0 } else { ended.saturating_add(pause).saturating_sub(monotonic_ns()) }
    }

    /// The leader looks at the threads that are in the way: a task that has ended is past every voluntary
    /// point. All at once, however many have ended. True if there was one.
    ///
    /// Not so a QSBR reader: it may have lent what it read to another thread (a leaked [`Online`]
    /// lends `&'static T`, and that is `Send`), so its section goes on for ever.
    ///
    /// [`Online`]: crate::qsbr::Online
    fn bury_orphans(&self) -> bool {
        if self.kind() == Kind::Qsbr {
            return false;
        }
        let mut found = false;
        for record in self.holdouts().filter(|record| record.is_orphan()) {
            self.abandoned.fetch_add(1, Ordering::Relaxed);
            record.bury();
            found = true;
        }
        found
    }
}

impl Flavour for Roster {
    fn begin(&self, run: &mut Run) {
        self.since.store(0, Ordering::Relaxed);
        run.scratch = [0; 4];
    }

    fn step(&self, run: &mut Run) -> Step {
        let [begun, looks, ..] = &mut run.scratch;
        // SAFETY: the leader's, and we are the leader.
        let scan = unsafe { &mut *self.scan.get() };
        if *begun == 0 {
            if self.pause_left() != 0 && !run.engine.hurried() {
                return Step::Blocked;
            }
            *scan = Scan::begin(&self.clock, &self.list, &Real);
            *begun = 1;
        }
        while !scan.step(&Real) {
            *looks += 1;
            if *looks % ORPHAN_LOOKS != 0 || !self.bury_orphans() {
                return Step::Blocked;
            }
        }
        if self.tuning.pause.load(Ordering::Relaxed) != 0 {
            self.ended_at.store(monotonic_ns(), Ordering::Relaxed);
        }
        Step::Done
    }

    fn holders(&self, out: &mut Vec<Holder>) {
        out.extend(self.holdouts().map(|record| Holder {
            thread: owlet_sys::process::name_of_thread(record.tid()),
            tid: record.tid(),
            what: match self.kind() {
                Kind::Qsbr if record.is_orphan() => "online when its thread ended",
                Kind::Qsbr => "online",
                Kind::Tasks => "task",
            },
            ..Holder::default()
        }));
    }

    fn aside(&'static self) -> Aside {
        match self.kind() {
            Kind::Qsbr => Aside::default(),
            Kind::Tasks => Aside::begin(self),
        }
    }

    fn patience(&self, gather: bool) -> Duration {
        let pause = self.pause_left();
        let window = self.tuning.window.load(Ordering::Relaxed);
        if window == 0 || !gather {
            return Duration::from_nanos(pause);
        }
        let now = monotonic_ns();
        let since = match self.since.load(Ordering::Relaxed) {
            0 => {
                self.since.store(now, Ordering::Relaxed);
                now
            }
            since => since,
        };
        Duration::from_nanos(since.saturating_add(window).saturating_sub(now).max(pause))
    }

    fn gathering(&self) -> Option<(u64, u64)> {
        let window = self.tuning.window.load(Ordering::Relaxed);
        let urgent_at = self.tuning.urgent_at.load(Ordering::Relaxed);
        // Callbacks are counted by CPU: at the latest when there are so many in all.
        let each = urgent_at / owlet_percpu::cpus() as u64;
        (self.kind() == Kind::Tasks).then_some((window, each.max(1)))
    }

    fn is_quiet(&self) -> bool {
        self.holdouts().next().is_none()
    }

    fn is_inside(&self) -> Option<bool> {
        Some(self.own().next().is_some())
    }

    fn forked(&self, alone: bool) {
        // Records of all rosters are in one list; pruning twice is pruning once.
        if alone {
            pool::prune();
        }
    }
}

/// A thread that waits for a grace period of a domain whose quiescent states include waiting, until
/// it is back.
#[must_use]
#[derive(Default)]
pub(crate) struct Aside(Option<&'static Roster>);

impl Aside {
    fn begin(roster: &'static Roster) -> Self {
        for record in roster.own() {
            record.set_aside(true);
            record.mark.offline(&Real);
            check::leave(&roster.engine);
        }
        Self(Some(roster))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let Some(roster) = self.0 else { return };
        for record in roster.list.iter().filter(|record| record.is_mine()) {
            if record.set_aside(false) {
                check::enter(&roster.engine);
                record.mark.online(&roster.clock, &Real);
            }
        }
    }
}

/// Where a domain keeps its roster.
#[derive(Debug)]
pub(crate) struct Place {
    at: AtomicPtr<Roster>,
    kind: Kind,
    name: &'static str,
}

impl Place {
    pub(crate) const fn new(kind: Kind, name: &'static str) -> Self {
        Self { at: AtomicPtr::new(core::ptr::null_mut()), kind, name }
    }

    #[inline]
    fn get(&self) -> Option<&'static Roster> {
        // Acquire: pairs with the release in roster_slow(); the roster is initialised.
        let at = self.at.load(Ordering::Acquire);
        // SAFETY: null, or a roster; never unmapped (invariant 1).
        unsafe { at.as_ref() }
    }

    /// The roster; made when first asked for, and then prepared by `tune`.
    #[inline]
    pub(crate) fn roster(&self, tune: impl FnOnce(&Tuning)) -> &'static Roster {
        self.get().unwrap_or_else(|| self.roster_slow(tune))
    }

    #[cold]
    #[inline(never)]
    fn roster_slow(&self, tune: impl FnOnce(&Tuning)) -> &'static Roster {
        let mine = claim(self.kind, self.name);
        tune(&mine.tuning);
        let null = core::ptr::null_mut();
        let at = core::ptr::from_ref(mine).cast_mut();
        match self.at.compare_exchange(null, at, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => mine,
            Err(theirs) => {
                mine.release();
                // SAFETY: not null, so stored by another roster_slow().
                unsafe { theirs.as_ref() }.unwrap_or(mine)
            }
        }
    }

    #[inline]
    pub(crate) fn engine(&self, tune: impl FnOnce(&Tuning)) -> EngineRef {
        EngineRef(&self.roster(tune).engine)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(roster) = self.get() {
            check::gone(&roster.engine);
            roster.release();
        }
    }
}

fn all() -> impl Iterator<Item = &'static Roster> {
    let mut at = HEAD.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: null, or a roster that `map` put there; never unmapped (invariant 1).
        let roster = unsafe { at.as_ref() }?;
        at = roster.next.load(Ordering::Acquire);
        Some(roster)
    })
}

/// A roster for a new domain. Waits for memory if there is none.
fn claim(kind: Kind, name: &'static str) -> &'static Roster {
    let roster = loop {
        if let Some(roster) = all().find(|roster| roster.take()).or_else(map) {
            break roster;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    roster.kind.store(kind as u32, Ordering::Relaxed);
    roster.ended_at.store(0, Ordering::Relaxed);
    roster.since.store(0, Ordering::Relaxed);
    roster.abandoned.store(0, Ordering::Relaxed);
    roster.tuning.window.store(0, Ordering::Relaxed);
    roster.tuning.urgent_at.store(u64::MAX, Ordering::Relaxed);
    roster.tuning.pause.store(0, Ordering::Relaxed);
    roster.engine.renew(name);
    roster
}

fn map() -> Option<&'static Roster> {
    let memory = Mapping::anonymous(size_of::<Roster>()).ok()?;
    let at = memory.leak().cast::<Roster>();
    // SAFETY: fresh pages, aligned to a page and long enough.
    unsafe { at.write(Roster::new()) };
    // SAFETY: just initialised, never unmapped.
    let roster: &'static Roster = unsafe { at.as_ref() };
    // SAFETY: nobody else reaches it yet.
    unsafe { roster.engine.link(roster) };
    let mut head = HEAD.load(Ordering::Relaxed);
    loop {
        roster.next.store(head, Ordering::Relaxed);
        match HEAD.compare_exchange_weak(head, at.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(roster),
            Err(now) => head = now,
        }
    }
}

#[cfg(test)]
#[path = "roster_tests.rs"]
mod tests;
