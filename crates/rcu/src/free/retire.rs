//! Retiring: what the public methods do.

use core::alloc::Layout;
use core::fmt;
use core::mem::{ManuallyDrop, transmute_copy};
use core::ptr::NonNull;
use core::time::Duration;

use super::block::{Free, LAYOUTS, OBJECTS, pack, weight};
use super::ledger::{Counts, bump};
use super::put::{put, put_unchecked, retired_twice, store_of};
use super::reclaim::{help, is_freeing};
use super::twice;
use crate::callback::head::{Posting, Taken};
use crate::callback::{self, Callback, Head};
use crate::engine::EngineRef;

/// An object that was not taken, because its domain's cap is reached.
pub struct Full<T>(
    /// The object.
    pub T,
);

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full(..)")
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the domain's cap on retired objects is reached")
    }
}

impl<T> std::error::Error for Full<T> {}

/// True if a pointer to `T` is one word.
const fn is_thin<T: ?Sized>() -> bool {
    size_of::<*mut T>() == size_of::<*mut ()>()
}

/// Drops a box that came as one word.
///
/// # Safety
/// `at` came from `Box::<T>::into_raw`, and a pointer to `T` is one word.
pub(super) unsafe fn drop_box<T: ?Sized>(at: *mut ()) {
    // SAFETY: both are one word (caller).
    let at = unsafe { transmute_copy::<*mut (), *mut T>(&at) };
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(at) });
}

fn address<T>(at: *mut T) -> usize {
    at.expose_provenance()
}

fn word(free: Free) -> usize {
    (free as *mut ()).expose_provenance()
}

/// Retires a box.
#[inline(always)]
pub(crate) fn retire<T: ?Sized + Send + 'static>(engine: EngineRef, object: Box<T>) {
    let bytes = size_of_val(&*object);
    let at = Box::into_raw(object);
    if is_thin::<T>() {
        // SAFETY: `T` is `Send` and owns what it borrows; the box is ours, and thin.
        unsafe { retire_once(engine, at.cast(), bytes, drop_box::<T>) };
    } else {
        retire_wide(engine, at, bytes);
    }
}

/// A box whose pointer is two words goes into a box of its own.
#[cold]
#[inline(never)]
fn retire_wide<T: ?Sized + Send + 'static>(engine: EngineRef, at: *mut T, bytes: usize) {
    // SAFETY: the caller's box.
    let object = ManuallyDrop::new(unsafe { Box::from_raw(at) });
    // SAFETY: two words, so not empty.
    let outer = unsafe { std::alloc::alloc(Layout::new::<Box<T>>()) }.cast::<Box<T>>();
    if outer.is_null() {
        return free_inline(engine, || drop(ManuallyDrop::into_inner(object)), || false);
    }
    // SAFETY: fresh memory for it.
    unsafe { outer.write(ManuallyDrop::into_inner(object)) };
    let bytes = bytes + size_of::<Box<T>>();
    // SAFETY: as if from Box::into_raw; a `Box<T>` is as `Send` as `T`.
    unsafe { retire_once(engine, outer.cast(), bytes, drop_box::<Box<T>>) };
}

/// Retires what came from `Box::into_raw`.
///
/// # Safety
/// `at` did, as `object`, which has been unpublished and is retired once.
#[inline(always)]
pub(crate) unsafe fn retire_box<T: Send + 'static>(
    engine: EngineRef,
    at: *mut (),
    _object: NonNull<T>,
) {
    // SAFETY: the caller's.
    unsafe { retire_once(engine, at, size_of::<T>(), drop_box::<T>) };
}

/// Retires what is gone once it is freed: a second time before that is found by the checks.
///
/// # Safety
/// As [`retire_with`].
#[inline(always)]
unsafe fn retire_once(engine: EngineRef, at: *mut (), bytes: usize, free: Free) {
    if !twice::remember([address(at), word(free)]) {
        return retired_twice(engine);
    }
    // SAFETY: the caller's.
    unsafe { retire_with(engine, at, bytes, free) };
}

/// Retires whatever `free` frees, which may be one of several references.
///
/// # Safety
/// `free(at)` may be called once, on any thread, after the next grace period.
#[inline(always)]
pub(crate) unsafe fn retire_with(engine: EngineRef, at: *mut (), bytes: usize, free: Free) {
    let words = [address(at), word(free)];
    // SAFETY: the caller's.
    let done = unsafe { put_unchecked::<OBJECTS>(engine, words, weight(bytes, OBJECTS)) };
    if done.is_err() {
        // SAFETY: the caller's.
        let free = || unsafe { free(at) };
        // SAFETY: the caller's.
        let again =
            || unsafe { put_unchecked::<OBJECTS>(engine, words, weight(bytes, OBJECTS)) }.is_ok();
        free_inline(engine, free, again);
    }
}

/// Retires memory of the global allocator.
///
/// # Safety
/// `at` came from it with that layout, and may be given back to it after the next grace period.
#[inline(always)]
pub(crate) unsafe fn retire_dealloc(engine: EngineRef, at: NonNull<u8>, layout: Layout) {
    let words = [address(at.as_ptr()), pack(layout)];
    let weight = weight(layout.size(), LAYOUTS);
    // SAFETY: the caller's.
    if unsafe { put::<LAYOUTS>(engine, words, weight) }.is_err() {
        // SAFETY: the caller's.
        let free = || unsafe { std::alloc::dealloc(at.as_ptr(), layout) };
        // SAFETY: the caller's.
        free_inline(engine, free, || unsafe { put::<LAYOUTS>(engine, words, weight) }.is_ok());
    }
}

/// Has a closure called.
pub(crate) fn retire_call<F: FnOnce() + Send + 'static>(engine: EngineRef, bytes: usize, call: F) {
    /// # Safety
    /// `at` came from `Box::<F>::into_raw`.
    unsafe fn run<F: FnOnce()>(at: *mut ()) {
        // SAFETY: the caller's.
        let call = unsafe { Box::from_raw(at.cast::<F>()) };
        call();
    }
    let at = Box::into_raw(Box::new(call));
    // SAFETY: a box of ours, of something that is `Send` and owns what it borrows.
    unsafe { retire_with(engine, at.cast(), bytes.saturating_add(size_of::<F>()), run::<F>) };
}

/// Retires an object with a head.
///
/// # Safety
/// As [`callback::post`].
pub(crate) unsafe fn retire_head(engine: EngineRef, head: NonNull<Head>, func: Callback) {
    /// # Safety
    /// `at` is a head that was posted, and its grace period is over.
    unsafe fn call(at: *mut ()) {
        let Some(head) = NonNull::new(at.cast::<Head>()) else { return };
        // SAFETY: the caller's.
        if let Taken::Call(func) = unsafe { head.as_ref() }.take() {
            // SAFETY: posted with this function.
            unsafe { func(head) };
        }
    }
    // SAFETY: the caller's.
    let inner = unsafe { head.as_ref() };
    if inner.post(func) == Posting::Twice {
        count(engine, |counts| &counts.leaked);
        debug_assert!(false, "a head was retired while it was queued; it is leaked");
        return;
    }
    let bytes = inner.bytes() as usize;
    let words = [address(head.as_ptr()), word(call)];
    // SAFETY: the caller's.
    if unsafe { put::<OBJECTS>(engine, words, weight(bytes, OBJECTS)) }.is_err() {
        // The list for which no memory is needed.
        if let Taken::Call(func) = inner.take() {
            let lazy = callback::queue::Urgency::Lazy;
            // SAFETY: the caller's.
            let _ = unsafe { callback::post(engine, head, func, lazy) };
        }
    }
}

/// Hands the box back if the cap is reached and nothing can be freed at once.
pub(crate) fn try_retire<T: ?Sized + Send + 'static>(
    engine: EngineRef,
    object: Box<T>,
) -> Result<(), Full<Box<T>>> {
    if engine.0.free.is_full() && (is_freeing() || !help(engine)) {
        count(engine, |counts| &counts.refused);
        return Err(Full(object));
    }
    retire(engine, object);
    Ok(())
}

pub(super) fn count(engine: EngineRef, of: fn(&Counts) -> &core::sync::atomic::AtomicU64) {
    if let Some(store) = store_of(engine) {
        bump(of(&store.counts), 1);
    }
}

/// There is no memory for a block. Waits for a grace period and frees the object; a thread that must not
/// wait for one waits for memory instead: there is nothing right to do without.
#[cold]
#[inline(never)]
pub(super) fn free_inline(engine: EngineRef, free: impl FnOnce(), again: impl Fn() -> bool) {
    let _aside = engine.flavour().aside();
    while is_freeing() || callback::is_running() || engine.flavour().holds() {
        std::thread::sleep(Duration::from_millis(1));
        if again() {
            return;
        }
    }
    engine.wait(engine.snapshot(), true);
    count(engine, |counts| &counts.inline);
    free();
}
