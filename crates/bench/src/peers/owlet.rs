//! The product.

use super::cases::{NOTE, ONE, THREE};
use crate::harness::serve::Case;
use crate::harness::session;
use anyhow::{Context, Result};
use owlet_ring::Writer;
use std::hint::black_box;

/// The cases.
pub(crate) fn start() -> Result<Vec<Case>> {
    let segment = session::inherited()?;
    let writer: &'static Writer = Box::leak(Box::new(Writer::new(segment)?));
    let id = writer.segment().claim_ids(2).context("no event ids left")?;
    let (pid, tid) = (std::process::id(), 1);
    Ok(vec![
        Case::new(ONE, move |n| {
            for i in 0..n {
                let _ = writer.push(id, pid, tid, &[&black_box(i).to_le_bytes()]);
            }
        }),
        Case::new(THREE, move |n| {
            for i in 0..n {
                let (i, note) = (black_box(i), black_box(NOTE));
                let parts: [&[u8]; 3] = [&i.to_le_bytes(), &(i ^ 1).to_le_bytes(), note.as_bytes()];
                let _ = writer.push(id + 1, pid, tid, &parts);
            }
        }),
    ])
}
