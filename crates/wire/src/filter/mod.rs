//! The expression language of `--where`.
//!
//! A filter is parsed once ([`Filter::parse`]), bound once to each event's schema
//! ([`Filter::bind`]) and then evaluated for every record ([`Bound::matches`]). Evaluation runs in
//! the traced process for `record` and in the reader for `report`: the same code, the same answer.
//! It is safe in a signal handler: no allocation, no lock, no recursion, no panic, and at most one
//! walk over the payload for each comparison.
//!
//! | module | owns |
//! |---|---|
//! | `lexer` | text to tokens, with columns |
//! | `parser` | tokens to an expression, with hints |
//! | `bind` | an expression and a schema to a program; whatever the schema decides is decided here |
//! | `eval` | running a program on a record |
//! | `doubt` | which comparisons no event of many schemas can pass |
//!
//! # Meaning
//! [`HELP`] is the language as users see it. What is worth knowing beyond it:
//! - A comparison with something that is not there (no such field, an `Option` that is `None`, a
//!   `Dynamic` value of another type) is false, `!=` included; `not (a == 1)` is then true.
//! - A comparison that the schema rules out (text with a number) is false, and
//!   [`Bound::warnings`] says so.
//! - Integers are compared exactly, with floats as floats; a `f32` field is compared with the
//!   literal rounded to `f32`.
//!
//! # Program
//! A program is a list of tests, each with two targets: the next test when it holds, the next when
//! it does not. Targets always have a lower index than the test that names them (invariant I1), so
//! a run visits each test at most once.

mod bind;
mod doubt;
mod eval;
mod lexer;
mod parser;

#[cfg(test)]
mod tests;

pub use doubt::Doubt;

use crate::record::RecordHeader;
use crate::schema::{Schema, SchemaRef};
use parser::{Expr, Subject};
use std::fmt;

/// Bytes of source text at most.
pub const MAX_TEXT: usize = 4096;
/// Comparisons in one expression at most.
pub const MAX_TESTS: usize = 128;
/// Nesting of parentheses and `not` at most.
pub const MAX_NESTING: usize = 32;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    text: String,
    /// `None` for an empty text: everything matches.
    expr: Option<Expr>,
}

/// Where an expression does not parse, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// Column of the first character that does not fit, counted in characters from 1.
    pub column: usize,
    /// What is wrong there, as a lower-case fragment.
    pub message: String,
    /// What to do, or empty.
    pub hint: String,
}

impl FilterError {
    fn new(column: usize, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { column, message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.message)
    }
}

impl std::error::Error for FilterError {}

/// Where an expression is to be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// In the traced process: `comm` is not known there.
    Target,
    /// In the tools that read a trace: everything is known.
    Reader,
}

/// What is known of a bound filter before the first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every record matches.
    Always,
    /// No record can match: the tracepoint need not be switched on.
    Never,
    /// Depends on the record.
    Depends,
}

/// A filter bound to one schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    program: eval::Program,
    warnings: Vec<String>,
    missing: Vec<String>,
}

impl Filter {
    /// Parses `text`. An empty text matches everything.
    ///
    /// # Errors
    /// With the column of the first character that does not fit.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let expr = parser::parse(text)?;
        Ok(Self { text: text.to_owned(), expr })
    }

    /// The source text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the expression can be evaluated on that side.
    ///
    /// # Errors
    /// With the column of the first name that is not known there.
    pub fn validate(&self, side: Side) -> Result<(), FilterError> {
        let Some(expr) = self.expr.as_ref().filter(|_| side == Side::Target) else {
            return Ok(());
        };
        let mut found = None;
        expr.each_test(&mut |test| {
            if test.subject == Subject::Comm && found.is_none() {
                found = Some(test.column);
            }
        });
        match found {
            None => Ok(()),
            Some(column) => Err(FilterError::new(
                column,
                "`comm` is not known in the traced process",
                "compare `tid`, or filter by `comm` when reading: owlet report DIR --where ..",
            )),
        }
    }

    /// Whether the expression compares `duration`, which is known of ended spans only.
    #[must_use]
    pub fn asks_duration(&self) -> bool {
        let mut asks = false;
        if let Some(expr) = &self.expr {
            expr.each_test(&mut |test| asks |= test.subject == Subject::Duration);
        }
        asks
    }

    /// Binds to a schema. Allocates; everything after does not.
    #[must_use]
    pub fn bind(&self, schema: &Schema) -> Bound {
        bind::bind(self.expr.as_ref(), schema)
    }

    /// The comparisons that hold for no event of any of `schemas`, each field's once, by column: no
    /// schema has the field, or all that have it rule the comparison out.
    #[must_use]
    pub fn doubts(&self, schemas: &[Schema]) -> Vec<Doubt> {
        self.expr.as_ref().map_or_else(Vec::new, |expr| doubt::doubts(expr, schemas))
    }

    /// Binds to a borrowed schema. Allocates; everything after does not.
    #[must_use]
    pub fn bind_ref(&self, schema: &SchemaRef<'_>) -> Bound {
        self.bind(&schema.to_schema())
    }
}

impl Bound {
    /// Whether the record matches. Of the header, `pid` and `tid` are looked at. A payload that does
    /// not fit its schema has no fields from the first malformed one on.
    #[must_use]
    pub fn matches(&self, header: &RecordHeader, payload: &[u8]) -> bool {
        self.matches_parts(header, &[payload], None)
    }

    /// As [`matches`](Self::matches), for a payload in pieces and a reader that knows the thread's
    /// name. A text or bytes value must lie in one piece; one that does not counts as missing.
    #[must_use]
    pub fn matches_parts(
        &self,
        header: &RecordHeader,
        payload: &[&[u8]],
        comm: Option<&[u8]>,
    ) -> bool {
        self.program.run(header, payload, comm)
    }

    /// What is known before the first record.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.program.verdict()
    }

    /// Comparisons that can never hold for this schema, and why (a text compared with a number, ..).
    /// A missing field is not one of them: see [`missing`](Self::missing).
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Fields the expression names and this schema has not. Expected when one filter meets many
    /// events; worth a warning when every event lacks the same one.
    #[must_use]
    pub fn missing(&self) -> &[String] {
        &self.missing
    }
}

/// The language, for `--help`.
pub const HELP: &str = "\
An expression is comparisons joined by and, or, not (also &&, ||, !) and parentheses.

  NAME OP VALUE      OP is one of == != < <= > >=
  NAME ~ \"GLOB\"      text matches; * is any run, ? any one character
  NAME contains V    text contains text; an array or sequence contains a number
  NAME               a bool field is true
  has(NAME)          the event has the field and a value was recorded

NAME is one of
  level              by severity: level >= warn means warn or error
  name               full name of the event, such as \"app:request\"
  pid, tid           as the traced process sees them
  comm               name of the thread (when reading a trace; not while recording)
  duration           length of a span, in its closing event; other events have none
  anything else      a field of the event; dots are part of the name: http.status
  .NAME, .\"ANY TEXT\" always a field, even one called name or pid, or with odd characters

VALUE is a number (5, -1, 0xff, 1_000_000, 2.5), a duration (250ns, 5us, 3ms, 1.5s; it is a
number of nanoseconds), \"text\" or 'text' (\\n \\t \\\\ \\\" \\xHH are understood), true or false.
An enum is compared with its name as text or with its number.

A comparison with a field that the event has not, or of another type, is false. When that is so for
every event, stderr says so; the status stays what it is.

  level >= warn and name ~ \"app:*\"
  http.status >= 500 or duration > 20ms
  user == \"ann\" and not (path contains \"/health\" or retry)";
