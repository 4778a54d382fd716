//! The lock, what it protects, and what is found.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use owlet_rcu::rwlock::{self, RawRwLock};

use super::shaker::SIGNALS;
use super::{Options, Outcome, Policy};

/// A word on a line pair of its own.
#[repr(align(128))]
pub(super) struct Word(pub(super) AtomicU64);

impl Word {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }
}

/// A lock, what it protects, and counts.
pub(super) struct World {
    pub(super) lock: RawRwLock,
    pub(super) first: Word,
    pub(super) second: Word,
    pub(super) writers: Word,
    pub(super) stop: AtomicBool,
    pub(super) ended: AtomicBool,
    pub(super) reads: AtomicU64,
    pub(super) fast: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) gave_up: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) threads: AtomicU64,
    pub(super) torn: AtomicU64,
    pub(super) stale: AtomicU64,
    pub(super) met: AtomicU64,
}

pub(super) fn note(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl World {
    pub(super) fn new(lock: RawRwLock) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            lock,
            first: Word::new(),
            second: Word::new(),
            writers: Word::new(),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            reads: zero(),
            fast: zero(),
            writes: zero(),
            gave_up: zero(),
            moved: zero(),
            threads: zero(),
            torn: zero(),
            stale: zero(),
            met: zero(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn is_faulty(&self) -> bool {
        [&self.torn, &self.stale, &self.met].iter().any(|n| n.load(Ordering::Relaxed) != 0)
    }

    /// Watches over the run; true if it stalled.
    pub(super) fn watch(&self, options: &Options) -> bool {
        let begun = Instant::now();
        // Both, but where writers may starve.
        let progress = || [&self.reads, &self.writes].map(|n| n.load(Ordering::Relaxed));
        let may_starve = self.lock.policy() == rwlock::Policy::ReaderPreferring;
        let (mut last, mut since) = (progress(), Instant::now());
        while begun.elapsed() < Duration::from_secs(options.seconds) && !self.is_faulty() {
            std::thread::sleep(Duration::from_millis(20));
            let now = progress();
            if now[0] != last[0] && (may_starve || now[1] != last[1]) {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > Duration::from_secs(60) {
                return true;
            }
        }
        false
    }

    /// Gives everybody half a minute to come to an end.
    pub(super) fn expect_end(&'static self, options: &Options, policy: Policy) {
        let options = options.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(30));
            if !self.ended.load(Ordering::Relaxed) {
                let outcome = self.outcome(&options, policy, true);
                say!("{}", serde_json::to_string(&outcome).unwrap_or_default());
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(1) };
            }
        });
    }

    /// What a reader finds, given what it found before.
    pub(super) fn look(&self, last: &mut u64, between: impl FnOnce()) {
        let first = self.first.get();
        between();
        let second = self.second.get();
        if first != second {
            note(&self.torn);
        }
        if second < *last {
            note(&self.stale);
        }
        *last = second;
        if self.writers.get() != 0 {
            note(&self.met);
        }
    }

    pub(super) fn outcome(&self, options: &Options, policy: Policy, stalled: bool) -> Outcome {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let busy = of(&self.reads) != 0 && of(&self.writes) != 0 && of(&self.fast) != 0;
        Outcome {
            policy: format!("{policy:?}").to_lowercase(),
            held: !stalled && !self.is_faulty() && busy,
            backend: format!("{:?}", owlet_percpu::backend()),
            seconds: options.seconds,
            seed: options.seed,
            reads: of(&self.reads),
            fast: of(&self.fast),
            writes: of(&self.writes),
            gave_up: of(&self.gave_up),
            moved: of(&self.moved),
            signals: SIGNALS.load(Ordering::Relaxed),
            threads: of(&self.threads),
            membarriers: self.lock.stats().membarriers,
            torn: of(&self.torn),
            stale: of(&self.stale),
            met: of(&self.met),
            stalled,
        }
    }
}
