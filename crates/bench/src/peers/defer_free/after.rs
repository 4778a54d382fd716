//! After: blocks with cookies.

use super::object::{Headed, Object, fill, number};
use super::{DOMAIN, Way};
use owlet_rcu::free::Pool;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects by whatever frees them.
pub(super) struct ByDomain;

/// Of a hundred objects so many have a head.
pub(super) static HEADS: AtomicU64 = AtomicU64::new(0);

fn has_head(i: u64, heads: u64) -> bool {
    heads != 0 && i % 100 < heads
}

impl<const N: usize> Way<N> for ByDomain {
    type Thread = u64;

    fn thread() -> u64 {
        HEADS.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn make(heads: &mut u64, i: u64) -> *mut Object<N> {
        if has_head(i, *heads) { Headed::make(i) } else { fill(Box::new_uninit(), i) }
    }

    #[inline(always)]
    unsafe fn retire(heads: &mut u64, object: NonNull<Object<N>>) {
        // SAFETY: the caller's.
        if *heads != 0 && has_head(unsafe { number(object) }, *heads) {
            // SAFETY: made with one.
            let head = unsafe { Headed::head(object) };
            // SAFETY: likewise; in a leaked box, with what frees it.
            return unsafe { DOMAIN.retire_head(head, Headed::<N>::free) };
        }
        // SAFETY: the caller's.
        unsafe { DOMAIN.retire_raw(object) };
    }
}

/// Where the objects of a size are pooled.
pub(super) trait Pooled<const N: usize> {
    /// The pool.
    fn pool() -> &'static Pool<'static, Object<N>>;
}

/// A pool of its own.
pub(super) struct ByPool;

impl<const N: usize> Way<N> for ByPool
where
    Self: Pooled<N>,
{
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        // SAFETY: the caller's.
        unsafe { Self::pool().retire_raw(object) };
    }
}

/// The same pool, from which new objects come, too.
pub(super) struct Recycled;

impl<const N: usize> Way<N> for Recycled
where
    ByPool: Pooled<N>,
{
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    fn make((): &mut (), i: u64) -> *mut Object<N> {
        fill(ByPool::pool().uninit(), i)
    }

    #[inline(always)]
    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        // SAFETY: the caller's.
        unsafe { ByPool::pool().retire_raw(object) };
    }
}
