//! The records that one run has reserved in ring buffers and not handed over yet.
//!
//! # Invariants
//! 1. The first `count` entries are written, and each is a reservation that nobody has ended.
//! 2. Whoever makes an [`Open`] keeps its map alive until the run is over.
//!
//! A table belongs to one run, and so to one thread; a signal handler's run has its own.

use core::cell::Cell;
use core::mem::MaybeUninit;

use crate::map::{Map, Reservation};

/// Records that a run may have reserved at the same time.
pub(crate) const MOST: usize = 4;

/// A record that is being written.
#[derive(Clone, Copy)]
struct Open {
    map: *const Map,
    record: Reservation,
    len: usize,
}

/// The table.
pub(crate) struct Reserved {
    count: Cell<usize>,
    entries: [Cell<MaybeUninit<Open>>; MOST],
}

impl core::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Reserved").field("count", &self.count).finish()
    }
}

impl Reserved {
    /// Nothing is reserved. Costs one store.
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { count: Cell::new(0), entries: [const { Cell::new(MaybeUninit::uninit()) }; MOST] }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    fn get(&self, index: usize) -> Option<Open> {
        let entry = self.entries.get(index).filter(|_| index < self.count.get())?;
        // SAFETY: invariant 1.
        Some(unsafe { entry.get().assume_init() })
    }

    fn set(&self, index: usize, open: Open) {
        if let Some(entry) = self.entries.get(index) {
            entry.set(MaybeUninit::new(open));
        }
    }

    /// Reserves `len` bytes; 0 if that cannot be, which the map counts.
    ///
    /// # Safety
    /// `map` outlives the run (invariant 2).
    pub(crate) unsafe fn reserve(&self, map: &Map, len: u64) -> *mut u8 {
        let count = self.count.get();
        if count >= MOST {
            map.lost();
            return core::ptr::null_mut();
        }
        let Some(record) = map.reserve(len) else { return core::ptr::null_mut() };
        // It was found to fit into memory.
        let len = usize::try_from(len).unwrap_or(0);
        self.set(count, Open { map: core::ptr::from_ref(map), record, len });
        self.count.set(count + 1);
        record.data
    }

    fn find(&self, data: u64) -> Option<usize> {
        (0..self.count.get()).find(|index| {
            self.get(*index).is_some_and(|open| open.record.data.addr() as u64 == data)
        })
    }

    /// Whether a record that is reserved begins there.
    pub(crate) fn has(&self, data: u64) -> bool {
        self.find(data).is_some()
    }

    /// Whether `len` bytes at `address` lie in a record that is reserved.
    pub(crate) fn holds(&self, address: u64, len: usize) -> bool {
        (0..self.count.get()).filter_map(|index| self.get(index)).any(|open| {
            let offset = address.checked_sub(open.record.data.addr() as u64);
            let offset = offset.and_then(|offset| usize::try_from(offset).ok());
            let end = offset.and_then(|offset| offset.checked_add(len));
            end.is_some_and(|end| end <= open.len)
        })
    }

    /// Hands a record over, or gives it back. Nothing, if no record begins there.
    pub(crate) fn end(&self, data: u64, keep: bool) {
        let Some(index) = self.find(data) else { return };
        let (Some(open), Some(last)) = (self.get(index), self.get(self.count.get() - 1)) else {
            return;
        };
        self.set(index, last);
        self.count.set(self.count.get() - 1);
        // SAFETY: invariant 2.
        unsafe { &*open.map }.commit(open.record.at, open.len, keep);
    }

    /// The run is over: what it has left is given back, and counted.
    #[cold]
    pub(crate) fn abandon(&self) {
        for open in (0..self.count.get()).filter_map(|index| self.get(index)) {
            // SAFETY: invariant 2: the run is not over before this.
            unsafe { &*open.map }.abandon(open.record.at, open.len);
        }
        self.count.set(0);
    }
}
