//! Tracepoints that come into being while the program runs: the interface for bridges.
//!
//! A bridge (`tracing`, `log`) makes one [`DynTracepoint`] for each of its call sites, leaks it and
//! [`add`]s it once. From then on sessions switch it like any other. The bridge asks
//! [`DynTracepoint::is_on`] (one relaxed load), fills an [`Encoder`] and [`DynTracepoint::emit`]s it.
//!
//! # Rules for bridges
//! 1. Format values *before* `emit`, into memory of your own: a `Debug` implementation is the user's
//!    code, which may emit, allocate, lock, block and panic. `emit` itself runs nothing of the
//!    user's and is async-signal-safe.
//! 2. The payload must be exactly what the description says, the kind's leading fields first.
//! 3. The [listener](set_listener) is called without any lock of ours held, by whichever thread
//!    changed something (usually the agent), after the change is complete. It may call everything
//!    here. It is not called for what [`add`] itself switches on: look at `is_on` after `add`.

use crate::control;
use crate::encoder::Encoder;
use crate::tracepoint::{Core, count_recursion, run_bytes, run_encoded};
use owlet_wire::schema::SchemaRef;

/// A tracepoint described at run time.
#[derive(Debug)]
pub struct DynTracepoint {
    core: Core,
}

impl DynTracepoint {
    /// A tracepoint of that description; off.
    #[must_use]
    pub const fn new(description: SchemaRef<'static>) -> Self {
        Self { core: Core::new(description, None, true) }
    }

    /// Name, level, fields and place.
    #[must_use]
    pub fn description(&self) -> &SchemaRef<'static> {
        self.core.description()
    }

    /// Whether somebody listens. One relaxed load.
    #[inline(always)]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.core.is_on()
    }

    /// Records one event in every session that wants it. Async-signal-safe.
    #[inline]
    pub fn emit(&'static self, payload: &Encoder<'_>) {
        run_encoded(&self.core, payload);
    }

    /// As [`emit`](Self::emit), of a payload that is there in one piece, which is copied once, by the
    /// ring. Async-signal-safe.
    #[inline]
    pub fn emit_bytes(&'static self, payload: &[u8]) {
        run_bytes(&self.core, payload);
    }

    /// Counts one event as lost to recursion in every session that wants it: the bridge was too deep
    /// inside other events to build it. Async-signal-safe.
    #[cold]
    pub fn count_recursion(&'static self) {
        count_recursion(&self.core);
    }
}

/// Makes a tracepoint known; sessions that want it have it when this returns. Adding one twice does
/// nothing. `false`, with nothing done, inside a registration hook: add it again later.
///
/// Takes the control lock (never held while foreign code runs, hooks excepted); may allocate.
pub fn add(point: &'static DynTracepoint) -> bool {
    control::add(&point.core)
}

/// What became different, for the [listener](set_listener).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Dynamic tracepoints that were switched on or off.
    pub dynamic: usize,
}

/// Sets the function that is told when a session came, changed its rules or went, and how many dynamic
/// tracepoints that switched. One per process; the last one set counts.
pub fn set_listener(listener: fn(Change)) {
    control::set_listener(listener);
}
