//! The recorder's place: a session whose rings a thread of the benchmark drains while workers
//! write to them.

use crate::peers;
use anyhow::{Context, Result, anyhow};
use owlet_ring::{
    Clock, Notifier, NotifierOptions, Reader, RingReader, RingSet, Segment, SegmentOptions,
    WaitOutcome, Waiter, Watermark,
};
use owlet_wire::config::{Rule, SessionConfig};
use owlet_wire::schema::Level;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Names the segment to a worker: the product's own variable, so that `owlet::init` finds it.
pub(crate) const SESSION: &str = "OWLET_SESSION";

/// A session.
pub(crate) struct Session {
    segment: Arc<Segment>,
    rings: Vec<RingReader>,
    _notifier: Notifier,
}

/// What a reader saw of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Records read.
    pub(crate) events: u64,
    /// Records the writers counted as lost, in all, since the session began.
    pub(crate) lost: u64,
    /// Bytes that were no records, since the session began.
    pub(crate) corrupt: u64,
    /// How often the reader slept and was woken by data.
    pub(crate) wakeups: u64,
}

impl Session {
    /// A session that wants every event; rings of `ring_bytes` a CPU.
    pub(crate) fn new(ring_bytes: usize, deferral: Duration) -> Result<Self> {
        // The notifier inherits this thread's timer slack, 50 us unless told otherwise.
        // SAFETY: PR_SET_TIMERSLACK takes a number.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        let options = SegmentOptions {
            ring_bytes,
            cpus: owlet_percpu::cpus(),
            clock: Clock::Tsc,
            log_bytes: 4 << 20,
            config: config().encode(),
            deferral_us: deferral.as_micros() as u32,
        };
        let segment = Arc::new(Segment::create(&options).context("create the session's memory")?);
        let reader = Reader::new(Arc::clone(&segment));
        let rings = (0..reader.rings()).filter_map(|i| reader.ring(i)).collect();
        let notifier = Notifier::start(&segment, &NotifierOptions::default())?;
        Ok(Self { segment, rings, _notifier: notifier })
    }

    /// What a worker needs in its environment.
    pub(crate) fn env(&self) -> (&'static str, String) {
        let fd = self.segment.fd().as_raw_fd();
        (SESSION, format!("/proc/{}/fd/{fd}", std::process::id()))
    }

    /// A waiter on this session.
    pub(crate) fn waiter(&self) -> Waiter {
        Waiter::new(Arc::clone(&self.segment))
    }

    /// Reads what is there.
    pub(crate) fn drain(&mut self, seen: &mut Seen) -> u64 {
        let mut out = Vec::new();
        self.drain_into(&mut out, seen)
    }

    fn drain_into(&mut self, out: &mut Vec<u8>, seen: &mut Seen) -> u64 {
        let (mut events, mut lost, mut corrupt) = (0, 0, 0);
        for ring in &mut self.rings {
            out.clear();
            let drained = ring.drain(out);
            events += drained.events;
            lost += drained.lost.iter().sum::<u64>();
            corrupt += drained.corrupt;
        }
        *seen = Seen { events: seen.events + events, lost, corrupt, wakeups: seen.wakeups };
        events
    }
}

/// How the reader learns that there is something to read.
pub(crate) trait Waits: Send {
    /// Returns when there is data, true, or after a while without, false.
    fn wait(&mut self, session: &mut Session, seen: &mut Seen) -> bool;
}

/// Never asks to be woken: looks every millisecond.
pub(crate) struct Looks;

impl Waits for Looks {
    fn wait(&mut self, _: &mut Session, _: &mut Seen) -> bool {
        std::thread::sleep(Duration::from_millis(1));
        false
    }
}

/// Asks the product to wake it for so much data.
pub(crate) struct Armed {
    waiter: Waiter,
    watermark: Watermark,
}

impl Armed {
    /// A reader of `session`.
    pub(crate) fn new(session: &Session, watermark: Watermark) -> Self {
        Self { waiter: session.waiter(), watermark }
    }
}

impl Waits for Armed {
    fn wait(&mut self, _: &mut Session, _: &mut Seen) -> bool {
        let deadline = Instant::now() + Duration::from_millis(100);
        self.waiter.wait(RingSet::All, self.watermark, Some(deadline)) == WaitOutcome::Ready
    }
}

/// A thread that drains a session until told to stop.
pub(crate) struct Drain {
    stop: Arc<AtomicBool>,
    accounted: Arc<AtomicU64>,
    thread: JoinHandle<(Session, Seen)>,
}

impl Drain {
    /// Starts the thread.
    pub(crate) fn start(mut session: Session, mut how: Box<dyn Waits>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accounted = Arc::new(AtomicU64::new(0));
        let account = Arc::clone(&accounted);
        let thread = std::thread::spawn(move || {
            let (mut seen, mut out) = (Seen::default(), Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let sleeps = sleeps_so_far();
                let data = how.wait(&mut session, &mut seen);
                // Data found without having slept is no wakeup.
                seen.wakeups += u64::from(data && sleeps_so_far() > sleeps);
                session.drain_into(&mut out, &mut seen);
                account.store(seen.events + seen.lost, Ordering::Relaxed);
            }
            session.drain_into(&mut out, &mut seen);
            (session, seen)
        });
        Self { stop, accounted, thread }
    }

    /// Waits until `events` have been read or counted as lost, or for two seconds.
    pub(crate) fn catch_up(&self, events: u64) {
        let end = Instant::now() + Duration::from_secs(2);
        while self.accounted.load(Ordering::Relaxed) < events && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops it after everything was read.
    pub(crate) fn stop(self) -> Result<(Session, Seen)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the reader thread panicked"))
    }
}

/// How often this thread has given up its CPU of its own accord.
fn sleeps_so_far() -> i64 {
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live local.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nvcsw
}

/// Joins the session named in the environment, in a worker.
pub(crate) fn join() -> Result<()> {
    std::env::var_os(SESSION).context("no session in the environment")?;
    owlet::init().map_err(|error| anyhow!("{error}"))
}

/// Every event on but those that must be off.
fn config() -> SessionConfig {
    let rule = |pattern: &str, enable| Rule { pattern: pattern.to_owned(), enable };
    let off = peers::owlet::OFF.map(|pattern| rule(pattern, false));
    let rules = [rule("*", true)].into_iter().chain(off).collect();
    SessionConfig {
        session: std::process::id().into(),
        rules,
        level: Level::Trace,
        filter: String::new(),
        rendezvous: String::new(),
        recorder_pid: std::process::id(),
    }
}
