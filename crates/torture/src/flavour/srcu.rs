//! SRCU.

use owlet_rcu::Srcu;

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
