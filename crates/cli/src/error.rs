//! Why a command failed, what to do about it, and which status it ends with.

use crate::exit::Exit;
use crate::text::escape;
use std::fmt::Display;
use std::io;
use std::path::Path;

/// What to do when no descriptor is left.
pub(crate) const MORE_FILES: &str =
    "raise the limit of open files, as in `ulimit -n 4096`, and try again";

/// A failed command. `message` is a lower-case fragment that names what, where and why.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Status of the process.
    pub(crate) exit: Exit,
    /// Empty when everything has been said already.
    pub(crate) message: String,
    /// What to do; each line of it is printed as a hint of its own.
    pub(crate) hint: Option<String>,
}

/// What every step of the command returns.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Something failed.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::with(Exit::Failure, message)
    }

    /// A failure with its own status.
    pub(crate) fn with(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None }
    }

    /// Ends the command with `exit` without another word.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self::with(exit, "")
    }

    /// Adds advice.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Something failed at a path.
    pub(crate) fn at(what: &str, path: &Path, why: impl Display) -> Self {
        Self::new(format!("{what} {}: {why}", show(path)))
    }

    /// Writing to stdout failed: no failure when the reader went away.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::silent(Exit::Done)
        } else {
            Self::new(format!("cannot write to stdout: {}", reason(error)))
        }
    }

    /// Prints message and hint to stderr.
    pub(crate) fn report(&self) {
        let mut err = anstream::stderr().lock();
        use std::io::Write as _;
        let red = anstyle::AnsiColor::Red.on_default().bold();
        let cyan = anstyle::AnsiColor::Cyan.on_default();
        // Nobody is left to tell when stderr is closed.
        if !self.message.is_empty() {
            let _ = writeln!(err, "{red}error{red:#}: {}", self.message);
        }
        // Whatever was to be opened, the limit is what is in the way.
        let files =
            self.message.to_lowercase().contains("too many open files").then_some(MORE_FILES);
        for hint in files.or(self.hint.as_deref()).unwrap_or_default().lines() {
            let _ = writeln!(err, "{cyan}hint{cyan:#}: {hint}");
        }
    }
}

/// An operating-system error in words, without the "(os error N)" tail, lower case.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::from("unknown error"),
    }
}

/// A path for messages: quoted by nothing, escaped like all text that others chose.
pub(crate) fn show(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    escape(path.as_os_str().as_bytes())
}
