//! What is said when a recording has ended, and with which status.

use crate::agents;
use crate::error::{Failure, show};
use crate::exit::Exit;
use crate::out::note;
use crate::recorder::{End, Recording};
use crate::text::{count, plural};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};

/// What was known before a recording, for explaining one without events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    /// Hits of all trace points when the recording began.
    pub(crate) hits: u64,
    /// Trace points switched on by attaching.
    pub(crate) on: u64,
}

/// Tells how a recording went. The last line is always the same sentence.
pub(crate) fn tell(recording: &Recording, end: End, before: &Before, explain: bool) -> Exit {
    let sink = &recording.sink;
    match &end {
        End::Command(status) if !status.success() => note!("the command {}", words(*status)),
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
    let mut exit = match &end {
        End::Command(status) => status_exit(*status),
        _ => Exit::Done,
    };
    if sink.events == 0 {
        if explain {
            nothing(recording, before);
        }
        if exit == Exit::Done {
            exit = Exit::Empty;
        }
    }
    if let End::Failed(failure) = end {
        Failure { message: format!("recording ended early: {}", failure.message), ..failure }
            .report();
        exit = Exit::Failure;
    }
    note!("recorded {} events, lost {} in {}", sink.events, sink.losses, show(sink.dir()));
    exit
}

/// Why there is no event.
fn nothing(recording: &Recording, before: &Before) {
    let (sink, joined) = (&recording.sink, recording.session.joined as u64);
    let lost = sink.losses.total();
    if lost > 0 {
        note!("warning: no event was recorded: all {} were lost", count(lost));
        note!("hint: choose larger rings with --size");
        return;
    }
    if joined == 0 && sink.processes == 0 {
        note!("warning: no event was recorded: no process joined the session");
        note!(
            "hint: the command must call `owlet::init()`; set-user-id programs cannot be recorded"
        );
        return;
    }
    let points = if before.on > 0 {
        plural(before.on, "trace point")
    } else {
        plural(sink.schemas, "trace point")
    };
    let processes = plural(joined.max(sink.processes), "process");
    let hits = recording.hits.map(|after| after.saturating_sub(before.hits));
    let hits_text =
        hits.map_or_else(|| "hits unknown".to_string(), |hits| format!("hits {}", count(hits)));
    note!("warning: no event was recorded: {points} on in {processes}, {hits_text}");
    match hits {
        Some(hits) if hits > 0 => {
            note!("hint: the trace points were hit, but --where let nothing pass")
        }
        _ => note!(
            "hint: the code at these trace points did not run meanwhile; `owlet list PID` shows all"
        ),
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
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    match u8::try_from(code & 0xff) {
        Ok(0) | Err(_) => Exit::Done,
        Ok(code) => Exit::Command(code),
    }
}

/// A command that outlives its recording goes on: we never kill what we trace.
pub(crate) fn leave(child: &Child) {
    note!("{} goes on without being recorded", agents::describe(child.id()));
}
