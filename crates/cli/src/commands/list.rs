//! `owlet list`: processes with an agent, or trace points and traced functions.

use crate::agents;
use crate::args::ListArgs;
use crate::client::Client;
use crate::error::{Failure, Result};
use crate::exit::Exit;
use crate::names;
use crate::out::{Out, note};
use crate::text::{command_line, count, escape, plural, program};
use owlet_wire::config::glob;
use owlet_wire::control::TracepointInfo;
use owlet_wire::functions::FunctionInfo;
use serde_json::json;

/// Runs the subcommand.
pub(crate) fn run(args: &ListArgs) -> Result<Exit> {
    let mut pids = args.pids.clone();
    let what = args.what.as_deref();
    // No trace point's name is a number.
    let pattern = what.filter(|what| what.parse::<u32>().map(|pid| pids.push(pid)).is_err());
    match pattern {
        None if pids.is_empty() => processes(args.json.on),
        Some(pattern) if pids.is_empty() => {
            let (clients, silent) = agents::all()?.reachable()?;
            let asked = Asked { clients, pids: &[], silent, whose: "any process of yours" };
            points(asked, pattern, args.json.on)
        }
        pattern => {
            let clients = agents::of(&pids)?;
            let whose = agents::whose(&pids);
            let asked = Asked { clients, pids: &pids, silent: 0, whose: &whose };
            points(asked, pattern.unwrap_or("*"), args.json.on)
        }
    }
}

fn processes(json: bool) -> Result<Exit> {
    let agents = agents::all()?;
    let mut out = Out::new();
    if json {
        for client in &agents.clients {
            out.json(&process_json(client))?;
        }
    } else if !agents.clients.is_empty() {
        out.line(format_args!(
            "{:>8} {:>6} {:>8} {:<8} COMMAND",
            "PID", "POINTS", "SESSIONS", "BACKEND"
        ))?;
        for client in &agents.clients {
            out.line(format_args!("{}", process_line(client)))?;
        }
    }
    out.finish()?;
    agents.warn();
    match (agents.clients.as_slice(), agents.troubled.as_slice()) {
        ([], []) => Err(agents::none()),
        (_, []) => Ok(Exit::Done),
        (_, troubled) => Ok(incomplete(troubled.len() as u64)),
    }
}

/// Says that processes are missing in what was listed.
fn incomplete(silent: u64) -> Exit {
    let does = if silent == 1 { "does" } else { "do" };
    note!("warning: the list is incomplete: {} {does} not answer", plural(silent, "process"));
    Exit::Refused
}

fn process_line(client: &Client) -> String {
    let hello = &client.hello;
    let command = match command_line(&hello.args) {
        args if args.is_empty() => program(&hello.exe),
        args => args,
    };
    let inside = if hello.pid == client.pid {
        String::new()
    } else {
        format!(" (pid {} inside)", hello.pid)
    };
    let (pid, points, sessions) = (client.pid, hello.tracepoints, hello.sessions);
    let backend = escape(hello.backend.as_bytes());
    format!("{pid:>8} {points:>6} {sessions:>8} {backend:<8} {command}{inside}")
}

fn process_json(client: &Client) -> serde_json::Value {
    let hello = &client.hello;
    let words: Vec<_> =
        hello.args.strip_suffix(b"\0").unwrap_or(&hello.args).split(|&b| b == 0).collect();
    let words: Vec<_> = words.into_iter().map(String::from_utf8_lossy).collect();
    json!({
        "pid": client.pid,
        "pid_inside": hello.pid,
        "ppid_inside": hello.ppid,
        "exe": String::from_utf8_lossy(&hello.exe),
        "args": words,
        "tracepoints": hello.tracepoints,
        "sessions": hello.sessions,
        "backend": hello.backend,
        "backend_why": hello.backend_why,
        "site": hello.site,
        "owlet": hello.version,
    })
}

/// Whose trace points are listed.
struct Asked<'a> {
    clients: Vec<Client>,
    /// Those that were named; empty when all are meant.
    pids: &'a [u32],
    /// Processes that did not answer.
    silent: u64,
    whose: &'a str,
}

impl Asked<'_> {
    /// Trace points and traced functions of one process; `None` when it need not be told that there is
    /// no answer.
    fn of(&mut self, client: &Client) -> Result<Option<(Vec<TracepointInfo>, Vec<FunctionInfo>)>> {
        let answer = client.list("*").and_then(|points| Ok((points, client.functions("*")?)));
        let failure = match answer {
            Ok(both) => return Ok(Some(both)),
            Err(error) => agents::explain(client.pid, &error),
        };
        match failure.exit {
            _ if !self.pids.is_empty() => return Err(failure),
            // Ended meanwhile: it is not there to be listed.
            Exit::Nothing => {}
            _ => {
                note!("warning: {}", failure.message);
                self.silent += 1;
            }
        }
        Ok(None)
    }
}

fn points(mut asked: Asked<'_>, pattern: &str, json: bool) -> Result<Exit> {
    let mut out = Out::new();
    let (mut found, mut answered) = (false, false);
    let mut names = Vec::new();
    let clients = std::mem::take(&mut asked.clients);
    for client in &clients {
        let Some((points, functions)) = asked.of(client)? else { continue };
        answered = true;
        let (mut chosen, others): (Vec<_>, Vec<_>) =
            points.into_iter().partition(|point| glob(pattern, &point.name));
        chosen.sort_by(|a, b| a.name.cmp(&b.name));
        let (traced, other_functions): (Vec<_>, Vec<_>) =
            functions.into_iter().partition(|function| glob(pattern, &function.name));
        found |= !chosen.is_empty() || !traced.is_empty();
        if json {
            for point in &chosen {
                out.json(&point_json(client, point))?;
            }
            for function in &traced {
                out.json(&function_json(client, function))?;
            }
        } else if !chosen.is_empty() || !traced.is_empty() {
            if clients.len() > 1 || pattern != "*" {
                out.line(format_args!("{} ({}):", client.pid, program(&client.hello.exe)))?;
            }
            if !chosen.is_empty() {
                table(&mut out, &chosen)?;
            }
            functions_table(&mut out, &traced)?;
        }
        names.extend(others.into_iter().map(|point| point.name));
        names.extend(other_functions.into_iter().map(|function| function.name));
    }
    out.finish()?;
    let Asked { silent, whose, .. } = asked;
    if found && silent == 0 {
        return Ok(Exit::Done);
    }
    if found || (!answered && silent > 0) {
        return Ok(incomplete(silent));
    }
    let failure = if !answered {
        agents::none()
    } else if names.is_empty() {
        Failure::with(Exit::Nothing, format!("{whose} has no trace points"))
    } else {
        super::patterns::unmatched(&[pattern], names.iter().map(String::as_str), whose)
    };
    // What did not answer may have what was asked for.
    Err(if silent > 0 { Failure { exit: incomplete(silent), ..failure } } else { failure })
}

fn table(out: &mut Out, points: &[TracepointInfo]) -> Result<()> {
    let name = |point: &TracepointInfo| escape(point.name.as_bytes());
    let width = points.iter().map(|point| name(point).chars().count()).max().unwrap_or(0).max(11);
    out.line(format_args!("STATE {:>12} LEVEL {:<width$} FIELDS", "HITS", "TRACE POINT"))?;
    for point in points {
        let state = if point.enabled { "on" } else { "off" };
        let style = match (out.color(), point.enabled) {
            (true, true) => anstyle::AnsiColor::Green.on_default().bold(),
            _ => anstyle::Style::new(),
        };
        let (hits, level) = (count(point.hits), names::level(point.level));
        let kind = match point.kind {
            owlet_wire::schema::Kind::Event => String::new(),
            kind => format!(" [{}]", names::kind(kind)),
        };
        out.line(format_args!(
            "{style}{state:<5}{style:#} {hits:>12} {level:<5} {:<width$} {}{kind}",
            name(point),
            names::fields(&point.fields),
        ))?;
    }
    Ok(())
}

fn functions_table(out: &mut Out, functions: &[FunctionInfo]) -> Result<()> {
    if functions.is_empty() {
        return Ok(());
    }
    out.line(format_args!("STATE {:>12} TRACED FUNCTION", "ATTACHED"))?;
    for function in functions {
        let state = if function.programs > 0 { "on" } else { "off" };
        let line = super::calls::line(function);
        out.line(format_args!("{state:<5} {:>12} {line}", count(function.programs.into())))?;
    }
    Ok(())
}

fn function_json(client: &Client, function: &FunctionInfo) -> serde_json::Value {
    let mut json = super::calls::as_json(function);
    json["pid"] = client.pid.into();
    json
}

fn point_json(client: &Client, point: &TracepointInfo) -> serde_json::Value {
    let fields: Vec<_> = point
        .fields
        .iter()
        .map(|field| json!({ "name": field.name, "type": names::ty(&field.ty) }))
        .collect();
    json!({
        "pid": client.pid,
        "name": point.name,
        "kind": names::kind(point.kind),
        "level": names::level(point.level),
        "enabled": point.enabled,
        "hits": point.hits,
        "file": point.file,
        "line": point.line,
        "doc": point.doc,
        "fields": fields,
    })
}
