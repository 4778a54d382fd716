//! The spans a thread is in, innermost last.
//!
//! Spans may be left in another order than they were entered, and the same span may be entered
//! again. Every entry remembers whether its `SpanEnter` was recorded: a `SpanExit` is recorded only
//! then, so that switching in between never pairs an exit with another entry.
//!
//! The outermost [`NEAR`] entries lie in a constant thread-local without a destructor: no allocation, no
//! borrow flag, and there to the thread's last moment. Deeper ones are in a vector.
//!
//! # Invariants
//! 1. `near[..len]` is filled, as far as `near` goes; the vector has what `len` is more.

use super::site::Site;
use core::cell::{Cell, RefCell};

/// Entries kept without a vector.
const NEAR: usize = 16;

/// One span entered.
#[derive(Clone, Copy)]
pub(crate) struct Entered {
    /// Number of the subscriber.
    pub(crate) owner: u32,
    /// Whether the entry was recorded.
    pub(crate) recorded: bool,
    /// The subscriber's id of the span.
    pub(crate) id: u64,
    /// The span's number in traces.
    pub(crate) span: u64,
    pub(crate) site: &'static Site,
}

struct Stack {
    len: Cell<usize>,
    near: [Cell<Option<Entered>>; NEAR],
}

thread_local! {
    static STACK: Stack = const {
        Stack { len: Cell::new(0), near: [const { Cell::new(None) }; NEAR] }
    };
    static FAR: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with the entries that are too deep for `near`; `None` in the thread's last moments, and
/// in a signal handler that interrupted a change of them. `f` runs nothing of the user's.
fn far<R>(f: impl FnOnce(&mut Vec<Entered>) -> R) -> Option<R> {
    FAR.try_with(|far| far.try_borrow_mut().ok().map(|mut far| f(&mut far))).ok().flatten()
}

#[inline]
pub(crate) fn push(entered: Entered) {
    STACK.with(|stack| match stack.near.get(stack.len.get()) {
        Some(slot) => {
            slot.set(Some(entered));
            stack.len.set(stack.len.get() + 1);
        }
        None => stack.push_slow(entered),
    });
}

/// Takes out the innermost entry of that span.
#[inline]
pub(crate) fn pop(owner: u32, id: u64) -> Option<Entered> {
    STACK.with(|stack| match stack.last() {
        Some((at, last)) if last.id == id && last.owner == owner => {
            stack.len.set(at);
            Some(last)
        }
        _ => stack.pop_slow(owner, id),
    })
}

/// The innermost span of that subscriber.
#[inline]
pub(crate) fn top(owner: u32) -> Option<Entered> {
    STACK.with(|stack| match stack.last() {
        Some((_, last)) if last.owner == owner => Some(last),
        _ if stack.len.get() == 0 => None,
        _ => stack.find_slow(|entered| entered.owner == owner),
    })
}

/// The number of the innermost span of that subscriber; 0 when there is none.
#[inline(always)]
pub(crate) fn top_span(owner: u32) -> u64 {
    STACK.with(|stack| {
        let len = stack.len.get();
        if len == 0 {
            return 0;
        }
        match stack.near.get(len - 1).and_then(Cell::get) {
            Some(last) if last.owner == owner => last.span,
            _ => stack.find_slow(|entered| entered.owner == owner).map_or(0, |e| e.span),
        }
    })
}

/// The innermost span of any subscriber; 0 when there is none.
#[cfg(feature = "log")]
pub(crate) fn innermost() -> u64 {
    STACK.with(|stack| match stack.last() {
        Some((_, last)) => last.span,
        None => stack.find_slow(|_| true).map_or(0, |entered| entered.span),
    })
}

impl Stack {
    /// The innermost entry, if it is in `near`, and where.
    #[inline(always)]
    fn last(&self) -> Option<(usize, Entered)> {
        let at = self.len.get().wrapping_sub(1);
        Some((at, self.near.get(at)?.get()?))
    }

    #[cold]
    fn push_slow(&self, entered: Entered) {
        if far(|far| far.push(entered)).is_some() {
            self.len.set(self.len.get() + 1);
        }
    }

    /// The innermost entry, or one further out: spans are left in another order.
    #[cold]
    fn pop_slow(&self, owner: u32, id: u64) -> Option<Entered> {
        let is = |entered: &Entered| entered.id == id && entered.owner == owner;
        let taken = far(|far| far.iter().rposition(is).map(|at| far.remove(at))).flatten();
        if taken.is_some() {
            self.len.set(self.len.get() - 1);
            return taken;
        }
        let (at, taken) = self
            .near
            .iter()
            .take(self.len.get())
            .enumerate()
            .rev()
            .find_map(|(at, slot)| slot.get().filter(is).map(|entered| (at, entered)))?;
        // What is behind it moves up by one, from the vector into `near` as well.
        let mut next = far(|far| (!far.is_empty()).then(|| far.remove(0))).flatten();
        for slot in self.near.iter().take(self.len.get()).skip(at).rev() {
            next = slot.replace(next);
        }
        self.len.set(self.len.get() - 1);
        Some(taken)
    }

    /// The innermost entry for which `is` is true.
    #[cold]
    fn find_slow(&self, is: impl Fn(&Entered) -> bool) -> Option<Entered> {
        far(|far| far.iter().rfind(|entered| is(entered)).copied()).flatten().or_else(|| {
            let near = self.near.iter().take(self.len.get());
            near.rev().find_map(|slot| slot.get().filter(&is))
        })
    }
}
