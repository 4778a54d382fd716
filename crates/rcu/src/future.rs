//! Waiting without blocking a thread.

use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use crate::domain::Domain;
use crate::engine::EngineRef;
use crate::seq::Cookie;
use crate::worker::{self, Ticket};

/// A grace period to `.await`, of any runtime or none: see
/// [`Srcu::synchronize_async`](crate::Srcu::synchronize_async).
///
/// The moment is taken when the future is made, not when it is first polled. Dropping it gives the
/// wait up and nothing else.
///
/// The library's worker thread wakes the task. Where no thread can be made, each poll tries again to
/// make one, goes on with the grace period itself as far as that goes without waiting, pauses for a
/// tenth of a millisecond, and wakes its own task.
///
/// In a forked child, what waits since before the fork has to be polled once more; from then on it is
/// woken as usual.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Synchronize<'a> {
    engine: EngineRef,
    cookie: Cookie,
    ticket: Option<Ticket>,
    _domain: PhantomData<&'a ()>,
}

impl<'a> Synchronize<'a> {
    /// For any domain.
    pub fn new(domain: &'a dyn Domain) -> Self {
        let engine = domain.engine();
        Self { engine, cookie: engine.snapshot(), ticket: None, _domain: PhantomData }
    }
}

impl Future for Synchronize<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (engine, cookie) = (self.engine, self.cookie);
        let passed = |me: &mut Self| {
            let passed = engine.poll(cookie);
            if passed {
                me.ticket = None;
            }
            passed
        };
        if passed(&mut self) {
            return Poll::Ready(());
        }
        let known = self.ticket.as_ref().is_some_and(|ticket| ticket.exchange(cx.waker()));
        // The waker before may have been woken just now.
        if passed(&mut self) {
            return Poll::Ready(());
        }
        if !known {
            self.ticket = Some(engine.0.wakers.push(cookie, cx.waker()));
        }
        if (known && worker::is_running()) || worker::drive(engine) {
            return Poll::Pending;
        }
        worker::help(engine, cookie);
        if passed(&mut self) {
            return Poll::Ready(());
        }
        std::thread::sleep(Duration::from_micros(100));
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
