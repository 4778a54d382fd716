use super::*;
use owlet_ring::{Clock, LogCursor, SegmentOptions};
use owlet_wire::entry::{self, Entry};
use std::sync::Barrier;

/// A forked child's threads may emit as soon as this returns: the record is in the log by then,
/// whichever of them writes it.
#[test]
fn a_process_record_is_there_before_anybody_may_emit() {
    let options = SegmentOptions {
        ring_bytes: 4096,
        cpus: 1,
        clock: Clock::Monotonic,
        log_bytes: 64 << 20,
        ..SegmentOptions::default()
    };
    let segment = Arc::new(Segment::create(&options).unwrap());
    let config = SessionConfig {
        session: 1,
        rules: Vec::new(),
        level: owlet_wire::schema::Level::Trace,
        filter: String::new(),
        rendezvous: String::new(),
        recorder_pid: 1,
    };
    let session = Session {
        slot: 0,
        serial: 1,
        writer: Writer::new(Arc::clone(&segment)).unwrap(),
        config,
        filter: None,
        announced: AtomicU32::new(0),
        exe: vec![b'x'; PATH_MAX],
        args: vec![b'y'; ARGS_MAX],
        pid_namespace: 1,
        file: file_of(segment.fd()),
    };
    let barrier = Barrier::new(2);
    let missing = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut cursor = LogCursor::default();
                let mut last = 0;
                for pid in 1..10_000 {
                    barrier.wait();
                    session.announce_process(pid);
                    while let Some(bytes) = segment.log_read(&mut cursor) {
                        let Some(Entry::Process(process)) = entry::decode(&bytes) else {
                            panic!("no record of a process")
                        };
                        last = last.max(process.pid);
                    }
                    // Not a panic: the other thread would wait at the barrier for ever.
                    missing.fetch_add(u32::from(last != pid), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(missing.into_inner(), 0, "records that came too late");
}
