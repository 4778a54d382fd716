//! Tasks-Trace: sections that may sleep and fault, and cost next to nothing when nested.
//!
//! An SRCU domain, and per thread a word for each domain it is inside: only the outermost section
//! touches the domain's counters, the others count in the word. For code that is entered from many
//! layers at once, such as a program attached to a function that is itself traced.
//!
//! # Signals
//! A handler may enter sections at any instruction. On entry the domain's counter goes up *before* the
//! word says so, on exit the word is cleared *before* the counter goes down: a handler in between finds
//! no word and enters by itself. (The kernel has it the other way round: there a handler that
//! relies on a count that is not yet up is waited for by the grace period's plain part, since
//! handlers run with preemption off. Here nobody waits for handlers.)
//!
//! # A grace period
//! Is one of SRCU, and contains the user-space counterpart of a plain one: a membarrier that restarts
//! all restartable sequences, in the portable backend a full fence (where readers have fences).

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use crate::domain::{Domain, inherent_domain, sealed};
use crate::engine::EngineRef;
use crate::held;
use crate::srcu::Srcu;

/// A Tasks-Trace domain: sleepable, nestable sections that stay on their thread.
///
/// ```
/// use owlet_rcu::TasksTrace;
///
/// static PROGRAMS: TasksTrace = TasksTrace::new();
///
/// let outer = PROGRAMS.read();
/// let inner = PROGRAMS.read(); // counts in a thread-local word
/// drop(outer); // in any order
/// drop(inner);
/// PROGRAMS.synchronize();
/// ```
///
/// A section does not leave its thread:
///
/// ```compile_fail,E0277
/// # use owlet_rcu::TasksTrace;
/// # static PROGRAMS: TasksTrace = TasksTrace::new();
/// let section = PROGRAMS.read();
/// std::thread::spawn(move || drop(section));
/// ```
///
/// # Fork
/// As with [`Srcu`]: the forking thread's own sections go on protecting it in the child.
pub struct TasksTrace {
    srcu: Srcu,
}

/// A section of a [`TasksTrace`] domain. Ends when dropped, on its thread.
#[must_use = "the section ends when this is dropped"]
pub struct TraceGuard<'a> {
    domain: &'a TasksTrace,
    /// Place of the thread's word, or, from [`PLACES`] on, the token of a section of its own.
    place: u32,
    _thread: PhantomData<*mut ()>,
}

/// Words of a thread. A domain has the one its number says; if that is taken by another domain, each
/// section counts for itself.
const PLACES: u32 = 8;

thread_local! {
    /// The engine's number (32 bits), SRCU's token (8) and the depth (24); depth 0 = free.
    static WORDS: [AtomicU64; PLACES as usize] =
        const { [const { AtomicU64::new(0) }; PLACES as usize] };
}

const DEPTH_BITS: u32 = 24;
const DEPTH_MAX: u64 = (1 << DEPTH_BITS) - 1;

// Tokens are multiples of RANK.
const _: () = assert!(held::TOKENS / held::RANK <= 256);

fn pack(id: u32, token: u32) -> u64 {
    u64::from(id) << 32 | u64::from((token / held::RANK) & 0xff) << DEPTH_BITS | 1
}

fn token(word: u64) -> u32 {
    ((word >> DEPTH_BITS) & 0xff) as u32 * held::RANK
}

/// The place of the calling thread's word.
#[inline(always)]
fn with_word<T>(place: u32, f: impl FnOnce(&AtomicU64) -> T) -> T {
    WORDS.with(|words| {
        let [first, ..] = words;
        f(words.get(place as usize).unwrap_or(first))
    })
}

impl TasksTrace {
    /// A domain without readers.
    #[must_use]
    pub const fn new() -> Self {
        Self::named("")
    }

    /// [`TasksTrace::new`] with a name for reports and statistics.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self { srcu: Srcu::named(name) }
    }

    inherent_domain!();

    /// Enters a section that ends when the guard is dropped. May sleep; never fails, blocks or
    /// allocates. Outermost: as [`Srcu::read`]; nested: an increment.
    #[inline]
    pub fn read(&self) -> TraceGuard<'_> {
        TraceGuard { domain: self, place: self.enter(), _thread: PhantomData }
    }

    #[inline]
    fn enter(&self) -> u32 {
        let id = self.engine().id();
        let place = id % PLACES;
        with_word(place, |word| {
            let now = word.load(Ordering::Relaxed);
            let depth = now & DEPTH_MAX;
            if now >> 32 == u64::from(id) && depth != 0 && depth != DEPTH_MAX {
                // A handler between the load and the store leaves what it finds.
                word.store(now + 1, Ordering::Relaxed);
                return place;
            }
            // The counter first: a handler that comes now finds no word and enters by itself.
            let token = self.srcu.read_lock();
            if depth != 0 {
                return PLACES + token;
            }
            compiler_fence(Ordering::SeqCst);
            word.store(pack(id, token), Ordering::Relaxed);
            place
        })
    }

    #[inline]
    fn leave(&self, place: u32) {
        if place >= PLACES {
            // SAFETY: enter() had the token from this domain on this thread; a guard is dropped once.
            unsafe { self.srcu.read_unlock(place - PLACES) };
            return;
        }
        with_word(place, |word| {
            let now = word.load(Ordering::Relaxed);
            if now & DEPTH_MAX > 1 {
                word.store(now - 1, Ordering::Relaxed);
                return;
            }
            // The word first: as in enter().
            word.store(0, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // SAFETY: the token of the section that enter() began on this thread for this domain;
            // its word is cleared, so nobody gives it back again.
            unsafe { self.srcu.read_unlock(token(now)) };
        });
    }
}

impl Default for TasksTrace {
    fn default() -> Self {
        Self::new()
    }
}

impl sealed::Sealed for TasksTrace {}

impl Domain for TasksTrace {
    #[inline]
    fn engine(&self) -> EngineRef {
        self.srcu.engine()
    }

    fn name(&self) -> &'static str {
        Domain::name(&self.srcu)
    }
}

impl fmt::Debug for TasksTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TasksTrace").field("srcu", &self.srcu).finish()
    }
}

impl TraceGuard<'_> {
    /// True if this is a section of `domain`.
    #[inline(always)]
    pub(crate) fn is_of(&self, domain: &TasksTrace) -> bool {
        core::ptr::eq(self.domain, domain)
    }
}

impl Drop for TraceGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.domain.leave(self.place);
    }
}

impl fmt::Debug for TraceGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceGuard").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
