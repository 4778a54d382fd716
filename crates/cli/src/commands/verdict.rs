//! What is said when a recording has ended, and with which status.

use super::patterns;
use crate::agents;
use crate::args::{Cli, RecordArgs};
use crate::error::{Failure, show};
use crate::exit::Exit;
use crate::out::note;
use crate::recorder::{End, NOT_JOINED, Recording};
use crate::text::{count, plural};
use crate::units::larger_ring;
use clap::CommandFactory as _;
use owlet_ring::{LOSS_REASONS, Loss};
use owlet_wire::config::Rule;
use owlet_wire::control::TracepointInfo;
use owlet_wire::filter::Filter;
use owlet_wire::schema::Level;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};

/// What was known before a recording, for explaining one without events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    /// Hits of the trace points asked for, just after the session was attached; others may record
    /// them, too.
    pub(crate) hits: u64,
    /// Trace points switched on by attaching.
    pub(crate) on: u64,
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) args: &'a RecordArgs,
    pub(crate) rules: &'a [Rule],
    /// "process 12 (server)", or the command's name.
    pub(crate) whose: &'a str,
}

/// Tells at once that a recording cannot go on.
pub(crate) fn early(failure: &Failure) {
    let message = format!("recording ended early: {}", failure.message);
    Failure { exit: failure.exit, message, hint: failure.hint.clone() }.report();
}

/// Tells how a recording went. The last line is always the same sentence. `after` is what became of a
/// command that was waited for after its recording had failed.
pub(crate) fn tell(
    recording: &Recording,
    end: &End,
    after: Option<&End>,
    before: &Before,
    asked: &Asked<'_>,
) -> Exit {
    let sink = &recording.sink;
    match after.unwrap_or(end) {
        End::Command(status) if !status.success() => note!("the command {}", words(*status)),
        End::TargetsEnded if recording.departed.some_go_on => {
            note!("no recorded process is left");
        }
        End::TargetsEnded => note!("every recorded process has ended"),
        _ => {}
    }
    if sink.bad_entries > 0 {
        let n = plural(sink.bad_entries, "description");
        note!("warning: {n} in the session's log made no sense and were left out");
    }
    if sink.corrupt() > 0 {
        let n = plural(sink.corrupt(), "byte");
        note!("warning: {n} in the rings were no records and were skipped");
    }
    let mut exit = match end {
        End::Command(status) => status_exit(*status),
        // As the shell shows a program that the signal ended.
        End::Abandoned(signal) => status_of(128 + signal),
        _ => Exit::Done,
    };
    let failed = matches!(end, End::Failed(_));
    if !failed && sink.losses.of(LOSS_REASONS[Loss::Full.index()].name) > 0 {
        let size = larger_ring(asked.args.size);
        note!("hint: the rings were full: choose larger rings: --size {size}");
    }
    if sink.events == 0 {
        nothing(recording, before, asked);
        if exit == Exit::Done {
            exit = Exit::Empty;
        }
    }
    if failed {
        exit = Exit::Failure;
    }
    note!("recorded {} events, lost {} in {}", sink.events, sink.losses, show(sink.dir()));
    exit
}

/// Why there is no event.
fn nothing(recording: &Recording, before: &Before, asked: &Asked<'_>) {
    let (sink, joined) = (&recording.sink, recording.session.joined as u64);
    let lost = sink.losses.total();
    if lost > 0 {
        note!("warning: no event was recorded: all {} were lost", count(lost));
        return;
    }
    misplaced(asked);
    if joined == 0 && sink.processes == 0 {
        note!("warning: no event was recorded: no process joined the session");
        if !recording.told_lonely {
            note!("hint: {NOT_JOINED}");
        }
        return;
    }
    if before.on == 0 && sink.schemas == 0 {
        return nothing_on(recording, asked, joined.max(sink.processes));
    }
    let points = if before.on > 0 {
        plural(before.on, "trace point")
    } else {
        plural(sink.schemas, "trace point")
    };
    let processes = plural(joined.max(sink.processes), "process");
    let hits = own_hits(recording, before, asked);
    let hits_text =
        hits.map_or_else(|| "hits unknown".to_string(), |hits| format!("hits {}", count(hits)));
    note!("warning: no event was recorded: {points} on in {processes}, {hits_text}");
    match hits {
        Some(hits) if hits > 0 => {
            note!("hint: the trace points were hit, but --where let nothing pass");
        }
        None => note!(
            "hint: --where let nothing pass, or the code at these trace points did not run; without \
             --where every hit is recorded"
        ),
        _ => note!(
            "hint: the code at these trace points did not run meanwhile; `owlet list PID` shows all"
        ),
    }
    let Some(filter) = filter(asked) else { return };
    for line in patterns::doubts(asked.rules, &filter, &points_of(recording)) {
        note!("hint: --where: {line}");
    }
}

/// Hits that this session saw. A trace point's count is of all sessions together, so those count whose
/// events were asked for, from the moment they were on; and without a filter every hit would have
/// become an event or a loss.
fn own_hits(recording: &Recording, before: &Before, asked: &Asked<'_>) -> Option<u64> {
    if asked.args.filter.is_none() {
        return Some(0);
    }
    let after = patterns::hits(asked.rules, asked.args.level.0, recording.points.as_deref()?);
    Some(after.saturating_sub(before.hits))
}

/// Why no trace point was on: from those there are, if a process is left to say.
fn nothing_on(recording: &Recording, asked: &Asked<'_>, processes: u64) {
    let (level, points) = (asked.args.level.0, points_of(recording));
    let why = || {
        patterns::nothing_selected(asked.rules, level, &points, asked.whose)
            .or_else(|| patterns::nothing_passes(asked.rules, &filter(asked)?, &points))
    };
    if !points.is_empty()
        && let Some(Failure { message, hint, .. }) = why()
    {
        note!("warning: no event was recorded: {message}");
        for hint in hint.unwrap_or_default().lines() {
            note!("hint: {hint}");
        }
        return;
    }
    let processes = plural(processes, "process");
    note!("warning: no event was recorded: no trace point was switched on in {processes}");
    match chosen_by(asked.args) {
        Some(options) => note!(
            "hint: {options} chose none of its trace points; `owlet list PID` shows them while it runs"
        ),
        None => note!("hint: none was reached: a call site is known once its code has run"),
    }
}

/// The trace points there are, or were when their processes joined.
fn points_of(recording: &Recording) -> Vec<TracepointInfo> {
    match recording.points.as_deref() {
        None | Some([]) => recording.joined.values().cloned().collect(),
        Some(points) => points.to_vec(),
    }
}

/// The filter of the command line, which has been checked.
fn filter(asked: &Asked<'_>) -> Option<Filter> {
    asked.args.filter.as_deref().and_then(|text| Filter::parse(text).ok())
}

/// The options that were given to choose events by: "`-e` and `--level info`".
fn chosen_by(args: &RecordArgs) -> Option<String> {
    let level = args.level.0;
    let given = [
        (!args.events.is_empty()).then(|| "`-e`".to_string()),
        (level < Level::Trace).then(|| format!("`--level {}`", crate::names::level(level))),
        args.filter.is_some().then(|| "`--where`".to_string()),
    ];
    let given: Vec<_> = given.into_iter().flatten().collect();
    match given.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        [first @ .., last] => Some(format!("{} and {last}", first.join(", "))),
    }
}

/// Options of ours among the words of the command, which got them.
fn misplaced(asked: &Asked<'_>) {
    let record = Cli::command();
    let Some(record) = record.find_subcommand("record") else { return };
    let long = |word: &str| {
        let name = word.strip_prefix("--")?.split('=').next()?;
        let ours = record.get_arguments().any(|arg| arg.get_long() == Some(name));
        ours.then(|| format!("`--{name}`"))
    };
    let short = |word: &str| {
        let name = word.strip_prefix('-')?.chars().next()?;
        let ours = record.get_arguments().any(|arg| arg.get_short() == Some(name));
        (ours && word.len() == 2).then(|| format!("`-{name}`"))
    };
    let words = asked.args.command.iter().skip(1).filter_map(|word| word.to_str());
    let mut found: Vec<_> = words.filter_map(|word| long(word).or_else(|| short(word))).collect();
    found.dedup();
    if let [first @ .., last] = found.as_slice() {
        let (names, stand) = match first {
            [] => (last.clone(), "stands"),
            first => (format!("{} and {last}", first.join(", ")), "stand"),
        };
        let whose = asked.whose;
        note!("hint: {names} {stand} after `--`: {whose} got them, not `owlet record`");
    }
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

/// A command's own status is passed on, as the shell would show it.
fn status_exit(status: ExitStatus) -> Exit {
    status_of(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

fn status_of(code: i32) -> Exit {
    match u8::try_from(code & 0xff) {
        Ok(0) | Err(_) => Exit::Done,
        Ok(code) => Exit::Command(code),
    }
}

/// A command that outlives its recording goes on: we never kill what we trace.
pub(crate) fn leave(child: &Child) {
    note!("{} goes on without being recorded", agents::describe(child.id()));
}
