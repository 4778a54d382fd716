//! The Perfetto export, read back three ways: by a decoder of our own from the wire up, by property
//! tests over arbitrary interleavings, and by Perfetto's trace processor where there is one.

mod corpus;
mod decode;
mod engine;
mod interleavings;
mod scenes;
mod wire;

use owlet_analyze::Trace;
use owlet_export::perfetto::{self, Summary};

fn export(trace: &Trace) -> (Vec<u8>, Summary) {
    let mut out = Vec::new();
    let summary = perfetto::write(trace, None, &mut out).expect("memory takes everything");
    assert_eq!(summary.bytes, out.len() as u64);
    (out, summary)
}
