//! System calls, locks and locked instructions of an event, counted and not assumed.
//!
//! System calls come from a run of many events under a seccomp filter, locked instructions from
//! single-stepping, both less those of the untraced loop; locks in "before" from the lock's own
//! counter. A variant that executes no locked instruction at all takes no lock.

use super::doorbell::Doorbell;
use super::variants::{VARIANTS, Variant, worker};
use crate::Options;
use crate::harness::report::Report;
use crate::harness::session::{Drain, Looks, Session};
use crate::harness::step::{self, Counts};
use crate::harness::syscalls;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Of one variant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    /// System calls an event, getuid not counted.
    pub(super) syscalls: f64,
    /// All of them in the run.
    pub(super) all_syscalls: u64,
    /// Locks taken, an event.
    pub(super) locks: f64,
    /// Locked instructions, an event.
    pub(super) locked: f64,
    instructions: f64,
}

/// By variant.
pub(super) type All = BTreeMap<Variant, Count>;

/// Counts every variant.
pub(super) fn all(options: &Options, report: &mut Report) -> Result<All> {
    let (calls, steps) = (options.size(200_000, 10_000), 10);
    report.say(&format!(
        "counted      system calls by seccomp over {calls} calls, instructions by stepping {steps}"
    ));
    let mut all = All::new();
    let mut untraced = Counts::default();
    for variant in VARIANTS {
        let session = Session::new(32 << 20, Duration::from_millis(2))?;
        let doorbell = Doorbell::new()?;
        let mut writer = worker(&session, &doorbell)?;
        let drain = Drain::start(session, Box::new(Looks));
        let stepped = step::count(&mut writer, variant.name(), steps)?;
        if variant == Variant::Untraced {
            untraced = stepped;
        }
        let before = doorbell.page().taken();
        let all_syscalls = syscalls::count(writer, variant.name(), calls)
            .with_context(|| format!("count the system calls of {}", variant.name()))?;
        let taken = doorbell.page().taken() - before;
        drain.stop()?;
        let (events, per_call) = (2.0 * calls as f64, stepped - untraced);
        let count = Count {
            syscalls: all_syscalls as f64 / events,
            all_syscalls,
            // The run before the mark takes locks, too.
            locks: taken as f64 / (2.0 * events),
            locked: per_call.locked / 2.0,
            instructions: per_call.instructions / 2.0,
        };
        report.say(&format!(
            "counted      {}: {:.1} instructions, {:.2} locked, {:.3} locks, {:.4} system calls \
             an event",
            variant.name(),
            count.instructions,
            count.locked,
            count.locks,
            count.syscalls
        ));
        all.insert(variant, count);
    }
    Ok(all)
}
