//! The updaters' side of every real flavour, over what domains have in common.

use std::future::Future;
use std::pin::pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use owlet_rcu::free::Pool;
use owlet_rcu::{ClassicSrcu, Cookie, Domain, Qsbr, Srcu, Synchronize, Tasks, TasksTrace};

use super::{Cost, Gp, Posted, Retire, Waits};
use crate::run::free_retired;

/// What domain types have by themselves and not through the trait.
pub(crate) trait Inherent: Domain + 'static {
    /// `synchronize_async`.
    fn future(&self) -> Synchronize<'_>;
    /// `call` or `call_hurry`.
    fn post(&self, hurry: bool, task: Posted);
    /// `retire_with` of an element.
    ///
    /// # Safety
    /// As that.
    unsafe fn with(&self, at: *mut (), bytes: usize);
}

/// Implements it.
macro_rules! inherent {
    ($($type:ty),*) => {
        $(impl Inherent for $type {
            fn future(&self) -> Synchronize<'_> {
                self.synchronize_async()
            }

            fn post(&self, hurry: bool, task: Posted) {
                if hurry { self.call_hurry(task) } else { self.call(task) }
            }

            unsafe fn with(&self, at: *mut (), bytes: usize) {
                // SAFETY: the caller's.
                unsafe { self.retire_with(at, bytes, free_retired) };
            }
        })*
    };
}

inherent!(Srcu, ClassicSrcu, Qsbr, Tasks, TasksTrace);

/// A domain with every way to wait, and a pool.
pub(crate) struct Real<D: 'static>(&'static D, Pool<'static, ()>);

impl<D: Domain> Real<D> {
    pub(crate) const fn new(domain: &'static D) -> Self {
        // SAFETY: only `Waits::retire` retires to it, and only what this frees.
        Self(domain, unsafe { Pool::new_with(domain, free_retired) })
    }
}

/// Waited for together with the domain under torture.
static OTHER: Srcu = Srcu::named("torture-other");

impl<D: Inherent> Waits for Real<D> {
    fn kinds(&self) -> &'static [Gp] {
        Gp::ALL
    }

    fn pass(&self, how: Gp, pause: &mut dyn FnMut() -> Duration) {
        let domain = self.0;
        match how {
            Gp::Sync => domain.synchronize(),
            Gp::Exp => domain.synchronize_expedited(),
            Gp::Cond => domain.wait(domain.snapshot()),
            Gp::CondExp => domain.wait_expedited(domain.snapshot()),
            Gp::Poll => self.poll_until(domain.start_poll(), pause),
            Gp::PollExp => self.poll_until(domain.start_poll_expedited(), pause),
            Gp::Full => {
                let cookie = domain.snapshot_full();
                domain.wait(domain.start_poll());
                while !domain.poll_full(&cookie) {
                    std::thread::sleep(pause());
                }
            }
            Gp::Async => block_on(domain.future()),
            Gp::Several => owlet_rcu::wait_all(&[domain, &OTHER, domain]),
            Gp::SeveralExp => owlet_rcu::wait_all_expedited(&[&OTHER, domain]),
            Gp::Nudged => {
                let cookie = domain.start_poll();
                domain.expedite_current();
                domain.wait(cookie);
            }
            Gp::Quiesce => domain.quiesce(),
        }
    }

    fn snapshot(&self) -> Cookie {
        self.0.snapshot()
    }

    fn poll(&self, cookie: Cookie) -> bool {
        self.0.poll(cookie)
    }

    fn wait(&self, cookie: Cookie) {
        self.0.wait(cookie);
    }

    fn calls(&self) -> bool {
        true
    }

    fn call(&self, hurry: bool, task: Posted) {
        self.0.post(hurry, task);
    }

    fn barrier(&self) {
        self.0.barrier();
    }

    fn retire(&self, how: Retire, at: *mut (), bytes: usize) {
        match how {
            Retire::Domain => {
                // SAFETY: an element, retired once (`run::retire`).
                unsafe { self.0.with(at, bytes) };
            }
            Retire::Pool => {
                if let Some(at) = NonNull::new(at) {
                    // SAFETY: as above.
                    unsafe { self.1.retire_raw(at) };
                }
            }
            Retire::Flush => self.0.retire_flush(),
            Retire::Trim => {
                self.0.retire_trim();
            }
            Retire::Barrier => self.0.retire_barrier(),
        }
    }

    fn cost(&self) -> Cost {
        let stats = self.0.stats();
        Cost {
            grace_periods: stats.grace_periods,
            membarriers: stats.membarriers,
            sleeps: stats.sleeps,
        }
    }
}

impl<D: Domain> Real<D> {
    fn poll_until(&self, cookie: Cookie, pause: &mut dyn FnMut() -> Duration) {
        while !self.0.poll(cookie) {
            std::thread::sleep(pause());
        }
    }
}

/// Wakes the thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor there is.
fn block_on(future: impl Future<Output = ()>) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    while future.as_mut().poll(&mut context) == Poll::Pending {
        std::thread::park();
    }
}
