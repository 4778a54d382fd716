//! Sequence numbers of grace periods, and cookies.
//!
//! A domain's `seq` is twice the number of completed grace periods, plus 1 while one runs (the
//! kernel's `rcu_seq`, kernel/rcu/rcu.h). A [`Cookie`] is the value at which a full grace period has
//! passed: the next end if none runs, the end after it if one does. There is one sequence for
//! normal and expedited grace periods, so a cookie misses none of either kind.
//!
//! Everything is modulo 2^64: of two values the later one is that which is less than 2^63 ahead.
//! Domains begin at [`START`], a hundred grace periods before zero, so that the wrap is the first
//! thing that happens to every one of them, not something that happens in a thousand years.

/// Where `seq` begins.
pub const START: u64 = 0_u64.wrapping_sub(200);

/// A moment in a domain's grace periods.
///
/// Two cookies of one domain are equal if and only if they stand for the same moment; at most
/// [`Cookie::MAX_ACTIVE`] different ones of a domain have not yet passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie(pub(crate) u64);

impl Cookie {
    /// How many different cookies of one domain there can be whose moment has not passed.
    pub const MAX_ACTIVE: usize = 2;

    /// A cookie whose moment has passed in every domain.
    ///
    /// (An odd number, which no snapshot returns.)
    #[must_use]
    pub const fn completed() -> Self {
        Self(1)
    }
}

/// A [`Cookie`] that also knows its domain: with another domain it polls false, and debug builds
/// panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FullCookie {
    pub(crate) cookie: Cookie,
    /// `Engine::id`; 0 in [`FullCookie::completed`].
    pub(crate) domain: u32,
}

impl FullCookie {
    /// A cookie whose moment has passed in every domain.
    #[must_use]
    pub const fn completed() -> Self {
        Self { cookie: Cookie::completed(), domain: 0 }
    }

    /// Without the domain.
    #[must_use]
    pub const fn cookie(&self) -> Cookie {
        self.cookie
    }
}

/// The cookie of a snapshot that finds `seq`.
#[inline(always)]
#[must_use]
pub fn cookie_at(seq: u64) -> Cookie {
    // Mutant M4: a grace period in progress counts. Mutant L3: cookies are one period short.
    let ahead = match () {
        () if owlet_percpu::planted!("M4") => 2,
        () if owlet_percpu::planted!("L3") => 1,
        () => 3,
    };
    Cookie(seq.wrapping_add(ahead) & !1)
}

/// True if the moment of `cookie` has passed at `seq`.
#[inline(always)]
#[must_use]
pub fn passed(seq: u64, cookie: Cookie) -> bool {
    is_at_or_after(seq, cookie.0) || cookie.0 == Cookie::completed().0
}

/// True if `a` is `b` or later.
#[inline(always)]
#[must_use]
pub fn is_at_or_after(a: u64, b: u64) -> bool {
    a.wrapping_sub(b) <= u64::MAX / 2
}

/// Grace periods completed at `seq`.
#[must_use]
pub fn completed(seq: u64) -> u64 {
    (seq & !1).wrapping_sub(START) / 2
}

/// Moves `word` ahead to `cookie`, unless it is there or later.
#[cfg(not(loom))]
pub(crate) fn advance(word: &core::sync::atomic::AtomicU64, cookie: Cookie) {
    use core::sync::atomic::Ordering;
    let mut now = word.load(Ordering::Relaxed);
    while !is_at_or_after(now, cookie.0) {
        match word.compare_exchange_weak(now, cookie.0, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PO-03, SR-05: one grace period when idle, the next but one end when one runs; over the wrap.
    #[test]
    fn po_03_cookie_rounding() {
        for base in [0, 100, START, 0_u64.wrapping_sub(2), 1 << 63, (1 << 63) - 2] {
            let idle = cookie_at(base);
            let running = cookie_at(base.wrapping_add(1));
            assert_eq!(idle.0, base.wrapping_add(2));
            assert_eq!(running.0, base.wrapping_add(4));
            assert!(!passed(base, idle) && !passed(base.wrapping_add(1), idle));
            assert!(passed(base.wrapping_add(2), idle) && passed(base.wrapping_add(200), idle));
            assert!(!passed(base.wrapping_add(3), running));
            assert!(passed(base.wrapping_add(4), running));
        }
    }

    /// PO-06: completed() has passed everywhere.
    #[test]
    fn po_06_completed_has_passed() {
        for seq in [0, 1, 2, START, 1 << 62, 1 << 63, (1 << 63) + 1, u64::MAX] {
            assert!(passed(seq, Cookie::completed()), "{seq}");
        }
    }
}
