//! How an event reaches the checker: the variants of `tp-hackbench`.

use super::checker::{Data, Event, check};
use crate::peers::flavours::Protect;
use owlet::Probe;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

owlet::tracepoint! {
    /// The product's own tracepoints.
    pub(super) mod hackbench {
        /// In no session, without a probe.
        off(lock: u32, taken: bool);
        /// With a probe.
        on(lock: u32, taken: bool);
    }
}

/// One way. A thread makes one for itself.
pub(super) trait Variant {
    /// A thread begins.
    fn thread(data: &'static Data) -> Self;

    /// One event.
    fn event(&mut self, event: Event);
}

/// No tracepoint: the checker is called, as it was before it became a probe.
pub(super) struct None {
    data: &'static Data,
}

impl Variant for None {
    fn thread(data: &'static Data) -> Self {
        Self { data }
    }

    #[inline(always)]
    fn event(&mut self, event: Event) {
        check(self.data, event);
    }
}

/// The same, and a tracepoint of the product that is switched off.
pub(super) struct Disabled {
    data: &'static Data,
}

impl Variant for Disabled {
    fn thread(data: &'static Data) -> Self {
        Self { data }
    }

    #[inline(always)]
    fn event(&mut self, event: Event) {
        owlet::trace!(hackbench::off, event.lock, event.taken);
        check(self.data, event);
    }
}

/// A tracepoint of the product, with the checker as its probe.
pub(super) struct Product;

/// The product's probe has no data of its own.
static ROUNDS: AtomicU32 = AtomicU32::new(0);

impl Variant for Product {
    fn thread(data: &'static Data) -> Self {
        static ONCE: OnceLock<()> = OnceLock::new();
        ROUNDS.store(data.rounds, Ordering::Relaxed);
        ONCE.get_or_init(|| {
            let probe: Probe<dyn Fn(u32, bool) + Send + Sync> =
                Probe::new(Box::new(|lock, taken| {
                    check(&Data { rounds: ROUNDS.load(Ordering::Relaxed) }, Event { lock, taken });
                }));
            // A failure shows as events that nobody has seen.
            let _ = hackbench::on::TRACEPOINT.register(&probe, 0);
        });
        Self
    }

    #[inline(always)]
    fn event(&mut self, event: Event) {
        owlet::trace!(hackbench::on, event.lock, event.taken);
    }
}

/// A probe: function and data.
type Entry = (fn(&Data, Event), &'static Data);

/// A tracepoint reduced to what the variants differ in: a flag, and a list of probes that readers
/// protect by `P`. (An iteration of the kernel's `__DO_TRACE`.)
struct Tracepoint {
    on: AtomicBool,
    probes: AtomicPtr<Vec<Entry>>,
}

static TRACEPOINT: Tracepoint =
    Tracepoint { on: AtomicBool::new(false), probes: AtomicPtr::new(null_mut()) };

impl Tracepoint {
    /// Makes the checker its one probe. Lists are few, and are leaked.
    fn attach(&self, data: &'static Data) {
        let list = Box::leak(Box::new(vec![(check as fn(&Data, Event), data)]));
        self.probes.store(list, Ordering::Release);
        self.on.store(true, Ordering::Release);
    }
}

/// The tracepoint above, its readers protected by `P`.
pub(super) struct By<P: Protect> {
    thread: P::Thread,
    _flavour: PhantomData<P>,
}

impl<P: Protect> Variant for By<P> {
    fn thread(data: &'static Data) -> Self {
        TRACEPOINT.attach(data);
        Self { thread: P::thread(), _flavour: PhantomData }
    }

    #[inline(always)]
    fn event(&mut self, event: Event) {
        if !TRACEPOINT.on.load(Ordering::Relaxed) {
            return;
        }
        P::section(&mut self.thread, || {
            // SAFETY: null or a list that is never freed.
            let list = unsafe { TRACEPOINT.probes.load(Ordering::Acquire).as_ref() };
            for (function, data) in list.into_iter().flatten() {
                function(data, event);
            }
        });
    }
}
