//! Shared-memory per-CPU rings: both ends.
//!
//! | module | owns |
//! |---|---|
//! | `loss` | the one table of causes of loss |
//! | `segment` | creating, opening and mapping the shared memory; its log |
//! | `writer` | the writing end |
//! | `reader` | the reading end |
//! | `waiter` | sleeping until there is something to read |

mod loss;
mod reader;
mod segment;
mod waiter;
mod writer;

pub use loss::{LOSS_COUNT, LOSS_REASONS, Loss, LossReason};
pub use reader::{Drained, Reader, RingReader};
pub use segment::{Clock, LogCursor, LogFull, Segment, SegmentError, SegmentOptions};
pub use waiter::{Notifier, NotifierOptions, RingSet, WaitOutcome, Waiter, WakeFd, Watermark};
pub use writer::Writer;
