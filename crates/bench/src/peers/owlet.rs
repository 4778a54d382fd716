//! The product, as a program uses it: declared tracepoints, `owlet::init()`, a session joined
//! through the environment, and the `tracing` bridge.

use super::cases::{DISABLED, NOTE, ONE, THREE, TRACING, TRACING_OFF};
use crate::harness::serve::{Case, keep};
use crate::harness::session::join;
use anyhow::{Result, anyhow};
use std::hint::black_box;

owlet::tracepoint! {
    /// The cases of `event-cost`.
    pub(crate) mod cost {
        /// In no session.
        off(value: u64);
        /// One field.
        one(value: u64);
        /// Three fields.
        three(value: u64, other: u64, note: &str);
    }
}

/// The names that [`join`] leaves switched off.
pub(crate) const OFF: [&str; 2] = ["cost:off", "cost_off:*"];

/// The cases.
pub(crate) fn start() -> Result<Vec<Case>> {
    join()?;
    owlet::tracing::init().map_err(|error| anyhow!("{error}"))?;
    Ok(vec![
        Case::new(DISABLED, |n| {
            for i in 0..n {
                owlet::trace!(cost::off, keep(i));
            }
        }),
        Case::new(ONE, |n| {
            for i in 0..n {
                owlet::trace!(cost::one, keep(i));
            }
        }),
        Case::new(THREE, |n| {
            for i in 0..n {
                let (i, note) = (keep(i), black_box(NOTE));
                owlet::trace!(cost::three, i, i ^ 1, note);
            }
        }),
        Case::new(TRACING_OFF, |n| {
            for i in 0..n {
                tracing::info!(target: "cost_off", value = keep(i));
            }
        }),
        Case::new(TRACING, |n| {
            for i in 0..n {
                let (i, note) = (keep(i), black_box(NOTE));
                tracing::info!(target: "cost_on", value = i, other = i ^ 1, note);
            }
        }),
    ])
}
