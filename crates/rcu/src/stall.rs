//! Reports of grace periods that take too long, and of domains that could not be given back.
//!
//! The leader looks at the clock each time it sleeps. Once a grace period is older than the timeout
//! it says so, and again when its age has doubled, and so on: domain, age, who holds it up as far as
//! the flavour knows, and what waits to be freed. SRCU knows its holders in debug builds and with the
//! feature `stacks` (which adds where each section began, at the price of a captured stack per
//! section); flavours whose threads register always do.
//!
//! The default reporter writes one message to the standard error stream.

use core::fmt;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;
use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;

use crate::engine::{Engine, EngineRef, Holder};

/// What is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A grace period takes longer than the timeout.
    Stalled,
    /// Builds with the checks: the thread that leads a grace period has waited for a second, and has
    /// taken a guard of the same domain that is still open. Unless another thread has the guard, it
    /// waits for itself.
    OwnSection,
    /// The domain's retired objects have reached its cap, and threads that retire have been held up since
    /// (see [`crate::free::Backpressure::Wait`]). Once, until there is room again.
    Full,
    /// A domain was dropped that was still in use, for the reason given. Its memory is kept until
    /// that is over; for ever, if it never is.
    Leaked(&'static str),
}

/// A grace period that takes too long, or a domain that could not be given back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// What is the matter.
    pub kind: Kind,
    /// The domain's name, or "".
    pub domain: &'static str,
    /// How long the grace period's leader has been waiting.
    pub age: Duration,
    /// Who is in the way, as far as is known; empty if it is not.
    pub holders: Vec<Holder>,
    /// Callbacks of the domain that have not been called.
    pub pending_callbacks: u64,
    /// Bytes that these are going to free, as far as they said.
    pub pending_bytes: u64,
    /// Objects that were retired and have not been freed.
    pub retired: u64,
    /// Bytes that these hold.
    pub retired_bytes: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.domain.is_empty() { "(unnamed)" } else { self.domain };
        match self.kind {
            Kind::Stalled => {
                write!(f, "grace period of domain {name} is held up for {:.1?}", self.age)?;
            }
            Kind::OwnSection => write!(
                f,
                "a thread has waited for {:.1?} for a grace period of domain {name} while a section that \
                 it entered is open; unless another thread has the guard, it waits for itself",
                self.age
            )?,
            Kind::Full => write!(
                f,
                "domain {name} has reached its cap on retired objects; retiring has been held up for {:.1?}",
                self.age
            )?,
            Kind::Leaked(why) => write!(f, "domain {name} is dropped while {why}")?,
        }
        if self.pending_callbacks != 0 {
            let Self { pending_callbacks: calls, pending_bytes: bytes, .. } = self;
            write!(f, "; {calls} callbacks wait, {bytes} bytes to be freed")?;
        }
        if self.retired != 0 {
            let Self { retired, retired_bytes: bytes, .. } = self;
            write!(f, "; {retired} retired objects wait, which hold {bytes} bytes")?;
        }
        for holder in &self.holders {
            let Holder { what, thread, tid, .. } = holder;
            write!(f, "; {what} of thread {thread} ({tid})")?;
            if !holder.age.is_zero() {
                write!(f, " for {:.1?}", holder.age)?;
            }
            if !holder.stack.is_empty() {
                write!(f, ", begun at\n{}", holder.stack)?;
            }
        }
        Ok(())
    }
}

/// The age has to double from report to report.
const LEAST_NS: u64 = 1_000_000;
const DEFAULT_NS: u64 = 10_000_000_000;
static TIMEOUT_NS: AtomicU64 = AtomicU64::new(DEFAULT_NS);
static REPORTER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// After how long a grace period is reported (10 s); `None`: never. 1 ms at least.
pub fn set_timeout(timeout: Option<Duration>) {
    let ns = timeout.map_or(u64::MAX, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
    let ns = ns.max(LEAST_NS);
    TIMEOUT_NS.store(ns, Ordering::Relaxed);
}

/// Who is told, instead of the standard error stream. Called on the thread that leads the grace
/// period (or drops the domain); others wait for it meanwhile.
pub fn set_reporter(reporter: fn(&Report)) {
    REPORTER.store(reporter as *mut (), Ordering::Release);
}

/// True if a grace period of this age is due for its report number `reports` + 1.
pub(crate) fn is_due(age_ns: u64, reports: u32) -> bool {
    let timeout = TIMEOUT_NS.load(Ordering::Relaxed);
    timeout != u64::MAX && age_ns >= timeout.saturating_mul(1 << reports.min(32))
}

/// A grace period of `engine` has been waited for so long.
#[cold]
pub(crate) fn report(engine: &'static Engine, age_ns: u64) {
    tell(engine, Kind::Stalled, Duration::from_nanos(age_ns));
}

/// A thread may be waiting for itself.
#[cold]
pub(crate) fn report_own(engine: &'static Engine, age_ns: u64) {
    tell(engine, Kind::OwnSection, Duration::from_nanos(age_ns));
}

/// Threads are held up at a domain's cap.
#[cold]
pub(crate) fn report_full(engine: &'static Engine, age: Duration) {
    tell(engine, Kind::Full, age);
}

/// A domain has been dropped and its memory could not be given back.
#[cold]
pub(crate) fn report_leak(engine: &'static Engine, why: &'static str) {
    tell(engine, Kind::Leaked(why), Duration::ZERO);
}

fn tell(engine: &'static Engine, kind: Kind, age: Duration) {
    let mut holders = Vec::new();
    engine.flavour().holders(&mut holders);
    let callbacks = engine.callbacks.stats();
    let retired = crate::free::stats(EngineRef(engine));
    let report = Report {
        kind,
        domain: engine.name(),
        age,
        holders,
        pending_callbacks: callbacks.pending(),
        pending_bytes: callbacks.pending_bytes,
        retired: retired.pending,
        retired_bytes: retired.pending_bytes,
    };
    let reporter = REPORTER.load(Ordering::Acquire);
    if reporter.is_null() {
        default_reporter(&report);
    } else {
        // SAFETY: only `set_reporter` stores there, and it stores a `fn(&Report)`.
        let reporter = unsafe { core::mem::transmute::<*mut (), fn(&Report)>(reporter) };
        // A reporter that panics does not take the leader with it.
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reporter(&report)));
        let _ = told.map_err(core::mem::forget);
    }
}

/// One write to the standard error stream, past the standard library's lock, which in a forked child
/// may be held by a thread that stayed behind.
fn default_reporter(report: &Report) {
    // SAFETY: descriptor 2 is the standard error stream, or closed; it is not closed by us.
    let mut stream = ManuallyDrop::new(unsafe { File::from_raw_fd(2) });
    let _ = stream.write_all(format!("owlet-rcu: {report}\n").as_bytes());
}
