//! Lists of programs: one for each flavour of a function that has programs of it.
//!
//! # Order
//! Entries run in the order in which they were attached, then modifying programs in theirs; exits run in
//! the opposite order, so that what was begun last ends first. Normal programs run before sleepable ones
//! at entry and after them at exit. Within one batch, the order is that of the additions.

use crate::program::{Inner, Kind, Program};
use core::ptr::NonNull;
use owlet_percpu::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::alloc::Layout;
use std::sync::Arc;

/// One program on one function. Owns nothing: see `slot`, invariant 4.
#[derive(Debug)]
pub(crate) struct Entry {
    program: NonNull<Inner>,
    /// Never used again, in the life of the process.
    pub(crate) link: u64,
    pub(crate) cookie: u64,
    kind: Kind,
    /// Detached, but there was no memory for a list without it.
    dead: AtomicBool,
}

// SAFETY: a pointer to what is Send and Sync; whoever follows it answers for its being there.
unsafe impl Send for Entry {}
// SAFETY: as for Send.
unsafe impl Sync for Entry {}

impl Entry {
    pub(crate) fn new(program: &Program, link: u64, cookie: u64) -> Self {
        let kind = program.kind();
        let program = NonNull::from(&*program.0);
        Self { program, link, cookie, kind, dead: AtomicBool::new(false) }
    }

    /// Whether it is to run.
    #[inline(always)]
    pub(crate) fn live(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }

    /// When its program runs.
    #[inline(always)]
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The program.
    ///
    /// # Safety
    /// The entry was found live in a list, in a section of its domain or under the control lock, that has
    /// not ended since (invariant 4 of `slot`).
    #[inline(always)]
    pub(crate) unsafe fn program(&self) -> &Inner {
        // SAFETY: the caller's.
        unsafe { self.program.as_ref() }
    }

    /// A handle of the program.
    ///
    /// # Safety
    /// As [`Entry::program`].
    pub(crate) unsafe fn handle(&self) -> Program {
        let program = self.program.as_ptr().cast_const();
        // SAFETY: it came from an `Arc`, which the caller keeps alive.
        unsafe { Arc::increment_strong_count(program) };
        // SAFETY: with the count of the line above.
        Program(unsafe { Arc::from_raw(program) })
    }

    fn is(&self, program: &Program) -> bool {
        core::ptr::eq(self.program.as_ptr(), Arc::as_ptr(&program.0))
    }

    fn again(&self) -> Self {
        let Self { program, link, cookie, kind, .. } = *self;
        Self { program, link, cookie, kind, dead: AtomicBool::new(false) }
    }
}

/// The only entry of one end of a call, so that a call finds what it needs of it in two loads.
#[derive(Debug, Default)]
pub(crate) struct Lone {
    /// Null if the end has no entry, or several, or one that is not of the right kind, or a dead one.
    program: AtomicPtr<Inner>,
    pub(crate) link: u64,
    pub(crate) cookie: u64,
}

impl Lone {
    fn of(entries: &[Entry], kinds: &[Kind]) -> Self {
        match entries {
            [Entry { program, link, cookie, kind, .. }] if kinds.contains(kind) => {
                Self { program: AtomicPtr::new(program.as_ptr()), link: *link, cookie: *cookie }
            }
            _ => Self::default(),
        }
    }

    /// The program.
    ///
    /// # Safety
    /// As [`Entry::program`].
    #[inline(always)]
    pub(crate) unsafe fn program(&self) -> Option<&Inner> {
        // SAFETY: the caller's.
        unsafe { self.program.load(Ordering::Relaxed).as_ref() }
    }

    fn kill(&self) {
        self.program.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// An immutable list (`slot`, invariant 1). Never empty while published.
#[derive(Debug)]
pub(crate) struct List {
    /// The only entry of `enter`, of a program of the kind `Entry`.
    pub(crate) plain: Lone,
    /// The only entry of `enter`, of one of those or of a session.
    pub(crate) first: Lone,
    /// The only entry of `exit`.
    pub(crate) last: Lone,
    /// What runs at entry, in the order in which it runs.
    enter: Vec<Entry>,
    /// What runs at exit, in the order in which it runs. A session is in both.
    exit: Vec<Entry>,
}

/// No memory for a list.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

/// The part of a list that an entry belongs to.
#[derive(Clone, Copy)]
enum Part {
    Enter,
    Modify,
    Exit,
}

impl Part {
    fn has(self, entry: &Entry) -> bool {
        match self {
            Self::Enter => matches!(entry.kind, Kind::Entry | Kind::Session),
            Self::Modify => entry.kind == Kind::Modify,
            Self::Exit => matches!(entry.kind, Kind::Exit | Kind::Session),
        }
    }
}

impl List {
    /// The live entries of `old` without those of `gone`, and `new` ones behind them; `None` when that is
    /// nothing.
    pub(crate) fn make(
        old: Option<&Self>,
        gone: impl Fn(u64) -> bool,
        new: &[Entry],
    ) -> Result<Option<Box<Self>>, OutOfMemory> {
        let enter = old.map_or(&[][..], |list| list.enter.as_slice());
        let exit = old.map_or(&[][..], |list| list.exit.as_slice());
        let stays = |entry: &&Entry| entry.live() && !gone(entry.link);
        if new.is_empty() && !enter.iter().chain(exit).any(|entry| stays(&entry)) {
            return Ok(None);
        }
        if fake::out_of_memory() {
            return Err(OutOfMemory);
        }
        let (old_enter, old_exit) = (enter, exit);
        let exits = new.iter().filter(|entry| Part::Exit.has(entry)).count();
        let enters = new.iter().filter(|entry| !matches!(entry.kind, Kind::Exit)).count();
        let [mut enter, mut exit] =
            [reserved(old_enter.len() + enters)?, reserved(old_exit.len() + exits)?];
        for part in [Part::Enter, Part::Modify] {
            let part = |entry: &&Entry| part.has(entry);
            enter.extend(old_enter.iter().filter(stays).filter(part).map(Entry::again));
            enter.extend(new.iter().filter(part).map(Entry::again));
        }
        let part = |entry: &&Entry| Part::Exit.has(entry);
        exit.extend(new.iter().rev().filter(part).map(Entry::again));
        exit.extend(old_exit.iter().filter(stays).map(Entry::again));
        let plain = Lone::of(&enter, &[Kind::Entry]);
        let first = Lone::of(&enter, &[Kind::Entry, Kind::Session]);
        let last = Lone::of(&exit, &[Kind::Exit, Kind::Session]);
        boxed(Self { plain, first, last, enter, exit }).map(Some)
    }

    /// What runs at entry.
    #[inline(always)]
    pub(crate) fn enter(&self) -> &[Entry] {
        &self.enter
    }

    /// What runs at exit.
    #[inline(always)]
    pub(crate) fn exit(&self) -> &[Entry] {
        &self.exit
    }

    /// Whether anything runs at exit.
    #[inline(always)]
    pub(crate) fn exits(&self) -> bool {
        !self.exit.is_empty()
    }

    /// Whether there are live entries at entry, and at exit.
    pub(crate) fn ends(&self) -> (bool, bool) {
        (self.enter.iter().any(Entry::live), self.exit.iter().any(Entry::live))
    }

    /// Every live entry once.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        let exits = self.exit.iter().rev().filter(|entry| entry.kind == Kind::Exit);
        self.enter.iter().chain(exits).filter(|entry| entry.live())
    }

    /// Whether the program is attached.
    pub(crate) fn has(&self, program: &Program) -> bool {
        self.entries().any(|entry| entry.is(program))
    }

    /// Marks entries that are detached, where there is no memory for a list without them.
    pub(crate) fn kill(&self, gone: impl Fn(u64) -> bool) {
        let both = self.enter.iter().chain(&self.exit);
        both.filter(|entry| gone(entry.link)).for_each(|entry| {
            entry.dead.store(true, Ordering::Relaxed);
        });
        for lone in [&self.plain, &self.first, &self.last] {
            if gone(lone.link) {
                lone.kill();
            }
        }
    }
}

/// Room for that many.
fn reserved(len: usize) -> Result<Vec<Entry>, OutOfMemory> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(len).map_err(|_| OutOfMemory)?;
    Ok(entries)
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

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;

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
