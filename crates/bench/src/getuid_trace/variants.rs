//! The loops of the measured side.

use super::doorbell::{Doorbell, Page};
use super::rounds::Pauses;
use crate::Options;
use crate::harness::serve::{Case, keep, warm_up};
use crate::harness::session::{Session, join};
use crate::harness::worker::Worker;
use anyhow::{Result, anyhow};
use std::sync::atomic::Ordering;

/// A way of waking the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Variant {
    Untraced,
    Before,
    WakePerEvent,
    Unsynchronised,
    Deferred,
}

/// In the order they are run in.
pub(super) const VARIANTS: [Variant; 5] = [
    Variant::Untraced,
    Variant::Before,
    Variant::WakePerEvent,
    Variant::Unsynchronised,
    Variant::Deferred,
];

impl Variant {
    /// As in the table of [`super`].
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Untraced => "untraced",
            Self::Before => "before",
            Self::WakePerEvent => "wake-per-event",
            Self::Unsynchronised => "unsynchronised",
            Self::Deferred => "deferred",
        }
    }

    /// The case that plays rounds of one event.
    pub(super) fn rounds(self) -> Option<&'static str> {
        match self {
            Self::Untraced => None,
            Self::Before => Some("rounds-before"),
            Self::WakePerEvent => Some("rounds-wake-per-event"),
            Self::Unsynchronised => Some("rounds-unsynchronised"),
            Self::Deferred => Some("rounds-deferred"),
        }
    }

    /// Events of a run of `calls`, its warm-up included.
    pub(super) fn events_of(self, calls: u64) -> u64 {
        if self == Self::Untraced { 0 } else { 2 * (calls + warm_up(calls)) }
    }
}

/// Bytes of each ring: enough for what a reader that is late by some time slices leaves there.
pub(super) fn rings(options: &Options) -> usize {
    if options.small { 16 << 20 } else { 32 << 20 }
}

/// A worker that serves all variants.
pub(super) fn worker(session: &Session, doorbell: &Doorbell) -> Result<Worker> {
    Worker::start("getuid", &[session.env(), doorbell.env()])?.map_err(|why| anyhow!(why))
}

owlet::tracepoint! {
    /// The two events around the call.
    pub(crate) mod getuid_call {
        /// Before.
        enter(call: u64);
        /// After.
        exit(call: u64, result: u64);
    }
}

/// The peer "getuid".
pub(crate) fn start() -> Result<Vec<Case>> {
    let page = Doorbell::inherited()?.page();
    join()?;
    let untraced = |n| {
        for _ in 0..n {
            keep(getuid());
        }
    };
    Ok(vec![
        Case::new("untraced", untraced),
        traced("before", page, Page::wake_under_lock),
        traced("wake-per-event", page, Page::wake_always),
        traced("unsynchronised", page, Page::wake_if_announced),
        traced("deferred", page, |_| {}),
        rounds("rounds-before", page, Page::wake_under_lock),
        rounds("rounds-wake-per-event", page, Page::wake_always),
        rounds("rounds-unsynchronised", page, Page::wake_if_announced),
        rounds("rounds-deferred", page, |_| {}),
    ])
}

fn traced(
    name: &'static str,
    page: &'static Page,
    wake: impl Fn(&Page) + Send + Sync + 'static,
) -> Case {
    Case::new(name, move |n| {
        for i in 0..n {
            owlet::trace!(getuid_call::enter, keep(i));
            wake(page);
            let result = keep(getuid());
            owlet::trace!(getuid_call::exit, i, result);
            wake(page);
        }
    })
}

/// One event, then silence until the reader has noticed, then a pause.
fn rounds(
    name: &'static str,
    page: &'static Page,
    wake: impl Fn(&Page) + Send + Sync + 'static,
) -> Case {
    Case::new(name, move |n| {
        let mut pauses = Pauses::new(1);
        for _ in 0..n {
            pauses.pause();
            let round = page.begin_round();
            owlet::trace!(getuid_call::enter, round);
            page.done.0.store(round, Ordering::Release);
            wake(page);
            page.await_noticed(round);
        }
    })
}

fn getuid() -> u64 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_getuid) as u64 }
}
