//! The states of an `rcu_sync` and what may happen in each, as functions of a value.
//!
//! | state | readers | count | next |
//! |---|---|---|---|
//! | `IDLE` | fast | 0 | [`Word::enter`]: `ENTER` |
//! | `ENTER` | some may still be fast | > 0 | [`Word::pass`]: `PASSED`; the last gives up: `IDLE` |
//! | `PASSED` | slow | > 0 | the last [`Word::exit`]: `EXIT` |
//! | `EXIT` | slow | any | [`Word::pass`]: `PASSED` if entered again, else `IDLE`; the last exit: `REPLAY` |
//! | `REPLAY` | slow | any | [`Word::pass`]: `PASSED` if entered again, else `EXIT` |
//!
//! `pass` is a grace period that began after the state did. In `EXIT` one is due; `REPLAY` says that
//! there was a writer since it was asked for, so that another one has to follow. That is what makes
//! one outstanding request enough, however often the state is entered and left meanwhile
//! (kernel/rcu/sync.c, where it is a callback that must not be queued twice).
//!
//! # The word
//! | bits | field |
//! |---|---|
//! | 0..3 | state |
//! | 3 | posted: the cookie of the grace period that is due can be read |
//! | 4..32 | count of those who are inside or entering |
//! | 32..64 | number of the grace period that is due: another in each `ENTER` and `EXIT` |
//!
//! The lower half is 0 if and only if the state is `IDLE`: that is what readers compare.

const STATE: u64 = 7;
const POSTED: u64 = 1 << 3;
const ONE: u64 = 1 << 4;
const COUNT: u64 = 0xffff_fff0;
const DUE: u64 = 1 << 32;

/// Where an `rcu_sync` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Readers are fast.
    Idle,
    /// Somebody waits for the last fast reader.
    Enter,
    /// Readers are slow.
    Passed,
    /// Nobody needs slow readers; a grace period is due.
    Exit,
    /// As `Exit`, and there was somebody since the grace period was asked for.
    Replay,
}

/// What whoever enters has to do.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entering {
    /// Ask for a grace period, say so ([`Word::post`]), and wait for it.
    First,
    /// Wait for the one that another has asked for.
    Shared,
    /// Nothing: readers are slow already.
    Slow,
    /// There are too many inside.
    Full,
}

/// What whoever exits has to do.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exiting {
    /// Ask for a grace period and say so ([`Word::post`]).
    Last,
    /// Nothing: a grace period is due already, and will be followed by another.
    Again,
    /// Nothing: others are inside.
    Others,
    /// Nothing: the last of those who were entering has given up.
    GaveUp,
    /// Nobody was inside: there is no such exit.
    Unbalanced,
}

/// What the end of the grace period that was due has brought.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// Everybody who was entering is inside.
    Entered,
    /// Nothing: there is somebody inside.
    Held,
    /// Another grace period is due: ask for it and say so ([`Word::post`]).
    Again,
    /// Readers are fast again.
    Open,
    /// Nothing: no grace period was due.
    Nothing,
}

/// An `rcu_sync`'s state, count and grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word(pub u64);

impl Word {
    /// Readers are fast.
    pub const IDLE: Self = Self(0);

    /// The state.
    #[must_use]
    pub fn state(self) -> State {
        match self.0 & STATE {
            0 => State::Idle,
            1 => State::Enter,
            2 => State::Passed,
            3 => State::Exit,
            _ => State::Replay,
        }
    }

    /// Those who are inside or entering.
    #[must_use]
    pub fn count(self) -> u64 {
        (self.0 & COUNT) / ONE
    }

    /// True if the cookie of the grace period that is due can be read.
    #[must_use]
    pub fn is_posted(self) -> bool {
        self.0 & POSTED != 0
    }

    /// The number of the grace period that is due.
    #[must_use]
    pub fn due(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// In another state, the rest as it is.
    fn to(self, state: State) -> Self {
        Self(self.0 & !STATE | state as u64)
    }

    /// In another state in which a grace period is due that nobody has asked for yet.
    fn due_in(self, state: State) -> Self {
        Self(self.to(state).0.wrapping_add(DUE) & !POSTED)
    }

    /// Somebody needs slow readers.
    pub fn enter(self) -> (Self, Entering) {
        if self.0 & COUNT == COUNT {
            return (self, Entering::Full);
        }
        let more = Self(self.0 + ONE);
        match self.state() {
            State::Idle => (more.due_in(State::Enter), Entering::First),
            State::Enter => (more, Entering::Shared),
            State::Passed | State::Exit | State::Replay => (more, Entering::Slow),
        }
    }

    /// Somebody needs them no longer, or has given up waiting for them.
    pub fn exit(self) -> (Self, Exiting) {
        if self.count() == 0 {
            return (self, Exiting::Unbalanced);
        }
        let less = Self(self.0 - ONE);
        if less.count() != 0 {
            return (less, Exiting::Others);
        }
        match self.state() {
            // Nobody has been inside.
            State::Enter => (less.due_in(State::Idle), Exiting::GaveUp),
            // Mutant M11: readers are fast before there was a grace period.
            State::Passed if owlet_percpu::planted!("M11") => {
                (less.due_in(State::Idle), Exiting::GaveUp)
            }
            State::Passed => (less.due_in(State::Exit), Exiting::Last),
            State::Idle | State::Exit | State::Replay => (less.to(State::Replay), Exiting::Again),
        }
    }

    /// The cookie of the grace period that is due can be read.
    #[must_use]
    pub fn post(self) -> Self {
        Self(self.0 | POSTED)
    }

    /// A grace period has ended that began after the one that is due was.
    pub fn pass(self) -> (Self, Passing) {
        let passed = Self(self.0 & !POSTED).to(State::Passed);
        match (self.state(), self.count()) {
            (State::Enter, _) => (passed, Passing::Entered),
            (State::Exit | State::Replay, 1..) => (passed, Passing::Held),
            // Mutant M12: what happened since the grace period was asked for is forgotten.
            (State::Replay, 0) if !owlet_percpu::planted!("M12") => {
                (self.due_in(State::Exit), Passing::Again)
            }
            (State::Exit | State::Replay, 0) => {
                (Self(self.0 & !POSTED).to(State::Idle), Passing::Open)
            }
            (State::Idle | State::Passed, _) => (self, Passing::Nothing),
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
