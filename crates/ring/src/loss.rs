//! Why an event was not recorded: the only table of causes.
//!
//! Every cause has a counter in every ring. The counters live in shared memory, in the control block
//! of each ring, and are only ever changed by one locked add, so that a
//! thread that has left the CPU, a signal handler and another process can all count at once.

use core::fmt;

/// Why an event was not recorded. The value is the index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Loss {
    /// The ring had no room: the reader is slower than the writers.
    Full = 0,
    /// The record is longer than a record may be (see [`Segment::max_record`](crate::Segment::max_record)).
    TooLarge = 1,
    /// Every portable ring was being written by somebody else.
    Busy = 2,
    /// The event was deeper inside others than is followed, or a signal handler interrupted a portable
    /// ring's writer and found no other ring.
    Recursion = 3,
    /// The event's schema could not be put into the log.
    NoSchema = 4,
    /// A value could not be read or encoded.
    BadValue = 5,
}

/// How many causes there are.
pub const LOSS_COUNT: usize = LOSS_REASONS.len();

/// One line of [`LOSS_REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossReason {
    /// The cause.
    pub loss: Loss,
    /// A word for machines: lower case, no spaces.
    pub name: &'static str,
    /// A fragment for people, fitting "lost 3 events: ...".
    pub text: &'static str,
}

/// Every cause, in the order of its counter: names, texts, statistics and side files come from here.
pub const LOSS_REASONS: [LossReason; 6] = [
    LossReason { loss: Loss::Full, name: "full", text: "the ring was full" },
    LossReason { loss: Loss::TooLarge, name: "too_large", text: "the record was too large" },
    LossReason { loss: Loss::Busy, name: "busy", text: "every portable ring was busy" },
    LossReason {
        loss: Loss::Recursion,
        name: "recursion",
        text: "the event was too deep inside others, or a signal handler found no free ring",
    },
    LossReason { loss: Loss::NoSchema, name: "no_schema", text: "the schema did not fit the log" },
    LossReason { loss: Loss::BadValue, name: "bad_value", text: "a value could not be read" },
];

impl Loss {
    /// The index of the cause's counter, less than [`LOSS_COUNT`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(LOSS_REASONS.get(self.index()).map_or("unknown", |reason| reason.text))
    }
}

impl core::error::Error for Loss {}
