//! What can go wrong.

use crate::patch::Refused;
use core::fmt;

/// Why a batch was not attached. Nothing is attached then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// A pattern matches no traced function.
    NoMatch {
        /// The pattern.
        pattern: String,
    },
    /// The program is attached to the function already, or twice in the batch with different cookies.
    Duplicate {
        /// The function's name.
        function: &'static str,
    },
    /// More programs than a function takes (38).
    TooMany {
        /// The function's name.
        function: &'static str,
    },
    /// A modifying program, and a function without `#[traced(modify_return)]`.
    NotModifiable {
        /// The function's name.
        function: &'static str,
    },
    /// A function of the tracer itself.
    Runtime {
        /// The function's name.
        function: &'static str,
    },
    /// The byte of a site belongs to somebody else: a debugger's breakpoint or a kernel uprobe is there.
    SiteBusy {
        /// Where it is.
        address: usize,
    },
    /// The process does not let its code be changed.
    Sites(Refused),
    /// No memory for a list of programs.
    OutOfMemory,
    /// Called while the same thread is changing programs: from inside an allocator that is traced, say.
    InsideChange,
}

impl AttachError {
    /// The error number of the kernel's counterpart.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NoMatch { .. } => libc::ENOENT,
            Self::Duplicate { .. } | Self::SiteBusy { .. } => libc::EBUSY,
            Self::TooMany { .. } => libc::E2BIG,
            Self::NotModifiable { .. } | Self::Runtime { .. } => libc::EPERM,
            Self::Sites(_) => libc::EACCES,
            Self::OutOfMemory => libc::ENOMEM,
            Self::InsideChange => libc::EDEADLK,
        }
    }

    /// What to do about it; empty when there is nothing to say.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NoMatch { .. } => "a function is traced if it has the attribute #[owlet::traced]",
            Self::NotModifiable { .. } => {
                "write #[owlet::traced(modify_return)] on the function to allow it"
            }
            Self::SiteBusy { .. } => "remove the breakpoint or uprobe and try again",
            Self::Sites(_) => crate::patch::REFUSED_HINT,
            Self::TooMany { .. } => "detach programs that are no longer needed",
            _ => "",
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMatch { pattern } => write!(f, "no traced function matches `{pattern}`"),
            Self::Duplicate { function } => {
                write!(f, "the program is attached to {function} already")
            }
            Self::TooMany { function } => {
                write!(f, "{function} has {} programs, which is the most", crate::LINKS)
            }
            Self::NotModifiable { function } => {
                write!(f, "{function} does not let programs decide its result")
            }
            Self::Runtime { function } => {
                write!(f, "{function} is a function of the tracer, which cannot be traced")
            }
            Self::SiteBusy { address } => {
                write!(f, "the code at {address:#x} has a breakpoint of somebody else's")
            }
            Self::Sites(refused) => refused.fmt(f),
            Self::OutOfMemory => f.write_str("no memory for a list of programs"),
            Self::InsideChange => {
                f.write_str("programs cannot be changed while the same thread is changing programs")
            }
        }
    }
}

impl std::error::Error for AttachError {}

/// Why a detach did not do all it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DetachError {
    /// Called from inside a program: it is detached, but other threads' runs of it, and this one, could
    /// not be waited for.
    InsideProgram,
    /// As [`AttachError::InsideChange`]: nothing is detached, now or later.
    InsideChange,
}

impl fmt::Display for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InsideProgram => "detached, but a program cannot wait for programs to end",
            Self::InsideChange => {
                "programs cannot be changed while the same thread is changing programs"
            }
        })
    }
}

impl std::error::Error for DetachError {}
