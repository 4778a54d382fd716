//! SRCU and what is made of it.

use owlet_rcu::{ClassicSrcu, Srcu, TasksTrace};

use super::real::Real;
use super::{Abilities, Flavour, Movable, Waits};

/// A flavour of which sections can be begun and ended by tokens, and by guards that move.
macro_rules! srcu {
    ($(#[$meta:meta])* $name:ident, $domain:ident, $waits:ident: $type:ty = $new:expr) => {
        static $domain: $type = $new;
        static $waits: Real<$type> = Real::new(&$domain);

        $(#[$meta])*
        pub(crate) struct $name;

        impl Flavour for $name {
            type Seat = ();
            const ABILITIES: Abilities = ABILITIES;

            fn sit() {}

            #[inline(always)]
            fn section<R>((): &mut (), body: impl FnOnce() -> R) -> R {
                Self::section_anywhere(body)
            }

            #[inline(always)]
            fn section_anywhere<R>(body: impl FnOnce() -> R) -> R {
                let token = $domain.read_lock();
                let result = body();
                // SAFETY: this thread's own token, given back once.
                unsafe { $domain.read_unlock(token) };
                result
            }

            fn movable() -> Option<Movable> {
                Some(Box::new($domain.read()))
            }

            fn waits() -> &'static dyn Waits {
                &$waits
            }
        }
    };
}

const ABILITIES: Abilities = Abilities { nest: true, anywhere: true, fork: true, cookies: true };

srcu! {
    /// Restartable sequences and a membarrier.
    Fast, FAST, FAST_WAITS: Srcu = Srcu::named("torture")
}

srcu! {
    /// Sections that begin and end with full barriers.
    Classic, CLASSIC, CLASSIC_WAITS: ClassicSrcu = ClassicSrcu::named("torture-classic")
}

srcu! {
    /// Readers that count by atomics, and no membarrier.
    Fenced, FENCED, FENCED_WAITS: Srcu = Srcu::fenced("torture-fenced")
}

static TRACE: TasksTrace = TasksTrace::named("torture-trace");
static TRACE_WAITS: Real<TasksTrace> = Real::new(&TRACE);

/// Tasks-Trace: nested sections count in a thread-local word.
pub(crate) struct Trace;

impl Flavour for Trace {
    type Seat = ();
    const ABILITIES: Abilities = ABILITIES;

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
