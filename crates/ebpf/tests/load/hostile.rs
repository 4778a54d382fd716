//! Damaged objects give errors, never a panic or a hang.

use crate::testdata;
use owlet_ebpf::{Limits, load};
use proptest::prelude::*;

const OBJECTS: [&str; 5] = ["count", "latency", "events", "calls", "records"];

/// Loads, and runs whatever is accepted.
fn attempt(bytes: &[u8]) {
    if let Ok(verified) = load::object(bytes)
        && let Ok(module) = verified.module(Limits { map_bytes: 1 << 20, fuel: 1000 })
    {
        for program in module.programs() {
            program.run(&crate::context());
        }
    }
}

#[test]
fn what_is_no_object_is_named() {
    let error = |bytes: &[u8]| load::object(bytes).expect_err("no object").to_string();
    assert_eq!(error(b""), "object file: not an ELF file");
    assert_eq!(error(b"#!/bin/sh\n"), "object file: not an ELF file");
    assert_eq!(
        error(b"\x7fELF"),
        "object file: not an object for little-endian eBPF (clang -target bpf -c)"
    );
    let program = std::fs::read("/proc/self/exe").unwrap();
    assert!(error(&program).contains("not an object for little-endian eBPF"));
    let cut = &testdata("count")[..64];
    assert_eq!(error(cut), "object file: its section headers are damaged");
}

#[test]
fn truncated_objects() {
    for name in OBJECTS {
        let bytes = testdata(name);
        for len in (0..bytes.len()).step_by(61) {
            assert!(load::object(&bytes[..len]).is_err(), "{name} cut to {len}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_objects(
        which in 0..OBJECTS.len(),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = testdata(OBJECTS[which]);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        attempt(&bytes);
    }
}
