//! What a thread knows about itself: its ids, how deep it is in events, and which sessions have
//! heard its name.
//!
//! The block is a constant thread-local without a destructor: it is there in signal handlers, before
//! `main`, in destructors of other thread-locals and after `exit` has begun.
//!
//! # How a fork is noticed
//! A thread keeps the fork generation (`owlet_sys::fork`) its ids were read under. Both equal = the
//! ids are this thread's. A new thread has generation 0, which no process has; a forked child has
//! another one than its parent, whichever way it was made. When they differ the ids are read again
//! and `announced` is forgotten.

use core::cell::Cell;
use owlet_sys::{fork, process};

/// Sessions a process can be in at once.
pub(crate) const SESSIONS: usize = 16;

/// Events inside events (a probe that emits, a signal handler that interrupts an emission) are
/// recorded up to this depth; deeper ones are counted as lost to recursion.
pub(crate) const DEPTH: u32 = 4;

/// The thread's own block.
pub(crate) struct Context {
    depth: Cell<u32>,
    /// Events of bridges being built: values of the user's are formatted.
    #[cfg(any(feature = "tracing", feature = "log"))]
    building: Cell<u32>,
    controlling: Cell<bool>,
    generation: Cell<u64>,
    pid: Cell<u32>,
    tid: Cell<u32>,
    /// By session slot: the serial of the session that has this thread's record.
    announced: [Cell<u32>; SESSIONS],
}

thread_local! {
    static CONTEXT: Context = const {
        Context {
            depth: Cell::new(0),
            #[cfg(any(feature = "tracing", feature = "log"))]
            building: Cell::new(0),
            controlling: Cell::new(false),
            generation: Cell::new(0),
            pid: Cell::new(0),
            tid: Cell::new(0),
            announced: [const { Cell::new(0) }; SESSIONS],
        }
    };
}

/// Runs `f` with the thread's block.
#[inline(always)]
pub(crate) fn with<R>(f: impl FnOnce(&Context) -> R) -> R {
    // `f` is called outside of `LocalKey::with`, which the compiler would not inline around it.
    let context = CONTEXT.with(core::ptr::from_ref);
    // SAFETY: a constant thread-local without a destructor lives as long as its thread, which is the
    // one that runs `f`.
    f(unsafe { &*context })
}

impl Context {
    /// One level deeper; the number of levels there were.
    #[inline(always)]
    pub(crate) fn enter(&self) -> u32 {
        let depth = self.depth.get();
        self.depth.set(depth.wrapping_add(1));
        depth
    }

    /// One level up again.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.depth.set(self.depth.get().wrapping_sub(1));
    }

    /// Begins to build a bridge's event, unless `most` are being built already.
    #[cfg(any(feature = "tracing", feature = "log"))]
    #[inline(always)]
    pub(crate) fn begin_building(&self, most: u32) -> bool {
        let now = self.building.get();
        if now < most {
            self.building.set(now + 1);
        }
        now < most
    }

    /// Undoes [`begin_building`](Self::begin_building).
    #[cfg(any(feature = "tracing", feature = "log"))]
    #[inline(always)]
    pub(crate) fn end_building(&self) {
        self.building.set(self.building.get().wrapping_sub(1));
    }

    /// Whether the thread is inside an event.
    pub(crate) fn in_event(&self) -> bool {
        self.depth.get() != 0
    }

    /// Marks the thread as the one that changes probes; `false` when it is already.
    pub(crate) fn begin_control(&self) -> bool {
        !self.controlling.replace(true)
    }

    /// Undoes [`begin_control`](Self::begin_control).
    pub(crate) fn end_control(&self) {
        self.controlling.set(false);
    }

    /// Process and thread id.
    ///
    /// Cost: four loads and a compare; once per thread and fork, two system calls.
    #[inline(always)]
    pub(crate) fn ids(&self) -> (u32, u32) {
        let generation = fork::generation();
        if generation != self.generation.get() {
            self.refresh_slow(generation);
        }
        (self.pid.get(), self.tid.get())
    }

    /// Whether the session of that slot and serial has this thread's record.
    #[inline(always)]
    pub(crate) fn announced(&self, slot: usize, serial: u32) -> bool {
        self.announced.get(slot).is_none_or(|cell| cell.get() == serial)
    }

    /// The session has this thread's record now.
    pub(crate) fn set_announced(&self, slot: usize, serial: u32) {
        if let Some(cell) = self.announced.get(slot) {
            cell.set(serial);
        }
    }

    #[cold]
    fn refresh_slow(&self, generation: u64) {
        for cell in &self.announced {
            cell.set(0);
        }
        self.pid.set(process::getpid());
        self.tid.set(process::gettid());
        // Last: a signal handler that comes before this refreshes for itself.
        self.generation.set(generation);
    }
}
