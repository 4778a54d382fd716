//! The spans a thread is in, innermost last.
//!
//! Spans may be left in another order than they were entered, and the same span may be entered
//! again. Every entry remembers whether its `SpanEnter` was recorded: a `SpanExit` is recorded only
//! then, so that switching in between never pairs an exit with another entry.

use super::site::Site;
use core::cell::RefCell;

/// One span entered.
#[derive(Clone, Copy)]
pub(crate) struct Entered {
    /// Number of the subscriber.
    pub(crate) owner: u32,
    /// The subscriber's id of the span.
    pub(crate) id: u64,
    /// The span's number in traces.
    pub(crate) span: u64,
    pub(crate) site: &'static Site,
    /// Whether the entry was recorded.
    pub(crate) recorded: bool,
}

thread_local! { static STACK: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) } }

/// Runs `f` with the thread's stack; `None` in the thread's last moments, and in a signal handler
/// that interrupted a change of it. `f` runs nothing of the user's.
#[inline]
fn with<R>(f: impl FnOnce(&mut Vec<Entered>) -> R) -> Option<R> {
    STACK
        .try_with(|stack| stack.try_borrow_mut().ok().map(|mut stack| f(&mut stack)))
        .ok()
        .flatten()
}

pub(crate) fn push(entered: Entered) {
    with(|stack| stack.push(entered));
}

/// Takes out the innermost entry of that span.
pub(crate) fn pop(owner: u32, id: u64) -> Option<Entered> {
    with(|stack| {
        let at = stack.iter().rposition(|e| e.id == id && e.owner == owner)?;
        Some(stack.remove(at))
    })
    .flatten()
}

/// The innermost span of that subscriber.
#[inline]
pub(crate) fn top(owner: u32) -> Option<Entered> {
    with(|stack| stack.iter().rfind(|e| e.owner == owner).copied()).flatten()
}

/// The innermost span of any subscriber; 0 when there is none.
#[cfg(feature = "log")]
pub(crate) fn innermost() -> u64 {
    with(|stack| stack.last().map_or(0, |e| e.span)).unwrap_or(0)
}
