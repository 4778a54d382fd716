//! The loops of the measured side.

use super::doorbell::{Doorbell, Page};
use crate::Options;
use crate::harness::serve::{Case, warm_up};
use crate::harness::session::{Session, inherited};
use crate::harness::worker::Worker;
use anyhow::{Context, Result, anyhow};
use owlet_ring::Writer;
use std::hint::black_box;
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
    if options.small { 4 << 20 } else { 32 << 20 }
}

/// A worker that serves all variants.
pub(super) fn worker(session: &Session, doorbell: &Doorbell) -> Result<Worker> {
    Worker::start("getuid", &[session.env(), doorbell.env()])?.map_err(|why| anyhow!(why))
}

/// The two events around the call.
#[derive(Clone, Copy)]
struct Events {
    writer: &'static Writer,
    id: u32,
    pid: u32,
}

impl Events {
    #[inline]
    fn enter(self, call: u64) {
        let _ = self.writer.push(self.id, self.pid, self.pid, &[&call.to_le_bytes()]);
    }

    #[inline]
    fn exit(self, call: u64, result: u64) {
        let parts: [&[u8]; 2] = [&call.to_le_bytes(), &result.to_le_bytes()];
        let _ = self.writer.push(self.id + 1, self.pid, self.pid, &parts);
    }
}

/// The peer "getuid".
pub(crate) fn start() -> Result<Vec<Case>> {
    let page = Doorbell::inherited()?.page();
    let writer: &'static Writer = Box::leak(Box::new(Writer::new(inherited()?)?));
    let id = writer.segment().claim_ids(2).context("no event ids left")?;
    let events = Events { writer, id, pid: std::process::id() };
    let untraced = |n| {
        for _ in 0..n {
            black_box(getuid());
        }
    };
    Ok(vec![
        Case::new("untraced", untraced),
        traced("before", events, page, Page::wake_under_lock),
        traced("wake-per-event", events, page, Page::wake_always),
        traced("unsynchronised", events, page, Page::wake_if_announced),
        traced("deferred", events, page, |_| {}),
        rounds("rounds-before", events, page, Page::wake_under_lock),
        rounds("rounds-wake-per-event", events, page, Page::wake_always),
        rounds("rounds-unsynchronised", events, page, Page::wake_if_announced),
        rounds("rounds-deferred", events, page, |_| {}),
    ])
}

fn traced(
    name: &'static str,
    events: Events,
    page: &'static Page,
    wake: impl Fn(&Page) + Send + Sync + 'static,
) -> Case {
    Case::new(name, move |n| {
        for i in 0..n {
            events.enter(black_box(i));
            wake(page);
            let result = black_box(getuid());
            events.exit(i, result);
            wake(page);
        }
    })
}

/// One event, then silence until the reader has noticed.
fn rounds(
    name: &'static str,
    events: Events,
    page: &'static Page,
    wake: impl Fn(&Page) + Send + Sync + 'static,
) -> Case {
    Case::new(name, move |n| {
        for _ in 0..n {
            let round = page.begin_round();
            events.enter(round);
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
