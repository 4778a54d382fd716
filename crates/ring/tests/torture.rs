//! Short runs of the torture, each with the number of its requirement.

mod common;

use common::{kill, single_event};
use owlet_ring::Clock;
use std::time::Duration;

fn single_event(options: single_event::Options) {
    let report = single_event::run(&options);
    println!("{options:?}\n{report:?}");
    assert_eq!(report.verdict(), Ok(()));
}

#[test]
fn wk_01_no_lost_wakeup_writers_wake() {
    single_event(single_event::Options::default());
}

#[test]
fn wk_01_no_lost_wakeup_portable_rings() {
    let clock = Clock::Monotonic;
    single_event(single_event::Options { clock, rounds: 5000, ..Default::default() });
}

#[test]
fn wk_01_no_lost_wakeup_with_notifier() {
    let notifier = Some(50);
    single_event(single_event::Options { notifier, rounds: 3000, ..Default::default() });
}

fn killing(clock: Clock) {
    let options = kill::Options {
        writers: 4,
        time: Duration::from_millis(1500),
        every: Duration::from_millis(3),
        clock,
        seed: 1,
    };
    let report = kill::run(&options);
    println!("{options:?}\n{report:?}");
    assert_eq!(report.verdict(), Ok(()));
}

#[test]
fn l8_killed_writers_leave_only_whole_records() {
    killing(Clock::Tsc);
}

#[test]
fn l8_killed_writers_of_portable_rings_wedge_nobody() {
    killing(Clock::Monotonic);
}
