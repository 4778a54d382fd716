//! What is retired, and what is counted when it is freed.

use super::DOMAIN;
use crate::harness::serve::clock;
use owlet_rcu::Head;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// `N` words: a stamp and the grace periods so far, for one object in [`SAMPLE`]; the last is a number.
#[repr(transparent)]
pub(super) struct Object<const N: usize>([u64; N]);

/// One object in so many tells for how long it waited.
const SAMPLE: u64 = 256;
const SHARDS: usize = 64;

/// Freed objects, the sampled ones, and how long these waited, in all and at most: in ns, and in grace
/// periods that ended meanwhile. By thread, so that counting costs little.
#[repr(align(128))]
pub(super) struct Shard {
    pub(super) freed: AtomicU64,
    pub(super) sampled: AtomicU64,
    pub(super) age: AtomicU64,
    pub(super) oldest: AtomicU64,
    pub(super) periods: AtomicU64,
    pub(super) most_periods: AtomicU64,
}

impl Shard {
    const fn new() -> Self {
        Self {
            freed: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            age: AtomicU64::new(0),
            oldest: AtomicU64::new(0),
            periods: AtomicU64::new(0),
            most_periods: AtomicU64::new(0),
        }
    }
}

static FREED: [Shard; SHARDS] = [const { Shard::new() }; SHARDS];
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static MINE: usize = THREADS.fetch_add(1, Ordering::Relaxed) as usize % SHARDS;
}

fn add(count: &AtomicU64, n: u64) {
    count.store(count.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl<const N: usize> Drop for Object<N> {
    #[inline]
    fn drop(&mut self) {
        let shard = &FREED[MINE.with(|mine| *mine)];
        add(&shard.freed, 1);
        let [stamp, periods, ..] = self.0.as_slice() else { return };
        if *stamp != 0 {
            note(shard, *stamp, *periods);
        }
    }
}

#[cold]
fn note(shard: &Shard, stamp: u64, periods: u64) {
    let age = clock(libc::CLOCK_MONOTONIC).saturating_sub(stamp);
    let periods = DOMAIN.stats().grace_periods - periods;
    add(&shard.sampled, 1);
    add(&shard.age, age);
    add(&shard.periods, periods);
    shard.oldest.fetch_max(age, Ordering::Relaxed);
    shard.most_periods.fetch_max(periods, Ordering::Relaxed);
}

/// Over all threads.
pub(super) fn sum(of: fn(&Shard) -> &AtomicU64) -> u64 {
    FREED.iter().map(|shard| of(shard).load(Ordering::Relaxed)).sum()
}

/// The most of any thread.
pub(super) fn most(of: fn(&Shard) -> &AtomicU64) -> u64 {
    FREED.iter().map(|shard| of(shard).load(Ordering::Relaxed)).max().unwrap_or(0)
}

/// Writes an object in place, word by word: built on the stack and copied it stalls on its own stores, for
/// as long as the allocator takes.
#[inline(always)]
pub(super) fn write<const N: usize>(room: &mut MaybeUninit<Object<N>>, i: u64) {
    let sampled = i.is_multiple_of(SAMPLE);
    let [stamp, periods] = if sampled { stamps() } else { [0, i] };
    // SAFETY: words without contents may be anything.
    let words: &mut [MaybeUninit<u64>; N] = unsafe { &mut *room.as_mut_ptr().cast() };
    for (n, word) in words.iter_mut().enumerate() {
        word.write(match n {
            0 => stamp,
            1 => periods,
            _ => i,
        });
    }
}

#[cold]
fn stamps() -> [u64; 2] {
    [clock(libc::CLOCK_MONOTONIC), DOMAIN.stats().grace_periods]
}

/// [`write()`] to what is given.
#[inline(always)]
pub(super) fn fill<const N: usize>(
    mut room: Box<MaybeUninit<Object<N>>>,
    i: u64,
) -> *mut Object<N> {
    write(&mut room, i);
    Box::into_raw(room).cast()
}

/// The number that an object was written with.
///
/// # Safety
/// `object` has been written and nobody else changes it.
#[inline(always)]
pub(super) unsafe fn number<const N: usize>(object: NonNull<Object<N>>) -> u64 {
    // SAFETY: the caller's; the last word.
    unsafe { object.cast::<[u64; N]>().as_ref() }.last().copied().unwrap_or(0)
}

/// Frees an object that came from a box.
///
/// # Safety
/// `at` is the box's.
pub(super) unsafe fn free<const N: usize>(at: *mut ()) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(at.cast::<Object<N>>()) });
}

/// An object with a head inside, as the library's callbacks want it.
#[repr(C)]
pub(super) struct Headed<const N: usize> {
    object: Object<N>,
    head: Head,
}

impl<const N: usize> Headed<N> {
    /// A new one.
    pub(super) fn make(i: u64) -> *mut Object<N> {
        let mut room = Box::<Self>::new_uninit();
        let at = room.as_mut_ptr();
        // SAFETY: the first field, of whose contents nothing is asked.
        write(unsafe { &mut *at.cast::<MaybeUninit<Object<N>>>() }, i);
        // SAFETY: room for one; the field is in it.
        let head = unsafe { &raw mut (*at).head };
        // SAFETY: room for a head.
        unsafe { head.write(Head::new()) };
        Box::into_raw(room).cast()
    }

    /// The head of an object that was made so.
    ///
    /// # Safety
    /// `object` was, and has not been freed.
    pub(super) unsafe fn head(object: NonNull<Object<N>>) -> NonNull<Head> {
        // SAFETY: the caller's.
        unsafe { object.byte_add(offset_of!(Self, head)) }.cast()
    }

    /// Frees it, by its head.
    ///
    /// # Safety
    /// `head` is that of an object that was made so.
    pub(super) unsafe fn free(head: NonNull<Head>) {
        // SAFETY: the caller's.
        let at = unsafe { head.byte_sub(offset_of!(Self, head)) };
        // SAFETY: a box's.
        drop(unsafe { Box::from_raw(at.cast::<Self>().as_ptr()) });
    }
}
