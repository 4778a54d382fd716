//! Probe lists: who is called when an event happens.
//!
//! A tracepoint points to an immutable [`List`] of entries, highest priority first. A change
//! publishes a new list and retires the old one; readers walk whichever list they found, under one
//! SRCU domain for all tracepoints, [`PROBES`].
//!
//! # Protocol
//! Emission: read lock -> load the list -> call each entry -> read unlock.
//! Change: control lock -> build the new list -> publish it -> chain the old one to `retired`
//! -> switch sites -> control unlock. Wait: take the chain under the control lock -> unlock -> one
//! grace period of [`PROBES`] for the whole chain -> free it, outside of any lock, so that a probe's
//! destructor may emit events and change probes.
//!
//! # Invariants
//! 1. A list's `entries` do not change while it is published; of an entry only `stub` does.
//! 2. A retired list is freed after a grace period that began after it was replaced.
//! 3. `next` is touched by the owner of the chain only, which is the control lock or the waiter.
//! 4. A list contains function and data of a probe as one value: they cannot be mixed up.
//!
//! # Barriers
//! | letter | where | pairs with | orders |
//! |---|---|---|---|
//! | `[A]` | load in [`Slot::read`] | `[B]` | the entries' contents before they are used |
//! | `[B]` | swap in [`Slot::publish`] | `[A]` | the same |
//!
//! Reclamation is ordered by the domain's own barriers.

use crate::sink::SinkPoint;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use core::any::Any;
use core::ptr;
use owlet_percpu::PerCpuCounters;
use owlet_rcu::Srcu;
use std::alloc::Layout;
use std::sync::Arc;

/// The domain every probe runs under.
pub(crate) static PROBES: Srcu = Srcu::new();

/// Probes that panicked and were switched off, in this process.
pub(crate) static PANICS: AtomicU64 = AtomicU64::new(0);

/// A function attached to tracepoints of one signature. Clones are the same probe.
///
/// What a probe may assume: it runs on the emitting thread, perhaps inside a signal handler. It may
/// emit events (to a depth), register and unregister probes, allocate and block if the emitting code
/// may; while it runs nobody's [`synchronize`](crate::synchronize) returns. A probe that panics is
/// switched off and the panic goes no further.
pub struct Probe<F: ?Sized>(pub(crate) Arc<Body<F>>);

pub(crate) struct Body<F: ?Sized> {
    /// It panicked: never call it again.
    stopped: AtomicBool,
    function: Box<F>,
}

impl<F: ?Sized> Clone for Probe<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: ?Sized> core::fmt::Debug for Probe<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Probe").field("stopped", &self.stopped()).finish_non_exhaustive()
    }
}

impl<F: ?Sized> Probe<F> {
    /// A probe that calls `function`.
    #[must_use]
    pub fn new(function: Box<F>) -> Self {
        Self(Arc::new(Body { stopped: AtomicBool::new(false), function }))
    }

    /// Whether it was switched off because it panicked.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Relaxed)
    }
}

impl<F: ?Sized> Body<F> {
    /// Calls the probe; a panic ends here.
    pub(crate) fn call(&self, call: impl FnOnce(&F)) {
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        let run = core::panic::AssertUnwindSafe(|| call(&self.function));
        if let Err(payload) = std::panic::catch_unwind(run) {
            self.stopped.store(true, Ordering::Relaxed);
            PANICS.fetch_add(1, Ordering::Relaxed);
            // Its destructor might panic as well.
            core::mem::forget(payload);
        }
    }
}

/// What an entry calls.
#[derive(Clone)]
pub(crate) enum Target {
    /// A session.
    Sink(Arc<SinkPoint>),
    /// A `Body<F>`, `F` being the tracepoint's.
    Function(Arc<dyn Any + Send + Sync>),
}

impl Target {
    fn address(&self) -> *const () {
        match self {
            Self::Sink(sink) => Arc::as_ptr(sink).cast(),
            Self::Function(body) => Arc::as_ptr(body).cast(),
        }
    }

    /// Whether both are the same probe, not merely equal ones.
    pub(crate) fn same(&self, other: &Self) -> bool {
        ptr::eq(self.address(), other.address())
    }
}

/// One probe of one list.
pub(crate) struct Entry {
    pub(crate) target: Target,
    pub(crate) priority: i32,
    /// Removed, but there was no memory for a list without it.
    stub: AtomicBool,
}

impl Entry {
    pub(crate) fn new(target: Target, priority: i32) -> Self {
        Self { target, priority, stub: AtomicBool::new(false) }
    }

    /// Whether it is to be called.
    #[inline(always)]
    pub(crate) fn live(&self) -> bool {
        !self.stub.load(Ordering::Relaxed)
    }

    /// The session, if it is one and to be called.
    #[inline(always)]
    pub(crate) fn sink(&self) -> Option<&SinkPoint> {
        match &self.target {
            Target::Sink(sink) if self.live() => Some(sink),
            _ => None,
        }
    }
}

/// Where a tracepoint's events are counted.
#[derive(Clone, Copy)]
pub(crate) struct HitWord {
    pub(crate) counters: &'static PerCpuCounters,
    pub(crate) word: usize,
}

/// An immutable list of probes. Never empty while published.
pub(crate) struct List {
    pub(crate) hits: Option<HitWord>,
    pub(crate) entries: Vec<Entry>,
    next: *mut List,
}

/// No memory for a list.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

/// Lists that were replaced and wait for their grace period.
pub(crate) struct Retired {
    first: *mut List,
    count: usize,
}

// SAFETY: the chain owns its lists (invariant 3); their targets are Send and Sync.
unsafe impl Send for Retired {}

impl Retired {
    pub(crate) const fn new() -> Self {
        Self { first: ptr::null_mut(), count: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn push(&mut self, list: *mut List) {
        if list.is_null() {
            return;
        }
        // SAFETY: the list was replaced under the control lock that `self` lives under; readers do
        // not look at `next` (invariant 3).
        unsafe { (*list).next = self.first };
        self.first = list;
        self.count += 1;
    }

    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::new())
    }

    /// Frees every list.
    ///
    /// # Safety
    /// A grace period of [`PROBES`] has begun and ended since the last list was pushed.
    pub(crate) unsafe fn free(mut self) {
        while !self.first.is_null() {
            // SAFETY: `List::allocate` made it as a box; no reader holds it (invariant 2, the caller).
            let list = unsafe { Box::from_raw(self.first) };
            self.first = list.next;
            drop(list);
        }
    }
}

/// A tracepoint's pointer to its list; null when nobody is attached.
pub(crate) struct Slot(AtomicPtr<List>);

impl Slot {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The list, valid while the caller is in a read section of [`PROBES`] or holds the control lock.
    #[inline(always)]
    pub(crate) fn read(&self) -> *const List {
        // [A] Acquire: pairs with [B]; orders the entries' contents before their use. Without it: a
        // reader calls through a half-written entry.
        self.0.load(Ordering::Acquire)
    }

    fn publish(&self, list: *mut List, retired: &mut Retired) {
        // [B] Release: pairs with [A]; the list is complete before it can be found. Without it: see
        // [A]. Acquire only because the old list goes to `retired` whole.
        retired.push(self.0.swap(list, Ordering::AcqRel));
    }

    /// The current entries. The caller holds the control lock, as `retired` shows.
    fn entries<'r>(&self, _retired: &'r Retired) -> &'r [Entry] {
        // SAFETY: published lists are retired under the control lock only, which the borrow of
        // `retired` keeps; they are freed after that.
        unsafe { self.read().as_ref() }.map_or(&[], |list| list.entries.as_slice())
    }

    /// Whether `target` is attached.
    pub(crate) fn contains(&self, target: &Target, retired: &Retired) -> bool {
        self.entries(retired).iter().any(|e| e.live() && e.target.same(target))
    }

    /// Number of live entries.
    pub(crate) fn len(&self, retired: &Retired) -> usize {
        self.entries(retired).iter().filter(|e| e.live()).count()
    }

    /// Adds an entry behind those of the same or a higher priority.
    pub(crate) fn insert(
        &self,
        new: Entry,
        hits: Option<HitWord>,
        retired: &mut Retired,
    ) -> Result<(), OutOfMemory> {
        let old = self.entries(retired);
        let mut entries = reserve(old.len() + 1)?;
        let behind = old.partition_point(|e| e.priority >= new.priority);
        let (front, back) = old.split_at_checked(behind).unwrap_or((old, &[]));
        entries.extend(copy_live(front));
        entries.push(new);
        entries.extend(copy_live(back));
        let list = List::allocate(hits, entries)?;
        self.publish(list, retired);
        Ok(())
    }

    /// Removes the entry; when there is no memory for a list without it, the entry becomes a stub.
    /// `false` when it is not there.
    pub(crate) fn remove(&self, target: &Target, retired: &mut Retired) -> bool {
        let old = self.entries(retired);
        let Some(gone) = old.iter().find(|e| e.live() && e.target.same(target)) else {
            return false;
        };
        gone.stub.store(true, Ordering::Relaxed);
        let rest = old.iter().filter(|e| e.live()).count();
        if rest == 0 {
            self.publish(ptr::null_mut(), retired);
            return true;
        }
        let hits = self.hits(retired);
        let list = reserve(rest).and_then(|mut entries| {
            entries.extend(copy_live(old));
            List::allocate(hits, entries)
        });
        // Without memory the stub stays: it is not called, and goes with the next change.
        if let Ok(list) = list {
            self.publish(list, retired);
        }
        true
    }

    /// Where events are counted, if somebody is attached.
    pub(crate) fn hits(&self, _retired: &Retired) -> Option<HitWord> {
        // SAFETY: as in `entries`.
        unsafe { self.read().as_ref() }.and_then(|list| list.hits)
    }
}

fn copy_live(entries: &[Entry]) -> impl Iterator<Item = Entry> + '_ {
    entries.iter().filter(|e| e.live()).map(|e| Entry::new(e.target.clone(), e.priority))
}

fn reserve(len: usize) -> Result<Vec<Entry>, OutOfMemory> {
    if out_of_memory() {
        return Err(OutOfMemory);
    }
    let mut entries = Vec::new();
    entries.try_reserve_exact(len).map_err(|_| OutOfMemory)?;
    Ok(entries)
}

impl List {
    fn allocate(hits: Option<HitWord>, entries: Vec<Entry>) -> Result<*mut Self, OutOfMemory> {
        // SAFETY: the layout of `List` is not of size zero.
        let list = unsafe { std::alloc::alloc(Layout::new::<Self>()) }.cast::<Self>();
        if list.is_null() {
            return Err(OutOfMemory);
        }
        // SAFETY: fresh memory of the right layout. It is given back as a box, which uses the same
        // allocator and layout.
        unsafe { list.write(Self { hits, entries, next: ptr::null_mut() }) };
        Ok(list)
    }
}

#[cfg(not(test))]
fn out_of_memory() -> bool {
    false
}

#[cfg(test)]
pub(crate) use fake::{fail_allocations, out_of_memory};

#[cfg(test)]
mod fake {
    use std::cell::Cell;

    thread_local! { static FAIL: Cell<bool> = const { Cell::new(false) } }

    /// Runs `f` while this thread gets no memory for lists.
    pub(crate) fn fail_allocations<R>(f: impl FnOnce() -> R) -> R {
        FAIL.set(true);
        let result = f();
        FAIL.set(false);
        result
    }

    pub(crate) fn out_of_memory() -> bool {
        FAIL.get()
    }
}
