//! A store: the lanes of one domain's retired objects, or of one pool's, and where its memory is.
//!
//! Stores are mapped when something is first retired, linked into one list for ever, and used again: a
//! domain's by the next domain on the same engine, a pool's by the next pool. So the worker and a forked
//! child walk them without a lock.
//!
//! | `used` | meaning | who moves it on |
//! |---|---|---|
//! | `FREE` | free, nothing in it | [`claim`], to `USED` |
//! | `USED` | a domain's (for ever) or a pool's | [`Store::release`], to `ORPHANED` |
//! | `ORPHANED` | its pool is gone; the worker frees what is in it | [`claim`], to `USED`, once it is empty |
//!
//! # Invariants
//! 1. Stores are never unmapped; a reference to one is valid for ever.
//! 2. `area`, `cpus`, `seq`, `engine`, `ways` and `free` change only while nobody can put anything in.

use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use owlet_percpu::{Backend, backend};
use owlet_sys::clock::monotonic_ns;
use owlet_sys::memory::Mapping;

use super::block::{Block, Free, KINDS, Ways};
use super::lanes::Lane;
use super::ledger::Counts;
use super::queue::{Link, Queue};
use super::reclaim::in_hand;
use super::tally::Tally;
use crate::engine::pace::Futex;
use crate::engine::{Engine, EngineRef};
use crate::gate::Gate;
use crate::seq::Cookie;
use crate::{held, worker};

/// See the module's header. Lanes follow it.
#[repr(C, align(256))]
#[derive(Debug)]
pub(crate) struct Store {
    /// From the thread pointer to the rseq area; 0 where sequences must not run.
    area: AtomicIsize,
    /// Lanes.
    cpus: AtomicU64,
    /// The domain's sequence number.
    seq: AtomicPtr<u64>,
    engine: AtomicPtr<Engine>,
    /// A pool's.
    ways: AtomicPtr<Ways>,
    free: AtomicPtr<()>,
    used: AtomicU32,
    /// See [`Store::arm`].
    pub(super) armed: AtomicU32,
    next: AtomicPtr<Store>,
    /// Closed blocks for which every queue was taken.
    overflow: AtomicPtr<Link>,
    freezer: AtomicUsize,
    /// The thread at a barrier.
    pub(super) turner: AtomicUsize,
    pub(super) tally: Tally,
    /// Since when the worker has known of open blocks, 0 = it knows of none; and of a few full ones.
    pub(super) opened: AtomicU64,
    pub(super) ticking: AtomicU64,
    /// When the worker last looked for queues that nobody comes by.
    pub(super) looked: AtomicU64,
    /// Opened when a generation is empty.
    pub(super) gate: Gate,
    pub(super) counts: Counts,
    /// Not 0 once somebody has asked for memory to be used again (see `reuse`).
    pub(super) reuses: AtomicU32,
}

/// How long a few full blocks may wait for more before the worker asks for a grace period.
pub(super) const TICK_NS: u64 = 4_000_000;

/// How often a queue is asked for that somebody else has for some loads and stores (or for as long as it is
/// preempted there).
const PATIENCE: u32 = 64;

const FREE: u32 = 0;
const USED: u32 = 1;
const ORPHANED: u32 = 2;

/// What the worker knows of a store: nothing.
pub(super) const IDLE: u32 = 0;
/// It looks in time for the oldest open block.
pub(super) const TIMER: u32 = 1;
/// It looks every tick.
pub(super) const TICK: u32 = 2;

static HEAD: AtomicPtr<Store> = AtomicPtr::new(core::ptr::null_mut());

/// All stores ever made.
pub(super) fn all() -> impl Iterator<Item = &'static Store> {
    let mut at = HEAD.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: null, or what `map` put there; never unmapped (invariant 1).
        let store: &'static Store = unsafe { at.as_ref() }?;
        at = store.next.load(Ordering::Acquire);
        Some(store)
    })
}

/// The stores of a domain.
pub(super) fn of(engine: EngineRef) -> impl Iterator<Item = &'static Store> {
    all().filter(move |store| store.belongs_to(engine))
}

/// A store for the objects of `engine`'s domain, or of a pool with what can be done with them and its
/// function. `None` if there is no memory. (`&'static Store` is a pointer good for the lanes too: see [`Store::lanes`].)
pub(super) fn claim(
    engine: EngineRef,
    pool: Option<(&'static Ways, Option<Free>)>,
) -> Option<&'static Store> {
    let store = all().find(|store| store.retake()).or_else(map)?;
    let (ways, free) = pool.unzip();
    let ways = ways.map_or(core::ptr::null(), core::ptr::from_ref);
    store.ways.store(ways.cast_mut(), Ordering::Relaxed);
    let free = free.flatten().map_or(core::ptr::null_mut(), |free| free as *mut ());
    store.free.store(free, Ordering::Relaxed);
    store.engine.store(core::ptr::from_ref(engine.0).cast_mut(), Ordering::Relaxed);
    store.seq.store(engine.0.seq_at().cast_mut(), Ordering::Relaxed);
    store.counts.clear();
    store.reuses.store(0, Ordering::Relaxed);
    // The worker may have been to come for its old domain; for this one it has not been asked. Release: who
    // finds this finds the domain (`serve`).
    store.armed.swap(IDLE, Ordering::AcqRel);
    store.tune(engine);
    Some(store)
}

fn map() -> Option<&'static Store> {
    let cpus = owlet_percpu::cpus();
    let memory = Mapping::anonymous(Store::LANES + (cpus << super::lanes::SHIFT)).ok()?;
    // Aligned to 256, being aligned to a page; all zero is a store with empty lanes.
    let at = memory.leak().cast::<Store>();
    // SAFETY: fresh pages, long enough, never unmapped.
    let store: &'static Store = unsafe { at.as_ref() };
    store.cpus.store(cpus as u64, Ordering::Relaxed);
    store.used.store(USED, Ordering::Relaxed);
    let mut head = HEAD.load(Ordering::Relaxed);
    loop {
        store.next.store(head, Ordering::Relaxed);
        match HEAD.compare_exchange_weak(head, at.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(store),
            Err(now) => head = now,
        }
    }
}

/// See [`Store::freezer`].
pub(super) struct Freezer(&'static Store);

impl Freezer {
    /// Freezes the lanes that `which` accepts and, after the heavy fence, calls `take` with each: that
    /// takes something out and thaws it.
    pub(super) fn each(&self, which: impl Fn(&Lane) -> bool, mut take: impl FnMut(&'static Lane)) {
        let lanes = self.0.lanes();
        let mut any = false;
        for lane in lanes.iter().filter(|lane| which(lane)) {
            lane.freeze();
            any = true;
        }
        if any {
            // [F3] see there.
            owlet_percpu::fence::heavy_rseq();
        }
        let frozen = |lane: &&Lane| lane.frozen.load(Ordering::Relaxed) != 0;
        lanes.iter().filter(frozen).for_each(&mut take);
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.0.freezer.store(0, Ordering::Release);
    }
}

impl Store {
    /// Where the lanes begin.
    pub(super) const LANES: usize = size_of::<Self>();
    /// For the sequences.
    #[cfg(all(target_arch = "x86_64", not(owlet_portable)))]
    pub(super) const AREA: usize = core::mem::offset_of!(Self, area);
    /// For the sequences.
    #[cfg(all(target_arch = "x86_64", not(owlet_portable)))]
    pub(super) const CPUS: usize = core::mem::offset_of!(Self, cpus);
    /// For the sequences.
    #[cfg(all(target_arch = "x86_64", not(owlet_portable)))]
    pub(super) const SEQ: usize = core::mem::offset_of!(Self, seq);

    /// Sequences run here if there are any, and if a cookie one grace period further makes up for the
    /// fence that they do without: see the module's header on stamps.
    pub(super) fn tune(&self, engine: EngineRef) {
        let fit = backend() == Backend::Rseq && engine.flavour().fences_everywhere();
        let area = if fit { owlet_percpu::rseq::area_offset() } else { 0 };
        self.area.store(area, Ordering::Release);
    }

    /// True if sequences put objects in.
    pub(super) fn has_sequences(&self) -> bool {
        self.area.load(Ordering::Relaxed) != 0
    }

    /// A free store, or one that has become empty since its pool was dropped, is the caller's now.
    fn retake(&self) -> bool {
        let used = &self.used;
        let take = |from| used.compare_exchange(from, USED, Ordering::Acquire, Ordering::Relaxed);
        match used.load(Ordering::Acquire) {
            FREE => take(FREE).is_ok(),
            ORPHANED => self.is_empty() && take(ORPHANED).is_ok(),
            _ => false,
        }
    }

    /// A pool is dropped.
    pub(super) fn release(&self) {
        self.used.store(ORPHANED, Ordering::Release);
    }

    fn belongs_to(&self, engine: EngineRef) -> bool {
        core::ptr::eq(self.engine.load(Ordering::Relaxed), engine.0)
            && self.used.load(Ordering::Acquire) != FREE
    }

    /// The domain.
    pub(super) fn engine(&self) -> Option<EngineRef> {
        // SAFETY: null, or an engine, which lives for ever.
        unsafe { self.engine.load(Ordering::Relaxed).as_ref() }.map(EngineRef)
    }

    /// What can be done with a pool's objects.
    pub(super) fn ways(&self) -> Option<&'static Ways> {
        // SAFETY: null, or what `claim` was given.
        unsafe { self.ways.load(Ordering::Relaxed).as_ref() }
    }

    /// A pool's function.
    pub(super) fn free(&self) -> Option<Free> {
        let free = self.free.load(Ordering::Relaxed);
        // SAFETY: null, or what `claim` made of a `Free`.
        (!free.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), Free>(free) })
    }

    /// The lanes.
    pub(super) fn lanes(&'static self) -> &'static [Lane] {
        let count = self.cpus.load(Ordering::Relaxed) as usize;
        // The header alone would not be enough to reach them: its address is exposed by the list.
        let at = core::ptr::from_ref(self).expose_provenance() + Self::LANES;
        let at = core::ptr::with_exposed_provenance::<Lane>(at);
        // SAFETY: `map` made so many lanes behind the header, zeroed, never unmapped.
        unsafe { core::slice::from_raw_parts(at, count) }
    }

    /// The lanes, the present CPU's first.
    pub(super) fn lanes_from_here(&'static self) -> impl Iterator<Item = &'static Lane> {
        let lanes = self.lanes();
        let here = owlet_percpu::current_cpu().min(lanes.len());
        let (before, after) = lanes.split_at(here);
        after.iter().chain(before)
    }

    /// The queues, the present CPU's first.
    pub(super) fn queues(&'static self) -> impl Iterator<Item = &'static Queue> {
        self.lanes_from_here().map(|lane| &lane.queue.0)
    }

    /// True if no block is out: nothing waits to be freed, or is being freed.
    pub(super) fn is_empty(&self) -> bool {
        self.tally.all() == 0
    }

    /// An empty block, counted and prepared; `None` if there is no memory.
    pub(super) fn fresh(&'static self, kind: usize) -> Option<NonNull<Block>> {
        let me = held::identity();
        let mut kept =
            self.queues().take(1).chain(self.queues().skip(1).filter(|q| q.spares() != 0));
        let spare = kept.find_map(|queue| queue.try_lock(me)?.spare());
        let block = spare.map(NonNull::cast).or_else(Block::map)?;
        // SAFETY: a block that was just taken or made, ours alone.
        let inner: &Block = unsafe { block.as_ref() };
        inner.prepare(kind, monotonic_ns());
        inner.generation.store(self.tally.open(), Ordering::Relaxed);
        // Mutant M7: the moment is that of the first object, not of the last.
        if owlet_percpu::planted!("M7")
            && let Some(engine) = self.engine()
        {
            inner.link.set_cookie(engine.snapshot_here().0);
        }
        Some(block)
    }

    /// An empty block, or one whose objects have been freed, goes back: kept, or to the system.
    ///
    /// # Safety
    /// The caller has the block to itself.
    pub(super) unsafe fn give_back(&'static self, block: NonNull<Block>) {
        // SAFETY: the caller's.
        let generation = unsafe { block.as_ref() }.generation.load(Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { self.put_away(block) };
        self.count_out(generation);
    }

    /// The last of a block's objects has been freed.
    pub(super) fn count_out(&self, generation: u32) {
        if self.tally.close(generation) {
            self.gate.open(&Futex::default());
        }
    }

    /// An empty block that is not counted goes back.
    ///
    /// # Safety
    /// As [`Store::give_back`].
    pub(super) unsafe fn put_away(&'static self, block: NonNull<Block>) {
        let me = held::identity();
        // As many as wait, and some.
        let wanted = |queue: &&Queue| queue.spares() < self.keep(queue);
        let queue = self.queues().next().filter(wanted);
        let kept = queue.and_then(|queue| queue.try_lock(me)).map(|mut queue| {
            // SAFETY: the caller's.
            unsafe { queue.keep(block.cast()) };
        });
        if kept.is_none() {
            // SAFETY: the caller's.
            unsafe { Block::unmap(block) };
        }
    }

    /// Empty blocks kept in a queue: as many as wait there, and some; none for a while after a trim.
    fn keep(&self, queue: &Queue) -> u32 {
        const KEEP: u32 = 8;
        let backed_off = self.engine().is_some_and(|engine| engine.0.free.is_backed_off());
        if backed_off { 0 } else { queue.len() + KEEP }
    }

    /// Gives empty blocks beyond what is to be kept back to the system; all, if `all`.
    pub(super) fn shrink(&'static self, all: bool) -> usize {
        let (me, mut freed) = (held::identity(), 0);
        for queue in self.queues() {
            let keep = if all { 0 } else { self.keep(queue) };
            while queue.spares() > keep {
                let Some(block) = queue.try_lock(me).and_then(|mut queue| queue.spare()) else {
                    break;
                };
                // SAFETY: a block that was kept, ours alone now.
                unsafe { Block::unmap(block.cast()) };
                freed += 1;
            }
        }
        freed
    }

    /// Puts a closed block with its moment into a queue, this CPU's if it can be had.
    ///
    /// # Safety
    /// The caller has the block to itself; not any more afterwards.
    pub(super) unsafe fn enqueue(&'static self, block: NonNull<Block>) {
        let me = held::identity();
        // In another CPU's queue it would wait for the worker: so our own is asked for some more times.
        let own = self.queues().next().and_then(|queue| {
            (0..PATIENCE).find_map(|n| {
                if n != 0 {
                    core::hint::spin_loop();
                }
                queue.try_lock(me)
            })
        });
        let others = || self.queues().skip(1).find_map(|queue| queue.try_lock(me));
        if let Some(mut queue) = own.or_else(others) {
            // SAFETY: the caller's; links are the first field of blocks.
            return unsafe { queue.push(block.cast()) };
        }
        // SAFETY: the caller's.
        let link: &Link = unsafe { block.cast().as_ref() };
        let mut top = self.overflow.load(Ordering::Relaxed);
        loop {
            link.next().store(top, Ordering::Relaxed);
            // Release: whoever takes the list out finds the block as it is.
            let order = (Ordering::Release, Ordering::Relaxed);
            let at = block.as_ptr().cast();
            match self.overflow.compare_exchange_weak(top, at, order.0, order.1) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Puts what had to be left aside into queues. (Nobody frees anything from there, so no block can
    /// come back while it is looked at.)
    pub(super) fn drain_overflow(&'static self) {
        if self.overflow.load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut at = self.overflow.swap(core::ptr::null_mut(), Ordering::Acquire);
        while let Some(link) = NonNull::new(at) {
            // SAFETY: in a list that only we have.
            at = unsafe { link.as_ref() }.next().load(Ordering::Relaxed);
            // SAFETY: likewise.
            unsafe { self.enqueue(link.cast()) };
        }
    }

    /// Takes the open blocks of all lanes, calls `each` with those that have objects (and whether a
    /// sequence put them in), and gives the others back. False if another thread is at it.
    pub(super) fn take_open(&'static self, mut each: impl FnMut(NonNull<Block>, bool)) -> bool {
        let (me, relaxed) = (held::identity(), Ordering::Relaxed);
        let Some(freezer) = self.freezer() else { return false };
        let mut handle = |block: *mut Block, by_sequence: bool| {
            let Some(block) = NonNull::new(block) else { return };
            // SAFETY: taken out of its bank, so ours alone (invariant 1 of `lanes`).
            if unsafe { block.as_ref() }.objects() == 0 {
                // SAFETY: likewise.
                unsafe { self.give_back(block) };
            } else {
                each(block, by_sequence);
            }
        };
        let lanes = self.lanes();
        if self.has_sequences() {
            let any = |lane: &Lane| lane.open.iter().any(|open| !open.load(relaxed).is_null());
            freezer.each(any, |lane| {
                let taken: [*mut Block; KINDS] = core::array::from_fn(|kind| lane.take(kind));
                lane.thaw();
                taken.into_iter().for_each(|block| handle(block, true));
            });
        }
        for lane in lanes {
            for kind in 0..KINDS {
                if lane.bank.open(kind).is_null() {
                    continue;
                }
                // Whoever has the bank just now is at work in it, and it is looked at again.
                let bank = lane.bank.try_lock(me);
                let taken = bank.map(|bank| bank.replace(kind, core::ptr::null_mut()));
                handle(taken.unwrap_or_default(), false);
            }
        }
        true
    }

    /// The right to freeze lanes, unless another thread has it.
    pub(super) fn freezer(&'static self) -> Option<Freezer> {
        let (me, acquire, relaxed) = (held::identity(), Ordering::Acquire, Ordering::Relaxed);
        let got = self.freezer.compare_exchange(0, me, acquire, relaxed);
        got.ok().map(|_| Freezer(self))
    }

    /// True if there are open blocks; also, since when the oldest is open is asked for by `serve`.
    pub(super) fn has_open(&'static self) -> bool {
        let open =
            |open: &core::sync::atomic::AtomicPtr<Block>| !open.load(Ordering::Relaxed).is_null();
        self.lanes().iter().any(|lane| {
            lane.open.iter().any(open) || (0..KINDS).any(|kind| !lane.bank.open(kind).is_null())
        })
    }

    /// Sees to it that the worker looks at the store. What it is to find has been put down.
    ///
    /// Full fence before the look at what it knows; pairs with the worker's, between its "nothing" and
    /// its look at the store (`serve`).
    pub(super) fn arm(&self, level: u32) {
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) < level
            && self.armed.fetch_max(level, Ordering::Relaxed) < level
            && let Some(engine) = self.engine()
        {
            // Without a worker whoever comes next sees to it.
            worker::drive(engine);
        }
    }

    /// The first moment that blocks wait for; or, of a CPU that has some that are ready, the last.
    pub(super) fn moment(&'static self, engine: EngineRef) -> Option<Cookie> {
        let earlier = |a, b| if crate::seq::is_at_or_after(a, b) { b } else { a };
        let to_come = |&cookie: &u64| !engine.poll(Cookie(cookie));
        let of = |queue: &Queue| {
            queue.oldest().filter(to_come).or_else(|| queue.newest().filter(to_come))
        };
        self.queues().filter_map(of).reduce(earlier).map(Cookie)
    }

    /// The moment of the youngest block that waits.
    pub(super) fn newest(&'static self) -> Option<Cookie> {
        let later = |a, b| if crate::seq::is_at_or_after(a, b) { a } else { b };
        self.queues().filter_map(Queue::newest).reduce(later).map(Cookie)
    }

    /// In a forked child, on its only thread `me`: what was in queues and open blocks is the child's;
    /// what other threads had in hand stays behind. Says how many bytes are closed.
    pub(super) fn inherit(&'static self, me: usize) -> u64 {
        let (mut blocks, mut objects, mut bytes) = (0, 0, 0);
        let leave = |owner: &AtomicUsize| {
            if owner.load(Ordering::Relaxed) != me {
                owner.store(0, Ordering::Relaxed);
            }
        };
        if self.freezer.load(Ordering::Relaxed) != me {
            self.lanes().iter().for_each(Lane::thaw);
        }
        leave(&self.freezer);
        leave(&self.turner);
        let generation = self.tally.reset(0);
        for lane in self.lanes() {
            lane.bank.inherit(me);
            let banks = (0..KINDS).map(|kind| lane.bank.open(kind));
            let open = lane.open.iter().map(|open| open.load(Ordering::Relaxed)).chain(banks);
            for block in open.filter_map(NonNull::new) {
                // SAFETY: an open block; nobody moves.
                unsafe { block.as_ref() }.generation.store(generation, Ordering::Relaxed);
                blocks += 1;
            }
            lane.queue.0.inherit(me, |link| {
                // SAFETY: links in queues are blocks; nobody moves.
                let block: &Block = unsafe { link.cast().as_ref() };
                block.generation.store(generation, Ordering::Relaxed);
                blocks += 1;
                bytes += block.bytes();
                objects += block.objects() as u64;
            });
        }
        // SAFETY: null, or a block; nobody moves.
        let mut at = NonNull::new(self.overflow.load(Ordering::Relaxed));
        while let Some(link) = at {
            // SAFETY: links there are blocks; nobody moves.
            let block: &Block = unsafe { link.cast().as_ref() };
            block.generation.store(generation, Ordering::Relaxed);
            blocks += 1;
            bytes += block.bytes();
            objects += block.objects() as u64;
            at = NonNull::new(block.link.next().load(Ordering::Relaxed));
        }
        // What a destructor of this very thread was forking in goes on afterwards.
        if let Some(block) = in_hand(self) {
            // SAFETY: this thread's own.
            let block = unsafe { block.as_ref() };
            block.generation.store(generation, Ordering::Relaxed);
            blocks += 1;
            bytes += block.bytes();
            objects += block.objects() as u64;
        }
        self.tally.reset(blocks);
        self.counts.bytes.store(bytes, Ordering::Relaxed);
        let freed = self.counts.freed.load(Ordering::Relaxed);
        self.counts.closed.store(freed + objects, Ordering::Relaxed);
        bytes
    }
}
