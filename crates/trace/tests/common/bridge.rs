//! What the tests of the bridges share.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test uses a part of it"
)]

use crate::common::{Event, Recorder, Wanted, rules as common_rules};
use owlet::session::{self, SessionId};
use owlet_wire::schema::{Kind, Schema};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tests of one file share this process's tracepoints: one at a time.
pub fn one() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session of this process.
pub struct Session {
    pub recorder: Recorder,
    id: SessionId,
    attached: bool,
}

impl Session {
    pub fn new(rules: &[(&'static str, bool)]) -> Self {
        Self::with(&Wanted { rules: rules.to_vec(), ring_bytes: 8 << 20, ..Wanted::default() })
    }

    pub fn with(wanted: &Wanted) -> Self {
        let recorder = Recorder::new(wanted);
        let (id, _) = session::attach(recorder.fd()).expect("attach");
        Self { recorder, id, attached: true }
    }

    pub fn control(&self, rules: &[(&str, bool)]) {
        session::control(Some(self.id), &common_rules(rules)).expect("control");
    }

    pub fn end(&mut self) {
        if std::mem::take(&mut self.attached) {
            assert!(session::detach(self.id));
        }
        self.recorder.drain();
        assert_eq!(self.recorder.corrupt, 0);
    }

    pub fn schema(&self, event: &Event) -> &Schema {
        &self.recorder.schemas[&event.header.id]
    }

    /// Everything recorded, by time, as `KIND name field=value ..`.
    pub fn lines(&mut self) -> Vec<String> {
        self.end();
        self.recorder.events.sort_by_key(|event| event.header.time);
        let line = |event: &Event| {
            let schema = self.schema(event);
            let mut line = format!("{:?} {}", schema.kind, event.name);
            for (name, value) in &event.values {
                if name != "duration_ns" {
                    line += &format!(" {name}={value}");
                }
            }
            line
        };
        self.recorder.events.iter().map(line).collect()
    }

    pub fn of_kind(&self, kind: Kind) -> Vec<&Event> {
        let events = self.recorder.events.iter();
        events.filter(|event| self.schema(event).kind == kind).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.attached {
            session::detach(self.id);
        }
    }
}
