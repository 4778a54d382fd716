//! The blocks of one CPU that wait for a grace period, oldest first, and a few empty ones.
//!
//! Nobody waits for the lock: who finds it taken goes to another CPU's queue. It is held for a few
//! loads and stores, never while anything is freed, allocated or called.
//!
//! | word | written by | meaning |
//! |---|---|---|
//! | `lock` | whoever comes | `identity` of the thread that has the queue, 0 = nobody |
//! | `head`, `Link::next` | the lock's owner | the oldest block and, from each, the next younger one |
//! | `tail` | the lock's owner | the youngest; a hint to whoever puts a fork right |
//! | `len`, `spares` | the lock's owner | how many; read by anybody, as a hint |
//! | `oldest`, `newest` | the lock's owner | moments of the first block and the last, if there are any; the same |
//! | `batch` | the lock's owner | blocks that came one after the other with the youngest one's moment |
//! | `pushes`, `seen`, `idle` | the lock's owner; the worker | how often something was pushed, and had been at the worker's last look; how many looks in a row found nothing new |
//! | `spare` | the lock's owner | empty blocks, linked by `next` |
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[F2]` | `lock` | acquire and release: a block as the last owner left it |
//!
//! # Invariants
//! 1. Cookies never go back from `head` to `tail`: [`Locked::push`] makes a block that was overtaken wait
//!    for its elder's moment. So whoever finds the oldest not ready need not look further.
//! 2. After each single store the list from `head` holds every block that was pushed and not taken, in
//!    order: a forked child may find the queue there ([`Queue::inherit`]).

use core::ptr::NonNull;

use owlet_percpu::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::seq::is_at_or_after;

/// A block's place in a queue, and the moment it waits for.
#[derive(Debug)]
#[repr(C)]
pub struct Link {
    next: AtomicPtr<Link>,
    cookie: AtomicU64,
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// In no queue.
    #[must_use]
    pub fn new() -> Self {
        Self { next: AtomicPtr::new(core::ptr::null_mut()), cookie: AtomicU64::new(0) }
    }

    /// The moment.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Relaxed)
    }

    /// Sets it. The caller has the block to itself.
    pub fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }

    /// The next one, for lists outside of queues.
    pub(super) fn next(&self) -> &AtomicPtr<Link> {
        &self.next
    }
}

/// See the module's header.
#[derive(Debug)]
pub struct Queue {
    lock: AtomicUsize,
    head: AtomicPtr<Link>,
    tail: AtomicPtr<Link>,
    spare: AtomicPtr<Link>,
    len: AtomicU32,
    spares: AtomicU32,
    pushes: AtomicU32,
    seen: AtomicU32,
    idle: AtomicU32,
    batch: AtomicU32,
    oldest: AtomicU64,
    newest: AtomicU64,
}

/// A queue that is ours for the moment.
#[derive(Debug)]
pub struct Locked<'q>(&'q Queue);

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl Queue {
    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        let null = core::ptr::null_mut;
        Self {
            lock: AtomicUsize::new(0),
            head: AtomicPtr::new(null()),
            tail: AtomicPtr::new(null()),
            spare: AtomicPtr::new(null()),
            len: AtomicU32::new(0),
            spares: AtomicU32::new(0),
            pushes: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            batch: AtomicU32::new(0),
            oldest: AtomicU64::new(0),
            newest: AtomicU64::new(0),
        }
    }

    /// The queue, unless somebody else has it. `me` names the caller and is not 0.
    #[must_use]
    pub fn try_lock(&self, me: usize) -> Option<Locked<'_>> {
        // [F2] Acquire: pairs with the release in drop(). Without it: we take a block out whose words
        // are not there yet.
        let got = self.lock.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
        got.ok().map(|_| Locked(self))
    }

    /// Blocks that wait; a hint.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// True if none waits; a hint.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Empty blocks; a hint.
    #[must_use]
    pub fn spares(&self) -> u32 {
        self.spares.load(Ordering::Relaxed)
    }

    /// The moment of the oldest block; a hint, which may be too early, and not too late.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.oldest.load(Ordering::Relaxed))
    }

    /// The moment of the youngest block; a hint. (Without the lock: whoever looks at other CPUs' queues and is
    /// preempted there keeps nobody out of them.)
    #[must_use]
    pub fn newest(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.newest.load(Ordering::Relaxed))
    }

    /// Blocks that came one after the other with the youngest one's moment; a hint.
    #[must_use]
    pub fn batch(&self) -> u32 {
        self.batch.load(Ordering::Relaxed)
    }

    /// The worker's: how often in a row it has asked since something was pushed, now included. Those who
    /// push also free.
    #[must_use]
    pub fn deserted(&self) -> u32 {
        let pushes = self.pushes.load(Ordering::Relaxed);
        let same = self.seen.swap(pushes, Ordering::Relaxed) == pushes;
        let asked = if same { self.idle.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.idle.store(asked, Ordering::Relaxed);
        asked
    }

    /// In a forked child whose only thread is `me`: if another thread had the queue, it is freed and its
    /// hints are put right. Calls `each` with every block that waits.
    pub fn inherit(&self, me: usize, mut each: impl FnMut(NonNull<Link>)) {
        let owner = self.lock.load(Ordering::Relaxed);
        let (mut at, mut last) = (self.head.load(Ordering::Relaxed), core::ptr::null_mut());
        let mut count = 0;
        while let Some(link) = NonNull::new(at) {
            each(link);
            last = at;
            count += 1;
            // SAFETY: in the list, so a block that nobody frees (invariant 2).
            at = unsafe { link.as_ref() }.next.load(Ordering::Relaxed);
        }
        if owner != 0 && owner != me {
            let moment = |at: *mut Link| {
                // SAFETY: null, or in the list.
                unsafe { at.as_ref() }.map_or(0, Link::cookie)
            };
            self.oldest.store(moment(self.head.load(Ordering::Relaxed)), Ordering::Relaxed);
            self.newest.store(moment(last), Ordering::Relaxed);
            self.tail.store(last, Ordering::Relaxed);
            self.len.store(count, Ordering::Relaxed);
            // What was being taken or given back there stays with the thread that stayed behind.
            self.spare.store(core::ptr::null_mut(), Ordering::Relaxed);
            self.spares.store(0, Ordering::Relaxed);
            self.lock.store(0, Ordering::Relaxed);
        }
    }
}

impl Locked<'_> {
    /// Puts a block behind the others.
    ///
    /// # Safety
    /// `link` is a block that the caller has to itself; the queue's from here on.
    pub unsafe fn push(&mut self, link: NonNull<Link>) {
        let queue = self.0;
        // SAFETY: the caller's.
        let block = unsafe { link.as_ref() };
        block.next.store(core::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: null, or the youngest block in the list, which nobody frees.
        let last = unsafe { queue.tail.load(Ordering::Relaxed).as_ref() };
        let mut batch = 0;
        match last {
            Some(last) => {
                if !is_at_or_after(block.cookie(), last.cookie()) {
                    block.set_cookie(last.cookie());
                }
                if block.cookie() == last.cookie() {
                    batch = queue.batch();
                }
                // Release: a forked child that finds the link finds the block.
                last.next.store(link.as_ptr(), Ordering::Release);
            }
            None => {
                queue.oldest.store(block.cookie(), Ordering::Relaxed);
                queue.head.store(link.as_ptr(), Ordering::Release);
            }
        }
        queue.newest.store(block.cookie(), Ordering::Relaxed);
        queue.tail.store(link.as_ptr(), Ordering::Release);
        queue.len.store(queue.len() + 1, Ordering::Relaxed);
        let pushes = queue.pushes.load(Ordering::Relaxed).wrapping_add(1);
        queue.pushes.store(pushes, Ordering::Relaxed);
        queue.batch.store(batch.saturating_add(1), Ordering::Relaxed);
    }

    /// Takes the oldest block out, if `ready` says so of its moment.
    pub fn pop(&mut self, ready: impl FnOnce(u64) -> bool) -> Option<NonNull<Link>> {
        let queue = self.0;
        let link = NonNull::new(queue.head.load(Ordering::Relaxed))?;
        // SAFETY: in the list, and nobody but the lock's owner takes it out.
        let block = unsafe { link.as_ref() };
        if !ready(block.cookie()) {
            return None;
        }
        let next = block.next.load(Ordering::Relaxed);
        queue.head.store(next, Ordering::Release);
        // SAFETY: as above.
        match unsafe { next.as_ref() } {
            Some(next) => queue.oldest.store(next.cookie(), Ordering::Relaxed),
            None => queue.tail.store(next, Ordering::Release),
        }
        queue.len.store(queue.len().saturating_sub(1), Ordering::Relaxed);
        Some(link)
    }

    /// How many different moments there are that `passed` denies.
    pub fn batches(&self, passed: impl Fn(u64) -> bool) -> u32 {
        let (mut batches, mut last) = (0, None);
        let mut at = self.0.head.load(Ordering::Relaxed);
        // SAFETY: as in pop().
        while let Some(block) = unsafe { at.as_ref() } {
            let cookie = block.cookie();
            if last != Some(cookie) && !passed(cookie) {
                batches += 1;
                last = Some(cookie);
            }
            at = block.next.load(Ordering::Relaxed);
        }
        batches
    }

    /// Keeps an empty block.
    ///
    /// # Safety
    /// As [`Locked::push`].
    pub unsafe fn keep(&mut self, link: NonNull<Link>) {
        let queue = self.0;
        // SAFETY: the caller's.
        unsafe { link.as_ref() }.next.store(queue.spare.load(Ordering::Relaxed), Ordering::Relaxed);
        queue.spare.store(link.as_ptr(), Ordering::Release);
        queue.spares.store(queue.spares() + 1, Ordering::Relaxed);
    }

    /// An empty block.
    pub fn spare(&mut self) -> Option<NonNull<Link>> {
        let queue = self.0;
        let link = NonNull::new(queue.spare.load(Ordering::Relaxed))?;
        // SAFETY: kept here, and nobody but the lock's owner takes it out.
        let next = unsafe { link.as_ref() }.next.load(Ordering::Relaxed);
        queue.spare.store(next, Ordering::Release);
        queue.spares.store(queue.spares().saturating_sub(1), Ordering::Relaxed);
        Some(link)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // [F2] Release: pairs with the acquire in try_lock().
        self.0.lock.store(0, Ordering::Release);
    }
}
