//! What a domain's retired objects hold, how much they may, and what became of them.

use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use owlet_sys::clock::monotonic_ns;

use super::store::{self, Store};
use crate::gate::Gate;

/// What `retire` does once a domain's cap is reached. From a quarter of it on nothing waits for
/// company; at the cap grace periods are expedited. `try_retire` hands the object back instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backpressure {
    /// No more than that: the caller is never held up, and the cap is exceeded while a reader is stuck.
    Expedite,
    /// Frees whatever is ready, on all CPUs, and lets grace periods get on, for 2 ms at most; twice as long
    /// for each eighth of the cap that is exceeded. At twice the cap that is half a second for each block of
    /// objects: as far as a stuck reader lets memory grow, but for threads that would wait for themselves.
    /// Who holds it up is reported as with [`Wait`](Self::Wait).
    Help,
    /// The same until the domain is below its cap again, however long that takes; and reports who holds
    /// it up ([`crate::stall::Kind::Full`]) once after 100 ms.
    ///
    /// Threads that would wait for themselves (inside a section of the domain, online in it, in a
    /// callback, while an object is freed) do not wait and exceed the cap. A thread that waits while it
    /// holds a lock that a reader wants waits for ever: hence this is not the default.
    Wait,
}

/// How much of a domain's memory may wait for grace periods, and for how long without need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of retired objects, with what the allocator and the blocks add (64 MiB). Objects in blocks
    /// that are being filled come on top: less than 512 KiB for each CPU and kind of free. 0 is as 1.
    pub cap: u64,
    /// What happens then ([`Backpressure::Help`]).
    pub backpressure: Backpressure,
    /// How long a lone object waits for company before a grace period is asked for (1 s).
    pub linger: Duration,
}

impl Limits {
    /// What domains begin with.
    pub const DEFAULT: Self =
        Self { cap: 64 << 20, backpressure: Backpressure::Help, linger: Duration::from_secs(1) };

    /// With another cap.
    #[must_use]
    pub const fn cap(self, cap: u64) -> Self {
        Self { cap, ..self }
    }

    /// With another way of keeping it.
    #[must_use]
    pub const fn backpressure(self, backpressure: Backpressure) -> Self {
        Self { backpressure, ..self }
    }

    /// With another time for lone objects.
    #[must_use]
    pub const fn linger(self, linger: Duration) -> Self {
        Self { linger, ..self }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What retired objects hold, and what became of them: of a domain with its pools, or of one pool.
///
/// Objects are counted once their block is closed: full, taken by [`crate::Domain::retire_flush`] or a
/// barrier, or old. Until then they are among the `blocks` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetireStats {
    /// Objects that wait for a grace period, or to be freed after one.
    pub pending: u64,
    /// Bytes they hold.
    pub pending_bytes: u64,
    /// The most they ever held.
    pub peak_bytes: u64,
    /// Blocks that have objects, or are open.
    pub blocks: u64,
    /// Objects freed.
    pub freed: u64,
    /// Blocks whose objects were freed by the thread that closed a block, by a barrier or by whoever was
    /// helping; the others were left to the worker.
    pub freed_by_producers: u64,
    /// Blocks freed.
    pub freed_blocks: u64,
    /// Grace periods asked for: those led on the spot, and those the worker was asked for.
    pub asked: u64,
    /// Most batches that waited for different grace periods on one CPU, now: 2 at most.
    pub batches: u32,
    /// From retiring to being freed, on average, of the blocks freed so far. Counted from the middle of the
    /// time in which a block was filled.
    pub residency: Duration,
    /// The longest, counted likewise: of an object that had to wait for company, half of that time is missing.
    pub residency_max: Duration,
    /// Objects of a pool whose memory was kept to be used again ([`Pool::boxed`](crate::free::Pool::boxed)),
    /// of those freed.
    pub reused: u64,
    /// Objects freed at once, after a wait, because there was no memory for a block.
    pub inline: u64,
    /// Objects whose destructor panicked.
    pub panicked: u64,
    /// Objects leaked because they were retired twice (found in builds with the checks).
    pub leaked: u64,
    /// Times that a thread exceeded the cap, because it must not wait or was not to.
    pub over_cap: u64,
    /// Times that a thread was held up at the cap.
    pub held_up: u64,
    /// Objects handed back at the cap.
    pub refused: u64,
}

impl fmt::Display for RetireStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pending={} pending_bytes={} peak_bytes={} blocks={} freed={} asked={} residency={:?} \
             residency_max={:?} over_cap={} held_up={} refused={}",
            self.pending,
            self.pending_bytes,
            self.peak_bytes,
            self.blocks,
            self.freed,
            self.asked,
            self.residency,
            self.residency_max,
            self.over_cap,
            self.held_up,
            self.refused
        )
    }
}

/// One table of counters.
macro_rules! counts {
    ($($name:ident),*) => {
        /// The counters of a store.
        #[derive(Debug, Default)]
        pub(super) struct Counts { $(pub(super) $name: AtomicU64),* }

        impl Counts {
            /// All zero.
            pub(super) fn clear(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }

            /// These and `other`'s.
            fn add_to(&self, sum: &Counts) {
                $(sum.$name.fetch_add(self.$name.load(Ordering::Relaxed), Ordering::Relaxed);)*
            }
        }
    };
}

counts!(
    closed,
    freed,
    bytes,
    blocks_freed,
    by_producers,
    asked,
    residency_ns,
    reused,
    inline,
    panicked,
    leaked,
    over_cap,
    held_up,
    refused
);

pub(super) fn bump(counter: &AtomicU64, n: u64) -> u64 {
    counter.fetch_add(n, Ordering::Relaxed).wrapping_add(n)
}

/// A domain's account.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The domain's own store; null until something is retired.
    pub(super) store: Apart<AtomicPtr<Store>>,
    /// Bytes in closed blocks, of all stores of the domain.
    pub(super) bytes: AtomicU64,
    pub(super) peak: AtomicU64,
    pub(super) residency_max: AtomicU64,
    cap: AtomicU64,
    backpressure: AtomicU32,
    linger_ns: AtomicU64,
    /// Who waits for room.
    pub(super) gate: Gate,
    pub(super) waiting: AtomicU32,
    /// The cap has been reported, and not been left since.
    pub(super) reported: AtomicU32,
    /// Empty blocks are not kept before this time.
    backed_off_until: AtomicU64,
}

/// Alone on its lines: what is read for each object, beside what is written for each block.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

/// For how long nothing is kept after a trim.
const BACK_OFF_NS: u64 = 5_000_000_000;

impl Ledger {
    pub(crate) const fn new() -> Self {
        Self {
            store: Apart(AtomicPtr::new(core::ptr::null_mut())),
            bytes: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            residency_max: AtomicU64::new(0),
            cap: AtomicU64::new(Limits::DEFAULT.cap),
            backpressure: AtomicU32::new(Limits::DEFAULT.backpressure as u32),
            linger_ns: AtomicU64::new(Limits::DEFAULT.linger.as_nanos() as u64),
            gate: Gate::new(),
            waiting: AtomicU32::new(0),
            reported: AtomicU32::new(0),
            backed_off_until: AtomicU64::new(0),
        }
    }

    /// For a new domain.
    pub(crate) fn renew(&self) {
        self.set_limits(Limits::DEFAULT);
        self.peak.store(0, Ordering::Relaxed);
        self.residency_max.store(0, Ordering::Relaxed);
        self.reported.store(0, Ordering::Relaxed);
        self.backed_off_until.store(0, Ordering::Relaxed);
        // Its own, and those of pools that are gone, which are empty.
        if let Some(engine) = self.store().and_then(Store::engine) {
            store::of(engine).for_each(|store| {
                store.counts.clear();
                store.tune(engine);
            });
        }
    }

    /// The domain's store, if something has been retired.
    #[inline(always)]
    pub(crate) fn store(&self) -> Option<&'static Store> {
        // Acquire: pairs with the release of whoever made it.
        // SAFETY: null, or a store, which lives for ever.
        unsafe { self.store.0.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        let linger = u64::try_from(limits.linger.as_nanos()).unwrap_or(u64::MAX);
        // A cap of nothing would be reached by nothing, and waited for without end.
        self.cap.store(limits.cap.max(1), Ordering::Relaxed);
        self.backpressure.store(limits.backpressure as u32, Ordering::Relaxed);
        self.linger_ns.store(linger, Ordering::Relaxed);
    }

    pub(crate) fn limits(&self) -> Limits {
        const EXPEDITE: u32 = Backpressure::Expedite as u32;
        const WAIT: u32 = Backpressure::Wait as u32;
        let backpressure = match self.backpressure.load(Ordering::Relaxed) {
            EXPEDITE => Backpressure::Expedite,
            WAIT => Backpressure::Wait,
            _ => Backpressure::Help,
        };
        let linger = Duration::from_nanos(self.linger_ns.load(Ordering::Relaxed));
        Limits { cap: self.cap.load(Ordering::Relaxed), backpressure, linger }
    }

    /// Bytes in closed blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// True if the cap is reached.
    pub(super) fn is_full(&self) -> bool {
        self.bytes() >= self.cap.load(Ordering::Relaxed)
    }

    /// True if nothing is to wait for company.
    pub(super) fn is_pressed(&self) -> bool {
        self.bytes() >= self.cap.load(Ordering::Relaxed) / 4
    }

    /// In a forked child.
    pub(super) fn inherit(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
    }

    pub(super) fn back_off(&self) {
        self.backed_off_until.store(monotonic_ns() + BACK_OFF_NS, Ordering::Relaxed);
    }

    pub(super) fn is_backed_off(&self) -> bool {
        let until = self.backed_off_until.load(Ordering::Relaxed);
        until != 0 && monotonic_ns() < until
    }
}

/// What some stores have done; the domain's own peaks are `ledger`'s.
pub(super) fn stats(
    ledger: &Ledger,
    stores: impl Iterator<Item = &'static Store>,
    passed: impl Fn(u64) -> bool,
) -> RetireStats {
    let sum = Counts::default();
    let (mut blocks, mut batches) = (0, 0);
    let me = crate::held::identity();
    for store in stores {
        store.counts.add_to(&sum);
        blocks += store.tally.all();
        for queue in store.queues() {
            let here = queue.try_lock(me).map_or(0, |queue| queue.batches(&passed));
            batches = batches.max(here);
        }
    }
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let freed = of(&sum.freed);
    RetireStats {
        pending: of(&sum.closed).saturating_sub(freed),
        pending_bytes: of(&sum.bytes),
        peak_bytes: ledger.peak.load(Ordering::Relaxed),
        blocks,
        freed,
        freed_by_producers: of(&sum.by_producers),
        freed_blocks: of(&sum.blocks_freed),
        asked: of(&sum.asked),
        batches,
        residency: Duration::from_nanos(of(&sum.residency_ns).checked_div(freed).unwrap_or(0)),
        residency_max: Duration::from_nanos(ledger.residency_max.load(Ordering::Relaxed)),
        reused: of(&sum.reused),
        inline: of(&sum.inline),
        panicked: of(&sum.panicked),
        leaked: of(&sum.leaked),
        over_cap: of(&sum.over_cap),
        held_up: of(&sum.held_up),
        refused: of(&sum.refused),
    }
}
