//! What signals ask for, by when they come.

use super::{Step, step};

/// Requests after signals at these milliseconds; `None` when one of them kills.
fn requests(patience: u64, times: &[u64]) -> Option<u64> {
    let mut word = 0;
    for at in times {
        match step(word, patience, 2, 1_000_000 + at) {
            Step::Same => {}
            Step::Request(next) => word = next,
            Step::Kill => return None,
        }
    }
    Some(word & 0xff)
}

#[test]
fn what_comes_within_a_second_is_one_request() {
    assert_eq!(requests(2, &[0]), Some(1));
    assert_eq!(requests(2, &[0, 0, 2, 999]), Some(1));
    assert_eq!(requests(2, &[0, 999, 1000]), Some(2));
    assert_eq!(requests(2, &[0, 600, 1200, 1800]), Some(2));
    // The clock is not asked to be the same in all handlers.
    assert_eq!(requests(2, &[5, 0]), Some(1));
}

#[test]
fn only_a_recorder_that_hangs_is_killed() {
    assert_eq!(requests(1, &[0, 1500, 3000, 9999]), Some(1));
    assert_eq!(requests(1, &[0, 10_000]), None);
    // A command that is waited for for long is no reason.
    assert_eq!(requests(2, &[0, 60_000, 60_001, 69_999]), Some(2));
    assert_eq!(requests(2, &[0, 60_000, 70_000]), None);
}

#[test]
fn the_word_tells_the_signal_of_the_last_request() {
    let Step::Request(word) = step(0, 2, 15, 77) else { panic!() };
    assert_eq!((word & 0xff, word >> 8 & 0xff, word >> 16), (1, 15, 77));
}
