//! An `rcu_sync`'s word and cookie: the machine's transitions as atomic operations, and waiting.
//!
//! # The protocol
//! 1. Who enters moves the word. Whoever left `IDLE` asks for a grace period, writes its cookie and then
//!    `posted`; everybody who entered meanwhile waits for the same cookie. Whoever returns first passes
//!    the word on to `PASSED`.
//! 2. The last to exit makes a grace period due, asks for it and posts the cookie. Anybody who then finds
//!    it passed moves the word on; if that makes another one due, he asks for it.
//!
//! A word that is passed on is the very one that was looked at, number of the grace period included:
//! who was delayed between finding a cookie passed and moving the word changes nothing. (The number
//! has 32 bits: he must not be delayed for 2^32 bursts of writers, and wake to the same one.)
//!
//! | word | written by |
//! |---|---|
//! | `word` | anybody, by the transitions of `machine` |
//! | `cookie` | whoever made a grace period due, before `posted` |
//!
//! # Barriers
//! | letter | where | what |
//! |---|---|---|
//! | `[A0]` | [`Core::is_idle`] | none: what a fast reader sees is what the grace periods order |
//! | `[B0]` | [`Core::post`], [`Core::due_cookie`] | release and acquire of `posted`: the cookie |
//! | `[D0]` | every transition | acquire and release: the writers' stores before those of the next, and before a grace period that is asked for |
//!
//! # Invariants
//! 1. The cookie read after `posted` is of a grace period asked for after the one that is due was:
//!    `posted` is cleared by the transition that makes it due, and set after the cookie is written.
//! 2. Whoever returns from entering has `PASSED`, `EXIT` or `REPLAY` before him, and stays counted:
//!    `IDLE` is left for good until he exits.
//!
//! Proved by `tests/loom.rs` (the models `sync_..`) and, for every interleaving of the transitions of
//! three threads, by `machine_tests.rs`.

use owlet_percpu::atomic::{AtomicU64, Ordering};

use super::grace::GracePeriod;
use super::machine::{Entering, Exiting, Passing, State, Word};

/// State and cookie of an `rcu_sync`.
#[derive(Debug)]
pub struct Core {
    word: AtomicU64,
    cookie: AtomicU64,
}

impl Default for Core {
    fn default() -> Self {
        Self::new()
    }
}

/// Whoever is entering; exits if its wait panics.
struct Entered<'a>(&'a Core);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let _ = self.0.exit();
    }
}

impl Core {
    /// Readers are fast.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: AtomicU64::new(Word::IDLE.0), cookie: AtomicU64::new(0) }
    }

    /// Readers are fast. (Loom's atomics are no constants.)
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: AtomicU64::new(Word::IDLE.0), cookie: AtomicU64::new(0) }
    }

    /// The word, whose lower half is 0 while readers are fast: for a sequence.
    #[inline(always)]
    #[cfg(not(loom))]
    pub(crate) fn word(&self) -> &AtomicU64 {
        &self.word
    }

    /// True if readers may be fast. Only inside a reader of the grace periods in use.
    #[inline(always)]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        // [A0] Relaxed. A reader that finds IDLE after a writer left began after, or lasts beyond, a
        // grace period that began after the writer left ([D0]): it sees the writer's stores by that.
        // Without the grace period (mutant M11): not.
        self.word.load(Ordering::Relaxed) as u32 == 0
    }

    /// Where it is at the moment.
    #[must_use]
    pub fn look(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    fn transit<T>(&self, step: impl Fn(Word) -> (Word, T)) -> (Word, T) {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            let (next, answer) = step(Word(now));
            // [D0] Acquire: of others' exits, before what follows. Release: of the caller's stores.
            let (order, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.word.compare_exchange_weak(now, next.0, order, relaxed) {
                Ok(_) => return (next, answer),
                Err(found) => now = found,
            }
        }
    }

    /// Begins to enter: what is to be done, and the number of the grace period to wait for.
    ///
    /// # Panics
    /// If 2^28 are inside.
    pub fn begin(&self) -> (Entering, u32) {
        let (word, entering) = self.transit(Word::enter);
        assert!(entering != Entering::Full, "an rcu_sync is entered 2^28 times at once");
        (entering, word.due())
    }

    /// Enters, waiting for a grace period if readers were fast. True if it waited. If the wait panics (it
    /// was inside a section of the same domain, say), it has not entered.
    pub fn enter(&self, gp: &(impl GracePeriod + ?Sized)) -> bool {
        let (entering, due) = self.begin();
        if entering == Entering::First {
            self.post(gp.snapshot());
        }
        let waits = entering != Entering::Slow;
        if waits {
            let entered = Entered(self);
            self.wait_entered(gp, due);
            core::mem::forget(entered);
        }
        waits
    }

    /// Waits until the grace period number `due`, for which the caller is entering, is over.
    pub fn wait_entered(&self, gp: &(impl GracePeriod + ?Sized), due: u32) {
        let mut looks = 0_u32;
        loop {
            let now = self.look();
            if now.due() != due || now.state() != State::Enter {
                return;
            }
            let cookie = match self.due_cookie(now) {
                Some(cookie) => cookie,
                // Somebody is about to post it.
                None if looks < 100 => {
                    looks += 1;
                    gp.pause();
                    continue;
                }
                // Somebody who stayed behind at a fork, or is delayed: any cookie does that is taken
                // after ENTER was seen.
                None => gp.snapshot(),
            };
            gp.wait(cookie);
            let _ = self.pass(now);
        }
    }

    /// True once the grace period number `due`, for which the caller is entering, is over.
    #[must_use]
    pub fn poll_entered(&self, gp: &(impl GracePeriod + ?Sized), due: u32) -> bool {
        let now = self.look();
        if now.due() != due || now.state() != State::Enter {
            return true;
        }
        if !self.due_cookie(now).is_some_and(|cookie| gp.poll(cookie)) {
            return false;
        }
        let _ = self.pass(now);
        true
    }

    /// Exits: what is to be done.
    pub fn exit(&self) -> Exiting {
        self.transit(Word::exit).1
    }

    /// The caller, who has to ask for the grace period that is due, has done so.
    pub fn post(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Relaxed);
        // [B0] Release: pairs with the acquire in look(), for due_cookie().
        self.word.fetch_or(Word(0).post().0, Ordering::Release);
    }

    /// [`Core::post`] by somebody who finds a grace period due that nobody has asked for, and may not be
    /// the only one: nothing, unless the word is still `now`. The cookie may be that of another who asked,
    /// for an earlier one; so whoever finds it passed has still to make sure, by a grace period of his own
    /// between [`Core::look`] and [`Core::pass`].
    pub fn post_in(&self, now: Word, cookie: u64) {
        self.cookie.store(cookie, Ordering::Relaxed);
        // [B0] as in post().
        let (order, relaxed) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.word.compare_exchange(now.0, now.post().0, order, relaxed);
    }

    /// The cookie of the grace period that is due in `now`, which [`Core::look`] gave.
    #[must_use]
    pub fn due_cookie(&self, now: Word) -> Option<u64> {
        // [B0] Acquire: in look().
        now.is_posted().then(|| self.cookie.load(Ordering::Relaxed))
    }

    /// The grace period that is due in `now` has ended, or another that began after `now` was looked at.
    /// Moves on, unless others have.
    pub fn pass(&self, now: Word) -> Passing {
        let mut found = now;
        loop {
            // Others may have entered and exited; what counts is which grace period is due.
            let (next, passing) = found.pass();
            if found.due() != now.due() || passing == Passing::Nothing {
                return Passing::Nothing;
            }
            // [D0] as in transit().
            let (order, acquire) = (Ordering::AcqRel, Ordering::Acquire);
            match self.word.compare_exchange(found.0, next.0, order, acquire) {
                Ok(_) => return passing,
                Err(other) => found = Word(other),
            }
        }
    }

    /// If the grace period that is due has been asked for and has passed, moves on.
    pub fn poll(&self, gp: &(impl GracePeriod + ?Sized)) -> Passing {
        let now = self.look();
        match self.due_cookie(now) {
            Some(cookie) if gp.poll(cookie) => self.pass(now),
            _ => Passing::Nothing,
        }
    }
}
