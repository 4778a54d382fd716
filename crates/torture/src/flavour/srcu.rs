//! SRCU and what is made of it.

use owlet_rcu::{Srcu, TasksTrace};

use super::real::Real;
use super::{Abilities, Flavour, Movable, Waits};

static DOMAIN: Srcu = Srcu::named("torture");
static WAITS: Real<Srcu> = Real(&DOMAIN);

/// The fast domain.
pub(crate) struct Fast;

impl Flavour for Fast {
    type Seat = ();
    const ABILITIES: Abilities =
        Abilities { nest: true, anywhere: true, fork: true, cookies: true };

    fn sit() {}

    #[inline(always)]
    fn section<R>((): &mut (), body: impl FnOnce() -> R) -> R {
        Self::section_anywhere(body)
    }

    #[inline(always)]
    fn section_anywhere<R>(body: impl FnOnce() -> R) -> R {
        let token = DOMAIN.read_lock();
        let result = body();
        // SAFETY: this thread's own token, given back once.
        unsafe { DOMAIN.read_unlock(token) };
        result
    }

    fn movable() -> Option<Movable> {
        Some(Box::new(DOMAIN.read()))
    }

    fn waits() -> &'static dyn Waits {
        &WAITS
    }
}

static TRACE: TasksTrace = TasksTrace::named("torture-trace");
static TRACE_WAITS: Real<TasksTrace> = Real(&TRACE);

/// Tasks-Trace: nested sections count in a thread-local word.
pub(crate) struct Trace;

impl Flavour for Trace {
    type Seat = ();
    const ABILITIES: Abilities = Fast::ABILITIES;

    fn sit() {}

    #[inline(always)]
    fn section<R>((): &mut (), body: impl FnOnce() -> R) -> R {
        Self::section_anywhere(body)
    }

    #[inline(always)]
    fn section_anywhere<R>(body: impl FnOnce() -> R) -> R {
        let section = TRACE.read();
        let result = body();
        drop(section);
        result
    }

    fn waits() -> &'static dyn Waits {
        &TRACE_WAITS
    }
}
