//! Threads that are registered for the rest of their lives.
//!
//! | the thread | its registration |
//! |---|---|
//! | lives | in a thread-local list |
//! | runs its thread-local destructors, ours not yet | in the list |
//! | runs later ones | new, in no list: ends when the kernel no longer knows the thread (`roster`) |
//!
//! The last row costs grace periods that meet such a thread a few milliseconds. Should the thread's
//! number be given to a new thread before any grace period has looked, the registration lasts as long
//! as that thread.

use core::cell::RefCell;

use crate::registry::Record;
use crate::roster::Roster;

/// Registrations of the calling thread.
struct Attached(Vec<(&'static Roster, &'static Record)>);

thread_local! {
    static ATTACHED: RefCell<Attached> = const { RefCell::new(Attached(Vec::new())) };
}

impl Drop for Attached {
    fn drop(&mut self) {
        for (roster, record) in self.0.drain(..) {
            super::leave(roster, record);
        }
    }
}

pub(super) fn attach(roster: &'static Roster) {
    if record(roster).is_some() {
        return;
    }
    let record = super::join(roster);
    // Past our destructor, or in the middle of it: in no list.
    let _ = ATTACHED.try_with(|attached| {
        if let Ok(mut attached) = attached.try_borrow_mut() {
            attached.0.push((roster, record));
        }
    });
}

/// The calling thread's registration with `roster`, if it is attached.
pub(super) fn record(roster: &'static Roster) -> Option<&'static Record> {
    let same = |at: &Roster| core::ptr::eq(at, roster);
    let listed = ATTACHED.try_with(|attached| {
        let attached = attached.try_borrow().ok()?;
        attached.0.iter().find(|(at, _)| same(at)).map(|(_, record)| *record)
    });
    listed.unwrap_or_else(|_| {
        // Past our destructor.
        roster.list.iter().find(|record| record.is_mine())
    })
}
