//! The consumer of the events: a stand-in for the kernel's lockdep.
//!
//! It keeps the locks that the thread holds, checks that they are taken in order and given back in
//! reverse, and mixes each into a hash as often as it is told: bounded work, the same in every
//! variant.

use std::cell::Cell;

/// A lock is taken, or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Which.
    pub(super) lock: u32,
    /// Taken; else given back.
    pub(super) taken: bool,
}

/// What a probe is called with.
#[derive(Debug)]
pub(super) struct Data {
    /// Rounds of the hash.
    pub(super) rounds: u32,
}

const DEPTH: usize = 8;

/// One thread's.
struct Held {
    locks: [Cell<u32>; DEPTH],
    depth: Cell<usize>,
    hash: Cell<u64>,
    events: Cell<u64>,
    violations: Cell<u64>,
}

thread_local! {
    static HELD: Held = const { Held {
        locks: [const { Cell::new(0) }; DEPTH],
        depth: Cell::new(0),
        hash: Cell::new(0),
        events: Cell::new(0),
        violations: Cell::new(0),
    } };
}

/// Checks one event. A function of its own in every variant, as a probe is.
#[inline(never)]
pub(super) fn check(data: &Data, event: Event) {
    HELD.with(|held| {
        held.events.set(held.events.get() + 1);
        let depth = held.depth.get();
        let top = held.locks.get(depth.wrapping_sub(1)).map(Cell::get);
        let right = if event.taken {
            held.depth.set(depth + 1);
            let room = held.locks.get(depth);
            room.inspect(|slot| slot.set(event.lock));
            room.is_some() && top.is_none_or(|top| top < event.lock)
        } else {
            held.depth.set(depth.saturating_sub(1));
            top == Some(event.lock)
        };
        if !right {
            held.violations.set(held.violations.get() + 1);
        }
        let mut hash = held.hash.get() ^ u64::from(event.lock);
        for _ in 0..data.rounds {
            hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
        held.hash.set(hash);
    });
}

/// The events this thread has checked and the violations it has found since it last asked.
pub(super) fn seen() -> [u64; 2] {
    HELD.with(|held| [held.events.take(), held.violations.take()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_nesting_are_checked() {
        let check = |lock, taken| super::check(&Data { rounds: 1 }, Event { lock, taken });
        seen();
        for (lock, taken) in [(1, true), (2, true), (2, false), (1, false)] {
            check(lock, taken);
        }
        assert_eq!(seen(), [4, 0]);
        check(2, true);
        check(1, true); // out of order
        check(2, false); // not the last
        assert_eq!(seen(), [3, 2]);
    }
}
