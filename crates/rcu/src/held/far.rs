//! A thread's counts for domains beyond the near ones.
//!
//! A directory of pages, each with the counts of 256 domains, both mapped when first needed and never
//! unmapped. Directories are linked into one list for ever; that of a thread that has ended is taken
//! over by the next thread that needs one. Everything is async-signal-safe: a handler may find the
//! thread in the middle of getting a page, and gets one itself; whoever is second puts his back.
//!
//! | `owner` | the directory | next |
//! |---|---|---|
//! | a thread that lives | is in use | |
//! | a thread that is gone, of this process | is free | taken over: zeroed |
//! | a thread of a parent process | is its survivor's, or lost | never taken over |

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use owlet_sys::memory::Mapping;
use owlet_sys::{fork, process};

use super::{MARKS, RANK};

const PER_PAGE: usize = 256;
const PAGES: usize = 500;

/// Begun and ended in rank 0, begun and ended in rank 1.
type Counts = [AtomicU32; 4];
type Page = [Counts; PER_PAGE];

struct Directory {
    owner: AtomicU32,
    generation: AtomicU64,
    next: AtomicPtr<Directory>,
    pages: [AtomicPtr<Page>; PAGES],
}

static HEAD: AtomicPtr<Directory> = AtomicPtr::new(core::ptr::null_mut());
/// Set once a thread could not count a far section for want of memory.
static LOST: AtomicU32 = AtomicU32::new(0);

/// A thread's directory, or none yet.
pub(super) struct Pages(AtomicPtr<Directory>);

impl Pages {
    pub(super) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Sections of this thread (an upper bound).
    pub(super) fn count(&self, id: u32, rank: u32) -> u32 {
        if LOST.load(Ordering::Relaxed) != 0 {
            // Nobody knows; a bound that is never less.
            return u32::MAX / 2;
        }
        let Some(counts) = self.directory().and_then(|d| d.counts(id, false)) else { return 0 };
        let [begun, ended] = pair(counts, rank);
        begun.load(Ordering::Relaxed).wrapping_sub(ended.load(Ordering::Relaxed))
    }

    fn directory(&self) -> Option<&'static Directory> {
        // SAFETY: null, or a directory, which is never unmapped.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }
    }

    fn directory_slow(&self) -> Option<&'static Directory> {
        if let Some(mine) = self.directory() {
            return Some(mine);
        }
        let new = Directory::taken_over().or_else(Directory::mapped)?;
        let at = core::ptr::from_ref(new).cast_mut();
        let null = core::ptr::null_mut();
        let relaxed = Ordering::Relaxed;
        if self.0.compare_exchange(null, at, relaxed, relaxed).is_err() {
            // A handler was quicker. No thread has the number 0, so it is free.
            new.owner.store(0, Ordering::Release);
        }
        self.directory()
    }

    fn counts(&self, id: u32) -> Option<&'static Counts> {
        self.directory_slow().and_then(|d| d.counts(id, true))
    }
}

impl Directory {
    /// The directory of a thread that has ended.
    fn taken_over() -> Option<&'static Self> {
        let (me, now) = (process::gettid(), fork::generation());
        let mut at = HEAD.load(Ordering::Acquire);
        // SAFETY: the list holds null and directories, which are never unmapped.
        while let Some(directory) = unsafe { at.as_ref() } {
            at = directory.next.load(Ordering::Relaxed);
            let owner = directory.owner.load(Ordering::Acquire);
            // One with this thread's number is a predecessor's, or one that this thread is getting
            // while a handler of its runs this: not worth telling apart.
            let free = owner == 0 || (owner != me && process::thread_is_gone(owner));
            if free
                && directory.generation.load(Ordering::Relaxed) == now
                && directory
                    .owner
                    .compare_exchange(owner, me, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                directory.clear();
                return Some(directory);
            }
        }
        None
    }

    fn mapped() -> Option<&'static Self> {
        let at = Mapping::anonymous(size_of::<Self>()).ok()?.leak().cast::<Self>();
        // SAFETY: fresh pages; all zero is a directory of null pages.
        let new: &'static Self = unsafe { at.as_ref() };
        new.owner.store(process::gettid(), Ordering::Relaxed);
        new.generation.store(fork::generation(), Ordering::Relaxed);
        let mut head = HEAD.load(Ordering::Relaxed);
        loop {
            new.next.store(head, Ordering::Relaxed);
            match HEAD.compare_exchange_weak(head, at.as_ptr(), Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Some(new),
                Err(now) => head = now,
            }
        }
    }

    fn clear(&self) {
        for page in &self.pages {
            // SAFETY: null, or a page, which is never unmapped.
            let Some(page) = (unsafe { page.load(Ordering::Relaxed).as_ref() }) else { continue };
            page.iter().flatten().for_each(|count| count.store(0, Ordering::Relaxed));
        }
    }

    /// The counts of domain number `id`. Beyond the last page domains share: a bound all the same.
    fn counts(&self, id: u32, make: bool) -> Option<&'static Counts> {
        let id = id as usize;
        let slot = self.pages.get(id / PER_PAGE).or(self.pages.last())?;
        // SAFETY: null, or a page, which is never unmapped.
        let mut page: Option<&'static Page> = unsafe { slot.load(Ordering::Relaxed).as_ref() };
        if page.is_none() && make {
            let new: NonNull<Page> = Mapping::anonymous(size_of::<Page>()).ok()?.leak().cast();
            let null = core::ptr::null_mut();
            // If a handler was quicker, a page is lost.
            let _ = slot.compare_exchange(null, new.as_ptr(), Ordering::Relaxed, Ordering::Relaxed);
            // SAFETY: as above; all zero is a page of counts.
            page = unsafe { slot.load(Ordering::Relaxed).as_ref() };
        }
        page?.get(id % PER_PAGE)
    }
}

fn pair(counts: &Counts, rank: u32) -> [&AtomicU32; 2] {
    let [begun, ended, begun1, ended1] = counts;
    if rank & RANK == 0 { [begun, ended] } else { [begun1, ended1] }
}

fn bump(count: &AtomicU32) {
    // SAFETY: written by this thread and its handlers alone, and never unmapped.
    unsafe { owlet_percpu::increment_own::<0>(NonNull::from(count).cast(), 0) };
}

/// Before an entry into the far domain number `id`, in the rank of `index`.
pub(crate) fn up(id: u32, index: u32) {
    match MARKS.with(|marks| marks.far.counts(id)) {
        Some(counts) => bump(pair(counts, index)[0]),
        None => LOST.store(1, Ordering::Relaxed),
    }
}

/// After an exit.
pub(crate) fn down(id: u32, index: u32) {
    if let Some(counts) = MARKS.with(|marks| marks.far.counts(id)) {
        bump(pair(counts, index)[1]);
    }
}
