//! The worker's side of callbacks.

use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::panic::catch_unwind;

use super::head::{Callback, Head};
use super::queue::{Letter, Periods, Policy};
use crate::engine::EngineRef;
use crate::engine::pace::Futex;
use crate::held;
use crate::seq::Cookie;
use crate::worker::{self, Need};

/// Callbacks of one domain run in a row before the worker looks after the others.
pub const TURN: u32 = 256;
/// Heads in a shard, and bytes, from which on they are not left to wait for company.
const MANY: u64 = 1024;
const BYTES: u64 = 1 << 20;

static WINDOW_NS: AtomicU64 = AtomicU64::new(100_000_000);

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// How long a callback that nobody hurries may wait before its grace period is asked for, in domains
/// that do not say otherwise.
#[must_use]
pub fn lazy_window() -> Duration {
    Duration::from_nanos(WINDOW_NS.load(Ordering::Relaxed))
}

/// Sets [`lazy_window`], for the whole process, also for what waits already. Zero makes every callback a
/// hurried one.
pub fn set_lazy_window(window: Duration) {
    let ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
    WINDOW_NS.store(ns, Ordering::Relaxed);
    // It sleeps until the end of the window it knows.
    worker::wake();
}

/// True inside a callback.
#[must_use]
pub fn is_running() -> bool {
    RUNNING.with(Cell::get)
}

impl Periods for EngineRef {
    fn snapshot(&self) -> u64 {
        self.0.snapshot_here().0
    }

    fn passed(&self, cookie: u64) -> bool {
        self.0.poll(Cookie(cookie))
    }

    fn fence(&self, _: Letter) {
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    unsafe fn invoke(&self, func: Callback, head: NonNull<Head>) -> bool {
        RUNNING.with(|r| r.set(true));
        // A callback that panics leaves what it was working on to whoever has it; the queue has let
        // go of it.
        // SAFETY: the caller's.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { func(head) }));
        RUNNING.with(|r| r.set(false));
        // What was thrown may panic again when dropped, so it is not.
        result.map_err(core::mem::forget).is_ok()
    }

    fn policy(&self) -> Policy {
        let (window_ns, many) =
            self.flavour().gathering().unwrap_or((WINDOW_NS.load(Ordering::Relaxed), MANY));
        Policy { window_ns, many, bytes: BYTES, turn: TURN }
    }
}

/// What callbacks need of the worker: it runs those that are due, and says what the others wait for.
pub(crate) fn serve(engine: EngineRef) -> Option<Need> {
    let queue = &engine.0.callbacks;
    if !queue.has_work() {
        return None;
    }
    let now = owlet_sys::clock::monotonic_ns();
    let need = queue.advance(&engine, &Futex::default(), held::identity(), now);
    // What has been collected has had its time to gather.
    let patience = engine.flavour().patience(false);
    let within = if need.urgent || need.pressure { Duration::ZERO } else { patience };
    let (expedited, again) = (need.pressure, need.again);
    let collected =
        need.cookie.map(|cookie| Need { cookie: Cookie(cookie), within, expedited, again });
    let later = |within| Need { cookie: engine.passed_moment(), within, expedited, again };
    // Not zero: that would be "now", and it is not.
    let waiting = need.at.map(|at| later(Duration::from_nanos(at.saturating_sub(now).max(1))));
    match (collected, waiting) {
        (Some(a), Some(b)) => Some(Need { within: a.within.min(b.within), ..a }),
        (None, None) if again => Some(later(Duration::ZERO)),
        (a, b) => a.or(b),
    }
}

/// Where no worker can be had, whoever waits at a barrier is one for the moment.
pub(super) fn help(engine: EngineRef) {
    if let Some(need) = serve(engine) {
        if engine.poll(need.cookie) {
            std::thread::yield_now();
        } else {
            engine.wait(need.cookie, need.expedited);
        }
    } else {
        // Somebody else is at it.
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
