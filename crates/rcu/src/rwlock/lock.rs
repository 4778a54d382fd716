//! The type that programs use.

use core::cell::UnsafeCell;
use core::fmt;
use core::time::Duration;
use std::time::Instant;

use super::Policy;
use super::guard::{HoldSlow, ReadGuard, UpgradableGuard, WriteGuard};
use super::raw::{LockStats, RawRwLock, Settings};
use super::write::Patience;
use crate::rcu_sync::grace::GracePeriod;

/// A reader-writer lock for data that is read all the time and written now and then: readers on different
/// CPUs do not touch a common cache line. See the [module](super).
///
/// Its methods are those of `parking_lot::RwLock`. What differs: there is no recursive reading (a thread
/// that reads and asks again may find a writer between, and wait for itself: builds with the checks panic
/// there); guards may be sent to other threads; four locks share a slot of 128 bytes for each possible CPU, from
/// when they are first used: whole pages, so 1 KiB a lock on up to 31 CPUs.
///
/// ```
/// use owlet_rcu::PerCpuRwLock;
///
/// static TABLE: PerCpuRwLock<Vec<u32>> = PerCpuRwLock::new(Vec::new());
///
/// TABLE.write().push(1);
/// assert_eq!(TABLE.read().len(), 1);
/// ```
///
/// | | cost (`docs/comparison.md`, its machine) |
/// |---|---|
/// | `read` and the end of its guard | some 2 ns; while writers are about, 16 ns |
/// | `write` and the end of its guard, the first in a while | a membarrier: 0.7 us, or 13 us where other CPUs are busy |
/// | the same, following another | 22 ns |
#[repr(C)]
pub struct PerCpuRwLock<T: ?Sized> {
    raw: RawRwLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value goes where the lock goes.
unsafe impl<T: ?Sized + Send> Send for PerCpuRwLock<T> {}
// SAFETY: shared holds give `&T` to many threads, exclusive ones `&mut T` to one at a time.
unsafe impl<T: ?Sized + Send + Sync> Sync for PerCpuRwLock<T> {}

/// How a lock is to behave.
///
/// ```
/// use owlet_rcu::rwlock::{Options, Policy};
/// use std::time::Duration;
///
/// static LOCK: owlet_rcu::PerCpuRwLock<u32> = Options::new()
///     .policy(Policy::PhaseFair)
///     .reopen_after(Duration::from_millis(1))
///     .build(0);
/// # assert_eq!(*LOCK.read(), 0);
/// ```
#[derive(Clone, Copy)]
#[must_use = "options do nothing until a lock is built"]
pub struct Options(Settings);

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// What [`PerCpuRwLock::new`] takes.
    pub const fn new() -> Self {
        Self(Settings {
            policy: Policy::WriterBurst,
            reopen_after: Duration::from_millis(10),
            grace: None,
            name: "",
        })
    }

    /// Who is next. [`Policy::WriterBurst`], if not said.
    pub const fn policy(mut self, policy: Policy) -> Self {
        self.0.policy = policy;
        self
    }

    /// How long there must have been no writer for readers to go back to the fast way: 10 ms, if not said.
    ///
    /// A membarrier is paid by the first writer after that, and slow reads up to then: a writer that comes
    /// every millisecond should find readers slow, and one that comes every second should not.
    pub const fn reopen_after(mut self, time: Duration) -> Self {
        self.0.reopen_after = time;
        self
    }

    /// Makes the first writer after a while wait for a grace period of `grace`, besides the membarrier,
    /// and readers go back to the fast way after another, in place of [`Options::reopen_after`].
    ///
    /// For readers that are also readers of `grace` and rely on it; and for measuring what longer grace
    /// periods cost.
    pub const fn grace_periods(mut self, grace: &'static dyn GracePeriod) -> Self {
        self.0.grace = Some(grace);
        self
    }

    /// A name for reports.
    pub const fn name(mut self, name: &'static str) -> Self {
        self.0.name = name;
        self
    }

    /// The lock.
    pub const fn build<T>(self, value: T) -> PerCpuRwLock<T> {
        PerCpuRwLock { raw: self.build_raw(), value: UnsafeCell::new(value) }
    }

    /// A lock without data.
    #[must_use]
    pub const fn build_raw(self) -> RawRwLock {
        RawRwLock::with(self.0)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("policy", &self.0.policy)
            .field("reopen_after", &self.0.reopen_after)
            .field("name", &self.0.name)
            .finish_non_exhaustive()
    }
}

impl<T> PerCpuRwLock<T> {
    /// A lock with the usual [`Options`]. Takes memory when first used.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Options::new().build(value)
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> PerCpuRwLock<T> {
    /// Takes it shared; waits while a writer has it or, by the lock's policy, waits for it.
    ///
    /// A thread that holds it shared must not ask again: a writer may be waiting between. Ordering:
    /// acquire, and release at the guard's end.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        ReadGuard::new(self, self.raw.read())
    }

    /// Takes it shared if no writer has it or waits for it. Never waits; async-signal-safe, as is the end
    /// of the guard.
    #[inline]
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        self.raw.try_read().map(|hold| ReadGuard::new(self, hold))
    }

    /// [`PerCpuRwLock::read`], for at most that long.
    pub fn try_read_for(&self, time: Duration) -> Option<ReadGuard<'_, T>> {
        match Instant::now().checked_add(time) {
            Some(deadline) => self.try_read_until(deadline),
            None => Some(self.read()),
        }
    }

    /// [`PerCpuRwLock::read`] up to a deadline.
    pub fn try_read_until(&self, deadline: Instant) -> Option<ReadGuard<'_, T>> {
        let hold = self.raw.try_read().or_else(|| self.raw.read_until(Some(deadline)))?;
        Some(ReadGuard::new(self, hold))
    }

    /// Takes it exclusively; waits for its turn, and for readers to leave.
    ///
    /// Ordering: acquire, and release at the guard's end.
    #[inline]
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.raw.write();
        WriteGuard::new(self)
    }

    /// Takes it exclusively if nobody has it. Waits for nobody, but, as the first writer after a while, for
    /// a grace period (a membarrier).
    #[inline]
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        self.raw.try_write().then(|| WriteGuard::new(self))
    }

    /// [`PerCpuRwLock::write`], for at most that long.
    pub fn try_write_for(&self, time: Duration) -> Option<WriteGuard<'_, T>> {
        match Instant::now().checked_add(time) {
            Some(deadline) => self.try_write_until(deadline),
            None => Some(self.write()),
        }
    }

    /// [`PerCpuRwLock::write`] up to a deadline.
    pub fn try_write_until(&self, deadline: Instant) -> Option<WriteGuard<'_, T>> {
        self.raw.write_until(deadline).then(|| WriteGuard::new(self))
    }

    /// Takes it shared, as the only one who may make that exclusive later ([`UpgradableGuard::upgrade`]):
    /// other readers are let in, writers and other upgradable readers are not. Costs what a writer's turn
    /// costs, without the grace period.
    pub fn upgradable_read(&self) -> UpgradableGuard<'_, T> {
        self.raw.upgradable();
        UpgradableGuard::new(self)
    }

    /// [`PerCpuRwLock::upgradable_read`] if no writer or other upgradable reader has it or waits for it.
    pub fn try_upgradable_read(&self) -> Option<UpgradableGuard<'_, T>> {
        self.raw.try_upgradable().then(|| UpgradableGuard::new(self))
    }

    /// [`PerCpuRwLock::upgradable_read`], for at most that long.
    pub fn try_upgradable_read_for(&self, time: Duration) -> Option<UpgradableGuard<'_, T>> {
        match Instant::now().checked_add(time) {
            Some(deadline) => self.try_upgradable_read_until(deadline),
            None => Some(self.upgradable_read()),
        }
    }

    /// [`PerCpuRwLock::upgradable_read`] up to a deadline.
    pub fn try_upgradable_read_until(&self, deadline: Instant) -> Option<UpgradableGuard<'_, T>> {
        self.raw.upgradable_until(deadline).then(|| UpgradableGuard::new(self))
    }

    /// Keeps readers slow until the answer is dropped: no writer waits for a grace period meanwhile, and
    /// every reader pays two atomic instructions. For locks that are written to more often than read (the
    /// kernel's `favordynmods` for cgroups). Waits for a grace period if readers are fast.
    pub fn hold_slow(&self) -> HoldSlow<'_> {
        HoldSlow::new(&self.raw)
    }

    /// The value, without locking: nobody else has the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Where the value is. Reading or writing there takes a hold of the lock.
    pub const fn data_ptr(&self) -> *mut T {
        self.value.get()
    }

    /// The lock without its data, for holds that are no guards.
    pub const fn raw(&self) -> &RawRwLock {
        &self.raw
    }

    /// True if a writer has it, or waits for readers to leave, at the moment.
    #[must_use]
    pub fn is_write_locked(&self) -> bool {
        self.raw.is_write_locked()
    }

    /// True if anybody has it, at the moment: a guess while others come and go.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        let _ = self.raw.try_settle();
        self.raw.seat.is_taken() || self.raw.readers() != 0
    }

    /// True if readers are on the fast way at the moment.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.raw.is_fast()
    }

    /// Who is next.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.raw.policy()
    }

    /// What it has cost so far.
    #[must_use]
    pub fn stats(&self) -> LockStats {
        self.raw.stats()
    }

    pub(super) fn upgrade(&self, patience: Patience) -> bool {
        self.raw.upgrade_with(patience)
    }
}

impl<T: Default> Default for PerCpuRwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> From<T> for PerCpuRwLock<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for PerCpuRwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("PerCpuRwLock");
        match self.try_read() {
            Some(value) => out.field("data", &&*value),
            None => out.field("data", &format_args!("<locked>")),
        };
        out.finish_non_exhaustive()
    }
}
