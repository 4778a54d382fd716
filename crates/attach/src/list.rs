//! Lists of programs: one for each flavour of a function that has programs of it.
//!
//! # Order
//! Entries run in the order in which they were attached, then modifying programs in theirs; exits run in
//! the opposite order, so that what was begun last ends first. Normal programs run before sleepable ones
//! at entry and after them at exit. Within one batch, the order is that of the additions.

use crate::program::{Kind, Program};
use owlet_percpu::atomic::{AtomicBool, Ordering};
use std::alloc::Layout;

/// One program on one function.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) program: Program,
    /// Never used again, in the life of the process.
    pub(crate) link: u64,
    pub(crate) cookie: u64,
    /// Detached, but there was no memory for a list without it.
    dead: AtomicBool,
}

impl Entry {
    pub(crate) const fn new(program: Program, link: u64, cookie: u64) -> Self {
        Self { program, link, cookie, dead: AtomicBool::new(false) }
    }

    /// Whether it is to run.
    #[inline(always)]
    pub(crate) fn live(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    fn again(&self) -> Self {
        Self::new(self.program.clone(), self.link, self.cookie)
    }
}

/// An immutable list (`slot`, invariant 1). Never empty while published.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) entries: Vec<Entry>,
    /// Entries from here on are modifying programs.
    pub(crate) modify: usize,
    /// One of them runs at exit.
    pub(crate) exits: bool,
}

/// No memory for a list.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

impl List {
    /// The live entries of `old` without those of `gone`, and `new` ones behind them; `None` when that is
    /// nothing.
    pub(crate) fn make(
        old: Option<&Self>,
        gone: impl Fn(u64) -> bool,
        new: &[Entry],
    ) -> Result<Option<Box<Self>>, OutOfMemory> {
        let kept = old.map_or(&[][..], |list| list.entries.as_slice());
        let stays = |entry: &&Entry| entry.live() && !gone(entry.link);
        let len = kept.iter().filter(stays).count() + new.len();
        if len == 0 {
            return Ok(None);
        }
        if fake::out_of_memory() {
            return Err(OutOfMemory);
        }
        let mut entries = Vec::new();
        entries.try_reserve_exact(len).map_err(|_| OutOfMemory)?;
        for modify in [false, true] {
            let half = |entry: &&Entry| (entry.program.kind() == Kind::Modify) == modify;
            entries.extend(kept.iter().filter(stays).filter(half).map(Entry::again));
            entries.extend(new.iter().filter(half).map(Entry::again));
        }
        let modify = entries.partition_point(|entry| entry.program.kind() != Kind::Modify);
        let exits = entries.iter().any(|e| matches!(e.program.kind(), Kind::Exit | Kind::Session));
        boxed(Self { entries, modify, exits }).map(Some)
    }

    /// Whether the program is attached.
    pub(crate) fn has(&self, program: &Program) -> bool {
        self.entries.iter().any(|entry| entry.live() && entry.program.same(program))
    }

    /// Number of live entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.iter().filter(|entry| entry.live()).count()
    }
}

/// `Box::new` that fails.
fn boxed(list: List) -> Result<Box<List>, OutOfMemory> {
    // SAFETY: the layout of `List` is not of size zero.
    let at = unsafe { std::alloc::alloc(Layout::new::<List>()) }.cast::<List>();
    if at.is_null() {
        return Err(OutOfMemory);
    }
    // SAFETY: fresh memory of the right layout.
    unsafe { at.write(list) };
    // SAFETY: it holds a list now, and boxes use the same allocator and layout.
    Ok(unsafe { Box::from_raw(at) })
}

#[cfg(not(any(test, feature = "fake")))]
mod fake {
    #[inline(always)]
    pub(super) fn out_of_memory() -> bool {
        false
    }
}

/// Lists for which there is no memory on purpose.
#[cfg(any(test, feature = "fake"))]
pub(crate) mod fake {
    use std::cell::Cell;

    thread_local! { static LEFT: Cell<usize> = const { Cell::new(usize::MAX) } }

    /// Runs `f` while this thread gets memory for `lists` lists only.
    pub fn memory_for<R>(lists: usize, f: impl FnOnce() -> R) -> R {
        LEFT.set(lists);
        let result = f();
        LEFT.set(usize::MAX);
        result
    }

    pub(super) fn out_of_memory() -> bool {
        match LEFT.get() {
            usize::MAX => false,
            0 => true,
            left => {
                LEFT.set(left - 1);
                false
            }
        }
    }
}
