//! The memory of a domain.
//!
//! A block is a header of four cache lines followed by the per-CPU slots. Blocks are mapped when a
//! domain is first used, linked into one list for ever, and recycled when a domain is dropped. So a
//! domain can be a constant and may be moved, its first use is async-signal-safe, and whoever has
//! to look at all domains (the handler in a forked child) can walk the list without a lock.
//!
//! | `used` | meaning | who moves it on |
//! |---|---|---|
//! | `FREE` | free | [`claim`], to `USED` |
//! | `USED` | belongs to one domain | [`BlockRef::release`], to `FREE`, or to `ORPHANED` if it is still in use |
//! | `ORPHANED` | its domain is gone | [`claim`], to `USED`, once nobody is inside and nothing is wanted |
//!
//! # Invariants
//! 1. Blocks are never unmapped; a reference to one is valid for ever.
//! 2. A free block has equal sums in both ranks and no grace period running.
//!
//! If no memory can be had, all domains in that plight share one static block: grace periods are then
//! longer than need be, but right. Readers
//! of that block are atomic ones, which is right for every kind of domain.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use owlet_percpu::Slots;
use owlet_sys::memory::Mapping;

use crate::engine::{Engine, EngineRef, QUEUED};
use crate::{callback, check, held, sections, stall};

/// The word that counts the entries of the rank of an index: 0 or 1.
#[inline(always)]
pub(super) fn entries(index: u32) -> usize {
    usize::from(index & held::RANK != 0)
}

/// The word that counts the exits: 2 or 3.
#[inline(always)]
pub(super) fn exits(index: u32) -> usize {
    2 + entries(index)
}

/// Header of a block. Readers use the first line; grace periods write the others.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Block {
    /// `held::index` of the domain, plus the rank new sections enter: at once the place of a section
    /// in `held`, its token, and the place of its words in a slot. Readers load it; the bit of the
    /// rank is flipped once per grace period, the rest is constant.
    pub(super) index: AtomicU32,
    /// Which block this is, from 0; constant.
    pub(super) id: AtomicU32,
    /// True if readers count by atomics and no grace period has a heavy fence: constant while a
    /// domain lives.
    fenced: AtomicU32,
    used: AtomicU32,
    next: AtomicPtr<Block>,
    handle: Handle,
    /// The domain's grace periods.
    pub(super) engine: Engine,
}

/// The block's own address, good for the slots behind it as well; what the engine knows a block by.
#[derive(Debug)]
pub(super) struct Handle(AtomicPtr<Block>);

impl Handle {
    /// The block.
    pub(super) fn block(&self) -> Option<BlockRef> {
        // SAFETY: null, or what `link` stored.
        unsafe { BlockRef::from_ptr(self.0.load(Ordering::Relaxed)) }
    }
}

const FREE: u32 = 0;
const USED: u32 = 1;
const ORPHANED: u32 = 2;

/// Slots begin here.
pub(super) const HEADER: usize = size_of::<Block>();
/// From the entries of a rank to its exits.
pub(super) const TO_EXITS: usize = 16;

static HEAD: AtomicPtr<Block> = AtomicPtr::new(core::ptr::null_mut());
static COUNT: AtomicU32 = AtomicU32::new(0);

/// What a domain and its guards keep of a block: its address, with [`FAR`] if readers do not take the
/// short way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tagged(NonNull<Block>);

/// The domain's counts are not in the thread-local area, or it is a fenced one. No address in user
/// space has this bit.
const FAR: usize = 1 << (usize::BITS - 1);

// SAFETY: blocks consist of atomics and are never unmapped (invariant 1).
unsafe impl Send for Tagged {}
// SAFETY: as for Send.
unsafe impl Sync for Tagged {}

impl Tagged {
    /// What [`Tagged::as_ptr`] gave, or `None` for null.
    ///
    /// # Safety
    /// `at` is null or came from there.
    #[inline(always)]
    pub(super) unsafe fn from_ptr(at: *mut Block) -> Option<Self> {
        NonNull::new(at).map(Self)
    }

    /// The block behind a pointer, if there is one and its readers take the short way: one comparison.
    ///
    /// # Safety
    /// As [`Tagged::from_ptr`].
    #[inline(always)]
    pub(super) unsafe fn near_at(at: *mut Block) -> Option<(Self, BlockRef)> {
        if at.addr().cast_signed() <= 0 {
            return None;
        }
        // SAFETY: not null, as was just seen.
        let at = unsafe { NonNull::new_unchecked(at) };
        Some((Self(at), BlockRef(at)))
    }

    pub(super) fn as_ptr(self) -> *mut Block {
        self.0.as_ptr()
    }

    /// The block, if its readers take the short way.
    #[inline(always)]
    pub(super) fn near(self) -> Option<BlockRef> {
        (self.0.addr().get().cast_signed() > 0).then_some(BlockRef(self.0))
    }

    /// The block.
    #[inline(always)]
    pub(super) fn block(self) -> BlockRef {
        let at = self.0.as_ptr().map_addr(|at| at & !FAR);
        // SAFETY: the address of a block, with or without FAR, which is not null.
        BlockRef(unsafe { NonNull::new_unchecked(at) })
    }
}

/// A block and what follows it: the pointer may be used for the slots, a reference could not.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRef(NonNull<Block>);

// SAFETY: a block consists of atomics and is never unmapped (invariant 1).
unsafe impl Send for BlockRef {}
// SAFETY: as for Send.
unsafe impl Sync for BlockRef {}

impl core::ops::Deref for BlockRef {
    type Target = Block;

    #[inline(always)]
    fn deref(&self) -> &Block {
        // SAFETY: only made of initialised blocks, which are never unmapped (invariant 1).
        unsafe { self.0.as_ref() }
    }
}

impl BlockRef {
    /// The block behind a pointer that came from [`BlockRef::as_ptr`], or `None` for null.
    ///
    /// # Safety
    /// `at` is null or came from there.
    #[inline(always)]
    pub(super) unsafe fn from_ptr(at: *mut Block) -> Option<Self> {
        NonNull::new(at).map(Self)
    }

    pub(super) fn as_ptr(self) -> *mut Block {
        self.0.as_ptr()
    }

    /// What the block's domain keeps.
    pub(super) fn tagged(self) -> Tagged {
        let near = held::is_near(self.id.load(Ordering::Relaxed)) && !self.is_fenced();
        let far = if near { 0 } else { FAR };
        Tagged(self.0.map_addr(|at| at | far))
    }

    /// The address of the entries' word of the rank of an index in the first slot, less [`HEADER`].
    #[inline(always)]
    pub(super) fn at(self, index: u32) -> NonNull<u8> {
        let offset = (index & held::RANK) as usize;
        // SAFETY: inside the block.
        unsafe { self.0.cast::<u8>().add(offset) }
    }

    /// The domain's grace periods.
    pub(super) fn engine(self) -> EngineRef {
        // SAFETY: blocks are initialised and never unmapped (invariant 1).
        let block: &'static Block = unsafe { self.0.as_ref() };
        EngineRef(&block.engine)
    }

    /// True if readers fence for themselves.
    pub(super) fn is_fenced(self) -> bool {
        self.fenced.load(Ordering::Relaxed) != 0
    }

    /// The domain's slots.
    #[inline(always)]
    pub(super) fn slots(self) -> Slots {
        // SAFETY: every block, mapped or static, is followed by its slots (`map`, `Reserve`), so
        // the address is inside the same allocation.
        let base = unsafe { self.0.cast::<u8>().add(HEADER) };
        // SAFETY: zeroed at first, aligned like the header, never unmapped (invariant 1), one slot
        // for each of `cpus()` CPUs (`map`, `reserve`).
        unsafe { Slots::from_raw(base.cast()) }
    }

    /// Notes a section of this thread in `held`.
    pub(super) fn mark_up(self, index: u32) {
        let id = self.id.load(Ordering::Relaxed);
        if held::is_near(id) {
            // SAFETY: the index of a near domain.
            unsafe { held::up(index) };
        } else {
            held::far_up(id, index);
        }
    }

    /// The end of one.
    pub(super) fn mark_down(self, index: u32) {
        let id = self.id.load(Ordering::Relaxed);
        if held::is_near(id) {
            // SAFETY: the index of a near domain.
            unsafe { held::down(index) };
        } else {
            held::far_down(id, index);
        }
    }

    /// Counts an exit, the slow way.
    pub(super) fn count_exit(self, index: u32) {
        if self.is_fenced() {
            // [R2] an atomic reader: a full barrier.
            self.slots().add_atomic(exits(index), 1);
        } else {
            // [R2] as in read_unlock().
            self.slots().add(exits(index), 1);
        }
    }

    /// True if entries and exits of both ranks are equal at this moment.
    pub(super) fn is_quiet(self) -> bool {
        let slots = self.slots();
        let quiet = |rank| slots.sum(exits(rank)) == slots.sum(entries(rank));
        quiet(0) && quiet(held::RANK)
    }

    /// Debug checks and stall reports want to know.
    #[inline(always)]
    pub(super) fn note_entry(self) {
        check::enter(&self.engine);
        sections::enter(&self.engine);
    }

    /// The end of a section of this thread.
    #[inline(always)]
    pub(super) fn note_exit(self) {
        check::leave(&self.engine);
        sections::leave(&self.engine);
    }

    /// Gives the block of a dropped domain back. If the domain is still in use (a section that was
    /// forgotten, a callback, a grace period that is only polled for), says so and keeps the block
    /// until it no longer is.
    pub(super) fn release(self) {
        if core::ptr::eq(self.0.as_ptr(), &raw const RESERVE.block) {
            return;
        }
        crate::free::dropped(self.engine());
        let inside = (!self.is_quiet()).then_some("a section is open");
        let why = inside.or_else(|| self.engine.unrest());
        let free = why.is_none() && self.engine().0.is_at_rest();
        // What is queued may be no more than the callback that drops the domain, or have been called.
        let called = || callback::is_running() || self.engine.callbacks.stats().pending() == 0;
        if let Some(why) = why.filter(|why| *why != QUEUED || !called()) {
            stall::report_leak(self.engine().0, why);
        }
        self.used.store(if free { FREE } else { ORPHANED }, Ordering::Release);
    }

    /// Takes the block for a new domain, if it is free or has come to rest since its domain was
    /// dropped.
    fn take(self) -> bool {
        let taken = |from| {
            self.used.compare_exchange(from, USED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if taken(FREE) {
            return true;
        }
        let rests = || self.is_quiet() && self.engine().0.is_at_rest();
        if self.used.load(Ordering::Acquire) != ORPHANED || !rests() || !taken(ORPHANED) {
            return false;
        }
        // Another domain may have had it since we looked.
        let still = rests();
        if !still {
            self.used.store(ORPHANED, Ordering::Release);
        }
        still
    }
}

impl Block {
    const fn new(fenced: bool) -> Self {
        Self {
            index: AtomicU32::new(0),
            id: AtomicU32::new(0),
            fenced: AtomicU32::new(fenced as u32),
            used: AtomicU32::new(USED),
            next: AtomicPtr::new(core::ptr::null_mut()),
            handle: Handle(AtomicPtr::new(core::ptr::null_mut())),
            engine: Engine::new(),
        }
    }
}

/// A block for a new domain: a free one, a new one, or the shared reserve.
pub(super) fn claim(name: &'static str, fenced: bool) -> BlockRef {
    let block = recycled().or_else(map);
    if let Some(block) = block {
        block.engine.renew(name);
        block.fenced.store(u32::from(fenced), Ordering::Relaxed);
        return block;
    }
    reserve()
}

fn recycled() -> Option<BlockRef> {
    all().find(|block| block.take())
}

/// All blocks, free ones too.
pub(super) fn all() -> impl Iterator<Item = BlockRef> {
    let mut at = HEAD.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: the list holds null and pointers that `link` put there.
        let block = unsafe { BlockRef::from_ptr(at) }?;
        at = block.next.load(Ordering::Acquire);
        Some(block)
    })
}

fn map() -> Option<BlockRef> {
    let memory = Mapping::anonymous(HEADER + Slots::bytes()).ok()?;
    let at = memory.leak().cast::<Block>();
    // SAFETY: fresh pages, aligned to a page and long enough.
    unsafe { at.write(Block::new(false)) };
    let block = BlockRef(at);
    for word in [entries(0), entries(held::RANK), exits(0), exits(held::RANK)] {
        // Fifty sections before the wrap of every counter (as the sequence is, `seq::START`).
        block.slots().add_atomic(word, 0_u64.wrapping_sub(50));
    }
    // SAFETY: just initialised, never unmapped, reached by nobody else.
    unsafe { link(block) };
    Some(BlockRef(at))
}

/// # Safety
/// Called once per block, before anybody else can reach it.
unsafe fn link(block: BlockRef) {
    // SAFETY: blocks are initialised and never unmapped (invariant 1).
    let header: &'static Block = unsafe { block.0.as_ref() };
    header.handle.0.store(block.as_ptr(), Ordering::Relaxed);
    // SAFETY: the caller's.
    unsafe { header.engine.link(&header.handle) };
    let id = COUNT.fetch_add(1, Ordering::Relaxed);
    block.id.store(id, Ordering::Relaxed);
    block.index.store(held::index(id), Ordering::Relaxed);
    let mut head = HEAD.load(Ordering::Relaxed);
    loop {
        block.next.store(head, Ordering::Relaxed);
        match HEAD.compare_exchange_weak(head, block.as_ptr(), Ordering::AcqRel, Ordering::Relaxed)
        {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// CPUs the reserve has slots for.
const RESERVE_CPUS: usize = 128;

#[repr(C)]
struct Reserve {
    block: Block,
    slots: [[AtomicU64; 16]; RESERVE_CPUS],
}

static RESERVE: Reserve = Reserve {
    block: Block::new(true),
    slots: [const { [const { AtomicU64::new(0) }; 16] }; RESERVE_CPUS],
};
static RESERVE_LINKED: AtomicU32 = AtomicU32::new(0);

/// The block shared by domains for which there was no memory. On machines with more CPUs than it
/// has slots, waits for memory instead: there is nothing right to do without.
pub(super) fn reserve() -> BlockRef {
    while RESERVE_CPUS < owlet_percpu::cpus() {
        std::thread::sleep(core::time::Duration::from_millis(1));
        if let Some(block) = map() {
            return block;
        }
    }
    // The whole of RESERVE, so that the pointer may be used for the slots.
    let block = BlockRef(NonNull::from(&RESERVE).cast());
    if RESERVE_LINKED.swap(1, Ordering::AcqRel) == 0 {
        block.engine.renew("(out of memory)");
        // SAFETY: linked once, by whoever swapped first.
        unsafe { link(block) };
    }
    block
}
