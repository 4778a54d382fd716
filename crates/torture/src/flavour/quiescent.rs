//! The flavours whose threads register: QSBR and Tasks.

use std::time::Duration;

use owlet_rcu::tasks::Tuning;
use owlet_rcu::{Qsbr, Reader, Task, Tasks};

use super::real::Real;
use super::{Abilities, Flavour, Waits};

static QSBR: Qsbr = Qsbr::named("torture-qsbr");
static QSBR_WAITS: Real<Qsbr> = Real::new(&QSBR);
/// A short window, or polled grace periods would be few.
static TASKS: Tasks = Tasks::with(
    "torture-tasks",
    Tuning { window: Duration::from_millis(2), urgent_at: 32, pause: Duration::ZERO },
);
static TASKS_WAITS: Real<Tasks> = Real::new(&TASKS);

const ABILITIES: Abilities = Abilities { nest: true, anywhere: true, fork: true, cookies: true };

/// QSBR: online only while in a section, or from section to section.
pub(crate) struct Quiescent;

impl Flavour for Quiescent {
    type Seat = Reader<'static>;
    const ABILITIES: Abilities = ABILITIES;

    fn sit() -> Self::Seat {
        QSBR.register()
    }

    fn section<R>(seat: &mut Self::Seat, body: impl FnOnce() -> R) -> R {
        let online = seat.online();
        let result = body();
        drop(online);
        result
    }

    fn burst(seat: &mut Self::Seat, sections: u64, mut body: impl FnMut()) {
        let mut online = seat.online();
        for i in 0..sections {
            body();
            if i % 8 == 7 {
                online.offline(std::thread::yield_now);
            } else {
                online.quiescent();
            }
        }
    }

    /// A registration of its own, as in a signal handler.
    fn section_anywhere<R>(body: impl FnOnce() -> R) -> R {
        Self::section(&mut QSBR.register(), body)
    }

    fn waits() -> &'static dyn Waits {
        &QSBR_WAITS
    }
}

/// Tasks: in a section from one voluntary point to the next.
pub(crate) struct Voluntary;

impl Flavour for Voluntary {
    type Seat = Task<'static>;
    const ABILITIES: Abilities = ABILITIES;

    fn sit() -> Self::Seat {
        TASKS.register()
    }

    fn section<R>(seat: &mut Self::Seat, body: impl FnOnce() -> R) -> R {
        let result = body();
        seat.quiescent();
        result
    }

    fn section_anywhere<R>(body: impl FnOnce() -> R) -> R {
        Self::section(&mut TASKS.register(), body)
    }

    fn rest(seat: &mut Self::Seat, body: impl FnOnce()) {
        seat.offline(body);
    }

    fn waits() -> &'static dyn Waits {
        &TASKS_WAITS
    }
}
