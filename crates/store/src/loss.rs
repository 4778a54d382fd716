//! What the packets say was lost and the sidecar does not explain.
//!
//! Two places count losses. A packet's `events_discarded` is its stream's running count and is
//! written with every packet; the sidecar has the same events by cause, but seldom, and a recorder
//! that is killed never writes the last counts. The packets therefore have the last word on how
//! many, the sidecar on why.
//!
//! | counted in | ring causes (`full`, ..), `corrupt` | `malformed` | `not_written`, `removed` | lost outside any ring |
//! |---|---|---|---|---|
//! | the sidecar | with the stream | with the stream | with the stream | without stream |
//! | the stream's packets | yes | yes | no: nothing could be written | no |

use crate::meta::{Loss, StreamName};
use crate::reader::StreamInfo;
use crate::writer::MALFORMED;
use std::collections::BTreeMap;

/// Cause of losses that are counted in packets, cause not recorded: the recorder was killed, or
/// still runs, and has not yet written what it knows of them.
pub const UNKNOWN_CAUSE: &str = "unknown";
/// Cause of loss of events that left the ring and could not be written: no packet counts them.
pub const NOT_WRITTEN: &str = "not_written";

/// Cause of loss of events that were written, and somebody took away before the recording ended.
pub const REMOVED: &str = "removed";
/// Cause of loss of what was in a ring and was no record. One event is counted for each run of such
/// bytes; there may have been more in it.
pub const CORRUPT: &str = "corrupt";

/// A cause that only this side of a recording knows, in words that fit "lost 3 events: ..".
#[must_use]
pub fn cause_text(cause: &str) -> Option<&'static str> {
    match cause {
        UNKNOWN_CAUSE => Some("the recorder was killed, or still runs, and has not noted why"),
        CORRUPT => Some("bytes in the rings were no records; each run of them counts as one event"),
        REMOVED => Some("somebody changed the trace directory while it was being recorded into"),
        NOT_WRITTEN => Some("the trace directory took no more"),
        MALFORMED => Some("the record did not fit its description"),
        _ => None,
    }
}

/// One loss for each stream whose packets count more than its causes in `known` add up to. Together
/// with `known`, no stream's sum is less than its packets' count, and no event counts twice.
pub(crate) fn unexplained(known: &[Loss], streams: &[StreamInfo]) -> Vec<Loss> {
    let mut explained: BTreeMap<StreamName, u64> = BTreeMap::new();
    let counted = |loss: &&Loss| ![NOT_WRITTEN, REMOVED].contains(&loss.cause.as_str());
    for loss in known.iter().filter(counted) {
        if let Some(stream) = loss.stream {
            let sum = explained.entry(stream).or_default();
            *sum = sum.saturating_add(loss.events);
        }
    }
    let rest = |info: &StreamInfo| {
        let known = explained.get(&info.name).copied().unwrap_or(0);
        let events = info.discarded.saturating_sub(known);
        let loss = Loss { stream: Some(info.name), cause: UNKNOWN_CAUSE.to_owned(), events };
        (events > 0).then_some(loss)
    };
    streams.iter().filter_map(rest).collect()
}
