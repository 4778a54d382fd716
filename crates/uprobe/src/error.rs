//! What can go wrong, and what to do about it.

use std::fmt;
use std::io;

/// What kind of failure it is, for a caller that acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no such process, or it has ended.
    NoProcess,
    /// Nothing matches what was asked for.
    NoMatch,
    /// The kernel does not let this user do it.
    Permission,
    /// It could end the program that is watched.
    Dangerous,
    /// This kernel or processor cannot do it.
    Unsupported,
    /// A file is no ELF file, is cut short, or contradicts itself.
    BadFile,
    /// A pattern makes no sense.
    Pattern,
    /// Anything else that the system refuses.
    Io,
}

/// A failure: what, where, why as a lower-case fragment, and what to do, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What kind of failure it is.
    pub kind: ErrorKind,
    /// What, where and why.
    pub message: String,
    /// What to do, or empty.
    pub hint: String,
}

impl Error {
    /// A failure without advice.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: String::new() }
    }

    /// Adds advice.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// A failed system call or file operation; lack of permission is told apart.
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("{what}: {}", reason(error)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// What every step returns.
pub type Result<T> = std::result::Result<T, Error>;

/// An operating-system error in words, lower case, without the "(os error N)" tail.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
