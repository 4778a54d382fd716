//! Posting to a domain, and waiting for what was posted.

use core::ptr::NonNull;
use core::time::Duration;

use super::head::{Callback, Head};
use super::queue::{Pushed, Urgency};
use super::serve;
use crate::domain::Domain;
use crate::engine::pace::Futex;
use crate::engine::{self, EngineRef, fork, wait_all};
use crate::free;
use crate::worker;

/// Callbacks of a domain from which on posting closures is slowed down.
pub const FLOOD_COUNT: u64 = 1 << 20;
/// Bytes likewise.
pub const FLOOD_BYTES: u64 = 256 << 20;

/// A closure with a head.
#[repr(C)]
struct Closure<F> {
    head: Head,
    run: F,
}

/// The callback of a [`Closure`].
///
/// # Safety
/// `head` is the first field of a `Closure<F>` that came from a box.
unsafe fn run<F: FnOnce()>(head: NonNull<Head>) {
    // SAFETY: the caller's; the head was posted, so nobody else has the box.
    let closure = unsafe { Box::from_raw(head.cast::<Closure<F>>().as_ptr()) };
    let Closure { head: _, run } = *closure;
    run();
}

/// Queues a closure.
pub(crate) fn call<F: FnOnce() + Send + 'static>(engine: EngineRef, urgency: Urgency, f: F) {
    let head = Head::sized(size_of::<Closure<F>>());
    let closure = NonNull::from(Box::leak(Box::new(Closure { head, run: f })));
    // SAFETY: the head of a leaked box, not queued before, and what `run` needs.
    let pushed = unsafe { post(engine, closure.cast(), run::<F>, urgency) };
    if pushed == Pushed::Full {
        slow_down(engine);
    }
}

/// Queues a head, and sees to it that there is a worker.
///
/// # Safety
/// `head` stays valid and in place until `func` is called with it, and `func` may be called with it,
/// on any thread.
pub(crate) unsafe fn post(
    engine: EngineRef,
    head: NonNull<Head>,
    func: Callback,
    urgency: Urgency,
) -> Pushed {
    fork::check();
    // SAFETY: the caller's.
    let pushed = unsafe { push(engine, head, func, urgency) };
    let look = pushed != Pushed::Quiet || !worker::is_running();
    if look && !worker::drive(engine) {
        // Callbacks are not for us to call: we may hold what they need.
        worker::help(engine, engine.wanted());
    }
    debug_assert!(pushed != Pushed::Twice, "a head was posted while it was queued; it is leaked");
    pushed
}

/// [`post`] for signal handlers: starts no thread. If there is no worker yet, the callback waits until
/// somebody starts one.
///
/// # Safety
/// As [`post`].
pub(crate) unsafe fn post_in_handler(engine: EngineRef, head: NonNull<Head>, func: Callback) {
    // SAFETY: the caller's.
    let pushed = unsafe { push(engine, head, func, Urgency::Lazy) };
    if pushed != Pushed::Quiet {
        worker::notify(engine);
    }
}

/// # Safety
/// As [`post`].
unsafe fn push(engine: EngineRef, head: NonNull<Head>, func: Callback, urgency: Urgency) -> Pushed {
    let place = owlet_percpu::current_cpu();
    // SAFETY: the caller's.
    unsafe { engine.0.callbacks.push(&engine, place, head, func, urgency) }
}

/// Lets the worker catch up, for a bounded time: the poster may be inside a section, or hold what a
/// callback waits for.
#[cold]
#[inline(never)]
fn slow_down(engine: EngineRef) {
    const STEP: Duration = Duration::from_millis(1);
    for _ in 0..8 {
        let stats = engine.0.callbacks.stats();
        let flood = stats.pending() > FLOOD_COUNT || stats.pending_bytes > FLOOD_BYTES;
        if !flood || serve::is_running() {
            return;
        }
        std::thread::sleep(STEP);
    }
}

/// Waits for every callback queued before.
pub(crate) fn barrier(engine: EngineRef) {
    fork::check();
    assert!(!serve::is_running(), "a callback waits at a barrier, which waits for the callback");
    let _aside = engine.flavour().aside();
    engine.refuse_own_section();
    let queue = &engine.0.callbacks;
    let batch = queue.last_batch();
    if queue.is_finished(batch) {
        return;
    }
    queue.want(batch);
    let mut told = worker::drive(engine);
    while !queue.is_finished(batch) {
        if !told {
            serve::help(engine);
            told = worker::drive(engine);
        } else if worker::is_running() {
            queue.sleep_unless_finished(&Futex::default(), batch);
        } else {
            // One is being made, or was to be.
            queue.sleep_unless_finished(&Futex(Duration::from_millis(10)), batch);
            told = worker::is_running();
        }
    }
}

/// A grace period, and then everything retired or queued before its end.
pub(crate) fn quiesce(engine: EngineRef) {
    engine.wait(engine.snapshot(), false);
    free::barrier(engine, None);
}

/// What must be waited for before code is unloaded that readers of `domains` run in or that their
/// callbacks, or destructors of what was retired, are in: a grace period of all of them, and then, `chain`
/// times over, a [`Domain::retire_barrier`] of each, which waits for callbacks too.
///
/// `chain` is the greatest number of callbacks or destructors of which each posts or retires the next, to
/// whichever of the domains; 1 if they do not. Nobody else must be posting or retiring any more. A barrier
/// without anything queued costs next to nothing, so be generous.
///
/// Not inside a section of one of them: it would wait for itself (see [`Domain`]).
pub fn quiesce_all(domains: &[&dyn Domain], chain: usize) {
    wait_all(domains);
    for _ in 0..chain.max(1) {
        domains.iter().for_each(|domain| domain.retire_barrier());
    }
}

/// Makes the callbacks of all domains be collected at once, none left to wait for company: for
/// whoever learns that memory is scarce. Waits for nothing.
pub fn flush() {
    fork::check();
    for engine in engine::all() {
        let queue = &engine.0.callbacks;
        if !queue.is_idle() {
            queue.want(queue.last_batch());
            worker::drive(engine);
        }
    }
}

/// Starts the library's worker thread, if it does not run; false if no thread can be made.
///
/// Everything that needs the worker starts it, except signal handlers, which must not: call this
/// before callbacks are posted in some, and in forked children again.
pub fn start_worker() -> bool {
    fork::check();
    worker::start()
}
