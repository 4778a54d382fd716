//! `tracing` with the text formatter of tracing-subscriber, written to /dev/null through a mutex:
//! what many programs run today.

use super::cases::{DISABLED, NOTE, ONE, THREE};
use crate::harness::serve::{Case, keep};
use anyhow::Result;
use std::fs::OpenOptions;
use std::hint::black_box;
use std::sync::Mutex;

/// The cases.
pub(crate) fn start() -> Result<Vec<Case>> {
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(null)).init();
    Ok(vec![
        // DEBUG is above the formatter's maximum, INFO: switched off by the global level.
        Case::new(DISABLED, |n| {
            for i in 0..n {
                tracing::debug!(value = keep(i), "tick");
            }
        }),
        Case::new(ONE, |n| {
            for i in 0..n {
                tracing::info!(value = keep(i), "tick");
            }
        }),
        Case::new(THREE, |n| {
            for i in 0..n {
                let (i, note) = (keep(i), black_box(NOTE));
                tracing::info!(value = i, other = i ^ 1, note, "tick");
            }
        }),
    ])
}
