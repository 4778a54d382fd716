//! What is said on stderr about a trace that is read: problems of its files, and losses.

use crate::exit::Exit;
use crate::out::note;
use crate::text::{count, escape, plural};
use owlet_analyze::Trace;
use owlet_ring::{LOSS_REASONS, Loss};

/// One warning a problem.
pub(crate) fn problems<'a>(trace: &Trace, problems: impl Iterator<Item = &'a String>) {
    for problem in problems {
        note!("warning: {}", escape(problem.as_bytes()));
    }
    if trace.repairable() {
        note!("hint: `owlet recover DIR` makes strict readers accept what could be read");
    }
}

/// The status of a command that has read a trace.
pub(crate) fn read_status(damaged: bool) -> Exit {
    if damaged { Exit::Damaged } else { Exit::Done }
}

/// `lost 17 events (full 12, busy 5)`, when there were any.
pub(crate) fn tell_losses(trace: &Trace) {
    if trace.lost_total() > 0 {
        note!("lost {} ({})", plural(trace.lost_total(), "event"), causes(trace));
    }
}

/// What can be done about losses, or what their cause means.
pub(crate) fn loss_hints(trace: &Trace) {
    for lost in trace.lost() {
        if lost.cause == LOSS_REASONS[Loss::Full.index()].name {
            note!("hint: the rings were full: choose larger rings: owlet record --size");
        } else if let Some(text) = owlet_store::cause_text(&lost.cause) {
            let bytes = match trace.skipped_bytes() {
                bytes if bytes > 0 && lost.cause == owlet_store::CORRUPT => {
                    format!(" ({})", plural(bytes, "byte"))
                }
                _ => String::new(),
            };
            note!("hint: {}: {text}{bytes}", escape(lost.cause.as_bytes()));
        }
    }
}

/// `full 12, busy 5`.
pub(crate) fn causes(trace: &Trace) -> String {
    let cause = |lost: &owlet_analyze::trace::Lost| {
        format!("{} {}", escape(lost.cause.as_bytes()), count(lost.events))
    };
    trace.lost().iter().map(cause).collect::<Vec<_>>().join(", ")
}
