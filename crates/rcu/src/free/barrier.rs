//! Flushing, barriers, trimming.

use core::sync::atomic::Ordering;
use core::time::Duration;

use super::reclaim::is_freeing;
use super::store::{self, Store};
use crate::engine::EngineRef;
use crate::engine::fork;
use crate::engine::pace::Futex;
use crate::{callback, held};

/// How often somebody at a barrier looks at what others have in hand.
const LOOK: Duration = Duration::from_millis(1);

impl Store {
    /// Closes all open blocks; what is ready by its stamp is freed at once. False if another thread is
    /// at it.
    pub(super) fn flush(&'static self) -> bool {
        let Some(engine) = self.engine() else { return true };
        self.take_open(|block, by_sequence| {
            // SAFETY: taken out of its bank, so ours alone (invariant 1 of `lanes`).
            let inner = unsafe { block.as_ref() };
            let cookie = self.moment_of(engine, inner, by_sequence);
            // SAFETY: likewise; not ours any more afterwards.
            unsafe { self.file(engine, block, cookie) };
        })
    }

    /// [`Store::flush`], frees what is ready, and has a grace period brought about for the rest.
    pub(super) fn flush_and_ask(&'static self) {
        // Nor is it to wait for somebody who wants memory.
        self.reuses.store(0, Ordering::Relaxed);
        self.flush();
        self.reclaim_here(usize::MAX);
        if let (Some(engine), Some(cookie)) = (self.engine(), self.newest())
            && !engine.poll(cookie)
        {
            self.ask(engine, cookie, false);
            self.reclaim_here(usize::MAX);
        }
    }

    /// Waits until every object that was put in before has been freed.
    fn barrier(&'static self, engine: EngineRef) {
        // Full: what was put in before by this thread is counted. (Others' are by whatever made them
        // come before.)
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.is_empty() {
            return;
        }
        let me = held::identity();
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        while self.turner.compare_exchange(0, me, acquire, relaxed).is_err() {
            self.gate.sleep_unless(&Futex(LOOK), || self.turner.load(relaxed) == 0);
        }
        // Blocks opened from here on are of another generation, and not waited for.
        let generation = self.tally.turn();
        while self.tally.left(generation) != 0 {
            self.flush();
            self.reclaim_here(usize::MAX);
            if self.tally.left(generation) == 0 {
                break;
            }
            match self.newest().filter(|cookie| !engine.poll(*cookie)) {
                Some(cookie) => {
                    engine.wait(cookie, false);
                }
                // Others have the rest in hand.
                None => {
                    let done = || self.tally.left(generation) == 0;
                    self.gate.sleep_unless(&Futex(LOOK), done);
                }
            }
        }
        self.turner.store(0, Ordering::Release);
        self.gate.open(&Futex::default());
    }
}

/// Waits until everything retired before to this store, or to all of the domain's, has been freed.
pub(crate) fn barrier(engine: EngineRef, only: Option<&'static Store>) {
    fork::check();
    assert!(
        !is_freeing() && !callback::is_running(),
        "an object's destructor, or a callback, waits at a barrier, which waits for it"
    );
    let _aside = engine.flavour().aside();
    engine.refuse_own_section();
    match only {
        Some(store) => store.barrier(engine),
        None => {
            store::of(engine).for_each(|store| store.barrier(engine));
            // Heads for which there was no memory.
            callback::barrier(engine);
        }
    }
}

/// Closes what is open and has it freed soon.
pub(crate) fn flush(engine: EngineRef) {
    fork::check();
    store::of(engine).for_each(Store::flush_and_ask);
}

/// Frees what can be freed and gives back what is kept; says how many bytes of empty blocks.
pub(crate) fn trim(engine: EngineRef) -> usize {
    fork::check();
    engine.0.free.back_off();
    let given_back = |store: &'static Store| {
        store.flush_and_ask();
        let ready = store.give_ready_back().unwrap_or(0) as usize;
        ready + store.shrink(true) * super::block::PAGE
    };
    store::of(engine).map(given_back).sum()
}
