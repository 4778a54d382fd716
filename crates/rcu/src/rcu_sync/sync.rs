//! The type that programs use.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use super::enter::{Enter, Slow};
use super::grace::{GracePeriod, HeavyFence};
use super::machine::{Entering, Exiting, Passing};
use super::word::Core;

/// A switch between fast and slow readers; see the [module](super).
///
/// | grace periods | fast readers |
/// |---|---|
/// | [`HeavyFence`] | restartable sequences that look at the state and act on it |
/// | [`Normal`](super::grace::Normal), [`Expedited`](super::grace::Expedited) of a domain | sections of that domain |
///
/// ```
/// use owlet_rcu::rcu_sync::{RcuSync, grace::Normal};
/// use owlet_rcu::Srcu;
///
/// static READERS: Srcu = Srcu::new();
/// static SYNC: RcuSync<Normal<'static>> = RcuSync::new(Normal(&READERS));
///
/// fn read() -> bool {
///     let _section = READERS.read();
///     // The short cut, or the slow way.
///     SYNC.is_idle()
/// }
///
/// assert!(read());
/// let slow = SYNC.enter();
/// // No reader is on the short cut, and none will be.
/// assert!(!read());
/// drop(slow);
/// // A grace period later they are again.
/// READERS.synchronize();
/// # while !read() {}
/// ```
///
/// # Fork
/// What threads that stayed behind have entered is never exited in the child: readers stay slow there,
/// which is right.
pub struct RcuSync<G: GracePeriod = HeavyFence> {
    core: Core,
    gp: G,
    blocking: AtomicU64,
    asked: AtomicU64,
}

/// What an [`RcuSync`] has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncStats {
    /// Grace periods that somebody who entered waited for.
    pub blocking: u64,
    /// Grace periods asked for without waiting, for readers to be fast again.
    pub asked: u64,
}

impl<G: GracePeriod> RcuSync<G> {
    /// Readers are fast.
    pub const fn new(gp: G) -> Self {
        Self { core: Core::new(), gp, blocking: AtomicU64::new(0), asked: AtomicU64::new(0) }
    }

    /// True if the reader may take the short cut.
    ///
    /// Only inside a reader of the grace periods in use, up to whose end the answer holds. Ordering:
    /// none of its own; the grace periods order. Cost: a load and a comparison while readers are fast.
    /// When they are not, it may find that they can be again, and asks for grace periods on the way: in a
    /// signal handler use [`RcuSync::looks_idle`].
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.core.is_idle() || self.reopened_slow()
    }

    /// [`RcuSync::is_idle`] that does nothing else: async-signal-safe.
    #[inline]
    #[must_use]
    pub fn looks_idle(&self) -> bool {
        self.core.is_idle()
    }

    #[cold]
    fn reopened_slow(&self) -> bool {
        match self.core.poll(&self.gp) {
            // This reader may have begun before the end of the grace period, and the next to enter
            // waits for it: it is as good as one that found IDLE.
            Passing::Open => true,
            Passing::Again => {
                self.ask();
                false
            }
            Passing::Entered | Passing::Held | Passing::Nothing => false,
        }
    }

    /// Asks for the grace period that the caller made due.
    fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.core.post(self.gp.start());
    }

    /// Makes readers slow until the answer is dropped. When it returns, every reader that found the state
    /// idle has ended, and what it did is visible; none finds it idle until the last has exited.
    ///
    /// Waits for one grace period if readers were fast, together with others that enter; for none
    /// otherwise. Not inside a reader.
    pub fn enter(&self) -> Slow<'_, G> {
        if self.core.enter(&self.gp) {
            self.blocking.fetch_add(1, Ordering::Relaxed);
        }
        Slow::new(self)
    }

    /// [`RcuSync::enter`] that does not wait: the grace period is asked for, and the answer says when it
    /// has passed. Several of them can be waited for together.
    pub fn enter_async(&self) -> Enter<'_, G> {
        let (entering, due) = self.core.begin();
        if entering == Entering::First {
            self.core.post(self.gp.start());
        }
        Enter::new(self, due)
    }

    /// The other end of a [`Slow`] that was forgotten.
    ///
    /// # Panics
    /// If nobody is inside: an exit without an enter.
    pub fn exit(&self) {
        match self.core.exit() {
            Exiting::Last => self.ask(),
            Exiting::Again | Exiting::Others | Exiting::GaveUp => {}
            Exiting::Unbalanced => unbalanced(),
        }
    }

    /// How many are inside or entering.
    #[must_use]
    pub fn holders(&self) -> u64 {
        self.core.look().count()
    }

    /// What it has cost so far.
    #[must_use]
    pub fn stats(&self) -> SyncStats {
        SyncStats {
            blocking: self.blocking.load(Ordering::Relaxed),
            asked: self.asked.load(Ordering::Relaxed),
        }
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    pub(super) fn gp(&self) -> &G {
        &self.gp
    }

    pub(super) fn note_blocking(&self) {
        self.blocking.fetch_add(1, Ordering::Relaxed);
    }
}

#[cold]
#[expect(clippy::panic, reason = "documented: a programming error whose effects would be silent")]
fn unbalanced() -> ! {
    panic!("an rcu_sync is exited that nobody has entered");
}

impl Default for RcuSync<HeavyFence> {
    fn default() -> Self {
        Self::new(HeavyFence)
    }
}

/// Waits for the grace period that is due, if one is: readers that were slow because of this have ended.
/// Says so on the standard error stream if somebody is still inside (a [`Slow`] was forgotten).
impl<G: GracePeriod> Drop for RcuSync<G> {
    fn drop(&mut self) {
        let now = self.core.look();
        if now.count() != 0 {
            eprintln!("owlet-rcu: an rcu_sync is dropped that {} have not exited", now.count());
        }
        if let Some(cookie) = self.core.due_cookie(now) {
            self.gp.wait(cookie);
        }
    }
}

impl<G: GracePeriod> fmt::Debug for RcuSync<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = self.core.look();
        f.debug_struct("RcuSync")
            .field("state", &now.state())
            .field("holders", &now.count())
            .finish_non_exhaustive()
    }
}
