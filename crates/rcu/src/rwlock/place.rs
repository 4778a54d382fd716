//! The counters of locks: two words in every CPU's slot, four locks to a slot.
//!
//! Chunks of slots are mapped when needed, linked into one list for ever, and their words given to other
//! locks when a lock is dropped. So a lock can be a constant and may be moved, its first use is
//! async-signal-safe, and a forked child finds all counters without finding the locks.
//!
//! # Invariants
//! 1. Chunks are never unmapped; the address of a place is valid for ever.
//! 2. The two sums of a place that nobody has are equal.
//!
//! # Fork
//! In a child, all sums are made equal: what was inside were threads that stayed behind, and sections of
//! the surviving thread, which are over as far as the lock knows. The generation of the process
//! ([`owlet_percpu::Hot`]) tells the guards of those from later ones: they count no exit.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering, compiler_fence, fence};

use owlet_percpu::Slots;
use owlet_sys::memory::Mapping;

use super::protocol::{Counters, Letter};

/// Forks that this process has behind it, as far as anybody noticed: the generation, with all its bits.
pub(super) static FORKS: AtomicU32 = AtomicU32::new(0);

/// Locks that share a slot.
const PLACES: u32 = 4;
/// Bytes from one place to the next, and from its entries to its exits.
const PLACE: usize = 16;
pub(super) const TO_EXITS: usize = 8;
const SLOT: usize = 128;

/// In front of the slots.
#[repr(C, align(128))]
struct Chunk {
    /// A bit for each place that a lock has.
    used: AtomicU32,
    next: AtomicPtr<Chunk>,
}

static CHUNKS: AtomicPtr<Chunk> = AtomicPtr::new(core::ptr::null_mut());

/// The counters of one lock: the address of the entries' word in the first slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(NonNull<u8>);

// SAFETY: what is there lives for ever (invariant 1) and is written by counters only, from any thread.
unsafe impl Send for Place {}
// SAFETY: as for Send.
unsafe impl Sync for Place {}

impl Place {
    /// # Safety
    /// `at` came from [`Place::as_ptr`].
    #[inline(always)]
    pub(super) unsafe fn from_ptr(at: NonNull<u8>) -> Self {
        Self(at)
    }

    #[inline(always)]
    pub(super) fn as_ptr(self) -> NonNull<u8> {
        self.0
    }

    /// The slots it is in, and its number there.
    fn parts(self) -> (Slots, usize) {
        let offset = self.0.addr().get() % SLOT;
        // SAFETY: `offset` bytes back the slot begins, in the same mapping.
        let base = unsafe { self.0.sub(offset) };
        // SAFETY: the slots of a chunk, which is never unmapped (invariant 1); zeroed at first.
        let slots = unsafe { Slots::from_raw(base.cast()) };
        (slots, offset / PLACE)
    }

    /// Counters for a new lock.
    ///
    /// Aborts if there is no memory, as an allocation would.
    pub(super) fn claim() -> Self {
        loop {
            if let Some(place) = chunks().find_map(Chunk::claim) {
                return place;
            }
            map();
        }
    }

    /// The lock is gone, and whoever still counted himself inside has forgotten to leave.
    pub(super) fn give_back(self) {
        self.strike_out();
        let (slots, number) = self.parts();
        // SAFETY: the chunk's header stands in front of its slots (`map`).
        let chunk = unsafe { slots.base().cast::<Chunk>().sub(1) };
        // SAFETY: chunks are initialised and never unmapped (invariant 1).
        let chunk = unsafe { chunk.as_ref() };
        // Release: pairs with the acquire in Chunk::claim(); the sums are equal.
        chunk.used.fetch_and(!(1 << number), Ordering::Release);
    }

    /// Counts everybody out who is inside.
    fn strike_out(self) {
        let (slots, number) = self.parts();
        let open = self.entries().wrapping_sub(self.exits());
        if open != 0 {
            slots.add_atomic(number * 2 + 1, open);
        }
    }

    /// How many are inside: exact if nobody comes or goes.
    pub(super) fn inside(self) -> u64 {
        let exits = self.exits();
        fence(Ordering::Acquire);
        self.entries().wrapping_sub(exits)
    }
}

impl Counters for Place {
    fn count_entry(&self) {
        let (slots, number) = self.parts();
        slots.add_atomic(number * 2, 1);
    }

    fn count_exit(&self) {
        let (slots, number) = self.parts();
        slots.add_atomic(number * 2 + 1, 1);
    }

    fn entries(&self) -> u64 {
        let (slots, number) = self.parts();
        slots.sum(number * 2)
    }

    fn exits(&self) -> u64 {
        let (slots, number) = self.parts();
        slots.sum(number * 2 + 1)
    }

    fn fence(&self, letter: Letter) {
        match letter {
            // `add_atomic` is a full barrier.
            Letter::A | Letter::B | Letter::Y => compiler_fence(Ordering::SeqCst),
            Letter::C => fence(Ordering::Acquire),
            // On x86-64 an exchange is a full barrier.
            Letter::D | Letter::Z if cfg!(target_arch = "x86_64") => {
                compiler_fence(Ordering::SeqCst);
            }
            Letter::D | Letter::Z => fence(Ordering::SeqCst),
        }
    }
}

impl Chunk {
    fn claim(&'static self) -> Option<Place> {
        let free = (0..PLACES).find(|&number| {
            let bit = 1 << number;
            self.used.load(Ordering::Relaxed) & bit == 0
                && self.used.fetch_or(bit, Ordering::Acquire) & bit == 0
        })?;
        let slots = NonNull::from(self).cast::<u8>().as_ptr().wrapping_add(size_of::<Self>());
        NonNull::new(slots.wrapping_add(free as usize * PLACE)).map(Place)
    }
}

fn chunks() -> impl Iterator<Item = &'static Chunk> {
    let mut at = CHUNKS.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: the list holds null and what `map` put there, which is never unmapped (invariant 1).
        let chunk: &'static Chunk = unsafe { at.as_ref() }?;
        at = chunk.next.load(Ordering::Relaxed);
        Some(chunk)
    })
}

fn map() {
    let bytes = size_of::<Chunk>() + Slots::bytes();
    let Ok(memory) = Mapping::anonymous(bytes) else {
        let layout = core::alloc::Layout::from_size_align(bytes, SLOT);
        std::alloc::handle_alloc_error(layout.unwrap_or(core::alloc::Layout::new::<Chunk>()));
    };
    // Zero is a chunk of which nobody has anything.
    let at = memory.leak().cast::<Chunk>();
    // SAFETY: fresh pages, aligned and long enough.
    let chunk = unsafe { at.as_ref() };
    let mut head = CHUNKS.load(Ordering::Relaxed);
    loop {
        chunk.next.store(head, Ordering::Relaxed);
        match CHUNKS.compare_exchange_weak(head, at.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// In a forked child, on its only thread if `alone`.
pub(crate) fn forked(alone: bool) {
    if alone {
        for chunk in chunks() {
            let used = chunk.used.load(Ordering::Relaxed);
            let base = core::ptr::from_ref(chunk).cast_mut().cast::<u8>();
            let slots = base.wrapping_add(size_of::<Chunk>());
            for number in (0..PLACES).filter(|number| used & (1 << number) != 0) {
                let at = slots.wrapping_add(number as usize * PLACE);
                if let Some(place) = NonNull::new(at).map(Place) {
                    place.strike_out();
                }
            }
        }
        FORKS.fetch_add(1, Ordering::Relaxed);
        owlet_percpu::next_generation();
    }
}
