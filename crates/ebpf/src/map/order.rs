//! Orders of the maps' protocols that their models take away, one at a time: `tests/loom.rs` compiles
//! [`super::hash`] and [`super::ring`] with tables of its own in place of this one.

use owlet_percpu::atomic::{Ordering, fence};

/// Of a head or link: letter A of `hash`.
pub(crate) const LINK: Ordering = Ordering::Release;
/// Of the even generation: letter E of `hash`.
pub(crate) const EVEN: Ordering = Ordering::Release;
/// Of a record's header: letter I of `ring`.
pub(crate) const HEADER: Ordering = Ordering::Release;
/// Of the consumer's position: letter K of `ring`.
pub(crate) const TAIL: Ordering = Ordering::Release;

/// After the odd generation: letter C of `hash`.
#[inline(always)]
pub(crate) fn after_odd() {
    fence(Ordering::Release);
}

/// Before the second look at a generation: letter D of `hash`.
#[inline(always)]
pub(crate) fn before_second_look() {
    fence(Ordering::Acquire);
}

/// A number for this process, never 0; another one in a forked child.
pub(crate) fn process() -> u32 {
    // The generation counts up from 1, or is a pid: its lower half tells parent and child apart.
    (owlet_sys::fork::generation() as u32).max(1)
}
