//! SRCU: one domain, its readers and its grace periods.
//!
//! # Readers
//! Load the domain's index, note the section in this thread's `held`, and, in one restartable
//! sequence, compare the index and count the entry in this CPU's slot. No lock prefix, no fence, no
//! registration. The exit counts on whatever CPU it happens. Threads without rseq count by atomics in
//! words of their own.
//!
//! # Grace periods
//! See `protocol` (when is one over), `grace` (SRCU's part), `engine` (who runs them, who waits how),
//! `block` (memory), `held` (whose sections).
//!
//! # Measurements
//! `docs/comparison.md` has the figures, `owlet-bench rcu-read`, `rcu-sync` and `rcu-poll` measure them,
//! and their output is in `bench/results`. What cost more than one would think, when it was tried: an
//! argument that is only needed by a check of debug builds and is computed by a call, index and words at
//! addresses that have to be computed, a guard that does not fit into registers where it is used.

mod block;
mod classic;
mod grace;

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

use owlet_percpu::{Entered, Slots};

pub use classic::{ClassicGuard, ClassicSrcu, after_lock_fence, after_unlock_fence};

use block::{Block, BlockRef, HEADER, TO_EXITS, Tagged, entries};

use crate::check;
use crate::domain::{Domain, inherent_domain, sealed};
use crate::engine::EngineRef;
use crate::{held, sections};

/// An SRCU domain: readers never block, and updaters wait for the readers of this domain only.
///
/// A domain is a pointer; it can be a `static`, and takes memory (one slot of 128 bytes per possible
/// CPU, rounded up to pages) when first used, and two pages or more with the first retired object. What a
/// dropped domain had is kept for the next one. Sections may sleep, nest (up to 2^31 deep per thread), move between threads
/// and live across `.await`.
///
/// ```
/// use owlet_rcu::Srcu;
/// use std::sync::atomic::{AtomicPtr, Ordering};
///
/// static DOMAIN: Srcu = Srcu::new();
/// static SHARED: AtomicPtr<u32> = AtomicPtr::new(std::ptr::null_mut());
///
/// SHARED.store(Box::into_raw(Box::new(1)), Ordering::Release);
/// {
///     let _section = DOMAIN.read();
///     // SAFETY: freed only after a grace period that began after it was unpublished.
///     let value = unsafe { *SHARED.load(Ordering::Acquire) };
///     assert_eq!(value, 1);
/// }
/// let old = SHARED.swap(Box::into_raw(Box::new(2)), Ordering::AcqRel);
/// DOMAIN.synchronize();
/// // SAFETY: no section that could have seen it is left.
/// drop(unsafe { Box::from_raw(old) });
/// # // SAFETY: nobody else.
/// # drop(unsafe { Box::from_raw(SHARED.load(Ordering::Acquire)) });
/// ```
///
/// # Signals
/// Taking and giving back a section is async-signal-safe, the first use included, and may interrupt
/// any instruction of anything here. Waiting is not for signal handlers.
///
/// # Waiting inside a section
/// A thread that waits for a grace period of a domain in whose section it is waits for itself. Builds
/// with the checks panic there if the section is a token's ([`Srcu::read_lock`]). A guard may be
/// another thread's by now: they wait, and report what they suspect after a second; see [`Domain`] and
/// [`crate::check`].
///
/// # Fork
/// In a forked child the sections of threads that stayed behind are struck out, so they delay
/// nothing; those the forking thread took itself go on protecting it. A guard that was *moved* to the
/// forking thread before counts among those that stayed behind: it protects nothing in the child. One
/// that the forking thread took and another thread holds at the fork counts as the forking thread's:
/// grace periods in the child wait for it, for ever.
///
/// Guards that are given back by another thread than took them are noted by (thread that took it,
/// domain, rank), in a table of 512 entries that is never emptied; looking for a place, 16 are tried.
/// Once a guard could not be noted (after some 200 threads whose guards were moved, if they meet both
/// ranks), the thread that took it counts, for the rest of the process's life, as still inside by that
/// much. If it is such a thread that forks, then in the child as many sections of *other* threads in
/// that domain are taken for its own and not struck out, and grace periods there may wait for ever.
/// Sections that no thread but the taker ends are not concerned, nor is the parent.
///
/// # Leaks
/// A forgotten guard, or a thread that ends inside a section, makes every later grace period of the
/// domain wait for ever ([`crate::stall`] reports it). Nothing becomes unsound.
pub struct Srcu {
    block: AtomicPtr<Block>,
    name: &'static str,
    fenced: bool,
}

/// A section of a domain, ended when dropped, on whatever thread.
#[must_use = "the section ends when this is dropped"]
pub struct SrcuGuard<'a> {
    at: Tagged,
    token: u32,
    taker: u64,
    _srcu: PhantomData<&'a Srcu>,
}

impl Srcu {
    /// A domain without readers.
    #[must_use]
    pub const fn new() -> Self {
        Self::named("")
    }

    /// [`Srcu::new`] with a name for reports and statistics.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self::with(name, false)
    }

    /// A domain whose readers fence for themselves, so that its grace periods need no `membarrier`.
    ///
    /// `membarrier` costs 0.7 us where nothing else runs and above 10 us where other CPUs of a virtual
    /// machine do. Where grace periods are frequent and readers are rare, the other way is cheaper: two
    /// atomic instructions per section (12 ns in all, some four times the price of [`Srcu::new`]'s), and a
    /// grace period of 0.07 us, or 1.3 us with a busy reader elsewhere (`docs/comparison.md`).
    #[must_use]
    pub const fn fenced(name: &'static str) -> Self {
        Self::with(name, true)
    }

    const fn with(name: &'static str, fenced: bool) -> Self {
        Self { block: AtomicPtr::new(core::ptr::null_mut()), name, fenced }
    }

    inherent_domain!();

    /// Enters a section that ends when the guard is dropped. Never fails, blocks or allocates.
    #[inline]
    pub fn read(&self) -> SrcuGuard<'_> {
        let taker = held::serial();
        let (at, token) = self.enter();
        check::guard(&at.block().engine);
        SrcuGuard { at, token, taker, _srcu: PhantomData }
    }

    /// Enters a section and returns the token that ends it, for code that cannot keep a guard.
    ///
    /// Cost: some two nanoseconds with [`Srcu::read_unlock`] (`docs/comparison.md`). Ordering: towards grace periods of this
    /// domain only; not a fence.
    #[inline]
    #[must_use]
    pub fn read_lock(&self) -> u32 {
        self.enter().1
    }

    #[inline(always)]
    fn enter(&self) -> (Tagged, u32) {
        // Acquire: as in tagged().
        let at = self.block.load(Ordering::Acquire);
        // SAFETY: null, or what block_slow() stored.
        let Some((at, block)) = (unsafe { Tagged::near_at(at) }) else { return self.enter_slow() };
        let index = block.index.load(Ordering::Relaxed);
        // SAFETY: the index of a near block.
        unsafe { held::up(index) };
        // [R0] pairs with [E]: the sequence's own look at the index is an acquire (every load is, on
        // x86-64), so a section in the new rank sees what was unpublished before the flip.
        // [R1] pairs with [G] (a sequence: in flight at the heavy fence means restarted) and with
        // [E] (an atomic reader: a full barrier). Orders the entry before the section's accesses.
        // SAFETY: the address is that of the block's own words, for HEADER.
        let entered =
            unsafe { Slots::increment_at_if::<HEADER>(block.at(index), &block.index, index) };
        match entered {
            Entered::Sequence | Entered::Atomic => {
                block.note_entry();
                (at, index)
            }
            Entered::Moved => self.enter_moved(index),
        }
    }

    /// Ends the section that `token` stands for.
    ///
    /// # Safety
    /// `token` came from [`Srcu::read_lock`] of this domain, on this thread (or on the thread this
    /// one is the forked copy of), and has not been given back.
    #[inline]
    pub unsafe fn read_unlock(&self, token: u32) {
        // Acquire: as in tagged().
        let at = self.block.load(Ordering::Acquire);
        // SAFETY: null, or what block_slow() stored.
        match unsafe { Tagged::near_at(at) } {
            Some((_, block)) => leave_near(block, token),
            None => self.unlock_slow(token),
        }
    }

    #[inline(always)]
    fn tagged(&self) -> Option<Tagged> {
        // Acquire: pairs with the release in block_slow(); the header is initialised.
        let at = self.block.load(Ordering::Acquire);
        // SAFETY: null, or what block_slow() stored.
        unsafe { Tagged::from_ptr(at) }
    }

    #[inline(always)]
    fn block(&self) -> Option<BlockRef> {
        self.tagged().map(Tagged::block)
    }

    /// The index moved between the look and the sequence: take the mark back and try again.
    #[cold]
    #[inline(never)]
    fn enter_moved(&self, index: u32) -> (Tagged, u32) {
        // SAFETY: the index of a near block.
        unsafe { held::down(index) };
        self.enter()
    }

    /// The end of a section of a far or fenced domain.
    #[inline(never)]
    fn unlock_slow(&self, token: u32) {
        if let Some(at) = self.tagged() {
            leave_far(at, token);
        }
    }

    /// The first section of a domain, and those of far or fenced ones.
    #[inline(never)]
    fn enter_slow(&self) -> (Tagged, u32) {
        // Decides the backend, if nobody has.
        let at = self.tagged().unwrap_or_else(|| self.block_slow().tagged());
        if at.near().is_some() {
            return self.enter();
        }
        let block = at.block();
        loop {
            let index = block.index.load(Ordering::Relaxed);
            block.mark_up(index);
            let slots = block.slots();
            let entered = if block.is_fenced() {
                owlet_percpu::testpoint::reached(owlet_percpu::testpoint::Point::BeforeAtomicEntry);
                // [R1] an atomic reader: a full barrier.
                slots.add_atomic(entries(index), 1);
                Entered::Atomic
            } else {
                // [R0], [R1] as in enter().
                slots.increment_if(entries(index), &block.index, index)
            };
            if entered != Entered::Moved {
                block.note_entry();
                return (at, index);
            }
            block.mark_down(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn block_slow(&self) -> BlockRef {
        if let Some(block) = self.block() {
            return block;
        }
        let mine = block::claim(self.name, self.fenced);
        let null = core::ptr::null_mut();
        let at = mine.tagged().as_ptr();
        let stored = self.block.compare_exchange(null, at, Ordering::AcqRel, Ordering::Acquire);
        match stored {
            Ok(_) => mine,
            Err(_) => {
                mine.release();
                // Not null, so stored by another block_slow().
                self.block().unwrap_or(mine)
            }
        }
    }
}

impl sealed::Sealed for Srcu {}

impl Domain for Srcu {
    #[inline]
    fn engine(&self) -> EngineRef {
        self.block().unwrap_or_else(|| self.block_slow()).engine()
    }

    /// Its own: a block that domains share for want of memory has another.
    fn name(&self) -> &'static str {
        self.name
    }
}

impl Default for Srcu {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Srcu {
    fn drop(&mut self) {
        if let Some(block) = self.block() {
            check::gone(&block.engine);
            block.release();
        }
    }
}

impl fmt::Debug for Srcu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srcu").field("stats", &self.stats()).finish()
    }
}

/// A section that is nobody's for the moment: [`SrcuGuard::into_raw`] (the kernel's `srcu_down_read`;
/// [`SrcuGuard::from_raw`] and dropping that is its `srcu_up_read`).
#[must_use = "the section ends only when a guard is made of this again"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawSection {
    at: Tagged,
    token: u32,
    taker: u64,
}

impl<'a> SrcuGuard<'a> {
    /// True if this is a section of `domain`.
    #[inline(always)]
    pub(crate) fn is_of(&self, domain: &Srcu) -> bool {
        domain.tagged() == Some(self.at)
    }

    /// Lets go of the guard without ending the section: to be kept in a place without lifetimes.
    pub fn into_raw(self) -> RawSection {
        let guard = core::mem::ManuallyDrop::new(self);
        if check::ON && held::is_mine(guard.taker) {
            let block = guard.at.block();
            check::guard_ends(&block.engine);
            check::leave(&block.engine);
        }
        RawSection { at: guard.at, token: guard.token, taker: guard.taker }
    }

    /// The guard again, on any thread.
    ///
    /// # Safety
    /// `section` came from [`SrcuGuard::into_raw`] of a guard of `srcu` and is used once.
    pub unsafe fn from_raw(srcu: &'a Srcu, section: RawSection) -> Self {
        debug_assert_eq!(srcu.tagged(), Some(section.at), "a section of another domain");
        let RawSection { at, token, taker } = section;
        if check::ON && held::is_mine(taker) {
            check::enter(&at.block().engine);
            check::guard(&at.block().engine);
        }
        Self { at, token, taker, _srcu: PhantomData }
    }
}

impl Drop for SrcuGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if held::is_mine(self.taker) {
            check::guard_ends(&self.at.block().engine);
            leave(self.at, self.token);
        } else {
            leave_foreign(self.at, self.token, self.taker);
        }
    }
}

/// The end of a section that this thread began.
#[inline(always)]
fn leave(at: Tagged, token: u32) {
    match at.near() {
        Some(block) => leave_near(block, token),
        None => leave_far(at, token),
    }
}

#[inline(always)]
fn leave_near(block: BlockRef, token: u32) {
    block.note_exit();
    // [R2] pairs with [F] and [H]: release. Orders the section's accesses before the exit.
    // SAFETY: tokens are indices of the block, whose words these are.
    unsafe { Slots::increment_at::<{ HEADER + TO_EXITS }>(block.at(token)) };
    // SAFETY: the index of a near block.
    unsafe { held::down(token) };
}

#[inline(never)]
fn leave_far(at: Tagged, token: u32) {
    let block = at.block();
    block.note_exit();
    block.count_exit(token);
    block.mark_down(token);
}

/// The end of a section that another thread, `taker`, began. (By value: a guard stays in registers.)
#[cold]
#[inline(never)]
fn leave_foreign(at: Tagged, token: u32, taker: u64) {
    if held::stayed_behind(taker) {
        return;
    }
    let block = at.block();
    held::note_foreign(taker, block.id.load(Ordering::Relaxed), token & held::RANK);
    block.count_exit(token);
    check::leave_elsewhere(&block.engine);
    sections::leave_elsewhere(&block.engine, taker);
}

impl fmt::Debug for SrcuGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrcuGuard")
            .field("rank", &u32::from(self.token & held::RANK != 0))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "domain_tests.rs"]
mod tests;
