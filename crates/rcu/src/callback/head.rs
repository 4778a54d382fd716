//! What is queued: one word to link it, one for its function, and one that says where it is.
//!
//! | `state` | meaning | next |
//! |---|---|---|
//! | `IDLE` | its owner's | posting: `QUEUED` |
//! | `QUEUED` | the queue's, until its callback begins | about to be called: `IDLE`; posted again: `LEAKED` |
//! | `LEAKED` | was posted while queued: nobody's, for ever | |
//!
//! A head that is posted twice is still linked once, so no list is ever damaged; its callback is not
//! called at all, because after the first call its memory may be gone while the second is due
//! (the kernel does the same: `debug_rcu_head_queue`, kernel/rcu/tree.c).

use core::ptr::NonNull;

use owlet_percpu::atomic::{AtomicPtr, AtomicU32, Ordering};

/// What is called with a head after a grace period.
///
/// # Safety
/// For the caller: the head was posted with this function, and a grace period has passed.
pub type Callback = unsafe fn(NonNull<Head>);

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const LEAKED: u32 = 2;

/// The part of an object that lets it be queued for a callback without an allocation.
///
/// Make it a field (the first one of a `repr(C)` struct is the easiest to come back from) of what is
/// to be freed.
#[derive(Debug)]
#[repr(C)]
pub struct Head {
    /// The one queued before, or null. The queue's while `QUEUED`.
    pub(super) next: AtomicPtr<Head>,
    /// A [`Callback`]. Written by whoever took the head from `IDLE` to `QUEUED`.
    func: AtomicPtr<()>,
    state: AtomicU32,
    bytes: u32,
}

/// What became of a head that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Posting {
    /// It is the poster's to link.
    Fresh,
    /// It was queued already and is leaked now.
    Twice,
}

/// What a head that was taken from a queue wants.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub enum Taken {
    /// Its callback.
    Call(Callback),
    /// Nothing, ever: it was posted twice.
    Leak,
}

impl Default for Head {
    fn default() -> Self {
        Self::new()
    }
}

impl Head {
    /// A head that is not queued, of an object whose size nobody told.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self::sized(0)
    }

    /// A head that is not queued. `bytes` is what its callback is going to free: queues that hold
    /// much are worked off sooner.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn sized(bytes: usize) -> Self {
        let null = core::ptr::null_mut();
        let bytes = if bytes > u32::MAX as usize { u32::MAX } else { bytes as u32 };
        Self {
            next: AtomicPtr::new(null),
            func: AtomicPtr::new(null.cast()),
            state: AtomicU32::new(IDLE),
            bytes,
        }
    }

    /// A head that is not queued. (Loom's atomics are no constants.)
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Self {
        let null = core::ptr::null_mut();
        Self {
            next: AtomicPtr::new(null),
            func: AtomicPtr::new(core::ptr::null_mut()),
            state: AtomicU32::new(IDLE),
            bytes: 0,
        }
    }

    /// What the callback is going to free.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.bytes)
    }

    /// True from posting until the callback is about to be called.
    #[must_use]
    pub fn is_queued(&self) -> bool {
        self.state.load(Ordering::Relaxed) != IDLE
    }

    /// Claims the head for a queue.
    pub(crate) fn post(&self, func: Callback) -> Posting {
        loop {
            let (relaxed, state) = (Ordering::Relaxed, &self.state);
            match state.compare_exchange(IDLE, QUEUED, Ordering::Acquire, relaxed) {
                Ok(_) => {
                    self.func.store(func as *mut (), relaxed);
                    return Posting::Fresh;
                }
                Err(LEAKED) => return Posting::Twice,
                // Fails if it is being called just now: then it may be posted again.
                Err(_) => {
                    if state.compare_exchange(QUEUED, LEAKED, relaxed, relaxed).is_ok() {
                        return Posting::Twice;
                    }
                }
            }
        }
    }

    /// Gives the head back to its owner, i.e. to its callback. The caller holds it exclusively, and
    /// does not touch it afterwards.
    pub(crate) fn take(&self) -> Taken {
        let func = self.func.load(Ordering::Relaxed);
        let taken = self.state.compare_exchange(QUEUED, IDLE, Ordering::Release, Ordering::Relaxed);
        if taken.is_err() {
            return Taken::Leak;
        }
        // SAFETY: it was QUEUED, and post() stores a `Callback` before anybody can link the head.
        Taken::Call(unsafe { core::mem::transmute::<*mut (), Callback>(func) })
    }
}
