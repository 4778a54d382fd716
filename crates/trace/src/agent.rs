//! The thread that answers the `owlet` command.

use std::fmt;

/// Why the process cannot be attached to from outside. The program goes on; its own probes work.
#[derive(Debug)]
#[non_exhaustive]
pub enum InitError {
    /// `OWLET_DISABLE=1`.
    Disabled,
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("switched off by OWLET_DISABLE"),
        }
    }
}

impl std::error::Error for InitError {}

/// Starts the agent. Idempotent; never panics.
///
/// # Errors
/// [`InitError`]; the program can go on.
pub fn init() -> Result<(), InitError> {
    Ok(())
}
