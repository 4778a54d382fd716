//! What an `rcu_sync` needs of grace periods.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use core::task::Waker;

#[cfg(not(loom))]
use crate::domain::Domain;
#[cfg(not(loom))]
use crate::seq::Cookie;

/// Grace periods of some kind of readers.
///
/// A grace period *of a cookie* begins after the cookie was taken; when it is over, every reader that
/// was running when the cookie was taken has ended.
pub trait GracePeriod: Sync {
    /// The cookie of a grace period that begins later. Starts nothing: somebody waits. Full barrier.
    fn snapshot(&self) -> u64;

    /// The cookie of a grace period that comes about without further calls. Full barrier.
    fn start(&self) -> u64;

    /// True once the grace period of the cookie is over. Acquire.
    fn poll(&self, cookie: u64) -> bool;

    /// Waits until it is. Full barrier.
    fn wait(&self, cookie: u64);

    /// Between two looks at something that another thread is about to do.
    fn pause(&self) {
        std::thread::yield_now();
    }

    /// Has `waker` woken once the grace period of the cookie is over, or earlier; as long as the answer
    /// is kept.
    #[cfg(not(loom))]
    fn wake(&self, cookie: u64, waker: &Waker) -> Wake;
}

/// A waker's place in the queue of a [`GracePeriod`].
#[cfg(not(loom))]
#[must_use = "the waker is forgotten when this is dropped"]
#[derive(Debug, Default)]
pub struct Wake(#[expect(dead_code, reason = "kept for its drop")] Option<crate::worker::Ticket>);

#[cfg(not(loom))]
impl Wake {
    /// Of a waker that has been woken already, or is kept elsewhere.
    pub const fn none() -> Self {
        Self(None)
    }
}

/// Readers that are restartable sequences, and threads without rseq whose counting is a full barrier:
/// a grace period is one `membarrier` that restarts sequences ([`owlet_percpu::fence::heavy_rseq`]).
///
/// For readers that check [`RcuSync::is_idle`](super::RcuSync::is_idle) and act on it in *one* such
/// sequence. 0.35 us where nothing else runs, some 10 us where other CPUs of a virtual machine do.
/// Threads that need one at the same time share it.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeavyFence;

#[cfg(not(loom))]
static BEGUN: AtomicU64 = AtomicU64::new(0);
#[cfg(not(loom))]
static ENDED: AtomicU64 = AtomicU64::new(0);

#[cfg(not(loom))]
impl GracePeriod for HeavyFence {
    fn snapshot(&self) -> u64 {
        crate::engine::full_fence();
        BEGUN.load(Ordering::Relaxed) + 1
    }

    /// There is no need to leave it to others.
    fn start(&self) -> u64 {
        let cookie = self.snapshot();
        self.wait(cookie);
        cookie
    }

    fn poll(&self, cookie: u64) -> bool {
        // The one of the number `cookie` began after the cookie was taken, and so did later ones.
        ENDED.load(Ordering::Acquire) >= cookie
    }

    fn wait(&self, cookie: u64) {
        if !self.poll(cookie) {
            let mine = BEGUN.fetch_add(1, Ordering::Relaxed) + 1;
            crate::engine::heavy_fence();
            ENDED.fetch_max(mine, Ordering::AcqRel);
        }
        crate::engine::full_fence();
    }

    fn wake(&self, cookie: u64, waker: &Waker) -> Wake {
        self.wait(cookie);
        waker.wake_by_ref();
        Wake::none()
    }
}

/// The grace periods of a domain.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub struct Normal<'a>(pub &'a dyn Domain);

/// The grace periods of a domain, in a hurry.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub struct Expedited<'a>(pub &'a dyn Domain);

/// The grace periods of a domain, asked for by these methods.
#[cfg(not(loom))]
macro_rules! of_domain {
    ($name:ident, $start:ident, $wait:ident) => {
        impl GracePeriod for $name<'_> {
            fn snapshot(&self) -> u64 {
                self.0.snapshot().0
            }

            fn start(&self) -> u64 {
                self.0.$start().0
            }

            fn poll(&self, cookie: u64) -> bool {
                self.0.poll(Cookie(cookie))
            }

            fn wait(&self, cookie: u64) {
                self.0.$wait(Cookie(cookie));
            }

            fn wake(&self, cookie: u64, waker: &Waker) -> Wake {
                let engine = self.0.engine();
                let ticket = engine.0.wakers.push(Cookie(cookie), waker);
                if !crate::worker::drive(engine) {
                    crate::worker::help(engine, Cookie(cookie));
                    std::thread::sleep(core::time::Duration::from_micros(100));
                    waker.wake_by_ref();
                }
                Wake(Some(ticket))
            }
        }

        impl core::fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.0.name()).finish()
            }
        }
    };
}

#[cfg(not(loom))]
of_domain!(Normal, start_poll, wait);
#[cfg(not(loom))]
of_domain!(Expedited, start_poll_expedited, wait_expedited);
