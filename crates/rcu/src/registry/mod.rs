//! The threads a domain waits for: records that are claimed, given back and claimed again, but never
//! freed.
//!
//! Flavours whose readers do nothing (`qsbr`, `tasks`) must know who the readers are. Each thread
//! claims a [`Record`] of the domain's [`List`] and keeps its [`Mark`] in it. Records come in chunks
//! of one page; chunks are pushed and never taken out while the domain lives, so whoever walks the
//! list needs no lock and no protection, and a walk that is under way stays right whatever happens to
//! the list meanwhile. Memory is bounded by the largest number of threads registered at one time.
//!
//! # Signals
//! Claiming and giving back are compare-and-swap loops in which somebody always gets on, and memory
//! comes from `mmap`: a handler may interrupt them anywhere and register itself, in a record of its
//! own. They need no blocked signals and no lock.
//!
//! # States of a record
//! | `owner` | `mark` | state | who moves it on |
//! |---|---|---|---|
//! | 0 | 0 | free | a thread claims it: `owner` = its identity |
//! | a thread | 0 | registered, offline | the owner: online, or gives it back |
//! | a thread | n | registered, last quiet at the clock's n | the owner |
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[Q6]` | `List::push`, `Chunk::next`, `List::first` | release / acquire: a chunk that is found is initialised, and its first record has an owner |
//! | `[Q7]` | [`Record::give_back`], [`Record::claim`] | release / acquire of `owner`: the last owner's words before the next owner's |
//!
//! # Invariants
//! 1. Chunks are never unmapped; a reference to a record is valid for ever.
//! 2. A free record's mark is 0.
//! 3. Only the owner writes a record's mark, except where the owner is known to be gone: in a forked
//!    child (`pool::prune`), and after its thread has ended (`pool::Identity::is_gone`).
//!
//! Proved by `tests/loom.rs` (`registry_..`), with one record to a chunk.

#[cfg(not(loom))]
pub(crate) mod pool;

use owlet_percpu::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use owlet_percpu::testpoint::{Point, reached};

use crate::quiescent::{Fences, Letter, Mark};

/// Records of a chunk: what fits a page beside the chunk's header.
#[cfg(not(loom))]
pub const CHUNK: usize = 31;
/// Records of a chunk in the models.
#[cfg(loom)]
pub const CHUNK: usize = 1;

/// One registration of a thread with a domain.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Record {
    /// The owner's: written at every change of state, read by grace periods.
    pub mark: Mark,
    /// Constant while claimed, on a line of its own.
    who: Who,
}

#[repr(align(64))]
#[derive(Debug)]
struct Who {
    owner: AtomicUsize,
    tid: AtomicU32,
    /// 1 while the owner is offline because it waits for a grace period of the same domain.
    aside: AtomicU32,
    /// The clock at the registration, for the mutant that thinks of threads too early.
    #[cfg(owlet_mutants)]
    since: owlet_percpu::atomic::AtomicU64,
}

/// Records, and the way to the next ones.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Chunk {
    next: AtomicPtr<Chunk>,
    #[cfg(not(loom))]
    pool: pool::Link,
    records: [Record; CHUNK],
}

/// The chunks of one domain.
#[derive(Debug)]
pub struct List {
    head: AtomicPtr<Chunk>,
}

impl Record {
    /// Free. (All zero.)
    #[cfg(loom)]
    fn new() -> Self {
        Self {
            mark: Mark::new(),
            who: Who {
                owner: AtomicUsize::new(0),
                tid: AtomicU32::new(0),
                aside: AtomicU32::new(0),
                #[cfg(owlet_mutants)]
                since: owlet_percpu::atomic::AtomicU64::new(0),
            },
        }
    }

    /// True if it was free and is now `owner`'s.
    pub fn claim(&self, owner: usize, f: &impl Fences) -> bool {
        let owners = &self.who.owner;
        // The look saves the exclusive access. (Loom forgets other threads' accesses over it.)
        let free = (cfg!(loom) || owners.load(Ordering::Relaxed) == 0)
            && owners.compare_exchange(0, owner, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if free {
            // [Q7] Acquire: pairs with the release in give_back(). Without it: the last owner's
            // "offline" lands after our "online", and no grace period waits for us.
            f.acquire(Letter::Q7);
            reached(Point::AfterClaim);
        }
        free
    }

    /// Free again. The owner has nothing of it left in use.
    pub fn give_back(&self, f: &impl Fences) {
        self.mark.offline(f);
        self.set_tid(0);
        self.set_aside(false);
        // [Q7] Release: pairs with the acquire in claim().
        f.release(Letter::Q7);
        self.who.owner.store(0, Ordering::Relaxed);
    }

    /// Whose it is; 0 = nobody's.
    pub fn owner(&self) -> usize {
        self.who.owner.load(Ordering::Relaxed)
    }

    /// The kernel's number of the owner's thread.
    pub fn tid(&self) -> u32 {
        self.who.tid.load(Ordering::Relaxed)
    }

    /// Notes it.
    pub fn set_tid(&self, tid: u32) {
        self.who.tid.store(tid, Ordering::Relaxed);
    }

    /// Notes that the owner has gone offline for a wait, or is back; says what was noted.
    pub fn set_aside(&self, aside: bool) -> bool {
        self.who.aside.swap(u32::from(aside), Ordering::Relaxed) != 0
    }

    /// The clock at the registration.
    #[cfg(owlet_mutants)]
    pub fn since(&self) -> &owlet_percpu::atomic::AtomicU64 {
        &self.who.since
    }
}

impl Chunk {
    /// Chunks of the models come from the heap.
    #[cfg(loom)]
    #[must_use]
    pub fn leaked() -> &'static Self {
        let next = AtomicPtr::new(core::ptr::null_mut());
        Box::leak(Box::new(Self { next, records: core::array::from_fn(|_| Record::new()) }))
    }

    fn next(&self, f: &impl Fences) -> Option<&'static Chunk> {
        follow(&self.next, f)
    }
}

fn follow(link: &AtomicPtr<Chunk>, f: &impl Fences) -> Option<&'static Chunk> {
    let at = link.load(Ordering::Relaxed);
    // [Q6] Acquire: pairs with the release in push().
    f.acquire(Letter::Q6);
    // SAFETY: null, or a chunk that push() put there; never unmapped (invariant 1).
    unsafe { at.as_ref() }
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl List {
    /// No records.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { head: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// No records. (Loom's atomics are no constants.)
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { head: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// A record for `owner` (not 0): a free one, or the first of a chunk that `more` gives.
    pub fn claim(
        &self,
        owner: usize,
        f: &impl Fences,
        more: impl FnOnce() -> &'static Chunk,
    ) -> &'static Record {
        if let Some(record) = self.records(f).find(f, |record| record.claim(owner, f)) {
            return record;
        }
        let chunk = more();
        // Nobody else can see the chunk yet, so this claim succeeds.
        let [first, ..] = &chunk.records;
        let _ = first.claim(owner, f);
        self.push(chunk, f);
        first
    }

    fn push(&self, chunk: &'static Chunk, f: &impl Fences) {
        let at = core::ptr::from_ref(chunk).cast_mut();
        // A guess: the exchange says what it is. (Loom explores nothing after a look.)
        let mut head = core::ptr::null_mut();
        loop {
            chunk.next.store(head, Ordering::Relaxed);
            // [Q6] Release: pairs with the acquire in follow(). Without it: a walk ends at a
            // `next` that is not yet written and misses threads behind it.
            f.release(Letter::Q6);
            let pushed = self.head.compare_exchange(head, at, Ordering::Relaxed, Ordering::Relaxed);
            match pushed {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// All records, free ones too.
    #[cfg(not(loom))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static Record> + use<> {
        let mut at = self.records(&pool::Real);
        core::iter::from_fn(move || {
            let record = at.current();
            at.advance(&pool::Real);
            record
        })
    }

    /// A walk over all records that are there at the call, free ones too.
    #[must_use]
    pub fn records(&self, f: &impl Fences) -> Records {
        Records { chunk: follow(&self.head, f), at: 0 }
    }
}

/// A walk over records. It may be kept, and goes on where it was; chunks that are pushed meanwhile
/// are not part of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Records {
    chunk: Option<&'static Chunk>,
    at: usize,
}

impl Records {
    /// A walk that is over.
    pub const NONE: Self = Self { chunk: None, at: 0 };

    /// The record the walk is at.
    #[must_use]
    pub fn current(&self) -> Option<&'static Record> {
        self.chunk?.records.get(self.at)
    }

    /// On to the next one.
    pub fn advance(&mut self, f: &impl Fences) {
        self.at += 1;
        if self.at >= CHUNK {
            self.at = 0;
            self.chunk = self.chunk.and_then(|chunk| chunk.next(f));
        }
    }

    /// The first record from here on that `wanted` accepts.
    pub fn find(
        mut self,
        f: &impl Fences,
        mut wanted: impl FnMut(&'static Record) -> bool,
    ) -> Option<&'static Record> {
        while let Some(record) = self.current() {
            if wanted(record) {
                return Some(record);
            }
            self.advance(f);
        }
        None
    }
}
