//! The pointer to a list of programs, and which sessions of a call are still to be ended.
//!
//! # Protocol
//! Call: read section -> load the pointer -> run the list's programs -> end of the section, before the
//! body. After the body: a section of its own, a look at the pointer of *now*. Nothing is held across the
//! body; what a call remembers of it is [`Open`]: the numbers of the links whose session it began.
//! Attach, detach: under the control lock, build a new list -> publish it -> retire the old one to its
//! domain (or wait, then free it).
//!
//! So a thread that sleeps in a body delays nobody, and a program that was detached meanwhile is not in
//! the list that the thread finds: its exit does not run, and it may have been freed. A link's number is
//! never used again: a program that was attached anew is another link, whose session this call did not
//! begin.
//!
//! | a link of a session | in the list | in `Open` | its exit runs |
//! |---|---|---|---|
//! | attached before the call | yes | yes | yes |
//! | attached during the body | yes | no | no |
//! | detached during the body | no | yes | no |
//! | vetoed, or missed by recursion | yes | no | no |
//!
//! # Who may write what
//! | word | written by | read by |
//! |---|---|---|
//! | the pointer | holder of the control lock | calls, in a section of the list's domain; holder of the lock |
//! | a list | nobody once published, but for `dead` marks | as the pointer |
//! | `Open` | the call it belongs to | the same |
//!
//! # Invariants
//! 1. A list does not change while it is published, but for `dead` marks.
//! 2. A list that was replaced is freed after a grace period, of the domain its readers are in, that
//!    began after it was replaced.
//! 3. A call keeps no pointer into a list beyond its section.
//! 4. Lists own no programs. The link does: until its entry has been taken out of the published list (or
//!    marked dead) and a grace period has begun and ended after that. So whoever finds a live entry in a
//!    section may run its program; lists that were replaced earlier and are not freed yet keep no program.
//!
//! # Barriers
//! | letter | where | pairs with | orders |
//! |---|---|---|---|
//! | `[A]` | load in [`Slot::read`] | `[B]` | a list's content before its use |
//! | `[B]` | swap in [`Slot::publish`] | `[A]` | the same |
//! | `[W]` | `patch`: a window's lock is taken | `[X]` | windows do not close each other |
//! | `[X]` | `patch`: it is given back | `[W]` | the same |
//!
//! Reclamation is ordered by the domains' own barriers.
//!
//! # What is proved where
//! `tests/loom.rs`: `list_` (publication and freeing) and `session_` (a detach during the body), on this
//! file, each with twins that must fail. Real domains, patching, forks: `tests` and `owlet-torture attach`,
//! mutants M14 to M16.

use crate::letter::order;
use core::ptr;
use owlet_percpu::atomic::{AtomicPtr, Ordering};

/// A pointer to an immutable list; null when it would be empty.
#[derive(Debug)]
pub(crate) struct Slot<L>(AtomicPtr<L>);

impl<L> Slot<L> {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The list, valid while the caller is in a section of its domain that began before, or holds the
    /// control lock.
    #[inline(always)]
    pub(crate) fn read(&self) -> *const L {
        // [A] Acquire: pairs with [B]; orders the list's content before its use. Without it: a call runs
        // through a half-written entry.
        self.0.load(order('A', Ordering::Acquire))
    }

    /// Replaces the list and returns the old one, which readers may be in. The caller holds the control
    /// lock.
    pub(crate) fn publish(&self, list: *mut L) -> *mut L {
        // [B] Release: pairs with [A]; the list is complete before it can be found. Without it: see [A].
        self.0.swap(list, order('B', Ordering::Release))
    }
}

/// Links a function can have at most: programs of a kernel trampoline, and of ours.
pub(crate) const LINKS: usize = 38;

/// The sessions that one call has begun: a link's number and the call's word.
pub(crate) struct Open<const N: usize> {
    len: usize,
    sessions: [core::mem::MaybeUninit<(u64, u64)>; N],
}

impl<const N: usize> Open<N> {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { len: 0, sessions: [const { core::mem::MaybeUninit::uninit() }; N] }
    }

    /// Notes that the session of a link has begun.
    #[inline(always)]
    pub(crate) fn push(&mut self, link: u64, word: u64) {
        if let Some(place) = self.sessions.get_mut(self.len) {
            place.write((link, word));
            self.len += 1;
        }
    }

    /// The word of a link's session, if this call began it.
    #[inline(always)]
    pub(crate) fn find(&self, link: u64) -> Option<u64> {
        let begun = self.sessions.get(..self.len).unwrap_or_default();
        // SAFETY: `push` has written the first `len`.
        begun.iter().map(|s| unsafe { s.assume_init() }).find(|s| s.0 == link).map(|s| s.1)
    }
}
