//! What can go wrong: what, where, why.

use std::fmt;

use owlet_sys::SysError;

/// Result of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// A failure.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The instructions do not have the shape of a program.
    Program {
        /// Slot number.
        at: usize,
        /// What is wrong, as a lower-case fragment.
        what: String,
    },
    /// A definition of a map makes no sense, or asks for too much.
    Map {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// Bytes that are no image.
    Image(&'static str),
    /// An image of another format or for another platform.
    Version {
        /// What the image says.
        found: u32,
        /// What this build understands.
        expected: u32,
    },
    /// The system refused memory.
    System(SysError),
    /// An object file that cannot be loaded.
    #[cfg(feature = "load")]
    Object(String),
    /// The verifier refused a program.
    #[cfg(feature = "load")]
    Refused(Box<crate::load::Refusal>),
}

impl Error {
    pub(crate) fn program(at: usize, what: impl Into<String>) -> Self {
        Self::Program { at, what: what.into() }
    }

    pub(crate) fn map(name: &str, what: impl Into<String>) -> Self {
        Self::Map { name: name.to_owned(), what: what.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program { at, what } => write!(f, "instruction {at}: {what}"),
            Self::Map { name, what } => write!(f, "map {name}: {what}"),
            Self::Image(what) => write!(f, "not a program image: {what}"),
            Self::Version { found, expected } => {
                write!(f, "program image of version {found}, this build understands {expected}")
            }
            Self::System(error) => write!(f, "memory for a program: {error}"),
            #[cfg(feature = "load")]
            Self::Object(what) => write!(f, "object file: {what}"),
            #[cfg(feature = "load")]
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SysError> for Error {
    fn from(error: SysError) -> Self {
        Self::System(error)
    }
}
