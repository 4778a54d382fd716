use core::task::Waker;
use std::time::{Duration, Instant};

use super::*;
use crate::rwlock::Options;
use crate::rwlock::write::Patience;

const POLICIES: [Policy; 3] = [Policy::WriterBurst, Policy::PhaseFair, Policy::ReaderPreferring];

/// W4: whoever waited gives up between an owner's last look at the sign that somebody waits, by which he
/// may leave the door closed, and his giving the seat up.
#[test]
fn w4_a_waiter_gives_up_while_the_owner_gives_the_lock_back() {
    for policy in POLICIES {
        for kind in [Kind::Reader, Kind::Writer, Kind::Upgradable] {
            let lock = Options::new().policy(policy).build_raw();
            assert!(lock.write_as(Patience::None).is_some());
            let waiter = match kind {
                Kind::Reader => lock.join_readers(true, Some(Waker::noop())),
                _ => lock.join_writers(kind, Some(Waker::noop())),
            };
            let waiter = waiter.expect("the lock is taken");
            lock.end_write();
            assert_eq!(lock.leave_queue(&waiter), None);
            lock.give_seat_up();
            assert!(lock.words.is_open() && !lock.seat.is_taken(), "{policy:?}, {kind:?}");
            let hold = lock.try_read().expect("nobody has it");
            // SAFETY: just taken.
            unsafe { lock.unlock_read(hold) };
        }
    }
}

/// The same, by one who was handed the seat with the door closed and does not want it.
#[test]
fn w4_a_seat_that_was_handed_over_is_given_up_unused() {
    for policy in POLICIES {
        let lock = Options::new().policy(policy).build_raw();
        assert!(lock.write_as(Patience::None).is_some());
        let waiter = lock.join_writers(Kind::Writer, Some(Waker::noop())).expect("taken");
        lock.end_write();
        lock.give_seat_up();
        assert_eq!(lock.leave_queue(&waiter), Some(Grant::Seat));
        lock.give_seat_up();
        assert!(lock.try_read().is_some(), "{policy:?}");
    }
}

/// W4: a deadline is one whatever the lock's state, even one that there must not be.
#[test]
fn w4_a_timed_reader_gives_up_in_any_state() {
    let lock = Options::new().build_raw();
    // Entered, so that readers are slow, and closed; nobody has the seat.
    lock.enter();
    protocol::block(&lock.place(), &lock.words);
    assert_eq!(lock.read_until(Some(Instant::now() + Duration::from_millis(5))), None);
    protocol::unblock(&lock.words);
    assert!(lock.read_until(Some(Instant::now())).is_some());
}
