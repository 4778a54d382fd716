//! What is said on stderr about a trace that is read: problems of its files, and losses.

use crate::out::note;
use crate::text::{count, escape, plural};
use owlet_analyze::Trace;

/// One warning a problem.
pub(crate) fn problems<'a>(problems: impl Iterator<Item = &'a String>) {
    let mut any = false;
    for problem in problems {
        any = true;
        note!("warning: {}", escape(problem.as_bytes()));
    }
    if any {
        note!("hint: `owlet recover DIR` makes strict readers accept what could be read");
    }
}

/// `lost 17 events (full 12, busy 5)`, when there were any.
pub(crate) fn tell_losses(trace: &Trace) {
    if trace.lost_total() > 0 {
        note!("lost {} ({})", plural(trace.lost_total(), "event"), causes(trace));
    }
}

/// `full 12, busy 5`.
pub(crate) fn causes(trace: &Trace) -> String {
    let cause = |lost: &owlet_analyze::trace::Lost| {
        format!("{} {}", escape(lost.cause.as_bytes()), count(lost.events))
    };
    trace.lost().iter().map(cause).collect::<Vec<_>>().join(", ")
}
