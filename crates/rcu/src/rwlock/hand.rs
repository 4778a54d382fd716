//! Who is next.

use std::sync::Arc;

use super::Policy;
use super::protocol::{self, Counters};
use super::queue::{Grant, Kind, Line, Waiter};
use super::raw::RawRwLock;

impl RawRwLock {
    /// The owner gives the seat up: to whoever is next, if anybody waits.
    pub(super) fn give_seat_up(&self) {
        // Not ours from here on: in a child that this thread forks later, another's seat is not mistaken
        // for it.
        self.disown();
        if !self.seat.give_up(&self.words) {
            self.hand_over();
        }
    }

    /// The owner, who has found that somebody waits, or did when he left the door closed, hands over.
    ///
    /// | policy | who is let in | and then gets the seat |
    /// |---|---|---|
    /// | writer-burst | the readers at the head of the queue | the next in the queue; the door stays closed for others |
    /// | phase-fair, reader-preferring | all readers in the queue | the next in the queue; the door is open until it has begun |
    #[cold]
    fn hand_over(&self) {
        let mut line = self.queue.lock();
        let mut called = Vec::new();
        if self.settings.policy == Policy::WriterBurst {
            self.let_in_first(&mut line, &mut called);
        } else {
            protocol::unblock(&self.words);
            self.let_in_all(&mut line, &mut called);
        }
        match line.waiters.pop_front() {
            None => self.seat.leave(&self.words),
            Some(next) => {
                let upgradable = next.kind == Kind::Upgradable;
                if upgradable {
                    protocol::unblock(&self.words);
                    self.let_in_first(&mut line, &mut called);
                }
                self.seat.hand_over(upgradable, !line.waiters.is_empty());
                next.grant(Grant::Seat);
                called.push(next);
            }
        }
        drop(line);
        self.queue.wake(&called);
    }

    /// The owner, who has opened the door and keeps the seat, lets all readers in that wait.
    pub(super) fn call_readers(&self) {
        let mut line = self.queue.lock();
        let mut called = Vec::new();
        self.let_in_all(&mut line, &mut called);
        if line.waiters.is_empty() {
            self.seat.no_queue();
        }
        drop(line);
        self.queue.wake(&called);
    }

    /// Lets in the readers before the first who is none.
    fn let_in_first(&self, line: &mut Line, called: &mut Vec<Arc<Waiter>>) {
        while let Some(reader) = line.waiters.pop_front_if(|w| w.kind == Kind::Reader) {
            self.let_in(&reader);
            called.push(reader);
        }
    }

    fn let_in_all(&self, line: &mut Line, called: &mut Vec<Arc<Waiter>>) {
        line.waiters.retain(|waiter| {
            let stays = waiter.kind != Kind::Reader;
            if !stays {
                self.let_in(waiter);
                called.push(waiter.clone());
            }
            stays
        });
    }

    /// Counts a reader in, in its place.
    fn let_in(&self, reader: &Waiter) {
        self.place().count_entry();
        reader.grant(Grant::Seat);
    }

    /// Gives up waiting; unless it is too late for that, and what was waited for has come.
    pub(super) fn leave_queue(&self, waiter: &Arc<Waiter>) -> Option<Grant> {
        let mut line = self.queue.lock();
        if let Some(grant) = waiter.granted() {
            return Some(grant);
        }
        line.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        if line.waiters.is_empty() {
            self.seat.no_queue();
        }
        None
    }
}

#[cfg(test)]
#[path = "hand_tests.rs"]
mod tests;
