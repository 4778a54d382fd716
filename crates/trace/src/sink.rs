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
        let ids = self.ids(context);
        if payload.overflowed() {
            return self.session.writer.count_loss(Loss::TooLarge);
        }
        payload.with_parts(|parts| self.push(ids, parts));
    }

    /// Records one event whose payload is one piece, or counts why not.
    #[inline(always)]
    pub(crate) fn record_bytes(&self, context: &Context, payload: &[u8]) {
        self.push(self.ids(context), &[payload]);
    }

    /// As [`record_bytes`](Self::record_bytes), of any number of pieces but one: by the ring's general way,
    /// so that its short one has one caller and is compiled into it.
    #[inline(always)]
    pub(crate) fn record_pieces(&self, context: &Context, pieces: &[&[u8]]) {
        self.push(self.ids(context), pieces);
    }

    /// The thread's ids, which the session knows when this returns.
    #[inline(always)]
    fn ids(&self, context: &Context) -> (u32, u32) {
        let (pid, tid) = context.ids();
        if !context.announced(self.session.slot, self.session.serial) {
            self.announce_slow(context, pid, tid);
        }
        (pid, tid)
    }

    #[inline(always)]
    fn push(&self, (pid, tid): (u32, u32), parts: &[&[u8]]) {
        if self.filter.is_some() && !self.matches_slow(pid, tid, parts) {
            return;
        }
        // The ring has counted what it refused.
        let _ = self.session.writer.push(self.id, pid, tid, parts);
    }

    /// Counts an event that was too deep inside others.
    pub(crate) fn count_recursion(&self) {
        self.session.writer.count_loss(Loss::Recursion);
    }

    #[inline(never)]
    fn matches_slow(&self, pid: u32, tid: u32, parts: &[&[u8]]) -> bool {
        let sum = |len: usize, part: &&[u8]| len.saturating_add(part.len());
        let len = u32::try_from(parts.iter().fold(RECORD_HEADER_LEN, sum)).unwrap_or(u32::MAX);
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
