//! A session's probe on one tracepoint: filter, thread record, ring.
//!
//! Runs inside the traced thread, perhaps in a signal handler: no lock, no allocation, no panic.

use crate::context::Context;
use crate::encoder::Encoder;
use crate::session::Session;
use owlet_ring::Loss;
use owlet_sys::process;
use owlet_wire::entry::{EntryRef, ThreadRef, encode};
use owlet_wire::filter::Bound;
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use std::sync::Arc;

/// One tracepoint in one session.
pub(crate) struct SinkPoint {
    pub(crate) session: Arc<Session>,
    /// The event's id in the session.
    pub(crate) id: u32,
    /// `None` when every event matches.
    pub(crate) filter: Option<Bound>,
}

impl SinkPoint {
    /// Records one event, or counts why not.
    #[inline]
    pub(crate) fn record(&self, context: &Context, payload: &Encoder<'_>) {
        let session = &*self.session;
        let (pid, tid) = context.ids();
        if !context.announced(session.slot, session.serial) {
            self.announce_slow(context, pid, tid);
        }
        if payload.overflowed() {
            return session.writer.count_loss(Loss::TooLarge);
        }
        payload.with_parts(|parts| {
            if self.filter.is_some() && !self.matches_slow(pid, tid, payload, parts) {
                return;
            }
            // The ring has counted what it refused.
            let _ = session.writer.push(self.id, pid, tid, parts);
        });
    }

    /// Counts an event that was too deep inside others.
    pub(crate) fn count_recursion(&self) {
        self.session.writer.count_loss(Loss::Recursion);
    }

    #[inline(never)]
    fn matches_slow(&self, pid: u32, tid: u32, payload: &Encoder<'_>, parts: &[&[u8]]) -> bool {
        let len = u32::try_from(payload.len() + RECORD_HEADER_LEN).unwrap_or(u32::MAX);
        let header = RecordHeader { time: 0, id: self.id, len, pid, tid };
        self.filter.as_ref().is_none_or(|filter| filter.matches_parts(&header, parts, None))
    }

    /// The thread's first event in this session: its record goes into the log first, and the
    /// process's before it if it is new as well (a forked child).
    ///
    /// A signal handler that comes in between may write the record a second time, which is harmless.
    #[cold]
    fn announce_slow(&self, context: &Context, pid: u32, tid: u32) {
        let session = &*self.session;
        session.announce_process(pid);
        let name = process::thread_name();
        let comm = name.as_ref().map_or(&b""[..], |name| name.as_bytes());
        let mut buf = [0; 64];
        let entry = EntryRef::Thread(ThreadRef { pid, tid, comm });
        if let Some(bytes) = encode(&entry, &mut buf) {
            // A full log costs the thread its name, not its events.
            let _ = session.writer.segment().log_append(bytes);
        }
        context.set_announced(session.slot, session.serial);
    }
}
