//! Two switches over all domains: force expediting, forbid it.
//!
//! Both nest; forbidding wins. Expedited waits have the same guarantees as normal ones and differ in
//! what they cost: their leader spins and yields before it sleeps, and sleeps less.

use core::sync::atomic::{AtomicU32, Ordering};

static FORCED: AtomicU32 = AtomicU32::new(0);
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);

/// While one lives, every grace period is expedited.
#[must_use = "expediting is forced while this lives"]
#[derive(Debug)]
pub struct ForceGuard(());

/// While one lives, no grace period is expedited.
#[must_use = "expediting is forbidden while this lives"]
#[derive(Debug)]
pub struct ForbidGuard(());

/// Expedites every grace period until the guard is dropped.
pub fn force() -> ForceGuard {
    FORCED.fetch_add(1, Ordering::Relaxed);
    ForceGuard(())
}

/// Makes expedited waits into normal ones until the guard is dropped; wins over [`force`].
pub fn forbid() -> ForbidGuard {
    FORBIDDEN.fetch_add(1, Ordering::Relaxed);
    ForbidGuard(())
}

impl Drop for ForceGuard {
    fn drop(&mut self) {
        FORCED.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for ForbidGuard {
    fn drop(&mut self) {
        FORBIDDEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where the switches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    AsAsked,
    Force,
    Forbid,
}

pub(crate) fn switch() -> Switch {
    if FORBIDDEN.load(Ordering::Relaxed) != 0 {
        Switch::Forbid
    } else if FORCED.load(Ordering::Relaxed) != 0 {
        Switch::Force
    } else {
        Switch::AsAsked
    }
}
