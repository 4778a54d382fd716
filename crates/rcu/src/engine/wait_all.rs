//! Waiting for several domains at once.
//!
//! The caller takes a cookie of each domain, leads those that nobody leads, all of them in turn, and
//! so waits for the slowest, not for the sum. One heavy fence serves all domains that are at that
//! point together. Domains that others lead are looked at in between.

use core::sync::atomic::Ordering;
use core::time::Duration;

use super::pace::{self, Futex, Pace, Slack};
use super::{EngineRef, Run, fork};
use crate::domain::Domain;
use crate::held;
use crate::protocol::Step;
use crate::roster::Aside;
use crate::seq::{Cookie, is_at_or_after};

/// Waits until every section that was running at the call, in any of `domains`, has ended.
///
/// The waits overlap: the time is that of the slowest domain. A domain that is named twice is waited
/// for once; an empty list returns at once. Full barrier. Do not call inside a section of one of
/// them: it would wait for itself; what comes of it is told at [`Domain`].
pub fn wait_all(domains: &[&dyn Domain]) {
    wait_engines(domains, false);
}

/// [`wait_all`] for the impatient, as [`Domain::synchronize_expedited`] is to
/// [`Domain::synchronize`].
pub fn wait_all_expedited(domains: &[&dyn Domain]) {
    wait_engines(domains, true);
}

/// How soon a domain that another thread leads is looked at.
const SOON: Duration = Duration::from_micros(100);

/// One domain of a [`Herd`].
struct Member {
    engine: EngineRef,
    cookie: Cookie,
    run: Option<Run>,
    hurry: bool,
    _aside: Aside,
}

/// Domains that one thread brings forward together.
pub(crate) struct Herd {
    members: Vec<Member>,
    /// Somebody sleeps until it is done.
    waited_for: bool,
}

fn wait_engines(domains: &[&dyn Domain], hurry: bool) {
    fork::check();
    let mut herd = Herd::new(true);
    for domain in domains {
        let engine = domain.engine();
        // Mutant M23: a domain named twice is led twice.
        if !herd.has(engine) || owlet_percpu::planted!("M23") {
            let aside = engine.flavour().aside();
            engine.refuse_own_section();
            engine.counters.calls.add(1);
            herd.add(engine, engine.snapshot(), hurry, aside);
        }
    }
    let mut slack = Slack::default();
    loop {
        let (Some(pace), _) = herd.step() else { return };
        if herd.follow() {
            continue;
        }
        slack.reduce(pace);
        let hurried = herd.hurried();
        pace::pause(pace, || herd.hurried() != hurried);
    }
}

impl Herd {
    pub(crate) const fn new(waited_for: bool) -> Self {
        Self { members: Vec::new(), waited_for }
    }

    /// The number of members whose grace period is in a hurry.
    pub(crate) fn hurried(&self) -> usize {
        self.members.iter().filter(|m| m.run.is_some() && m.engine.hurried()).count()
    }

    /// If others lead all that is left, sleeps until one of them is done.
    fn follow(&self) -> bool {
        let Some(first) = self.members.first() else { return false };
        if self.members.iter().any(|m| m.run.is_some()) {
            return false;
        }
        // The second and later ones are looked at again when the first moves, and at the latest soon.
        let most = if self.members.len() == 1 { Duration::from_secs(1) } else { SOON };
        first.engine.turns.follow(&Futex(most), first.cookie);
        true
    }

    fn has(&self, engine: EngineRef) -> bool {
        self.members.iter().any(|m| core::ptr::eq(m.engine.0, engine.0))
    }

    fn add(&mut self, engine: EngineRef, cookie: Cookie, hurry: bool, aside: Aside) {
        if hurry {
            engine.hurry.fetch_add(1, Ordering::Relaxed);
            engine.nudge();
        }
        self.members.push(Member { engine, cookie, run: None, hurry, _aside: aside });
    }

    /// The worker's: has the moment brought about, beside what it already brings about.
    pub(crate) fn want(&mut self, engine: EngineRef, cookie: Cookie, hurry: bool) {
        let same = |m: &&mut Member| core::ptr::eq(m.engine.0, engine.0);
        if let Some(member) = self.members.iter_mut().find(same) {
            if !is_at_or_after(member.cookie.0, cookie.0) {
                member.cookie = cookie;
            }
            if hurry && !member.hurry {
                member.hurry = true;
                engine.hurry.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            self.add(engine, cookie, hurry, Aside::default());
        }
    }

    /// Brings every domain as far forward as it will go, and drops those whose moment has passed.
    /// Says how long to wait before the next step (`None` when there are none left), and whether
    /// any were dropped.
    pub(crate) fn step(&mut self) -> (Option<Pace>, bool) {
        let before = self.members.len();
        let mut pace = None;
        loop {
            let mut fences = false;
            self.members.retain_mut(|member| member.advance(&mut fences));
            if !fences {
                break;
            }
            // One fence for all that are at that point.
            super::heavy_fence();
            for run in self.members.iter_mut().filter_map(|m| m.run.as_mut()) {
                run.fenced();
            }
        }
        for member in &mut self.members {
            let theirs = match member.run.as_mut() {
                Some(run) => run.pace(self.waited_for),
                None => Pace::Sleep(SOON),
            };
            pace = Some(pace.map_or(theirs, |p: Pace| p.min(theirs)));
        }
        (pace, self.members.len() != before)
    }
}

/// Leaves every grace period that is not over to others, also when the wait ends by a panic.
impl Drop for Herd {
    fn drop(&mut self) {
        for member in self.members.drain(..) {
            member.leave();
            if let Some(run) = member.run {
                run.abandon();
            }
        }
    }
}

impl Member {
    /// False once the moment has passed.
    fn advance(&mut self, fences: &mut bool) -> bool {
        loop {
            self.run.take_if(|run| !run.is_on());
            if self.run.is_none() {
                if self.engine.poll(self.cookie) {
                    self.leave();
                    return false;
                }
                if !self.engine.turns.try_lead(held::identity()) {
                    return true;
                }
                if self.engine.poll(self.cookie) {
                    super::lead::resign(self.engine);
                    continue;
                }
                self.run = Some(Run::begin(self.engine));
            }
            let Some(mut run) = self.run.take() else { continue };
            match run.step() {
                Step::Done => run.end(),
                Step::Fence => {
                    *fences = true;
                    self.run = Some(run);
                    return true;
                }
                Step::Blocked => {
                    self.run = Some(run);
                    return true;
                }
            }
        }
    }

    fn leave(&self) {
        if self.hurry {
            self.engine.hurry.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
