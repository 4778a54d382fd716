//! A session of this process, as the examples that measure the bridge have it: no recorder, no socket.

use owlet::session::{self, SessionId};
use owlet_ring::{Clock, Reader, RingReader, Segment, SegmentOptions};
use owlet_wire::config::{Rule, SessionConfig};
use owlet_wire::schema::Level;
use std::sync::Arc;

pub(crate) struct Session {
    id: SessionId,
    rings: Vec<RingReader>,
}

impl Session {
    /// Everything switched on, into rings of so many bytes.
    pub(crate) fn attach(number: u64, ring_bytes: usize) -> Self {
        let config = SessionConfig {
            session: number,
            rules: vec![Rule { pattern: "*".to_owned(), enable: true }],
            level: Level::Trace,
            filter: String::new(),
            rendezvous: String::new(),
            recorder_pid: std::process::id(),
        };
        let tsc = owlet_sys::clock::tsc_usable().usable;
        let options = SegmentOptions {
            ring_bytes,
            cpus: owlet_percpu::cpus(),
            clock: if tsc { Clock::Tsc } else { Clock::Monotonic },
            log_bytes: 1 << 20,
            config: config.encode(),
            deferral_us: 2000,
        };
        let segment = Arc::new(Segment::create(&options).expect("a segment"));
        let reader = Reader::new(Arc::clone(&segment));
        let fd = segment.fd().try_clone_to_owned().expect("a descriptor");
        let (id, _) = session::attach(fd).expect("a session");
        Self { id, rings: (0..reader.rings()).filter_map(|i| reader.ring(i)).collect() }
    }

    /// Empties the rings; how many events were in them.
    pub(crate) fn drain(&mut self) -> u64 {
        self.rings.iter_mut().map(|ring| ring.drain(&mut Vec::new()).events).sum()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        session::detach(self.id);
    }
}
