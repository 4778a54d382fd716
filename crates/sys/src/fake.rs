//! Makes the n-th call of a family fail (tests only).
//!
//! A plan belongs to the thread that made it, or to the whole process where the calls happen on
//! threads of the product's own. Process plans of one family exclude each other by convention:
//! tests that use them run in a process of their own.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::Family;
use crate::choke::FAMILIES;

/// Whose calls a plan applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Calls of the thread that made the plan.
    Thread,
    /// Calls of every thread.
    Process,
}

/// How long a plan fails calls once it has started to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Exactly one call fails.
    Once,
    /// That call and all later ones fail.
    Forever,
}

/// An armed plan; dropping it disarms.
#[must_use = "the plan ends when this is dropped"]
#[derive(Debug)]
pub struct Plan {
    family: Family,
    scope: Scope,
    not_send: PhantomData<*const ()>,
}

#[derive(Clone, Copy)]
struct Entry {
    /// Calls until the failing one; 0 = no plan.
    countdown: u64,
    errno: i32,
    forever: bool,
}

const IDLE: Entry = Entry { countdown: 0, errno: 0, forever: false };

thread_local! {
    static HERE: [Cell<Entry>; FAMILIES] = const { [const { Cell::new(IDLE) }; FAMILIES] };
}

static COUNTDOWN: [AtomicU64; FAMILIES] = [const { AtomicU64::new(0) }; FAMILIES];
static ERRNO: [AtomicI32; FAMILIES] = [const { AtomicI32::new(0) }; FAMILIES];
static FOREVER: [AtomicI32; FAMILIES] = [const { AtomicI32::new(0) }; FAMILIES];

/// Makes the `n`-th (from 1) call of `family` in this thread fail once with `errno`.
pub fn fail_nth(family: Family, n: u64, errno: i32) -> Plan {
    fail(family, n, errno, Scope::Thread, Extent::Once)
}

/// Makes the `n`-th (from 1) call of `family` fail with `errno`, in `scope`, for `extent`.
pub fn fail(family: Family, n: u64, errno: i32, scope: Scope, extent: Extent) -> Plan {
    let forever = extent == Extent::Forever;
    match scope {
        Scope::Thread => {
            HERE.with(|h| {
                if let Some(cell) = h.get(family as usize) {
                    cell.set(Entry { countdown: n, errno, forever });
                }
            });
        }
        Scope::Process => {
            let i = family as usize;
            if let (Some(c), Some(e), Some(f)) = (COUNTDOWN.get(i), ERRNO.get(i), FOREVER.get(i)) {
                e.store(errno, Ordering::Relaxed);
                f.store(i32::from(forever), Ordering::Relaxed);
                c.store(n, Ordering::Release);
            }
        }
    }
    Plan { family, scope, not_send: PhantomData }
}

impl Drop for Plan {
    fn drop(&mut self) {
        match self.scope {
            Scope::Thread => HERE.with(|h| {
                if let Some(cell) = h.get(self.family as usize) {
                    cell.set(IDLE);
                }
            }),
            Scope::Process => {
                if let Some(c) = COUNTDOWN.get(self.family as usize) {
                    c.store(0, Ordering::Release);
                }
            }
        }
    }
}

/// The errno with which the call about to be made is to fail, if it is.
pub(crate) fn take(family: Family) -> Option<i32> {
    take_thread(family).or_else(|| take_process(family))
}

fn take_thread(family: Family) -> Option<i32> {
    HERE.with(|h| {
        let cell = h.get(family as usize)?;
        let mut entry = cell.get();
        match entry.countdown {
            0 => None,
            1 => {
                cell.set(if entry.forever { entry } else { IDLE });
                Some(entry.errno)
            }
            _ => {
                entry.countdown -= 1;
                cell.set(entry);
                None
            }
        }
    })
}

fn take_process(family: Family) -> Option<i32> {
    let i = family as usize;
    let (countdown, errno, forever) = (COUNTDOWN.get(i)?, ERRNO.get(i)?, FOREVER.get(i)?);
    let forever = forever.load(Ordering::Relaxed) != 0;
    let before = countdown.fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| match n {
        0 => None,
        1 if forever => Some(1),
        _ => Some(n - 1),
    });
    (before == Ok(1)).then(|| errno.load(Ordering::Relaxed))
}
