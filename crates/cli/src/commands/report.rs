//! `owlet report DIR`: the events, merged by time.

use super::doubts;
use super::summary::{loss_hints, problems, read_status, tell_losses};
use crate::args::ReportArgs;
use crate::error::{Failure, Result};
use crate::exit::Exit;
use crate::names;
use crate::out::{Out, note};
use crate::recorder::sink::store_failure;
use crate::text::{escape, plural};
use owlet_analyze::{Trace, json, text};
use owlet_wire::filter::Filter;
use serde_json::json;

/// Runs the subcommand.
pub(crate) fn run(args: &ReportArgs) -> Result<Exit> {
    let trace = Trace::open(&args.dir).map_err(store_failure)?;
    let mut out = Out::new();
    if args.fields {
        fields(&mut out, &trace, args.json.on)?;
        out.finish()?;
        return Ok(Exit::Done);
    }
    let mut events = trace.events().map_err(store_failure)?;
    let filter = args.filter.as_deref().map(parse).transpose()?;
    if let Some(filter) = &filter {
        events = events.with_filter(filter);
    }
    if args.json.on {
        let mut line = json::Line::default();
        while let Some(event) = events.next_event() {
            out.bytes(line.render(&event).as_bytes())?;
        }
    } else {
        let mut line = text::Line::default();
        while let Some(event) = events.next_event() {
            out.bytes(line.render(&event).as_bytes())?;
        }
    }
    out.finish()?;
    let unread = events.problems();
    problems(&trace, trace.problems().iter().chain(&unread));
    if let Some(filter) = &filter {
        for line in doubts::of_trace(filter, &trace, events.counts().kept)? {
            note!("warning: --where: {line}");
        }
    }
    if events.lost_at_end() > 0 {
        note!("lost {} behind the last one of their ring", plural(events.lost_at_end(), "event"));
    }
    tell_losses(&trace);
    loss_hints(&trace);
    Ok(read_status(trace.damaged() || !unread.is_empty()))
}

/// The filter of the command line, which clap has checked already.
pub(crate) fn parse(text: &str) -> Result<Filter> {
    Filter::parse(text).map_err(|error| Failure::with(Exit::Usage, format!("bad filter: {error}")))
}

fn fields(out: &mut Out, trace: &Trace, json: bool) -> Result<()> {
    for (id, schema) in trace.schemas() {
        if json {
            let field =
                |f: &owlet_wire::schema::Field| json!({ "name": f.name, "type": names::ty(&f.ty) });
            let fields: Vec<_> = schema.fields.iter().map(field).collect();
            out.json(&json!({
                "id": id,
                "name": schema.name,
                "kind": names::kind(schema.kind),
                "level": names::level(schema.level),
                "file": schema.file,
                "line": schema.line,
                "doc": schema.doc,
                "fields": fields,
            }))?;
            continue;
        }
        let (name, level, kind) =
            (escape(schema.name.as_bytes()), names::level(schema.level), names::kind(schema.kind));
        out.line(format_args!("{name}{}", names::fields(&schema.fields)))?;
        let place = match schema.file.as_str() {
            "" => String::new(),
            file => format!("  {}:{}", escape(file.as_bytes()), schema.line),
        };
        out.line(format_args!("    {level} {kind}{place}"))?;
        for line in schema.doc.lines() {
            out.line(format_args!("    {}", escape(line.trim().as_bytes())))?;
        }
    }
    Ok(())
}
