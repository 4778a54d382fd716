//! Reports of grace periods that take too long.
//!
//! The leader looks at the clock each time it sleeps. Once a grace period is older than the timeout
//! it says so, and again when its age has doubled, and so on: domain, age, and who holds it up as far
//! as the flavour knows. The default reporter writes to the standard error stream.

use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;

use crate::engine::{EngineRef, Holder};

/// A grace period that takes too long.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The domain's name, or "".
    pub domain: &'static str,
    /// How long its leader has been waiting.
    pub age: Duration,
    /// Who is in the way, as far as is known; empty if it is not.
    pub holders: Vec<Holder>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.domain.is_empty() { "(unnamed)" } else { self.domain };
        write!(f, "grace period of domain {name} is held up for {:.1?}", self.age)?;
        for holder in &self.holders {
            write!(f, "; {} of thread {} ({})", holder.what, holder.thread, holder.tid)?;
            if !holder.stack.is_empty() {
                write!(f, "\n{}", holder.stack)?;
            }
        }
        Ok(())
    }
}

const DEFAULT_NS: u64 = 10_000_000_000;
static TIMEOUT_NS: AtomicU64 = AtomicU64::new(DEFAULT_NS);
static REPORTER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// After how long a grace period is reported (10 s); `None`: never.
pub fn set_timeout(timeout: Option<Duration>) {
    let ns = timeout.map_or(u64::MAX, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
    TIMEOUT_NS.store(ns, Ordering::Relaxed);
}

/// Who is told, instead of the standard error stream. Called on the waiting thread, which is the
/// domain's leader: it must not wait for grace periods.
pub fn set_reporter(reporter: fn(&Report)) {
    REPORTER.store(reporter as *mut (), Ordering::Release);
}

/// True if a grace period of this age is due for its report number `reports` + 1.
pub(crate) fn is_due(age_ns: u64, reports: u32) -> bool {
    let timeout = TIMEOUT_NS.load(Ordering::Relaxed);
    timeout != u64::MAX && age_ns >= timeout.saturating_mul(1 << reports.min(32))
}

#[cold]
pub(crate) fn report(engine: EngineRef, age_ns: u64) {
    let mut holders = Vec::new();
    engine.flavour().holders(&mut holders);
    let report = Report { domain: engine.name(), age: Duration::from_nanos(age_ns), holders };
    let reporter = REPORTER.load(Ordering::Acquire);
    if reporter.is_null() {
        eprintln!("owlet-rcu: {report}");
    } else {
        // SAFETY: only `set_reporter` stores there, and it stores a `fn(&Report)`.
        let reporter = unsafe { core::mem::transmute::<*mut (), fn(&Report)>(reporter) };
        reporter(&report);
    }
}
