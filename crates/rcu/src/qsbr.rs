//! QSBR: readers that do nothing, and say so now and then.
//!
//! A thread registers, goes online, and from then on is *in a section* all the time: what it reads
//! from the domain it may use until it says that it is between two uses ([`Online::quiescent`]) or
//! goes offline. Reading costs nothing at all; a quiescent state costs a load and a compare, and a
//! store after each grace period. The price is the duty: an online thread that does not come back to
//! [`Online::quiescent`] delays every grace period of the domain.
//!
//! # Misuse does not compile
//! - Reading needs an [`Online`]: whoever is not registered, or offline, has none.
//! - What is read borrows the [`Online`] ([`Online::read`]); [`Online::quiescent`] and
//!   [`Online::offline`] take it by `&mut`, so nothing that was read is left across them.
//! - Neither [`Reader`] nor [`Online`] leaves its thread.
//!
//! # Signals
//! A handler must not use the interrupted thread's [`Online`] (it could be between two states), but
//! may register and go online itself: it gets a record of its own. Everything here but waiting is
//! async-signal-safe.
//!
//! # Fork
//! In a forked child only the forking thread's registrations are left, and go on protecting it.
//!
//! See `quiescent` (when is a grace period over), `registry` (records), `roster` (memory).

use core::fmt;
use core::marker::PhantomData;

use crate::check;
use crate::domain::{Domain, inherent_domain, sealed};
use crate::engine::EngineRef;
use crate::registry::Record;
use crate::registry::pool::Real;
use crate::roster::{Kind, Place, Roster};

/// A QSBR domain: online threads are readers until they say otherwise.
///
/// ```
/// use owlet_rcu::Qsbr;
///
/// static DOMAIN: Qsbr = Qsbr::new();
///
/// let mut reader = DOMAIN.register();
/// let mut online = reader.online();
/// for _round in 0..3 {
///     let section = online.read();
///     // .. use what the domain protects, as long as `section` lives ..
///     drop(section);
///     online.quiescent();
/// }
/// online.offline(|| { /* sleep, wait for input: nobody waits for us */ });
/// drop(online);
/// DOMAIN.synchronize();
/// ```
///
/// What was read cannot be kept across a quiescent state:
///
/// ```compile_fail,E0502
/// # use owlet_rcu::Qsbr;
/// # static DOMAIN: Qsbr = Qsbr::new();
/// let mut reader = DOMAIN.register();
/// let mut online = reader.online();
/// let section = online.read();
/// online.quiescent();
/// drop(section);
/// ```
///
/// nor used while offline:
///
/// ```compile_fail,E0502
/// # use owlet_rcu::Qsbr;
/// # static DOMAIN: Qsbr = Qsbr::new();
/// let mut reader = DOMAIN.register();
/// let mut online = reader.online();
/// online.offline(|| drop(online.read()));
/// ```
///
/// nor by another thread:
///
/// ```compile_fail,E0277
/// # use owlet_rcu::Qsbr;
/// # static DOMAIN: Qsbr = Qsbr::new();
/// let reader = DOMAIN.register();
/// std::thread::spawn(move || drop(reader));
/// ```
pub struct Qsbr {
    place: Place,
}

/// A thread's registration with a [`Qsbr`] domain, offline: it delays nothing. Ends when dropped.
pub struct Reader<'d> {
    roster: &'static Roster,
    record: &'static Record,
    _domain: PhantomData<&'d Qsbr>,
    _thread: PhantomData<*mut ()>,
}

/// A registered thread that is online: a section from here to the next quiescent state.
///
/// Forgetting it leaves the thread online until it goes offline another way, and if it ends before, for
/// ever: grace periods then wait for ever ([`crate::stall`] reports it), because what it read may have been
/// lent to another thread. Nothing becomes unsound.
pub struct Online<'r> {
    roster: &'static Roster,
    record: &'static Record,
    _reader: PhantomData<&'r mut Reader<'r>>,
    _thread: PhantomData<*mut ()>,
}

/// Proof that the thread is between two quiescent states, for as long as it is borrowed. At run time it
/// knows its domain, for [`Rcu`](crate::Rcu) cells to compare, and nothing else.
#[must_use = "lasts as long as this"]
pub struct QsbrGuard<'o> {
    roster: &'static Roster,
    _online: PhantomData<&'o Online<'o>>,
}

/// A registration, online from its beginning to its end: how a cell looks at its own value.
#[must_use = "lasts as long as this"]
pub struct Visit<'d> {
    roster: &'static Roster,
    record: &'static Record,
    _domain: PhantomData<&'d Qsbr>,
    _thread: PhantomData<*mut ()>,
}

impl Qsbr {
    /// A domain without threads.
    #[must_use]
    pub const fn new() -> Self {
        Self::named("")
    }

    /// [`Qsbr::new`] with a name for reports and statistics.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self { place: Place::new(Kind::Qsbr, name) }
    }

    inherent_domain!();

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
        self.place.roster(|_| {})
    }

    /// Registers the calling thread, offline. A thread may register more than once.
    ///
    /// Lock-free and async-signal-safe; two system calls (a thread id, and a page for every 31st
    /// registration). Waits for memory if there is none.
    #[must_use]
    pub fn register(&self) -> Reader<'_> {
        let roster = self.roster();
        let record = roster.register();
        Reader { roster, record, _domain: PhantomData, _thread: PhantomData }
    }

    /// A section of the calling thread, whether it is registered or not.
    pub(crate) fn visit(&self) -> Visit<'_> {
        let roster = self.roster();
        let record = roster.register();
        check::enter(&roster.engine);
        // [Q1] as in `quiescent`.
        record.mark.online(&roster.clock, &Real);
        Visit { roster, record, _domain: PhantomData, _thread: PhantomData }
    }

    /// Number of threads that ended while online (a leaked [`Online`], `pthread_exit` past the
    /// destructors): grace periods wait for them for ever. A system call for each thread that is online.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.roster().orphans()
    }
}

impl Default for Qsbr {
    fn default() -> Self {
        Self::new()
    }
}

impl sealed::Sealed for Qsbr {}

impl Domain for Qsbr {
    #[inline]
    fn engine(&self) -> EngineRef {
        self.place.engine(|_| {})
    }
}

impl fmt::Debug for Qsbr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qsbr").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Reader<'_> {
    /// Goes online, until the token is dropped. A store and a full fence (about 8 ns).
    ///
    /// Ordering: what a grace period that no longer waits for this thread had unpublished before it
    /// began, is seen as unpublished.
    #[inline]
    pub fn online(&mut self) -> Online<'_> {
        // Unless an `Online` was forgotten.
        if !self.record.mark.is_online() {
            check::enter(&self.roster.engine);
        }
        // [Q1] as in `quiescent`.
        self.record.mark.online(&self.roster.clock, &Real);
        Online {
            roster: self.roster,
            record: self.record,
            _reader: PhantomData,
            _thread: PhantomData,
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if self.record.mark.is_online() {
            // An `Online` was forgotten.
            check::leave(&self.roster.engine);
        }
        self.record.give_back(&Real);
    }
}

impl Online<'_> {
    /// A section: lasts as long as what is read in it, at most to the next quiescent state. Free.
    #[inline(always)]
    pub fn read(&self) -> QsbrGuard<'_> {
        QsbrGuard { roster: self.roster, _online: PhantomData }
    }

    /// Says: at this moment this thread uses nothing it has read. A load and a compare, and a store
    /// the first time after a grace period began.
    #[inline(always)]
    pub fn quiescent(&mut self) {
        // [Q3], [Q4] as in `quiescent`.
        self.record.mark.quiescent(&self.roster.clock, &Real);
    }

    /// Offline while `f` runs: for whatever may take long. Online again also when `f` panics.
    #[inline]
    pub fn offline<T>(&mut self, f: impl FnOnce() -> T) -> T {
        struct Back<'a>(&'a Record, &'a Roster);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                check::enter(&self.1.engine);
                self.0.mark.online(&self.1.clock, &Real);
            }
        }
        self.record.mark.offline(&Real);
        check::leave(&self.roster.engine);
        let _back = Back(self.record, self.roster);
        f()
    }

    /// Waits for a grace period of this domain, offline meanwhile.
    pub fn synchronize(&mut self) {
        let engine = EngineRef(&self.roster.engine);
        self.offline(|| engine.wait(engine.snapshot(), false));
    }
}

impl QsbrGuard<'_> {
    /// True if this is a section of `domain`.
    #[inline(always)]
    pub(crate) fn is_of(&self, domain: &Qsbr) -> bool {
        core::ptr::eq(self.roster, domain.roster())
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // [Q4] as in `quiescent`.
        self.record.give_back(&Real);
        check::leave(&self.roster.engine);
    }
}

impl Drop for Online<'_> {
    #[inline]
    fn drop(&mut self) {
        // [Q4] as in `quiescent`.
        self.record.mark.offline(&Real);
        check::leave(&self.roster.engine);
    }
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("domain", &self.roster.engine.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Online<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Online").field("domain", &self.roster.engine.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Visit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visit").field("domain", &self.roster.engine.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for QsbrGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QsbrGuard")
    }
}
