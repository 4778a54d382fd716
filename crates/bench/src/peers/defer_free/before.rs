//! Before: callbacks for each object, and batches that are queued as work.
//!
//! A callback for each object has its head in the object, as in the source: two words, a link and a
//! function. The library's own heads have four, and are counted in.

use super::object::{Headed, Object, free};
use super::{DOMAIN, Way};
use crate::harness::inner::pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

/// The library's callbacks, by its worker.
pub(super) struct ByCall;

impl<const N: usize> Way<N> for ByCall {
    type Thread = ();

    fn thread() {}

    fn make((): &mut (), i: u64) -> *mut Object<N> {
        Headed::make(i)
    }

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        // SAFETY: made with one.
        let head = unsafe { Headed::head(object) };
        // SAFETY: likewise; in a leaked box, freed by the callback.
        unsafe { DOMAIN.call_head(head, Headed::<N>::free) };
    }
}

/// A. One list for all; the thread that calls is slow to come by, as an offloaded one is.
pub(super) struct Offloaded;

/// What an object is once it is retired: its stamps, and a link where its other words were. (The function
/// is the same for all, and compiled in.)
#[repr(C)]
struct Linked {
    stamps: [u64; 2],
    next: *mut Linked,
}

static LIST: AtomicPtr<Linked> = AtomicPtr::new(std::ptr::null_mut());
/// Between two looks of the offloaded thread; 0: it is not offloaded.
pub(super) static PACE_NS: AtomicU64 = AtomicU64::new(0);

fn offloaded_thread<const N: usize>() {
    let pace = Duration::from_nanos(PACE_NS.load(Ordering::Relaxed));
    if !pace.is_zero() {
        pin(0);
        // SAFETY: takes no pointers; the thread's own priority.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
    }
    loop {
        thread::sleep(pace.max(Duration::from_micros(50)));
        let mut at = LIST.swap(std::ptr::null_mut(), Ordering::Acquire);
        if at.is_null() {
            continue;
        }
        DOMAIN.synchronize();
        while let Some(linked) = NonNull::new(at) {
            // SAFETY: in a list that only this thread has.
            at = unsafe { linked.as_ref() }.next;
            // SAFETY: likewise; its grace period is over.
            unsafe { free::<N>(linked.as_ptr().cast()) };
        }
    }
}

impl<const N: usize> Way<N> for Offloaded {
    type Thread = ();

    fn prepare() {
        const { assert!(N >= 3, "room for a link") };
        thread::spawn(offloaded_thread::<N>);
    }

    fn thread() {}

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        let at = object.as_ptr().cast::<Linked>();
        // SAFETY: three words at least.
        let next = unsafe { &raw mut (*at).next };
        let mut top = LIST.load(Ordering::Relaxed);
        loop {
            // SAFETY: ours until it is in the list.
            unsafe { next.write(top) };
            match LIST.compare_exchange_weak(top, at, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}

/// B. Each producer (a CPU's in the source) has the batch that it fills, pages of addresses, and two in
/// flight at most: what is in flight was queued as work that waits for a grace period first.
pub(super) struct TwoBatches;

type Batch = Vec<Vec<usize>>;
/// Addresses of a page.
const PAGE: usize = 504;

pub(super) struct Batches {
    filling: Batch,
    work: SyncSender<Batch>,
}

fn work_off<const N: usize>(work: &Receiver<Batch>) {
    while let Ok(batch) = work.recv() {
        // A grace period, which others' batches may share, as their callbacks would.
        DOMAIN.synchronize();
        for at in batch.into_iter().flatten() {
            // SAFETY: an object, and its grace period is over.
            unsafe { free::<N>(std::ptr::with_exposed_provenance_mut(at)) };
        }
    }
}

impl<const N: usize> Way<N> for TwoBatches {
    type Thread = Batches;

    fn thread() -> Batches {
        // One in the worker's hands and one in the queue. The worker is on the producer's CPU.
        let (work, receiver) = sync_channel(1);
        thread::spawn(move || work_off::<N>(&receiver));
        Batches { filling: Vec::new(), work }
    }

    unsafe fn retire(thread: &mut Batches, object: NonNull<Object<N>>) {
        let at = object.as_ptr().expose_provenance();
        if let Some(page) = thread.filling.last_mut().filter(|page| page.len() < PAGE) {
            return page.push(at);
        }
        if !thread.filling.is_empty() {
            let batch = std::mem::take(&mut thread.filling);
            // Both in flight: the monitor tries again with the next page.
            if let Err(TrySendError::Full(batch)) = thread.work.try_send(batch) {
                thread.filling = batch;
            }
        }
        let mut page = Vec::with_capacity(PAGE);
        page.push(at);
        thread.filling.push(page);
    }

    fn finish(thread: Batches) {
        let _ = thread.work.send(thread.filling);
    }
}
