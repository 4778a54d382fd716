//! Has this process been forked since?
//!
//! [`generation`] is a number that changes in a forked child, whichever way the child was made
//! (`fork`, `_Fork`, raw `clone`), without a handler having to run: the number lives in a page the
//! kernel hands to the child zeroed (`MADV_WIPEONFORK`). Where the kernel cannot do that, the
//! process id stands in, at the price of a system call per question.
//!
//! A `vfork` child (`CLONE_VM`) shares the memory and therefore the generation: it is, for the
//! purposes of everything kept in memory, the same process.
//!
//! State of the page's word: 0 = just made or just forked; other = generation. `LAST` is in normal
//! memory, so the child inherits its parent's number and takes the next one.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::memory::{Mapping, page_size};
use crate::process::getpid;

static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
static LAST: AtomicU64 = AtomicU64::new(0);
/// Stands in for the page where the kernel has no `MADV_WIPEONFORK`; its address is the mark.
static NO_PAGE: AtomicU64 = AtomicU64::new(0);

/// A number that differs between a process and its forked child, never 0. One load when nothing
/// has happened.
#[inline]
#[must_use]
pub fn generation() -> u64 {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return generation_slow();
    }
    // SAFETY: PAGE only ever holds null, a page leaked by `page_slow`, or the address of NO_PAGE.
    match unsafe { &*page }.load(Ordering::Relaxed) {
        0 => generation_slow(),
        n => n,
    }
}

#[cold]
#[inline(never)]
fn generation_slow() -> u64 {
    let page = page_slow();
    if core::ptr::eq(page, &raw const NO_PAGE) {
        return u64::from(getpid()).max(1);
    }
    let next = LAST.load(Ordering::Relaxed) + 1;
    // SAFETY: `page_slow` returns a leaked page, valid for ever.
    match unsafe { &*page }.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            LAST.fetch_max(next, Ordering::Relaxed);
            next
        }
        Err(other) => other,
    }
}

/// The page, made by whoever comes first.
fn page_slow() -> *const AtomicU64 {
    let seen = PAGE.load(Ordering::Acquire);
    if !seen.is_null() {
        return seen;
    }
    let made = Mapping::anonymous(page_size()).and_then(|m| m.wipe_on_fork().map(|()| m));
    let mine = match &made {
        Ok(page) => page.as_ptr().cast::<AtomicU64>(),
        Err(_) => (&raw const NO_PAGE).cast_mut(),
    };
    let null = core::ptr::null_mut();
    match PAGE.compare_exchange(null, mine, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            if let Ok(page) = made {
                let _ = page.leak();
            }
            mine
        }
        // Somebody else was first; `made` is unmapped on return.
        Err(theirs) => theirs,
    }
}
