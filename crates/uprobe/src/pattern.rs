//! What is asked for: `OBJECT:FUNCTION` or `usdt:OBJECT:PROVIDER:NAME`, with `*` and `?` in every part.
//!
//! | written | matches |
//! |---|---|
//! | `dict*` | functions of the program itself |
//! | `redis-server:dict*`, `*:malloc` | functions of files called so |
//! | `/usr/lib/libfoo.so:foo::bar` | of the file there |
//! | `usdt:/usr/sbin/postgres:postgresql:query*` | USDT probes |
//! | `usdt::postgresql:*`, `usdt:postgresql:*` | of any file of the process |
//!
//! The colon between object and function is one that stands alone: `::` is part of names.

use crate::error::{Error, ErrorKind, Result};
use owlet_wire::config::glob;

/// What of a file is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Functions of that name.
    Function(String),
    /// USDT probes.
    Probe {
        /// Whose.
        provider: String,
        /// What they are called.
        name: String,
    },
}

/// One pattern of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// As it was written.
    pub text: String,
    /// Which files; `None` for the default: the program for functions, all for probes.
    pub object: Option<String>,
    /// What of them.
    pub wanted: Wanted,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When a part is empty or missing.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str, hint: &str| {
            let shown = text.escape_debug();
            Err(Error::new(ErrorKind::Pattern, format!("'{shown}': {why}")).hint(hint))
        };
        if text.chars().any(char::is_control) {
            return bad("names have no control characters", "");
        }
        if let Some(rest) = text.strip_prefix("usdt:") {
            let mut parts = rest.rsplitn(3, ':');
            let (name, provider, object) = (parts.next(), parts.next(), parts.next());
            let (Some(name), Some(provider)) = (name, provider) else {
                return bad("a probe needs a provider", "as in 'usdt:/path/to/file:provider:*'");
            };
            if name.is_empty() || provider.is_empty() {
                return bad("a probe's provider or name is empty", "`*` matches everything");
            }
            let object = object.filter(|object| !object.is_empty()).map(str::to_owned);
            let wanted = Wanted::Probe { provider: provider.into(), name: name.into() };
            return Ok(Self { text: text.into(), object, wanted });
        }
        let (object, name) = match lone_colon(text) {
            Some(at) => (text.get(..at), text.get(at + 1..).unwrap_or_default()),
            None => (None, text),
        };
        if name.is_empty() || object == Some("") {
            return bad("a function pattern cannot be empty", "`*` matches everything");
        }
        let wanted = Wanted::Function(name.into());
        Ok(Self { text: text.into(), object: object.map(str::to_owned), wanted })
    }

    /// The file, when the pattern names one by its path and without wildcards.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.object
            .as_deref()
            .filter(|object| object.starts_with('/') && !object.contains(['*', '?']))
    }

    /// Whether it means a file of that path and those names; `program` for the program itself.
    pub(crate) fn means(&self, path: &str, names: &[String], program: bool) -> bool {
        match &self.object {
            None => program || matches!(self.wanted, Wanted::Probe { .. }),
            Some(object) if object.contains('/') => glob(object, path),
            Some(object) => names.iter().any(|name| glob(object, name)),
        }
    }
}

/// The first colon without another one beside it.
fn lone_colon(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let colon = |at: Option<usize>| at.and_then(|at| bytes.get(at)) == Some(&b':');
    (0..bytes.len())
        .find(|&at| colon(Some(at)) && !colon(at.checked_sub(1)) && !colon(Some(at + 1)))
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
