//! The expression language of `--where`.
//!
//! A filter is parsed once ([`Filter::parse`]), bound once to each event's schema
//! ([`Filter::bind`]) and then evaluated for every record ([`Bound::matches`]) without allocation,
//! without recursion and in at most as many steps as it has comparisons. Evaluation runs in the
//! traced process for `record` and in the reader for `report`: the same code, the same answer.

use crate::record::RecordHeader;
use crate::schema::{Schema, SchemaRef};
use std::fmt;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    text: String,
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
#[derive(Clone, Debug)]
pub struct Bound {
    warnings: Vec<String>,
}

impl Filter {
    /// Parses `text`.
    ///
    /// # Errors
    /// With the column of the first character that does not fit.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        Ok(Self { text: text.to_owned() })
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
        let _ = side;
        Ok(())
    }

    /// Binds to a schema. Allocates; everything after does not.
    #[must_use]
    pub fn bind(&self, schema: &Schema) -> Bound {
        let _ = schema;
        Bound { warnings: Vec::new() }
    }

    /// Binds to a borrowed schema. Allocates; everything after does not.
    #[must_use]
    pub fn bind_ref(&self, schema: &SchemaRef<'_>) -> Bound {
        let _ = schema;
        Bound { warnings: Vec::new() }
    }
}

impl Bound {
    /// Whether the record matches. Of the header, `pid` and `tid` are looked at.
    #[must_use]
    pub fn matches(&self, header: &RecordHeader, payload: &[u8]) -> bool {
        self.matches_parts(header, &[payload], None)
    }

    /// As [`matches`](Self::matches), for a payload in pieces and a reader that knows the thread's
    /// name. A text value must lie in one piece; one that does not counts as missing.
    #[must_use]
    pub fn matches_parts(
        &self,
        header: &RecordHeader,
        payload: &[&[u8]],
        comm: Option<&[u8]>,
    ) -> bool {
        let _ = (header, payload, comm);
        true
    }

    /// What is known before the first record.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict::Depends
    }

    /// Comparisons that can never hold for this schema, and why (a text compared with a number, ..).
    /// A missing field is not one of them: it is expected when one filter meets many events.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// The language, for `--help`.
pub const HELP: &str = "";
