//! One grace period being led, and the waits that do nothing else.

use super::pace::{self, Eagerness, Futex, Pace, Slack};
use core::sync::atomic::Ordering;

use super::{EngineRef, Flavour, Step, Stepper, fork};
use crate::check;
use crate::held;
use crate::seq::Cookie;
use crate::worker;

/// One grace period, from its beginning to its end, in the hands of its leader.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) engine: EngineRef,
    /// Where SRCU's protocol is.
    pub(crate) stepper: Stepper,
    /// For other flavours: what they like. Zero at the beginning.
    pub(crate) scratch: [u64; 4],
    wants_fence: bool,
    /// `seq` once begun.
    begun: u64,
    /// Looks in vain so far.
    attempt: u32,
    /// When the leader first had to wait, 0 = not yet.
    since: u64,
    stalls: u32,
    /// It has been reported that the leader may be waiting for itself.
    suspected: bool,
}

impl Run {
    /// The caller has become the leader: begins a grace period.
    pub(super) fn begin(engine: EngineRef) -> Self {
        engine.turns.begin();
        let mut run = Self {
            engine,
            stepper: Stepper::default(),
            scratch: [0; 4],
            wants_fence: false,
            begun: engine.turns.seq(),
            attempt: 0,
            since: 0,
            stalls: 0,
            suspected: false,
        };
        engine.flavour().begin(&mut run);
        run
    }

    /// False if the grace period was abandoned meanwhile, by a wait of this thread's further down the
    /// stack: then this run is nothing any more, and the leader is somebody else.
    pub(super) fn is_on(&self) -> bool {
        self.engine.turns.is_led(held::identity(), self.begun)
    }

    /// Gives the grace period up, and the leadership.
    pub(super) fn abandon(self) {
        if self.is_on() {
            self.engine.turns.abandon();
            resign(self.engine);
        }
    }

    /// Goes on as far as possible without waiting.
    pub(super) fn step(&mut self) -> Step {
        let flavour: &dyn Flavour = self.engine.flavour();
        let step = flavour.step(self);
        self.wants_fence = step == Step::Fence;
        step
    }

    /// A heavy fence has been done, begun after the last step; told to every run there is.
    pub(super) fn fenced(&mut self) {
        if !core::mem::take(&mut self.wants_fence) {
            return;
        }
        self.engine.counters.membarriers.add(1);
        self.engine.flavour().fenced(self);
    }

    /// After [`Step::Done`]: the grace period has ended, and so has the leadership.
    pub(super) fn end(self) {
        let engine = self.finish();
        resign(engine);
    }

    /// [`Run::end`] that lets the worker sleep if it would only learn that deferred free has got on: that
    /// is looked after by those who retire, and by the worker in its own time.
    fn end_quietly(self) {
        let engine = self.finish();
        if engine.callbacks.is_idle() && engine.wakers.is_empty() {
            engine.turns.resign(&Futex::default());
        } else {
            resign(engine);
        }
    }

    fn finish(&self) -> EngineRef {
        let engine = self.engine;
        if engine.hurried() {
            engine.counters.expedited.add(1);
        }
        self.note_length();
        engine.turns.end();
        engine
    }

    /// What [`super::Engine::gathering_until`] goes by. No look at the clock where nobody had to wait.
    fn note_length(&self) {
        let engine = self.engine;
        if self.since != 0 {
            let now = owlet_sys::clock::monotonic_ns();
            engine.length.store(now.saturating_sub(self.since), Ordering::Relaxed);
            engine.ended_at.store(now, Ordering::Relaxed);
        } else if engine.length.load(Ordering::Relaxed) != 0 {
            engine.length.store(0, Ordering::Relaxed);
        }
    }

    /// After [`Step::Blocked`]: how long to wait before the next step; counts, and reports stalls.
    pub(super) fn pace(&mut self, waited_for: bool) -> Pace {
        let eagerness = match (self.engine.hurried(), waited_for) {
            (true, _) => Eagerness::Hurried,
            (false, true) => Eagerness::Normal,
            (false, false) => Eagerness::Lazy,
        };
        let mut pace = pace::pace(self.attempt, 0, eagerness);
        self.attempt = self.attempt.saturating_add(1);
        if matches!(pace, Pace::Sleep(_)) {
            let now = owlet_sys::clock::monotonic_ns();
            if self.since == 0 {
                self.since = now;
            }
            let age = now.saturating_sub(self.since);
            pace = pace::pace(self.attempt, age, eagerness);
            self.engine.counters.sleeps.add(1);
            self.note_stall(age);
        }
        pace
    }

    fn note_stall(&mut self, age: u64) {
        if crate::stall::is_due(age, self.stalls) {
            self.stalls = self.stalls.saturating_add(1);
            self.engine.counters.stalls.add(1);
            crate::stall::report(self.engine.0, age);
        }
        let old = age >= check::SUSPICIOUS_NS && !self.suspected;
        if old && check::suspects(self.engine.0) {
            self.suspected = true;
            crate::stall::report_own(self.engine.0, age);
        }
    }
}

/// Stops leading without having begun, or after the end.
pub(super) fn resign(engine: EngineRef) {
    engine.turns.resign(&Futex::default());
    if !engine.work.is_idle() {
        worker::wake();
    }
}

/// Leads one grace period to its end, waiting as need be. False if it was abandoned.
pub(super) fn lead(engine: EngineRef) -> bool {
    let mut run = Run::begin(engine);
    let mut slack = Slack::default();
    loop {
        match run.step() {
            Step::Done => break,
            Step::Fence => {
                super::heavy_fence();
                run.fenced();
            }
            Step::Blocked => {
                let hurried = engine.hurried();
                let pace = run.pace(true);
                if !run.is_on() {
                    return false;
                }
                slack.reduce(pace);
                pace::pause(pace, || engine.hurried() != hurried);
            }
        }
    }
    run.finish();
    true
}

impl EngineRef {
    /// Brings a moment about on the spot, if nobody leads, nobody seems to be inside, and nobody turns out
    /// to be. True if it has passed.
    pub(crate) fn try_once(self, cookie: Cookie) -> bool {
        let quiet = self.turns.leader() == 0 && self.flavour().is_quiet();
        if !quiet || !self.turns.try_lead(held::identity()) {
            return self.poll(cookie);
        }
        if self.poll(cookie) {
            resign(self);
            return true;
        }
        let mut run = Run::begin(self);
        loop {
            match run.step() {
                Step::Done => {
                    run.end_quietly();
                    return self.poll(cookie);
                }
                Step::Fence => {
                    super::heavy_fence();
                    run.fenced();
                }
                Step::Blocked => {
                    run.abandon();
                    return false;
                }
            }
        }
    }

    /// Waits for a moment; `hurry` spins first and hurries whoever leads.
    pub(crate) fn wait(self, cookie: Cookie, hurry: bool) {
        fork::check();
        if self.poll(cookie) {
            return;
        }
        let _aside = self.flavour().aside();
        self.refuse_own_section();
        self.counters.calls.add(1);
        if hurry {
            self.hurry.fetch_add(1, Ordering::Relaxed);
            self.nudge();
        }
        let mut led = false;
        self.turns.wait(&Futex::default(), held::identity(), cookie, || {
            led = true;
            lead(self)
        });
        if !led {
            self.counters.shared.add(1);
        }
        if !self.work.is_idle() {
            worker::remind();
        }
        if hurry {
            self.hurry.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Debug builds: a thread must not wait for itself.
    pub(crate) fn refuse_own_section(self) {
        debug_assert!(
            !crate::callback::is_running(),
            "waiting for a grace period in a callback, on the thread that brings them about"
        );
        if check::ON {
            check::waits_for(self.0, self.flavour().is_inside());
        }
    }
}
