//! The worker's side: stragglers, and lone objects in time.

use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

use owlet_sys::clock::monotonic_ns;

use super::reclaim::START;
use super::store::{self, IDLE, Store, TICK, TICK_NS, TIMER};
use crate::engine::EngineRef;
use crate::engine::pace::Futex;
use crate::worker::{self, Need};

/// Blocks freed in a row before the worker looks after other domains.
const TURN: usize = 8;
/// For so many ticks what is ready is left to those who may want it as memory.
const PATIENCE: u32 = 4;
/// Frees what is ready, closes what has been open for long, and says what the rest waits for.
pub(crate) fn serve(engine: EngineRef) -> Option<Need> {
    engine.0.free.store()?;
    super::pressure::look();
    store::of(engine).filter_map(|store| store.serve(engine)).reduce(worker::merge)
}

impl Store {
    fn serve(&'static self, engine: EngineRef) -> Option<Need> {
        self.armed.store(IDLE, Ordering::Relaxed);
        // Full: "nothing" before the look; pairs with the one in arm().
        fence(Ordering::SeqCst);
        if self.is_empty() {
            self.shrink(false);
            self.give_ready_back();
            return None;
        }
        // Where blocks are being closed, whoever closes them frees them: closer to their caches, and to the
        // allocator's. What is left to the worker is what nobody comes by for.
        let tick = monotonic_ns().saturating_sub(self.looked.load(Ordering::Relaxed)) >= TICK_NS;
        let patience = if self.reuses() { PATIENCE } else { 1 };
        let again = tick && self.reclaim_from(TURN, |queue| queue.deserted() >= patience) == TURN;
        // Those who are held up at the cap free what they find, and see what they find if they look.
        let ledger = &engine.0.free;
        if ledger.waiting.load(Ordering::Relaxed) != 0 && self.has_ready(engine) {
            ledger.gate.open(&Futex::default());
        }
        if tick && !again {
            self.looked.store(monotonic_ns(), Ordering::Relaxed);
        }
        let later = |within: u64| Need {
            cookie: engine.passed_moment(),
            // Not zero: that would be "now", and it is not.
            within: Duration::from_nanos(within.max(1)),
            expedited: false,
            again,
        };
        let open = self.serve_open(engine).map(later);
        let full = self.moment(engine).map(|cookie| {
            let many = self.queues().any(|queue| queue.batch() >= START) || self.is_short(engine);
            // A few are given a tick to become many, once.
            let waited = monotonic_ns().saturating_sub(self.ticking.load(Ordering::Relaxed));
            let within = if many || waited >= TICK_NS { 0 } else { TICK_NS - waited };
            let within = Duration::from_nanos(within.max(self.gathers(engine)));
            // A leader in a hurry costs a fifth of a processor: only for those who are held up.
            Need { cookie, within, expedited: ledger.waiting.load(Ordering::Relaxed) != 0, again }
        });
        if full.is_none() {
            self.ticking.store(monotonic_ns(), Ordering::Relaxed);
        }
        let need = match (full, open) {
            (Some(a), Some(b)) => Some(Need { within: a.within.min(b.within), ..a }),
            (a, b) => a.or(b),
        };
        // What is ready and was left to those who close blocks, or is in others' hands, is looked at again.
        let left = self.queues().any(|queue| !queue.is_empty());
        let look = (left || need.is_none() && !self.is_empty()).then(|| later(TICK_NS));
        let need = match (need, look) {
            (Some(a), Some(b)) => Some(Need { within: a.within.min(b.within), ..a }),
            (a, b) => a.or(b),
        };
        if need.is_some() {
            let level = if full.is_some() { TICK } else { TIMER };
            // Acquire: pairs with the release in `claim`.
            self.armed.fetch_max(level, Ordering::AcqRel);
            // Another domain has taken it since: what was found is that one's, and who put it there counts
            // on the level.
            if let Some(other) = self.engine().filter(|other| !core::ptr::eq(other.0, engine.0)) {
                worker::notify(other);
            }
        }
        need
    }

    /// Closes all open blocks if it is time; otherwise says for how long it is not (ns).
    fn serve_open(&'static self, engine: EngineRef) -> Option<u64> {
        if !self.has_open() {
            self.opened.store(0, Ordering::Relaxed);
            return None;
        }
        let (now, opened) = (monotonic_ns(), self.opened.load(Ordering::Relaxed));
        let linger = engine.0.free.limits().linger.as_nanos();
        let linger = u64::try_from(linger).unwrap_or(u64::MAX);
        if opened == 0 {
            self.opened.store(now, Ordering::Relaxed);
            return Some(linger);
        }
        let age = now.saturating_sub(opened);
        if age < linger {
            return Some(linger - age);
        }
        self.opened.store(0, Ordering::Relaxed);
        self.flush();
        self.has_open().then_some(linger)
    }
}
