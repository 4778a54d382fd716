//! The future of a traced async function: entry when it is first polled, exit when it is done, unwinds or
//! is dropped.

use crate::call::{Captured, Phase};
use crate::run::{self, Frame};
use crate::value::RawValue;
use core::pin::Pin;
use core::task::{Context, Poll};

/// What a call that is on remembers while it waits. On the heap: most calls are off.
struct Begun<const N: usize> {
    frame: Frame,
    begun: run::Begun,
    captured: Captured<N>,
}

impl<const N: usize> Begun<N> {
    fn end(&mut self, phase: Phase, ret: Option<RawValue>) {
        // SAFETY: `poll`, which alone has a value, keeps it until after this.
        unsafe { self.frame.exit(self.captured.head(), self.begun, phase, ret.as_ref()) };
    }
}

/// The future. For the macro.
#[doc(hidden)]
pub struct TracedFuture<F, V, const N: usize> {
    begun: Option<Box<Begun<N>>>,
    value: V,
    body: F,
}

impl<F, V, const N: usize> core::fmt::Debug for TracedFuture<F, V, N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TracedFuture").field("on", &self.begun.is_some()).finish_non_exhaustive()
    }
}

/// Around the body of an async function, at its first poll. For the macro, with the promises of
/// [`call`](crate::run::call).
#[doc(hidden)]
#[inline]
pub fn call_async<F: Future, V: Fn(&F::Output) -> RawValue, const N: usize>(
    captured: Option<Captured<N>>,
    body: F,
    value: V,
) -> TracedFuture<F, V, N> {
    let begun = captured.and_then(begin_slow);
    TracedFuture { begun, value, body }
}

#[cold]
#[inline(never)]
fn begin_slow<const N: usize>(mut captured: Captured<N>) -> Option<Box<Begun<N>>> {
    let mut frame = Frame::new();
    // SAFETY: the body owns the arguments and has not been polled.
    let begun = unsafe { frame.enter(captured.head()) };
    // The future may be dropped when what its arguments point to is not: only numbers stay.
    captured.forget();
    begun.exits().then(|| Box::new(Begun { frame, begun, captured }))
}

/// Ends the call when a poll unwinds.
struct Unwinding<'f, const N: usize>(&'f mut Option<Box<Begun<N>>>);

impl<const N: usize> Drop for Unwinding<'_, N> {
    fn drop(&mut self) {
        if let Some(mut begun) = self.0.take() {
            begun.end(Phase::Unwound, None);
        }
    }
}

impl<F: Future, V: Fn(&F::Output) -> RawValue, const N: usize> Future for TracedFuture<F, V, N> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `body`, the only field that must not move, is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: `body` is pinned as `self` is.
        let body = unsafe { Pin::new_unchecked(&mut this.body) };
        if this.begun.is_none() {
            return body.poll(context);
        }
        let unwinding = Unwinding(&mut this.begun);
        let polled = body.poll(context);
        core::mem::forget(unwinding);
        if let Poll::Ready(ret) = &polled
            && let Some(mut begun) = this.begun.take()
        {
            begun.end(Phase::Return, Some((this.value)(ret)));
        }
        polled
    }
}

impl<F, V, const N: usize> Drop for TracedFuture<F, V, N> {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut begun) = self.begun.take() {
            begun.end(Phase::Dropped, None);
        }
    }
}
