//! The classic ordering: sections begin and end with full barriers.

use core::fmt;

use super::{Srcu, SrcuGuard};
use crate::domain::{Domain, inherent_domain, sealed};
use crate::engine::EngineRef;

/// An [`Srcu`] whose sections begin and end with full barriers, as the kernel's `srcu_read_lock` and
/// `srcu_read_unlock` have.
///
/// What comes before the beginning of a section is ordered before what is inside it, and what is
/// inside before what follows its end, towards everybody and not just towards grace periods. Readers
/// pay for it with two atomic instructions (about five times the price of [`Srcu`]); in return a grace
/// period needs no heavy fence. The first [`ClassicSrcu::synchronize`] after 25 us without a grace
/// period is expedited.
///
/// A domain is of one kind for good; handing a guard of one kind to a domain of the other does not
/// compile.
///
/// ```compile_fail,E0308
/// let classic = owlet_rcu::ClassicSrcu::new();
/// let fast: owlet_rcu::SrcuGuard<'_> = classic.read();
/// ```
pub struct ClassicSrcu {
    srcu: Srcu,
}

/// A section of a [`ClassicSrcu`], ended when dropped, on whatever thread.
#[must_use = "the section ends when this is dropped"]
pub struct ClassicGuard<'a> {
    guard: SrcuGuard<'a>,
}

impl ClassicSrcu {
    /// A domain without readers.
    #[must_use]
    pub const fn new() -> Self {
        Self::named("")
    }

    /// [`ClassicSrcu::new`] with a name for reports and statistics.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self { srcu: Srcu::with(name, true) }
    }

    /// Enters a section that ends when the guard is dropped. Never fails, blocks or allocates. Full
    /// barrier.
    #[inline]
    pub fn read(&self) -> ClassicGuard<'_> {
        // Readers of a fenced domain count by atomic instructions that are full barriers.
        ClassicGuard { guard: self.srcu.read() }
    }

    /// Enters a section and returns the token that ends it. Full barrier.
    #[inline]
    #[must_use]
    pub fn read_lock(&self) -> u32 {
        self.srcu.read_lock()
    }

    /// Ends the section that `token` stands for. Full barrier.
    ///
    /// # Safety
    /// As [`Srcu::read_unlock`].
    #[inline]
    pub unsafe fn read_unlock(&self, token: u32) {
        // SAFETY: the caller's.
        unsafe { self.srcu.read_unlock(token) };
    }

    inherent_domain!();
}

impl Default for ClassicSrcu {
    fn default() -> Self {
        Self::new()
    }
}

impl sealed::Sealed for ClassicSrcu {}

impl Domain for ClassicSrcu {
    #[inline]
    fn engine(&self) -> EngineRef {
        self.srcu.engine()
    }

    fn name(&self) -> &'static str {
        Domain::name(&self.srcu)
    }

    fn synchronize(&self) {
        let engine = self.engine();
        let hurry = engine.has_been_idle_for(core::time::Duration::from_micros(25));
        engine.wait(engine.snapshot(), hurry);
    }
}

impl fmt::Debug for ClassicSrcu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClassicSrcu").field(&self.srcu).finish()
    }
}

impl ClassicGuard<'_> {
    /// True if this is a section of `domain`.
    #[inline(always)]
    pub(crate) fn is_of(&self, domain: &ClassicSrcu) -> bool {
        self.guard.is_of(&domain.srcu)
    }
}

impl fmt::Debug for ClassicGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClassicGuard").finish_non_exhaustive()
    }
}

/// Makes the beginning of a section just taken, of any domain, a full barrier.
///
/// Free where it is one already ([`ClassicSrcu`]); [`Srcu`] promises no ordering but towards grace
/// periods, and needs it if more is wanted.
#[inline]
pub fn after_lock_fence() {
    crate::engine::full_fence();
}

/// Makes the end of a section just ended, of any domain, a full barrier. As [`after_lock_fence`].
#[inline]
pub fn after_unlock_fence() {
    crate::engine::full_fence();
}
