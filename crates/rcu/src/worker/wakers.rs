//! Wakers of async tasks that wait for a moment.

use core::sync::atomic::{AtomicPtr, Ordering};
use core::task::Waker;
use core::time::Duration;

use super::Need;
use crate::engine::EngineRef;
use crate::seq::{self, Cookie};

/// A stack of wakers: anybody pushes, the worker takes all.
#[derive(Debug)]
pub(crate) struct Wakers(AtomicPtr<Node>);

#[derive(Debug)]
struct Node {
    cookie: Cookie,
    waker: Waker,
    next: *mut Node,
}

impl Wakers {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    pub(crate) fn push(&self, cookie: Cookie, waker: Waker) {
        let head = self.0.load(Ordering::Relaxed);
        self.push_node(Box::new(Node { cookie, waker, next: head }));
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
    let mut at = engine.0.wakers.0.swap(core::ptr::null_mut(), Ordering::AcqRel);
    let mut furthest: Option<Cookie> = None;
    while !at.is_null() {
        // SAFETY: came from `Box::into_raw` in `push_node`; the swap made the whole stack ours.
        let node = unsafe { Box::from_raw(at) };
        at = node.next;
        if engine.poll(node.cookie) {
            node.waker.wake();
            continue;
        }
        let later = furthest.is_none_or(|f| seq::is_at_or_after(node.cookie.0, f.0));
        furthest = if later { Some(node.cookie) } else { furthest };
        engine.0.wakers.push_node(node);
    }
    furthest.map(|cookie| Need { cookie, within: Duration::ZERO, expedited: false, again: false })
}
