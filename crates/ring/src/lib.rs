//! Shared-memory per-CPU rings: both ends.
//!
//! A session's events go from the threads of traced processes to the recorder through rings in one
//! shared memory file: one ring per CPU, not per thread or process. The writer commits a record
//! with one store; the reader gets whole records, in time order per ring, and exact counts of what
//! was lost and why. The ring knows no event types: it moves records (see [`Writer::push`]).
//!
//! | module | owns |
//! |---|---|
//! | `layout` | the shared memory's layout: every offset, versioned |
//! | `segment` | creating, opening, mapping it |
//! | `log` | the append-only log in it |
//! | `positions` | head, tail and owner of a ring: both ends |
//! | `arch` | the push as a restartable sequence |
//! | `writer` | the writing end |
//! | `reader`, `liveness` | the reading end; whether a portable ring's owner is alive |
//! | `wake` | the wakeup protocol: both ends |
//! | `waiter`, `notifier` | sleeping until there is something to read |
//! | `loss` | the one table of causes of loss |
//!
//! # Example
//! ```
//! use owlet_ring::*;
//! use std::sync::Arc;
//!
//! let cpus = owlet_percpu::cpus();
//! let segment = Segment::create(&SegmentOptions { cpus, ..Default::default() })?;
//! let segment = Arc::new(segment);
//! let writer = Writer::new(Arc::clone(&segment))?;
//! let id = segment.claim_ids(1).expect("there are 2^32 of them");
//! let (pid, tid) = (owlet_sys::process::getpid(), owlet_sys::process::gettid());
//! writer.push(id, pid, tid, &[b"payload"]).expect("the ring is empty");
//!
//! let mut waiter = Waiter::new(Arc::clone(&segment));
//! assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, None), WaitOutcome::Ready);
//! let reader = Reader::new(segment);
//! let mut bytes = Vec::new();
//! let mut events = 0;
//! for index in 0..reader.rings() {
//!     events += reader.ring(index).expect("in range").drain(&mut bytes).events;
//! }
//! assert_eq!((events, bytes.len()), (1, 32));
//! # Ok::<(), std::io::Error>(())
//! ```
// Under loom only the protocols are compiled, by the models themselves.
#![cfg(not(loom))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod arch;
mod layout;
mod liveness;
mod log;
mod loss;
mod notifier;
mod positions;
mod reader;
mod segment;
mod shm;
mod sync;
mod waiter;
mod wake;
mod writer;

pub use log::{LogCursor, LogFull};
pub use loss::{LOSS_COUNT, LOSS_REASONS, Loss, LossReason};
pub use notifier::{Notifier, NotifierOptions};
pub use reader::{Drained, Reader, RingReader};
pub use segment::{Clock, Segment, SegmentError, SegmentOptions};
pub use waiter::{RingSet, WaitOutcome, Waiter, WakeFd, Watermark};
pub use writer::{PARTS_MAX, Writer};
