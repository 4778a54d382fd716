//! What an expression asks of fields that no event can answer: most often a name is misspelt, or a
//! number is compared with text. Such a comparison is false for every event, which looks like an
//! answer; so whoever knows all schemas says so.

use super::bind::never;
use super::parser::{Expr, Subject};
use crate::schema::Schema;

/// A comparison that holds for no event, whatever was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Where the comparison stands, counted in characters from 1.
    pub column: usize,
    /// The field's name.
    pub field: String,
    /// What the field is in the events that have it, as in `a number`, each once; empty when no event
    /// has it.
    pub is: Vec<&'static str>,
    /// What such a field is compared with, as a clause; empty when there are several answers or none.
    pub how: &'static str,
}

pub(super) fn doubts(expr: &Expr, schemas: &[Schema]) -> Vec<Doubt> {
    let mut all: Vec<Doubt> = Vec::new();
    expr.each_test(&mut |test| {
        let Subject::Field(name) = &test.subject else { return };
        let mut doubt = Doubt { column: test.column, field: name.clone(), is: Vec::new(), how: "" };
        let fields = schemas.iter().flat_map(|schema| &schema.fields);
        for field in fields.filter(|field| field.name == *name) {
            let Some(mismatch) = never(&field.ty, &test.check) else { return };
            if !doubt.is.contains(&mismatch.is) {
                doubt.how = if doubt.is.is_empty() { mismatch.how } else { "" };
                doubt.is.push(mismatch.is);
            }
        }
        // Said once of each field, however often it is compared.
        if !all.iter().any(|known| known.field == doubt.field && known.is == doubt.is) {
            all.push(doubt);
        }
    });
    all
}
