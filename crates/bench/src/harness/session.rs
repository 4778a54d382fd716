//! The recorder's place: a session whose rings a thread of the benchmark drains while workers
//! write to them.

use anyhow::{Context, Result, anyhow};
use owlet_ring::{
    Clock, Notifier, NotifierOptions, Reader, RingReader, RingSet, Segment, SegmentOptions,
    WaitOutcome, Waiter, Watermark,
};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// How often the reader was woken by data.
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
            log_bytes: 1 << 20,
            config: Vec::new(),
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
    /// Sleeps until woken; true when it was woken because of data, false after a while without.
    /// `look` says whether there is data now.
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

/// Asks the product to wake it for any data.
pub(crate) struct Armed(pub(crate) Waiter);

impl Waits for Armed {
    fn wait(&mut self, _: &mut Session, _: &mut Seen) -> bool {
        let deadline = Instant::now() + Duration::from_millis(100);
        self.0.wait(RingSet::All, Watermark::ANY, Some(deadline)) == WaitOutcome::Ready
    }
}

/// A thread that drains a session until told to stop.
pub(crate) struct Drain {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Session, Seen)>,
}

impl Drain {
    /// Starts the thread.
    pub(crate) fn start(mut session: Session, mut how: Box<dyn Waits>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut seen, mut out) = (Seen::default(), Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let woken = how.wait(&mut session, &mut seen);
                seen.wakeups += u64::from(woken);
                session.drain_into(&mut out, &mut seen);
            }
            session.drain_into(&mut out, &mut seen);
            (session, seen)
        });
        Self { stop, thread }
    }

    /// Stops it after everything was read.
    pub(crate) fn stop(self) -> Result<(Session, Seen)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the reader thread panicked"))
    }
}

/// The session named in the environment, in a worker.
pub(crate) fn inherited() -> Result<Arc<Segment>> {
    let path = std::env::var(SESSION).context("no session in the environment")?;
    let file = std::fs::File::options().read(true).write(true).open(&path)?;
    let segment = Segment::open(file.into()).map_err(|error| anyhow!("open {path}: {error}"))?;
    Ok(Arc::new(segment))
}
