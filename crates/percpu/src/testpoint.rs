//! Named instants at which a torture run may hold a thread up.
//!
//! Without the feature `testpoints` nothing is compiled. With it, each point calls the hook, if one
//! is installed. The hook may sleep, yield or migrate; it runs wherever the point is, so it obeys
//! the rules of signal handlers.

/// An instant that has been dangerous somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A reader without rseq has read the index and not yet counted itself.
    BeforeAtomicEntry,
    /// A thread without rseq has picked a slot and not yet added to it.
    BeforeAtomicAdd,
    /// A grace period has summed the exits and not yet the entries.
    BetweenSums,
    /// A grace period has flipped the index.
    AfterFlip,
    /// The worker has found nothing to do, and does not sleep yet.
    BeforeSleep,
    /// The worker has said that it lets go of a domain, and has not asked for the last time.
    BeforeLastLook,
    /// A callback is queued, and its poster has not looked whether the worker knows.
    AfterLink,
    /// A collection has begun, and has not looked for what is queued.
    BeforeCollect,
    /// A thread has a record of its own and has not said anything in it.
    AfterClaim,
    /// A thread has read the clock and not yet said that it was quiet then.
    BeforeMark,
    /// A grace period has found a record quiet and not yet gone on to the next.
    BetweenRecords,
}

impl Point {
    /// All there are.
    pub const ALL: [Self; 11] = [
        Self::BeforeAtomicEntry,
        Self::BeforeAtomicAdd,
        Self::BetweenSums,
        Self::AfterFlip,
        Self::BeforeSleep,
        Self::BeforeLastLook,
        Self::AfterLink,
        Self::BeforeCollect,
        Self::AfterClaim,
        Self::BeforeMark,
        Self::BetweenRecords,
    ];
}

/// What to do at a point.
pub type Hook = fn(Point);

#[cfg(feature = "testpoints")]
static HOOK: core::sync::atomic::AtomicPtr<()> =
    core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());

/// Installs the hook.
#[cfg(feature = "testpoints")]
pub fn install(hook: Hook) {
    HOOK.store(hook as *mut (), core::sync::atomic::Ordering::Release);
}

/// Called at each point.
#[inline(always)]
pub fn reached(point: Point) {
    #[cfg(feature = "testpoints")]
    {
        let hook = HOOK.load(core::sync::atomic::Ordering::Acquire);
        if !hook.is_null() {
            // SAFETY: only `install` writes HOOK, and it writes a `Hook`.
            let hook = unsafe { core::mem::transmute::<*mut (), Hook>(hook) };
            hook(point);
        }
    }
    let _ = point;
}
