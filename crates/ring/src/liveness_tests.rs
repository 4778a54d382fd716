use super::*;
use crate::{Clock, Reader, Segment, SegmentOptions};
use owlet_sys::process;
use std::sync::Arc;

fn tag(namespace: u64, tid: u32) -> u64 {
    namespace << 32 | u64::from(tid)
}

fn ours() -> u64 {
    process::pid_namespace_inode().expect("a /proc") & 0xffff_ffff
}

#[test]
fn live_threads_are_alive() {
    assert_eq!(is_dead(tag(ours(), process::gettid())), Some(false));
    let other = std::thread::spawn(|| is_dead(tag(ours(), process::gettid())));
    assert_eq!(other.join().expect("no panic"), Some(false));
    assert_eq!(is_dead(tag(ours(), process::getpid())), Some(false));
}

#[test]
fn ended_threads_and_zombies_are_dead() {
    let tid = std::thread::spawn(process::gettid).join().expect("no panic");
    // The thread may need a moment to leave the kernel after it was joined.
    let end = Instant::now() + Duration::from_secs(120);
    while is_dead(tag(ours(), tid)) != Some(true) {
        assert!(Instant::now() < end, "thread {tid} does not end");
        std::thread::yield_now();
    }
    let mut child = std::process::Command::new("/bin/true").spawn().expect("a child");
    while is_dead(tag(ours(), child.id())) != Some(true) {
        assert!(Instant::now() < end, "the child does not end");
        std::thread::yield_now();
    }
    child.wait().expect("a status");
}

#[test]
fn an_unknown_namespace_proves_nothing() {
    assert_eq!(is_dead(tag(0, process::gettid())), None);
}

#[test]
fn fields_of_proc() {
    assert!(is_gone(b"12 (a) b) Z 1 2"));
    assert!(!is_gone(b"12 (Z) R 1 2"));
    assert!(!is_gone(b""));
    assert_eq!(innermost_id("Name:\tx\nNSpid:\t812\t7\nFoo:"), Some(7));
    assert_eq!(innermost_id("NSpid:\t812"), Some(812));
    assert_eq!(innermost_id("Name:\tx"), None);
}

/// A dead owner's ring works again after a while; a live one's is left alone.
#[test]
fn l8_only_a_dead_owner_is_thrown_out() {
    let clock = Clock::Monotonic;
    let options = SegmentOptions { ring_bytes: 4096, clock, ..Default::default() };
    let segment = Arc::new(Segment::create(&options).expect("a segment"));
    let mut ring = Reader::new(Arc::clone(&segment)).ring(1).expect("the portable ring");
    let owner = segment.control(1).expect("in range").owner;
    let gone = std::thread::spawn(process::gettid).join().expect("no panic");
    for (tid, dead) in [(process::gettid(), false), (gone, true)] {
        let tag = tag(ours(), tid);
        owner.store(tag, Ordering::Relaxed);
        ring.drain(&mut Vec::new());
        assert_eq!(owner.load(Ordering::Relaxed), tag, "patience first");
        std::thread::sleep(2 * PATIENCE);
        ring.drain(&mut Vec::new());
        assert_eq!(owner.load(Ordering::Relaxed), if dead { 0 } else { tag });
    }
}
