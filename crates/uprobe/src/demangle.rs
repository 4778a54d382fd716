//! Symbols as their authors wrote them: Rust (v0 and legacy, without the hash) and C++.

use cpp_demangle::{DemangleOptions, Symbol};

/// Longer symbols are left as they are: a demangler's work may grow faster than its input.
const LONGEST: usize = 16 << 10;

/// A function's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// What is shown: in C++ with the parameters, which tell overloads apart.
    pub(crate) full: String,
    /// What a pattern may match as well: in C++ without the parameters.
    pub(crate) short: Option<String>,
}

/// The names of a symbol.
pub(crate) fn demangle(symbol: &str) -> Names {
    let plain = |full: String| Names { full, short: None };
    if symbol.len() > LONGEST {
        return plain(symbol.into());
    }
    if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
        return plain(format!("{rust:#}"));
    }
    if !symbol.starts_with("_Z") {
        return plain(symbol.into());
    }
    let Ok(parsed) = Symbol::new(symbol) else { return plain(symbol.into()) };
    let options = DemangleOptions::new();
    match (parsed.demangle_with_options(&options), short(&parsed)) {
        (Ok(full), short) => Names { short: short.filter(|short| *short != full), full },
        (Err(_), _) => plain(symbol.into()),
    }
}

fn short(parsed: &Symbol<&str>) -> Option<String> {
    parsed.demangle_with_options(&DemangleOptions::new().no_params().no_return_type()).ok()
}

#[cfg(test)]
#[path = "demangle_tests.rs"]
mod tests;
