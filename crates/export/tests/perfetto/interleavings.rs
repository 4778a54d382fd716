//! Arbitrary interleavings of span records, hostile ones included.

use crate::decode::decode;
use crate::{export, scenes};
use owlet_analyze::Trace;
use owlet_analyze::build::{At, Builder};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::ops::Range;

#[derive(Clone, Copy, Debug)]
enum Op {
    New,
    Enter,
    Exit,
    Close(u64),
    Follows(u64),
    Record,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::New),
        6 => Just(Op::Enter),
        6 => Just(Op::Exit),
        2 => (0..2_000_u64).prop_map(Op::Close),
        1 => (0..6_u64).prop_map(Op::Follows),
        1 => Just(Op::Record),
    ]
}

/// Operation, span, process, thread, CPU, and nanoseconds since the record before, at times negative.
type Record = (Op, u64, u32, u32, usize, i64);

fn records(len: Range<usize>) -> impl Strategy<Value = Vec<Record>> {
    let step = prop_oneof![3 => Just(0_i64), 10 => 1..50_i64, 1 => -30..0_i64];
    prop::collection::vec((op(), 0..6_u64, 0..2_u32, 0..3_u32, 0..2_usize, step), len)
}

fn build(records: &[Record]) -> Trace {
    let mut b = Builder::new(2);
    let ids = scenes::span_schemas(&mut b, "any:span");
    b.process(10, 1, b"parent", b"");
    b.process(11, 10, b"child", b"");
    let mut time = 1_000_i64;
    for (op, span, process, thread, cpu, step) in records.iter().copied() {
        time += step;
        let (pid, tid) = (10 + process, 100 * (10 + process) + thread);
        let at = At { cpu, time: time.max(0).cast_unsigned(), pid, tid };
        match op {
            Op::New => ids.create(&mut b, at, span),
            Op::Enter => ids.enter(&mut b, at, span),
            Op::Exit => ids.exit(&mut b, at, span),
            Op::Close(duration) => ids.close(&mut b, at, span, duration),
            Op::Follows(cause) => ids.follows(&mut b, at, span, cause),
            Op::Record => ids.record(&mut b, at, span, b"x"),
        }
    }
    b.trace()
}

/// One long arbitrary interleaving, always the same.
pub(crate) fn long() -> Trace {
    let tree = records(20_000..20_001).new_tree(&mut TestRunner::deterministic());
    build(&tree.expect("the strategy rejects nothing").current())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Slices balance and nest on every track, and a track of a span's own has that one slice.
    #[test]
    fn slices_always_balance(records in records(0..120)) {
        let (bytes, summary) = export(&build(&records));
        let decoded = decode(&bytes);
        let slices = decoded.slices();
        prop_assert_eq!(slices.len() as u64, summary.thread_slices + summary.async_slices);
        let own = |track: &u64| decoded.tracks[track].parent != 0;
        let mut on_own: Vec<_> = slices.iter().map(|slice| slice.track).filter(own).collect();
        prop_assert_eq!(on_own.len() as u64, summary.async_slices);
        on_own.sort_unstable();
        on_own.dedup();
        prop_assert_eq!(on_own.len() as u64, summary.async_slices);
        for slice in &slices {
            prop_assert!(slice.begin <= slice.end);
        }
    }
}
