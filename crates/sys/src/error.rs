//! The one error of this crate: which call failed, and with which `errno`.

use std::{fmt, io};

/// A failed system call.
///
/// Copyable and without allocation, so that it can be made in a signal handler. Convert it to
/// [`io::Error`] at the edge; the conversion keeps the call's name as the error's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysError {
    /// The call as in its manual page, e.g. `memfd_create`.
    pub call: &'static str,
    /// The `errno` it answered.
    pub errno: i32,
}

/// Result of a call in this crate.
pub type Result<T> = core::result::Result<T, SysError>;

impl SysError {
    /// True if the kernel does not know the call, or a filter forbids it (`ENOSYS`, `EPERM`,
    /// `EACCES`): what container sandboxes answer. Trying again is pointless.
    #[must_use]
    pub fn is_unavailable(self) -> bool {
        matches!(self.errno, libc::ENOSYS | libc::EPERM | libc::EACCES)
    }
}

impl fmt::Display for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for SysError {}

impl From<SysError> for io::Error {
    fn from(error: SysError) -> Self {
        Self::new(Self::from_raw_os_error(error.errno).kind(), error)
    }
}
