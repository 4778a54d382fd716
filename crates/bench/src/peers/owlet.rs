//! The product, as a program uses it: declared tracepoints, `owlet::init()`, and a session joined
//! through the environment.

use super::cases::{DISABLED, NOTE, ONE, THREE};
use crate::harness::serve::{Case, keep};
use crate::harness::session::join;
use anyhow::Result;
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

/// Every name that [`join`] leaves switched off.
pub(crate) const OFF: &str = "cost:off";

/// The cases.
pub(crate) fn start() -> Result<Vec<Case>> {
    join()?;
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
    ])
}
