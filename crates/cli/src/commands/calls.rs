//! `owlet attach` for a process that links Owlet: its traced functions, recorded by the process itself.
//!
//! The trace directory is that of `owlet record`, and so is the last line. What was attached lasts as long
//! as this command, however it ends.

use super::directory;
use super::functions;
use super::verdict;
use crate::agents;
use crate::args::AttachArgs;
use crate::error::{Failure, Result, reason, show};
use crate::exit::Exit;
use crate::out::{Out, note};
use crate::recorder::clock::SessionClock;
use crate::recorder::rendezvous::Rendezvous;
use crate::recorder::session::{Plan, Session};
use crate::recorder::sink::Tally;
use crate::recorder::stop::Stop;
use crate::recorder::{End, Parts, Recording};
use crate::text::{count, escape, plural};
use crate::units::larger_ring;
use owlet_ring::{LOSS_REASONS, Loss};
use owlet_wire::functions::{Attach, FunctionInfo, Moments, Standing, Work};
use owlet_wire::schema::Level;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

/// Runs the subcommand.
pub(crate) fn run(args: &AttachArgs) -> Result<Exit> {
    let Some(pid) = args.pid else {
        let message = "which process? give its --pid";
        return Err(Failure::with(Exit::Usage, message)
            .hint("only through the kernel, with --kernel, can patterns name a file instead"));
    };
    let stop = Stop::new(1)
        .map_err(|error| Failure::new(format!("cannot catch signals: {}", reason(&error))))?;
    let (client, known) = functions::of(pid)?;
    let whose = agents::describe(pid);
    let matched = functions::matching(&args.patterns, &known, &whose)?;
    if args.list {
        return list(args, &matched);
    }
    if let Some(prog) = &args.prog {
        return super::prog::run(args, prog, &client, stop, matched.len());
    }
    let dir = directory::choose(args.output.as_deref(), &pid.to_string())?;
    let rendezvous = Rendezvous::new(false)?;
    let clock = SessionClock::choose();
    let plan = Plan {
        rules: Vec::new(),
        level: Level::Trace,
        filter: String::new(),
        ring_bytes: args.size,
        rendezvous: rendezvous.path.clone(),
    };
    let mut session = Session::create(&plan, clock.kind)?;
    session.attach(vec![client])?;
    let wanted = Attach {
        patterns: args.patterns.clone(),
        work: Work::Record(moments(args)),
        filter: args.filter.clone().unwrap_or_default(),
    };
    for target in &session.targets {
        target
            .client
            .attach_functions(wanted.clone())
            .map_err(|error| functions::refused(pid, &error))?;
    }
    let description = description(&session);
    let (dir, progress) = (dir.path.as_path(), args.progress);
    let parts = Parts { session, clock, rendezvous, dir, description, stop, progress };
    let mut recording = Recording::begin(parts)?;
    recording.sink.tally = Some(Tally::default());
    note!(
        "recording {} of {whose} into {}; Ctrl-C ends it",
        plural(matched.len() as u64, "traced function"),
        show(dir)
    );
    let end = recording.run(args.duration.map(|duration| Instant::now() + duration));
    let (standing, gone) = standing(&recording).unzip();
    let early = matches!(end, End::Failed(_));
    if let End::Failed(failure) = &end {
        verdict::early(failure);
    }
    let end = recording.end(end);
    if let (End::Failed(failure), false) = (&end, early) {
        verdict::early(failure);
    }
    counts(args, &recording, standing.as_ref(), &matched)?;
    let gone = gone.unwrap_or(0);
    Ok(tell(&recording, args, &end, standing.as_ref(), (&whose, gone)))
}

fn moments(args: &AttachArgs) -> Moments {
    match (args.entry, args.exit, args.latency) {
        (_, _, true) => Moments::Latency,
        (true, true, _) => Moments::Both,
        (_, true, _) => Moments::Exit,
        _ => Moments::Entry,
    }
}

fn list(args: &AttachArgs, matched: &[&FunctionInfo]) -> Result<Exit> {
    let mut out = Out::new();
    for function in matched {
        if args.json.on {
            out.json(&as_json(function))?;
        } else {
            out.line(format_args!("{}", line(function)))?;
        }
    }
    out.finish()?;
    note!("{}", plural(matched.len() as u64, "traced function"));
    Ok(Exit::Done)
}

/// `app::get(key, number)  src/app.rs:12`.
pub(super) fn line(function: &FunctionInfo) -> String {
    let params: Vec<_> = function.params.iter().map(|param| escape(param.as_bytes())).collect();
    let (name, file) = (escape(function.name.as_bytes()), escape(function.file.as_bytes()));
    format!("{name}({})  {file}:{}", params.join(", "), function.line)
}

/// A traced function as an object.
pub(super) fn as_json(function: &FunctionInfo) -> serde_json::Value {
    json!({
        "name": function.name, "kind": "function", "file": function.file, "line": function.line,
        "params": function.params, "programs": function.programs,
    })
}

/// The command line, and what a process in a container calls itself.
fn description(session: &Session) -> String {
    let words = std::env::args_os().skip(1);
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let mut description = format!("owlet {}", words.join(" "));
    for target in &session.targets {
        let (pid, inner) = (target.client.pid, target.client.hello.pid);
        if pid != inner {
            description += &format!("; process {pid} is {inner} inside");
        }
    }
    description
}

/// What the process itself has counted in the end, and how many functions somebody else had detached; it
/// may have ended.
fn standing(recording: &Recording) -> Option<(Standing, usize)> {
    let client = &recording.session.targets.first()?.client;
    let before = client.standing(false).ok()?;
    client.detach_own_functions().ok()?;
    let gone = before.functions.iter().filter(|function| !function.attached).count();
    Some((client.standing(false).ok()?, gone))
}

/// Calls of each function, most first, on stdout.
fn counts(
    args: &AttachArgs,
    recording: &Recording,
    standing: Option<&Standing>,
    matched: &[&FunctionInfo],
) -> Result<()> {
    let recorded = recording.sink.tally.as_ref().map(Tally::calls).unwrap_or_default();
    let called = standing.map(by_name);
    let mut names: Vec<_> = matched.iter().map(|function| function.name.as_str()).collect();
    // Generic code and methods may share a name.
    names.dedup();
    let of = |name: &str| recorded.get(name).copied().unwrap_or(0);
    let calls = |name: &str| called.as_ref().map(|c| c.get(name).copied().unwrap_or(0));
    names.sort_by_key(|name| (Reverse(calls(name).unwrap_or(0).max(of(name))), *name));
    let mut out = Out::new();
    for name in names {
        let (calls, recorded) = (calls(name), of(name));
        if args.json.on {
            out.json(&json!({ "name": name, "calls": calls, "recorded": recorded }))?;
        } else if calls.unwrap_or(recorded) > 0 {
            let n = count(calls.unwrap_or(recorded));
            out.line(format_args!("{n:>12} {}", escape(name.as_bytes())))?;
        }
    }
    out.finish()
}

fn by_name(standing: &Standing) -> BTreeMap<&str, u64> {
    let mut calls = BTreeMap::new();
    for function in &standing.functions {
        let sum: &mut u64 = calls.entry(function.name.as_str()).or_default();
        *sum = sum.saturating_add(function.calls);
    }
    calls
}

fn tell(
    recording: &Recording,
    args: &AttachArgs,
    end: &End,
    standing: Option<&Standing>,
    (whose, gone): (&str, usize),
) -> Exit {
    let sink = &recording.sink;
    if matches!(end, End::TargetsEnded) {
        note!("{whose} has ended, or its agent has");
    }
    if sink.bad_entries > 0 {
        let n = plural(sink.bad_entries, "description");
        note!("warning: {n} in the session's log made no sense and were left out");
    }
    if sink.corrupt() > 0 {
        let n = plural(sink.corrupt(), "byte");
        note!("warning: {n} in the rings were no records and were skipped");
    }
    if gone > 0 {
        note!("note: somebody has detached {} meanwhile", plural(gone as u64, "function"));
    }
    let failed = matches!(end, End::Failed(_));
    if !failed && sink.losses.of(LOSS_REASONS[Loss::Full.index()].name) > 0 {
        note!("hint: the rings were full: choose larger rings: --size {}", larger_ring(args.size));
    }
    let mut exit = Exit::Done;
    if sink.events == 0 {
        exit = Exit::Empty;
        nothing(recording, args, standing);
    }
    if failed {
        exit = Exit::Failure;
    }
    note!("recorded {} events, lost {} in {}", sink.events, sink.losses, show(sink.dir()));
    exit
}

/// Why there is no event.
fn nothing(recording: &Recording, args: &AttachArgs, standing: Option<&Standing>) {
    let lost = recording.sink.losses.total();
    let on = standing.map_or(0, |standing| standing.functions.len() as u64);
    if lost > 0 {
        note!("warning: no event was recorded: all {} were lost", count(lost));
        return;
    }
    let on = if on > 0 { format!("{} on, ", plural(on, "function")) } else { String::new() };
    match &args.filter {
        Some(text) => {
            let text = escape(text.as_bytes());
            note!("warning: no event was recorded: {on}--where '{text}' let no call pass");
            note!("hint: without --where every call is recorded");
        }
        None => {
            note!("warning: no event was recorded: {on}calls 0");
            note!("hint: the functions were not called meanwhile, or have not returned");
        }
    }
}
