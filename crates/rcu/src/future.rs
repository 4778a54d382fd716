//! Waiting without blocking a thread.

use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use crate::domain::Domain;
use crate::engine::EngineRef;
use crate::seq::Cookie;
use crate::worker;

/// A grace period to `.await`, of any runtime or none: see
/// [`Srcu::synchronize_async`](crate::Srcu::synchronize_async).
///
/// The moment is taken when the future is made, not when it is first polled. Dropping it gives the
/// wait up and nothing else.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Synchronize<'a> {
    engine: EngineRef,
    cookie: Cookie,
    registered: Option<Waker>,
    _domain: PhantomData<&'a ()>,
}

impl<'a> Synchronize<'a> {
    /// For any domain.
    pub fn new(domain: &'a dyn Domain) -> Self {
        let engine = domain.engine();
        Self { engine, cookie: engine.snapshot(), registered: None, _domain: PhantomData }
    }
}

impl Future for Synchronize<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.engine.poll(self.cookie) {
            return Poll::Ready(());
        }
        if self.registered.as_ref().is_none_or(|w| !w.will_wake(cx.waker())) {
            self.registered = Some(cx.waker().clone());
            worker::add_waker(self.engine, self.cookie, cx.waker().clone());
        }
        Poll::Pending
    }
}
