//! The encoder at its limits.

use crate::encoder::{Encoder, INLINE, PARTS, SCRATCH};

fn bytes(encoder: &Encoder<'_>) -> Vec<u8> {
    encoder.with_parts(|parts| parts.concat())
}

#[test]
fn what_does_not_fit_is_refused_as_a_whole() {
    let mut encoder = Encoder::new();
    (0..SCRATCH / 8).for_each(|n| encoder.put((n as u64).to_le_bytes()));
    assert!(!encoder.overflowed());
    assert_eq!(encoder.len(), SCRATCH);
    encoder.put([1]);
    assert!(encoder.overflowed());
    assert_eq!(encoder.len(), SCRATCH);
}

#[test]
fn long_parts_are_referenced_until_there_are_too_many() {
    let long = [7u8; INLINE + 1];
    let mut encoder = Encoder::new();
    for _ in 0..PARTS {
        encoder.counted(&long);
    }
    assert_eq!(bytes(&encoder).len(), PARTS * (4 + long.len()));
    assert!(!encoder.overflowed());
    // Then they are copied while there is room in the scratch.
    let room = SCRATCH - 4 * PARTS;
    for _ in 0..room / (4 + long.len()) {
        encoder.counted(&long);
        assert!(!encoder.overflowed());
    }
    encoder.counted(&long);
    assert!(encoder.overflowed());
}

#[test]
fn pieces_are_as_many_as_the_ring_takes_and_in_order() {
    let texts: Vec<String> = (0..PARTS).map(|n| format!("{n:>3}").repeat(40)).collect();
    let mut encoder = Encoder::new();
    let mut expected = Vec::new();
    for text in &texts {
        encoder.dyn_str(text);
        expected.push(5);
        expected.extend((text.len() as u32).to_le_bytes());
        expected.extend(text.as_bytes());
    }
    encoder.dyn_bool(true);
    expected.extend([4, 1]);
    assert_eq!(bytes(&encoder), expected);
    assert_eq!(encoder.len(), expected.len());
    // owlet_ring takes 32 pieces.
    assert!(encoder.with_parts(|parts| parts.len()) <= 32);
    let mut room = vec![0; expected.len()];
    assert_eq!(encoder.flatten(&mut room), Some(&expected[..]));
    assert_eq!(encoder.flatten(&mut [0; 10]), None);
}

#[test]
fn an_empty_payload_is_one_empty_piece() {
    let encoder = Encoder::new();
    assert!(encoder.is_empty());
    assert_eq!(encoder.with_parts(|parts| parts.len()), 1);
}
