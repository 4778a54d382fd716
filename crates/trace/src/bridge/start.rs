//! The one line that starts a bridge: the agent, then the program's subscriber or logger.

use crate::agent::InitError as AgentError;
use std::fmt;

/// What a program has one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// The global default subscriber of `tracing`.
    Subscriber,
    /// The logger of `log`.
    Logger,
}

/// Why a bridge's `init` or `init_with` failed. The program can go on. `Debug` prints what `Display`
/// does.
#[non_exhaustive]
pub enum InitError {
    /// Another subscriber or logger was set before; that one stays. The agent runs.
    Taken(Seat),
    /// The bridge is there, but the agent did not start: see [`owlet::init`](crate::init()).
    Agent(AgentError),
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(Seat::Subscriber) => f.write_str(
                "another tracing subscriber is the global default already\n\
                 hint: hand that one to owlet::tracing::init_with instead of setting it; with \
                 tracing-subscriber, that is `.finish()` instead of `.init()`",
            ),
            Self::Taken(Seat::Logger) => f.write_str(
                "another logger is set already\n\
                 hint: hand that one to owlet::log::init_with instead of setting it",
            ),
            Self::Agent(error) => error.fmt(f),
        }
    }
}

impl fmt::Debug for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for InitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Taken(_) => None,
            Self::Agent(error) => Some(error),
        }
    }
}

/// [`owlet::init`](crate::init()), then `take`, which takes the seat if it is free, whether the agent
/// started or is switched off.
pub(crate) fn start(seat: Seat, take: impl FnOnce() -> bool) -> Result<(), InitError> {
    // First, so that a session inherited from a recorder is there before the first call site.
    let agent = crate::init();
    if !take() {
        return Err(InitError::Taken(seat));
    }
    agent.map_err(InitError::Agent)
}
