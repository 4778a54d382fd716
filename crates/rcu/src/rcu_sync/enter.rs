//! Entering: what one holds while inside, and what one waits with.

use core::fmt;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::RcuSync;
use super::grace::{GracePeriod, HeavyFence, Wake};

/// Readers are slow as long as this lives.
#[must_use = "readers may be fast again when this is dropped"]
pub struct Slow<'a, G: GracePeriod = HeavyFence> {
    sync: &'a RcuSync<G>,
}

impl<'a, G: GracePeriod> Slow<'a, G> {
    pub(super) fn new(sync: &'a RcuSync<G>) -> Self {
        Self { sync }
    }
}

impl<G: GracePeriod> Drop for Slow<'_, G> {
    fn drop(&mut self) {
        self.sync.exit();
    }
}

impl<G: GracePeriod> fmt::Debug for Slow<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slow").field(self.sync).finish()
    }
}

/// On the way to making readers slow: [`RcuSync::enter_async`]. Readers may still be fast until
/// [`Enter::poll_passed`] is true, or [`Enter::wait`] or `.await` have returned.
///
/// Dropping it before gives up; nothing has happened then.
#[must_use = "gives up when dropped"]
pub struct Enter<'a, G: GracePeriod = HeavyFence> {
    sync: &'a RcuSync<G>,
    due: u32,
    wake: Wake,
}

impl<'a, G: GracePeriod> Enter<'a, G> {
    pub(super) fn new(sync: &'a RcuSync<G>, due: u32) -> Self {
        Self { sync, due, wake: Wake::none() }
    }

    /// True once readers are slow. Does not wait.
    #[must_use]
    pub fn poll_passed(&self) -> bool {
        self.sync.core().poll_entered(self.sync.gp(), self.due)
    }

    /// Waits until readers are slow.
    pub fn wait(self) -> Slow<'a, G> {
        if !self.poll_passed() {
            self.sync.core().wait_entered(self.sync.gp(), self.due);
            self.sync.note_blocking();
        }
        self.inside()
    }

    /// What was entered goes on to be exited by the answer.
    fn inside(self) -> Slow<'a, G> {
        let mut this = ManuallyDrop::new(self);
        drop(core::mem::take(&mut this.wake));
        Slow::new(this.sync)
    }
}

impl<'a, G: GracePeriod> Future for Enter<'a, G> {
    type Output = Slow<'a, G>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let sync = self.sync;
        if !self.poll_passed() {
            // Not posted yet: whoever is to post it is about to.
            let Some(cookie) = sync.core().due_cookie(sync.core().look()) else {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            };
            self.wake = sync.gp().wake(cookie, cx.waker());
            if !self.poll_passed() {
                return Poll::Pending;
            }
        }
        // One that is given up later must not exit: count this one for the answer.
        let _ = sync.core().begin();
        Poll::Ready(Slow::new(sync))
    }
}

impl<G: GracePeriod> Drop for Enter<'_, G> {
    fn drop(&mut self) {
        self.sync.exit();
    }
}

impl<G: GracePeriod> fmt::Debug for Enter<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Enter").field(self.sync).finish()
    }
}
