//! What can go wrong with a trace directory: what, where, why, and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Which kind of failure, for callers that act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// No such file or directory.
    NotFound,
    /// The path is something else than a directory.
    NotADirectory,
    /// The directory exists and is not empty.
    NotEmpty,
    /// A directory, but not a trace of ours.
    NotATrace,
    /// A trace of another version of the format.
    Version,
    /// The permissions forbid it.
    Permission,
    /// The file system is mounted read-only.
    ReadOnly,
    /// No space, quota, or file size limit left.
    NoSpace,
    /// Bytes that no recorder wrote.
    Corrupt,
    /// The trace is being recorded, or repaired.
    Busy,
    /// A file is not what was written: somebody removed, replaced or truncated it.
    Changed,
    /// The caller's values cannot be stored.
    Invalid,
    /// Anything else the system said.
    Io,
}

/// A failure.
#[derive(Debug)]
pub struct StoreError {
    /// Which kind.
    pub kind: ErrorKind,
    /// The file or directory.
    pub path: PathBuf,
    /// What was tried or found, as a lower-case fragment.
    pub what: String,
    /// What the system said, if it was the system.
    pub source: Option<io::Error>,
    /// A better hint than the kind's.
    hint: Option<&'static str>,
}

impl StoreError {
    pub(crate) fn new(kind: ErrorKind, path: &Path, what: impl Into<String>) -> Self {
        Self { kind, path: path.to_owned(), what: what.into(), source: None, hint: None }
    }

    pub(crate) fn io(path: &Path, what: impl Into<String>, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::NotADirectory => ErrorKind::NotADirectory,
            io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::WriteZero => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        Self { kind, path: path.to_owned(), what: what.into(), source: Some(source), hint: None }
    }

    /// A hint for a path that must be there already.
    pub(crate) fn with_hint_if_missing(self, hint: &'static str) -> Self {
        if self.kind == ErrorKind::NotFound { self.with_hint(hint) } else { self }
    }

    pub(crate) fn with_hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// What to do, or empty.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        if let Some(hint) = self.hint {
            return hint;
        }
        match self.kind {
            ErrorKind::NotFound => "check the path; its parent directory must exist",
            ErrorKind::NotADirectory => "a trace is a directory: name another path",
            ErrorKind::NotEmpty => "name a directory that does not exist yet, or empty this one",
            ErrorKind::NotATrace => "only directories made by `owlet record` can be read",
            ErrorKind::Version => "read it with the version of owlet that recorded it",
            ErrorKind::Permission => "only the user who recorded a trace can read or write it",
            ErrorKind::ReadOnly => "name a directory on a file system that can be written",
            ErrorKind::NoSpace => "free some space; what was written before is intact",
            ErrorKind::Corrupt => "`owlet recover DIR` keeps what can be kept",
            ErrorKind::Busy => "end the recording first; readers need not wait",
            ErrorKind::Changed => "leave the directory alone while it is being recorded into",
            ErrorKind::Invalid | ErrorKind::Io => "",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
