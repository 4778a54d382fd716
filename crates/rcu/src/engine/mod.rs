//! The engine: every flavour's grace periods are run by the code here.
//!
//! A flavour says how to find out whether its readers have left ([`Flavour`]); the engine says who
//! finds out, when, how often, who else is served by it, and what is counted and reported. A grace
//! period is a [`Run`] that its leader *steps*: each step goes as far as it can without waiting. So
//! one thread can lead several domains at once: `wait_all` in the caller, the worker for polled
//! cookies, callbacks and async waiters.
//!
//! # Modules
//! - `crate::turns`: sequence number, leader, gate (modelled).
//! - `lead`: one run being stepped; blocking waits.
//! - `wait_all`: several domains at once.
//! - `pace`: how long between two looks.
//! - `stats`: counters.
//! - `fork`: the child.
//!
//! # Memory
//! Engines are never freed: a domain's block (its engine included) is recycled when the domain is
//! dropped, so the worker and a forked child may walk all of them without a lock.

pub(crate) mod fork;
mod lead;
pub(crate) mod pace;
mod stats;
mod wait_all;

use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use crate::callback::queue::Queue;
use crate::free::{self, Ledger};
use crate::protocol::{Step, Stepper};
use crate::roster::Aside;
use crate::seq::{self, Cookie, FullCookie};
use crate::turns::Turns;
use crate::worker;

pub(crate) use lead::Run;
pub use stats::Stats;
pub(crate) use stats::{Count, Counters};
pub(crate) use wait_all::Herd;
pub use wait_all::{wait_all, wait_all_expedited};

/// What a flavour tells the engine. Implemented by its never-freed block.
///
/// The engine calls [`Flavour::begin`], [`Flavour::step`] and [`Flavour::fenced`] as the one leader
/// of the domain, possibly from different threads for different runs.
pub(crate) trait Flavour: Sync {
    /// A grace period begins: note what has to be noted in `run`.
    fn begin(&self, run: &mut Run) {
        let _ = run;
    }

    /// Goes on as far as possible without waiting.
    fn step(&self, run: &mut Run) -> Step;

    /// The heavy fence that [`Step::Fence`] asked for has been done.
    fn fenced(&self, run: &mut Run) {
        let _ = run;
    }

    /// Who is in the way, as far as is known.
    fn holders(&self, out: &mut Vec<Holder>) {
        let _ = out;
    }

    /// Whether the calling thread is inside a section of this domain, so that it would wait for
    /// itself; `None` if only `check` may know.
    fn is_inside(&self) -> Option<bool> {
        None
    }

    /// The calling thread is about to wait for a grace period of this domain. If waiting is a
    /// quiescent state of the flavour, the thread is in one until the answer is dropped.
    fn aside(&'static self) -> Aside {
        Aside::default()
    }

    /// How long the worker may put off a grace period that nobody waits for; with `gather`, also to
    /// let others join. Asked again and again until one begins.
    fn patience(&self, gather: bool) -> Duration {
        let _ = gather;
        Duration::ZERO
    }

    /// How long callbacks may gather (ns), and with how many on one CPU they do no longer, if the
    /// flavour has a say.
    fn gathering(&self) -> Option<(u64, u64)> {
        None
    }

    /// True if each grace period has a heavy fence ([`Step::Fence`]) after it began.
    fn fences_everywhere(&self) -> bool {
        false
    }

    /// True if nobody seems to be inside; a hint, and cheap.
    fn is_quiet(&self) -> bool {
        false
    }

    /// True if the calling thread may be what grace periods wait for.
    fn holds(&self) -> bool {
        self.is_inside().unwrap_or(true)
    }

    /// In a forked child, on its first thread; `alone` if that is still the only one. Sections and
    /// registrations of threads that stayed behind are to be struck out.
    fn forked(&self, alone: bool);
}

/// Somebody a grace period waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Name of the thread that entered, if known.
    pub thread: String,
    /// Its thread id, or 0.
    pub tid: u32,
    /// What holds the grace period up: "section", "online", ..
    pub what: &'static str,
    /// For how long, if known.
    pub age: Duration,
    /// Where the section began (with the feature `stacks`), or empty.
    pub stack: String,
}

/// A domain's grace periods.
#[repr(align(128))]
#[doc(hidden)]
pub struct Engine {
    turns: Turns,
    /// Threads that want grace periods expedited at the moment.
    hurry: AtomicU32,
    /// Grace periods up to this `seq` are expedited.
    expedite_until: AtomicU64,
    /// The furthest moment the worker has been asked to bring about.
    wanted: AtomicU64,
    /// When [`Engine::has_been_idle_for`] was last asked, in ns.
    asked_at: AtomicU64,
    /// How long the last grace period waited for readers, and when it ended, if it had to sleep (ns);
    /// 0 if it had not.
    length: AtomicU64,
    ended_at: AtomicU64,
    pub(crate) work: worker::Link,
    pub(crate) callbacks: Queue,
    pub(crate) free: Ledger,
    pub(crate) wakers: worker::Wakers,
    pub(crate) counters: Counters,
    name_at: AtomicPtr<u8>,
    name_len: AtomicUsize,
    /// From 1; a new one for each domain.
    id: AtomicU32,
    next: AtomicPtr<Engine>,
    flavour: UnsafeCell<Option<&'static dyn Flavour>>,
}

// SAFETY: all fields but `flavour` are atomics, and that is written once, by `link`, before anybody
// else can reach the engine.
unsafe impl Sync for Engine {}

/// How `wait_all`, the worker and callbacks drive a domain.
#[derive(Clone, Copy)]
pub struct EngineRef(pub(crate) &'static Engine);

impl core::ops::Deref for EngineRef {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.0
    }
}

impl fmt::Debug for EngineRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineRef").field("domain", &self.0.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("turns", &self.turns).finish_non_exhaustive()
    }
}

/// A reason of [`Engine::unrest`].
pub(crate) const QUEUED: &str = "callbacks are queued";

static ENGINES: AtomicPtr<Engine> = AtomicPtr::new(core::ptr::null_mut());
static COUNT: AtomicU32 = AtomicU32::new(0);

/// All engines ever made, those of dropped domains included.
pub(crate) fn all() -> impl Iterator<Item = EngineRef> {
    let mut at = ENGINES.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: the list holds null and what `link` put there: engines that live for ever.
        let engine: &'static Engine = unsafe { at.as_ref() }?;
        at = engine.next.load(Ordering::Acquire);
        Some(EngineRef(engine))
    })
}

impl Engine {
    pub(crate) const fn new() -> Self {
        Self {
            turns: Turns::new(),
            hurry: AtomicU32::new(0),
            expedite_until: AtomicU64::new(seq::START),
            wanted: AtomicU64::new(seq::START),
            asked_at: AtomicU64::new(0),
            length: AtomicU64::new(0),
            ended_at: AtomicU64::new(0),
            work: worker::Link::new(),
            callbacks: Queue::new(),
            free: Ledger::new(),
            wakers: worker::Wakers::new(),
            counters: Counters::new(),
            name_at: AtomicPtr::new(core::ptr::null_mut()),
            name_len: AtomicUsize::new(0),
            id: AtomicU32::new(0),
            next: AtomicPtr::new(core::ptr::null_mut()),
            flavour: UnsafeCell::new(None),
        }
    }

    /// Makes a new engine known, for ever, as the grace periods of `flavour`. Async-signal-safe.
    ///
    /// # Safety
    /// Called once per engine, before anybody else can reach it.
    pub(crate) unsafe fn link(&'static self, flavour: &'static dyn Flavour) {
        // SAFETY: nobody else reaches it yet (caller).
        unsafe { *self.flavour.get() = Some(flavour) };
        self.new_id();
        let me = core::ptr::from_ref(self).cast_mut();
        let mut head = ENGINES.load(Ordering::Relaxed);
        loop {
            self.next.store(head, Ordering::Relaxed);
            match ENGINES.compare_exchange_weak(head, me, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn new_id(&self) {
        let id = COUNT.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.id.store(id.max(1), Ordering::Relaxed);
    }

    /// For a recycled block: a new domain begins, called `name`.
    pub(crate) fn renew(&self, name: &'static str) {
        self.new_id();
        self.name_len.store(0, Ordering::Relaxed);
        self.name_at.store(name.as_ptr().cast_mut(), Ordering::Relaxed);
        self.name_len.store(name.len(), Ordering::Relaxed);
        self.turns.set_seq(seq::START);
        self.expedite_until.store(seq::START, Ordering::Relaxed);
        self.wanted.store(seq::START, Ordering::Relaxed);
        self.length.store(0, Ordering::Relaxed);
        self.counters.clear();
        self.callbacks.renew();
        self.free.renew();
    }

    /// Why a domain that is dropped is still in use, if it is (apart from its readers).
    pub(crate) fn unrest(&self) -> Option<&'static str> {
        if self.turns.seq() & 1 == 1 {
            Some("a grace period is running")
        } else if !self.turns.poll(self.wanted()) {
            Some("a grace period is wanted")
        } else if !self.callbacks.is_idle() {
            Some(QUEUED)
        } else {
            None
        }
    }

    /// True if a dropped domain's block may be used for another: no grace period runs or is wanted,
    /// and nobody, like the worker, has it in hand.
    pub(crate) fn is_at_rest(&'static self) -> bool {
        let wanted = Cookie(self.wanted.load(Ordering::Acquire));
        self.turns.leader() == 0
            && self.turns.poll(wanted)
            && self.work.is_idle()
            && self.callbacks.is_idle()
            && free::is_idle(EngineRef(self))
    }

    /// True if nobody leads.
    #[cfg(test)]
    pub(crate) fn turns_are_free(&self) -> bool {
        self.turns.leader() == 0
    }

    /// The domain's name, or "".
    pub(crate) fn name(&self) -> &'static str {
        let (at, len) =
            (self.name_at.load(Ordering::Relaxed), self.name_len.load(Ordering::Relaxed));
        if at.is_null() {
            return "";
        }
        // SAFETY: `renew` stored the parts of a `&'static str` before the domain was first used,
        // and stores others only when it is gone.
        let bytes = unsafe { core::slice::from_raw_parts(at.cast_const(), len) };
        core::str::from_utf8(bytes).unwrap_or("")
    }

    /// A number that no other domain has or had, never 0.
    #[inline]
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    pub(crate) fn flavour(&self) -> &'static dyn Flavour {
        // SAFETY: written once, before the engine was published (`link`).
        unsafe { *self.flavour.get() }.unwrap_or(&Nothing)
    }

    /// The moment at which every section running now will have ended.
    #[inline]
    pub(crate) fn snapshot(&self) -> Cookie {
        fork::check();
        self.turns.snapshot(full_fence)
    }

    /// [`Engine::snapshot`] where it is known that nothing is to be put right after a fork.
    pub(crate) fn snapshot_here(&self) -> Cookie {
        self.turns.snapshot(full_fence)
    }

    /// Where the sequence number is.
    pub(crate) fn seq_at(&self) -> *const u64 {
        self.turns.seq_at()
    }

    /// The sequence number as it is.
    pub(crate) fn seq_now(&self) -> u64 {
        self.turns.seq()
    }

    /// A moment that has passed.
    pub(crate) fn passed_moment(&self) -> Cookie {
        Cookie(self.turns.seq() & !1)
    }

    pub(crate) fn snapshot_full(&self) -> FullCookie {
        FullCookie { cookie: self.snapshot(), domain: self.id() }
    }

    #[inline(always)]
    pub(crate) fn poll(&self, cookie: Cookie) -> bool {
        self.turns.poll(cookie)
    }

    pub(crate) fn poll_full(&self, cookie: &FullCookie) -> bool {
        let mine = cookie.domain == self.id() || cookie.domain == 0;
        debug_assert!(mine, "a cookie of another domain");
        mine && self.poll(cookie.cookie)
    }

    /// True while grace periods of this domain are to be quick.
    pub(crate) fn hurried(&self) -> bool {
        match crate::expedite::switch() {
            crate::expedite::Switch::Force => true,
            crate::expedite::Switch::Forbid => false,
            crate::expedite::Switch::AsAsked => {
                let until = self.expedite_until.load(Ordering::Relaxed);
                self.hurry.load(Ordering::Relaxed) != 0
                    || !seq::is_at_or_after(self.turns.seq(), until)
            }
        }
    }

    /// True if this has not been asked for that long: a guess at whether the domain has had no grace
    /// period meanwhile. Both errors are harmless.
    pub(crate) fn has_been_idle_for(&self, time: Duration) -> bool {
        let now = owlet_sys::clock::monotonic_ns();
        let last = self.asked_at.swap(now, Ordering::Relaxed);
        u128::from(now.saturating_sub(last)) >= time.as_nanos()
    }

    /// Until when (monotonic ns) a batch of deferred frees had better gather company, 0 = not at all: for a
    /// quarter of the last grace period's length from its end, and for `most` ns at most.
    ///
    /// Readers that come one after the other are all inside again by the time that it is known that they left.
    /// A grace period that begins a little later ends no later, and covers what is retired meanwhile, which
    /// would wait for the next otherwise; and right after one ends is when most is retired, by those who
    /// waited for room. Where readers come at random the batch is that quarter late.
    pub(crate) fn gathering_until(&self, most: u64) -> u64 {
        let length = self.length.load(Ordering::Relaxed);
        if length == 0 {
            return 0;
        }
        self.ended_at.load(Ordering::Relaxed).saturating_add((length / 4).min(most))
    }

    /// The furthest moment somebody wants brought about without waiting for it.
    pub(crate) fn wanted(&self) -> Cookie {
        Cookie(self.wanted.load(Ordering::Acquire))
    }
}

impl EngineRef {
    /// A snapshot that comes about without further calls.
    pub(crate) fn start_poll(self, expedited: bool) -> Cookie {
        let cookie = self.snapshot();
        self.ask(cookie, expedited);
        cookie
    }

    /// Has a moment come about without further calls.
    pub(crate) fn ask(self, cookie: Cookie, expedited: bool) {
        if expedited {
            self.hurry_up(cookie);
        }
        seq::advance(&self.wanted, cookie);
        if !worker::drive(self) {
            worker::help(self, cookie);
        }
    }

    /// Grace periods up to a moment are to be quick from now on.
    pub(crate) fn hurry_up(self, cookie: Cookie) {
        if !seq::is_at_or_after(self.expedite_until.load(Ordering::Relaxed), cookie.0) {
            seq::advance(&self.expedite_until, cookie);
            self.nudge();
        }
    }

    /// The grace period in progress, or else the next, is to be quick from now on.
    pub(crate) fn expedite_current(self) {
        let now = self.turns.seq();
        let end = if now & 1 == 1 { now.wrapping_add(1) } else { now.wrapping_add(2) };
        seq::advance(&self.expedite_until, Cookie(end));
        self.nudge();
    }

    /// Ends the present sleep of a leader who is another thread.
    pub(crate) fn nudge(self) {
        full_fence();
        let leader = self.turns.leader();
        if leader != 0 {
            pace::bell(leader).open(&pace::Futex::default());
        }
    }
}

static HEAVY_FENCES: Count = Count::new();

/// Heavy fences (`membarrier` calls) that grace periods of this process have had, of all domains. One
/// can serve several domains; [`Stats::membarriers`] counts it for each of them.
#[must_use]
pub fn heavy_fences() -> u64 {
    HEAVY_FENCES.get()
}

/// The heavy fence that [`Step::Fence`] asks for.
pub(crate) fn heavy_fence() {
    HEAVY_FENCES.add(1);
    owlet_percpu::fence::heavy_rseq();
}

/// What an engine without a flavour would have: no readers.
struct Nothing;

impl Flavour for Nothing {
    fn step(&self, _: &mut Run) -> Step {
        Step::Done
    }

    fn forked(&self, _: bool) {}
}

/// A `SeqCst` fence.
#[inline(always)]
pub(crate) fn full_fence() {
    core::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
