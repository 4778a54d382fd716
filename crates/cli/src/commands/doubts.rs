//! What is said of a `--where` that asks for what no event can answer: a field that none has, or a number
//! compared with text. Such a comparison is false for all, which looks like an answer.

use crate::error::Result;
use crate::recorder::sink::store_failure;
use crate::text::{escape, near};
use owlet_analyze::Trace;
use owlet_wire::filter::{Doubt, Filter};
use owlet_wire::schema::{Field, Scalar, Schema, Type};
use owlet_wire::value::Value;
use std::collections::HashSet;

/// One line a field: "no event has a field `usr`; closest: `user`". Without schemas nothing is known, and
/// nothing said.
pub(crate) fn of(filter: &Filter, schemas: &[Schema]) -> Vec<String> {
    if schemas.is_empty() {
        return Vec::new();
    }
    filter.doubts(schemas).iter().map(|doubt| words(doubt, schemas)).collect()
}

/// The same of a trace. When nothing was kept, types that no schema tells are taken from the events: a
/// `tracing` field may be anything.
pub(crate) fn of_trace(filter: &Filter, trace: &Trace, kept: u64) -> Result<Vec<String>> {
    let all: Vec<Schema> = trace.schemas().into_iter().map(|(_, schema)| schema.clone()).collect();
    let mut lines = of(filter, &all);
    if kept == 0 && !all.is_empty() {
        let seen = seen(trace)?;
        let mut doubts = filter.doubts(&seen);
        // No event may have a value for a field that is there.
        doubts.retain(|doubt| !doubt.is.is_empty());
        for line in doubts.iter().map(|doubt| words(doubt, &seen)) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    Ok(lines)
}

fn words(doubt: &Doubt, schemas: &[Schema]) -> String {
    let quoted = |name: &str| format!("`{}`", escape(name.as_bytes()));
    let name = quoted(&doubt.field);
    if !doubt.is.is_empty() {
        let how = if doubt.how.is_empty() { String::new() } else { format!(": {}", doubt.how) };
        return format!("{name} is {} in every event that has it{how}", doubt.is.join(" or "));
    }
    let names = schemas.iter().flat_map(|schema| &schema.fields).map(|field| field.name.as_str());
    let near: Vec<_> = near(&doubt.field, names).into_iter().map(quoted).collect();
    let closest =
        if near.is_empty() { String::new() } else { format!("; closest: {}", near.join(", ")) };
    format!("no event has a field {name}{closest}")
}

/// The schemas of the events there are, each with the types that its dynamic fields had; a field without
/// a value is left out.
fn seen(trace: &Trace) -> Result<Vec<Schema>> {
    let (mut known, mut schemas) = (HashSet::new(), Vec::new());
    let mut events = trace.events().map_err(store_failure)?;
    while let Some(event) = events.next_event() {
        let schema = event.schema();
        let dynamic = schema.fields.iter().any(|field| field.ty == Type::Dynamic);
        let types: Vec<_> = match dynamic {
            true => event.fields().map(|field| field.value.as_ref().and_then(type_of)).collect(),
            false => Vec::new(),
        };
        if !known.insert((event.id(), types.clone())) {
            continue;
        }
        let mut seen = schema.clone();
        if dynamic {
            let fields = schema.fields.iter().zip(types);
            let field = |(field, ty): (&Field, Option<Type>)| match field.ty {
                Type::Dynamic => Some(Field { name: field.name.clone(), ty: ty? }),
                _ => Some(field.clone()),
            };
            seen.fields = fields.filter_map(field).collect();
        }
        schemas.push(seen);
    }
    Ok(schemas)
}

/// A type that compares as the value does; `None` when there is no value.
fn type_of(value: &Value<'_>) -> Option<Type> {
    Some(match value {
        Value::U64(_) | Value::I64(_) | Value::F32(_) | Value::F64(_) => Type::Scalar(Scalar::U64),
        Value::Bool(_) => Type::Scalar(Scalar::Bool),
        Value::Str(_) | Value::Bytes(_) => Type::Str,
        Value::List(_) => Type::Seq(Scalar::U64),
        Value::Enum(..) => Type::Enum(Scalar::U64, Vec::new()),
        Value::None => return None,
    })
}
