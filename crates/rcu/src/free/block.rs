//! A page of objects that wait for one grace period.
//!
//! | kind | words an object | freed by |
//! |---|---|---|
//! | [`OBJECTS`] | address, function | calling the function with the address |
//! | [`LAYOUTS`] | address, layout | the global allocator: nothing is dropped |
//! | [`POOL`] | address | the pool's [`Ways`], which are the same for all |
//!
//! | word | written by | meaning |
//! |---|---|---|
//! | `fill` | whoever may put objects in | bits 0..16: where the next object goes, counted so that bit 15 is set when there is no more room; from bit 16: weight in [`UNIT`]s, of which [`FULL`] looks at those that make 256 KiB |
//! | `stamp` | the same, before the commit | the domain's sequence number as it was when the last object came; in a block of memory to be used again, how many addresses are left |
//! | `link` | the queue it is in, or its one owner | place, moment |
//! | the rest | its one owner, before it is opened | |
//!
//! Blocks come from `mmap`, so that an allocator may retire what it has in hand.

use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use owlet_sys::memory::Mapping;

use super::arch::Words;
use super::queue::Link;

/// How an object is freed.
pub(crate) type Free = unsafe fn(*mut ());

/// What is done with all of a pool's objects in a block: compiled for their type, so that a call is made
/// for a block and not for each of them.
pub(crate) type Bulk = unsafe fn(Batch<'_>);

/// What can be done with a pool's objects.
#[derive(Debug)]
pub(crate) struct Ways {
    /// Frees them.
    pub(crate) free: Bulk,
    /// If their memory can be used again: what that takes.
    pub(crate) reuse: Option<Reuse>,
}

/// How memory is got out of a pool's objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reuse {
    /// Ends them; leaves their memory.
    pub(crate) empty: Bulk,
    /// Gives memory back that [`Reuse::empty`] left.
    pub(crate) discard: Bulk,
}

/// Objects that somebody has in hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'b> {
    items: &'b [AtomicUsize],
    /// Those that are done with: what a panic leaves for the next round.
    done: &'b AtomicUsize,
    /// A pool's function, if it has one.
    pub(crate) free: Option<Free>,
}

impl Batch<'_> {
    /// Calls `each` with the words of each object that is not done with. Whatever panics is.
    #[inline(always)]
    pub(crate) fn each<const WORDS: usize>(self, mut each: impl FnMut(*mut (), usize)) {
        let mut at = self.done.load(Ordering::Relaxed);
        while let Some(item) = self.items.get(at * WORDS..(at + 1) * WORDS) {
            if let Some(ahead) = self.items.get((at + AHEAD) * WORDS) {
                prefetch(ahead.load(Ordering::Relaxed));
            }
            at += 1;
            self.done.store(at, Ordering::Relaxed);
            let [first, rest @ ..] = item else { return };
            let first = first.load(Ordering::Relaxed);
            let second = rest.first().map_or(0, |word| word.load(Ordering::Relaxed));
            let object = core::ptr::with_exposed_provenance_mut::<()>(first);
            if super::twice::forget(object) {
                // Nor is its memory used again.
                self.items
                    .get((at - 1) * WORDS)
                    .into_iter()
                    .for_each(|item| item.store(0, RELAXED));
            } else if !object.is_null() {
                each(object, second);
            }
        }
    }
}

/// Kinds of free, each with blocks of its own.
pub(crate) const KINDS: usize = 3;
/// Function and address.
pub(crate) const OBJECTS: usize = 0;
/// Address and layout.
pub(crate) const LAYOUTS: usize = 1;
/// Addresses.
pub(crate) const POOL: usize = 2;

/// Bytes of a block.
pub(crate) const PAGE: usize = 4096;
/// Bytes that a unit of weight stands for.
const UNIT: usize = 8;
/// What an allocator adds to an object, and its share of rounding: a guess that is right for glibc.
const OVERHEAD: usize = 16;
/// Bits of `fill` of which one is set if a block is full.
pub(crate) const FULL: i32 = 0x8000_8000_u32.cast_signed();
const FULL_MASK: u64 = FULL as i64 as u64;

/// The header, and behind it the objects' words.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Block {
    /// First: links are blocks.
    pub(crate) link: Link,
    pub(crate) fill: AtomicU64,
    pub(crate) stamp: AtomicU64,
    /// When it was opened, and then when it was closed: monotonic ns.
    pub(crate) since: AtomicU64,
    pub(crate) kind: AtomicU32,
    /// See `tally`.
    pub(crate) generation: AtomicU32,
    /// Objects freed so far: what a panic leaves for the next round.
    done: AtomicUsize,
    _line: u64,
    items: [AtomicUsize; WORDS],
}

const RELAXED: Ordering = Ordering::Relaxed;
/// Bytes before the objects.
pub(super) const HEADER: usize = 64;
const WORDS: usize = (PAGE - HEADER) / 8;

const _: () = assert!(size_of::<Block>() == PAGE, "a block is a page");
const _: () = assert!(core::mem::offset_of!(Block, items) == HEADER, "the header is a line");

/// What is added to `fill` for an object of so many bytes, of a kind.
pub(crate) const fn weight(bytes: usize, kind: usize) -> u64 {
    let bytes = bytes.saturating_add(OVERHEAD + 8 * Block::words(kind) + UNIT - 1);
    // 2^40 bytes and more weigh the same.
    let units = bytes / UNIT;
    let units = if units > 1 << 37 { 1 << 37 } else { units };
    (units as u64) << 16 | 1
}

/// True if an object of this weight fills a block by itself. (Bit 31 of `fill` says so for several objects
/// together, of which none is as heavy.)
#[inline(always)]
pub(crate) const fn fills(weight: u64) -> bool {
    weight >> 31 != 0
}

impl Block {
    /// Words of an object.
    pub(crate) const fn words(kind: usize) -> usize {
        if kind == POOL { 1 } else { 2 }
    }

    const fn room(kind: usize) -> usize {
        WORDS / Self::words(kind)
    }

    /// What `fill` counts from.
    const fn base(kind: usize) -> u64 {
        (0x8000 - Self::room(kind)) as u64
    }

    /// From a block to where its object number 0 would be, if `fill` counted from 0.
    #[cfg(all(target_arch = "x86_64", not(owlet_portable)))]
    pub(super) const fn items_at(kind: usize) -> i32 {
        HEADER as i32 - (Self::base(kind) as usize * Self::words(kind) * 8) as i32
    }

    /// A new block, if there is memory.
    pub(crate) fn map() -> Option<NonNull<Self>> {
        let at = Mapping::anonymous(PAGE).ok()?.leak().cast::<Self>();
        // SAFETY: fresh pages of the right size, aligned to a page; all zero is a block, whose link
        // is written.
        unsafe { at.cast::<Link>().write(Link::new()) };
        Some(at)
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// `block` came from [`Block::map`], and nobody uses it any more.
    pub(crate) unsafe fn unmap(block: NonNull<Self>) {
        // SAFETY: the caller's.
        drop(unsafe { Mapping::adopt(block.cast(), PAGE) });
    }

    /// Prepares an empty block that the caller has to itself.
    pub(crate) fn prepare(&self, kind: usize, now: u64) {
        self.kind.store(kind as u32, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.fill.store(Self::base(kind), Ordering::Relaxed);
    }

    /// True if nothing more goes in.
    pub(crate) fn is_full(&self) -> bool {
        self.fill.load(Ordering::Relaxed) & FULL_MASK != 0
    }

    fn kind(&self) -> usize {
        self.kind.load(Ordering::Relaxed) as usize
    }

    /// Objects in it.
    pub(crate) fn objects(&self) -> usize {
        let at = self.fill.load(Ordering::Relaxed) & 0xffff;
        at.saturating_sub(Self::base(self.kind())) as usize
    }

    /// What its objects hold, by their layouts, with the allocator's share and their words here.
    pub(crate) fn bytes(&self) -> u64 {
        (self.fill.load(Ordering::Relaxed) >> 16) * UNIT as u64
    }

    /// What is left of a block of memory to be used again, in bytes.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.bytes() / (self.objects() as u64).max(1) * self.stamp.load(RELAXED)
    }

    /// Puts an object in. The caller has the block to itself, and there is room.
    pub(crate) fn put(&self, words: Words, weight: u64) {
        let at = self.objects() * Self::words(self.kind());
        for (item, word) in self.items.iter().skip(at).take(Self::words(self.kind())).zip(words) {
            item.store(word, Ordering::Relaxed);
        }
        let fill = self.fill.load(Ordering::Relaxed).wrapping_add(weight);
        // Release: a forked child that finds the count finds the words.
        self.fill.store(fill, Ordering::Release);
    }

    /// Ends a pool's objects that have not been ended yet, and leaves their memory.
    ///
    /// # Safety
    /// As [`Block::free_objects`].
    pub(crate) unsafe fn empty_objects(&self, reuse: Reuse) {
        let items = self.items.get(..self.objects()).unwrap_or_default();
        // SAFETY: the caller's.
        unsafe { (reuse.empty)(Batch { items, done: &self.done, free: None }) };
    }

    /// Takes an address of memory that is left, after [`Block::empty_objects`]; null where an object was
    /// leaked.
    pub(crate) fn take_last(&self) -> *mut () {
        let left = self.stamp.load(RELAXED).saturating_sub(1);
        self.stamp.store(left, RELAXED);
        let at = self.items.get(left as usize).map_or(0, |item| item.load(RELAXED));
        core::ptr::with_exposed_provenance_mut(at)
    }

    /// From here on the block is one of memory to be used again: as much as it had objects.
    pub(crate) fn offer_all(&self) {
        self.stamp.store(self.objects() as u64, RELAXED);
    }

    /// Gives back what memory is left.
    ///
    /// # Safety
    /// The caller has the block to itself, and it is one of memory to be used again.
    pub(crate) unsafe fn discard(&self, reuse: Reuse) {
        let left = self.stamp.swap(0, RELAXED) as usize;
        let items = self.items.get(..left).unwrap_or_default();
        // SAFETY: the caller's.
        unsafe { (reuse.discard)(Batch { items, done: &AtomicUsize::new(0), free: None }) };
    }

    /// Frees the objects that have not been freed yet. Whatever panics has been freed.
    ///
    /// # Safety
    /// The caller has the block to itself, and the grace period of its last object is over; `ways` and
    /// `free` are those of the pool whose block it is.
    pub(crate) unsafe fn free_objects(&self, ways: Option<&Ways>, free: Option<Free>) {
        let (kind, objects) = (self.kind(), self.objects());
        let items = self.items.get(..objects * Self::words(kind)).unwrap_or_default();
        let batch = Batch { items, done: &self.done, free };
        match (kind, ways) {
            // SAFETY: the caller's; the words are a pool's objects, by whoever put them in.
            (POOL, Some(ways)) => unsafe { (ways.free)(batch) },
            (POOL, None) => {}
            (LAYOUTS, _) => batch.each::<2>(|at, layout| {
                // SAFETY: the caller's; from the global allocator, with that layout.
                unsafe { std::alloc::dealloc(at.cast(), unpack(layout)) };
            }),
            _ => batch.each::<2>(|at, free| {
                let free = core::ptr::with_exposed_provenance_mut::<()>(free);
                // SAFETY: a `Free` made a pointer by whoever retired the object.
                let free = unsafe { core::mem::transmute::<*mut (), Free>(free) };
                // SAFETY: the caller's.
                unsafe { free(at) };
            }),
        }
    }
}

/// Objects that are looked at ahead of their turn: where they are only dropped in place, eight take less time
/// than the memory does.
const AHEAD: usize = 24;

/// Freeing writes into the object: it has been out of the cache for a grace period.
#[inline(always)]
fn prefetch(at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::without_provenance(at)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A layout in one word.
pub(crate) fn pack(layout: Layout) -> usize {
    layout.size() << 6 | layout.align().trailing_zeros() as usize
}

fn unpack(word: usize) -> Layout {
    // SAFETY: what `pack` was given, which was a layout (sizes of objects are far below 2^58).
    unsafe { Layout::from_size_align_unchecked(word >> 6, 1 << (word & 63)) }
}
