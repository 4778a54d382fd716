//! What is measured, and beside what. Each peer is a worker process of its own.

pub(crate) mod batch;
pub(crate) mod defer_free;
mod flavours;
mod floor;
mod fmt;
mod hackbench;
mod known;
mod locks;
pub(crate) mod lttng;
pub(crate) mod owlet;
mod program;
mod rcu;
mod readers;
pub(crate) mod traced;
pub(crate) mod uprobe;
pub(crate) mod urcu;
mod wait_all;

use crate::getuid_trace;
use crate::harness::serve::Case;
use anyhow::{Result, bail};

/// What starts a peer within its worker.
type Start = fn() -> Result<Vec<Case>>;

/// Peers that are this program; LTTng is a program of its own.
const PEERS: &[(&str, Start)] = &[
    ("loop", floor::empty),
    ("floor", floor::start),
    ("owlet", owlet::start),
    ("tracing-fmt", fmt::start),
    ("getuid", getuid_trace::variants),
    ("hackbench", hackbench::start),
    ("known", known::start),
    ("rcu-read", rcu::read_cases),
    ("rcu-sync", rcu::sync_cases),
    ("rcu-poll", rcu::poll_cases),
    ("defer-free", defer_free::cases),
    ("rwlock", locks::cases),
    ("toggle", locks::toggle::cases),
    ("traced", traced::cases),
    ("uprobe-hit", uprobe::hit_cases),
    ("batch", batch::cases),
    ("batch-mdwe", batch::cases_without_windows),
    ("uprobe-batch", uprobe::batch_cases),
    ("protection-floor", readers::floor),
    ("crossbeam-epoch", readers::crossbeam),
    ("seize", readers::seize),
    ("haphazard", readers::haphazard),
    ("arc-swap", readers::arc_swap),
];

/// Starts a peer in this process and says what it can run.
pub(crate) fn start(name: &str) -> Result<Vec<Case>> {
    match PEERS.iter().find(|(peer, _)| *peer == name) {
        Some((_, start)) => start(),
        None => bail!("no peer {name:?}"),
    }
}

/// The cases of `event-cost` have the same names in every peer.
pub(crate) mod cases {
    /// A trace point that is switched off, one field.
    pub(crate) const DISABLED: &str = "disabled";
    /// One `u64`.
    pub(crate) const ONE: &str = "1-field";
    /// `u64`, `u64` and [`NOTE`].
    pub(crate) const THREE: &str = "3-fields";
    /// The same three fields, by `tracing::event!`.
    pub(crate) const TRACING: &str = "tracing-event";

    /// A `tracing::event!` that the bridge keeps switched off, one field.
    pub(crate) const TRACING_OFF: &str = "tracing-disabled";

    /// Nine characters.
    pub(crate) const NOTE: &str = "nine char";
}
