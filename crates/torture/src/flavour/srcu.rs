//! SRCU.

use std::time::Duration;

use owlet_rcu::{Cookie, Srcu};

use super::{Abilities, Cost, Flavour, Gp, Movable, Waits};

static DOMAIN: Srcu = Srcu::new();

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
        &DOMAIN
    }
}

impl Waits for Srcu {
    fn kinds(&self) -> &'static [Gp] {
        &[Gp::Sync, Gp::Exp, Gp::Cond]
    }

    fn pass(&self, how: Gp, _: &mut dyn FnMut() -> Duration) {
        match how {
            Gp::Sync => self.synchronize(),
            Gp::Exp => self.synchronize_expedited(),
            Gp::Cond => self.wait(self.snapshot()),
        }
    }

    fn snapshot(&self) -> Cookie {
        Srcu::snapshot(self)
    }

    fn poll(&self, cookie: Cookie) -> bool {
        Srcu::poll(self, cookie)
    }

    fn wait(&self, cookie: Cookie) {
        Srcu::wait(self, cookie);
    }

    fn cost(&self) -> Cost {
        let stats = self.stats();
        Cost {
            grace_periods: stats.grace_periods,
            membarriers: stats.membarriers,
            sleeps: stats.sleeps,
        }
    }
}
