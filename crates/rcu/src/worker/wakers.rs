//! Wakers of async tasks that wait for a moment.
//!
//! A future has one [`Slot`], in which it puts the waker it was last polled with; the worker has the
//! slot in a list. Whoever wakes takes the waker out and the slot has served its time; a future that
//! is gone has emptied its slot, and the worker forgets it when it next looks.
//!
//! | `state` | the waker is | next |
//! |---|---|---|
//! | `FREE` | whoever's comes first | the future: `BUSY`; a waking thread: `TAKEN` |
//! | `BUSY` | the future's, which is exchanging it | `FREE` |
//! | `TAKEN` | the waking thread's, for ever | |
//! | `BUSY + TAKEN` | the future's, which finds that it has been woken | `TAKEN` |
//!
//! # Fork
//! The worker may have slots in hand at a fork, or be exchanging one's state for a waker it has just
//! taken out. In the child nobody has. So a future that is polled there for the first time puts down
//! another slot; of the old one, nothing is expected but that it may wake once more.

use core::cell::UnsafeCell;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::Arc;

use owlet_sys::fork::generation;

use super::Need;
use crate::engine::EngineRef;
use crate::seq::{self, Cookie};

const FREE: u32 = 0;
const BUSY: u32 = 1;
const TAKEN: u32 = 2;

/// Where a future and the worker meet.
#[derive(Debug)]
struct Slot {
    state: AtomicU32,
    waker: UnsafeCell<Option<Waker>>,
}

// SAFETY: `waker` is touched only by whoever has it by the table above; wakers may be sent and shared.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    /// The future's: puts another waker in. False if it was too late: somebody wakes, or has woken.
    fn exchange(&self, waker: Option<Waker>) -> bool {
        let state = &self.state;
        // Acquire, here and below: who finds itself woken sees that the moment has passed.
        if state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Acquire).is_err() {
            return false;
        }
        // SAFETY: BUSY, so it is the future's, which is the caller.
        let before = unsafe { core::mem::replace(&mut *self.waker.get(), waker) };
        let done = state.compare_exchange(BUSY, FREE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !done {
            // SAFETY: BUSY + TAKEN, so it is still the caller's.
            drop(unsafe { (*self.waker.get()).take() });
            state.store(TAKEN, Ordering::Release);
        }
        drop(before);
        done
    }

    /// A waking thread's, once: the waker, unless the future has it in hand and will see for itself.
    fn take(&self) -> Option<Waker> {
        // Release: what was seen before (that the moment has passed), for the future. Acquire: the
        // waker.
        if self.state.fetch_or(TAKEN, Ordering::AcqRel) != FREE {
            return None;
        }
        // SAFETY: was FREE, so it is this thread's from now on.
        unsafe { (*self.waker.get()).take() }
    }
}

/// A future's hold on its slot. Dropped: its waker is too.
#[derive(Debug)]
pub(crate) struct Ticket {
    slot: Arc<Slot>,
    /// Of the process in which it was put down.
    generation: u64,
}

impl Ticket {
    /// Another waker for the one put down before. False if somebody wakes, or has woken, that one, or may
    /// have had it in hand when this process was forked.
    pub(crate) fn exchange(&self, waker: &Waker) -> bool {
        self.generation == generation() && self.slot.exchange(Some(waker.clone()))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.slot.exchange(None);
    }
}

/// A stack of slots: anybody pushes, the worker takes all.
#[derive(Debug)]
pub(crate) struct Wakers(AtomicPtr<Node>);

#[derive(Debug)]
struct Node {
    cookie: Cookie,
    slot: Arc<Slot>,
    next: *mut Node,
}

impl Wakers {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// True if nobody waits; a hint.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Puts a waker down, to be woken once the moment has passed.
    pub(crate) fn push(&self, cookie: Cookie, waker: &Waker) -> Ticket {
        let waker = UnsafeCell::new(Some(waker.clone()));
        let slot = Arc::new(Slot { state: AtomicU32::new(FREE), waker });
        let next = core::ptr::null_mut();
        self.push_node(Box::new(Node { cookie, slot: slot.clone(), next }));
        Ticket { slot, generation: generation() }
    }

    fn push_node(&self, node: Box<Node>) {
        let node = Box::into_raw(node);
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: ours until it is on the stack.
            unsafe { (*node).next = head };
            match self.0.compare_exchange_weak(head, node, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// Wakes those whose moment has passed.
pub(super) fn serve(engine: EngineRef) -> Option<Need> {
    let furthest = wake(engine, |cookie| engine.poll(cookie))?;
    Some(Need { cookie: furthest, within: Duration::ZERO, expedited: false, again: false })
}

/// There is going to be no worker after all: everybody is to see for himself.
pub(super) fn wake_all(engine: EngineRef) {
    wake(engine, |_| true);
}

/// Wakes those who are `due`; says what moment the others wait for. Futures that are gone are
/// forgotten.
fn wake(engine: EngineRef, due: impl Fn(Cookie) -> bool) -> Option<Cookie> {
    let mut at = engine.0.wakers.0.swap(core::ptr::null_mut(), Ordering::AcqRel);
    let mut furthest: Option<Cookie> = None;
    while !at.is_null() {
        // SAFETY: came from `Box::into_raw` in `push_node`; the swap made the whole stack ours.
        let node = unsafe { Box::from_raw(at) };
        at = node.next;
        if Arc::strong_count(&node.slot) == 1 {
            continue;
        }
        if due(node.cookie) {
            ring(engine, &node.slot);
            continue;
        }
        let later = furthest.is_none_or(|f| seq::is_at_or_after(node.cookie.0, f.0));
        furthest = if later { Some(node.cookie) } else { furthest };
        engine.0.wakers.push_node(node);
    }
    furthest
}

/// Wakes. A waker that panics does not take the worker with it; it is counted.
fn ring(engine: EngineRef, slot: &Slot) {
    let Some(waker) = slot.take() else { return };
    if let Err(thrown) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // It may panic again when dropped.
        core::mem::forget(thrown);
        engine.0.callbacks.note_panic();
    }
}
