//! The corpus of recorded traces, `testdata/traces`, which every reader runs.

use crate::decode::decode;
use crate::export;
use owlet_analyze::Trace;
use owlet_wire::schema::Kind;
use std::path::PathBuf;

/// Name and trace of everything in the corpus, in the order of the names.
pub(crate) fn traces() -> Vec<(String, Trace)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&root).expect("the corpus is there") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        all.push((name, Trace::open(&path).expect("it opens")));
    }
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert!(all.len() >= 5, "the corpus holds traces");
    all
}

/// Every event is an instant, every span created or entered is a slice, and nothing else is there.
#[test]
fn every_recorded_trace_is_exported_whole() {
    for (name, trace) in traces() {
        let mut events = trace.events().expect("it opens");
        let (mut instants, mut spans, mut lost) = (0, 0, 0);
        while let Some(event) = events.next_event() {
            instants += u64::from(matches!(event.kind(), Kind::Event | Kind::SpanEvent));
            spans += u64::from(event.kind() == Kind::SpanNew);
            lost += usize::from(event.lost_before > 0);
        }
        lost += usize::from(trace.lost_total().max(events.lost_at_end()) > 0);
        let (bytes, summary) = export(&trace);
        let decoded = decode(&bytes);
        assert_eq!(summary.instants, instants, "{name}");
        assert!(summary.thread_slices + summary.async_slices >= spans, "{name}");
        let slices = decoded.slices().len() as u64;
        assert_eq!(slices, summary.thread_slices + summary.async_slices, "{name}");
        assert_eq!(decoded.instants().count(), instants as usize + lost, "{name}");
    }
}
