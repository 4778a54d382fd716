use super::*;
use crate::{Clock, RingSet, SegmentOptions, Waiter, Watermark, Writer};
use owlet_sys::process;
use proptest::prelude::*;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const SIZE: usize = 4096;

fn segment() -> Arc<Segment> {
    let cpus = owlet_percpu::cpus();
    let options = SegmentOptions { ring_bytes: SIZE, cpus, ..Default::default() };
    Arc::new(Segment::create(&options).expect("a segment"))
}

fn reader(segment: &Arc<Segment>) -> RingReader {
    Reader::new(Arc::clone(segment)).ring(0).expect("in range")
}

/// Puts bytes into ring 0 as if a writer had committed them at `tail`.
fn commit(segment: &Segment, tail: u64, bytes: &[u8]) {
    let to = segment.data(0).wrapping_add(tail as usize & (SIZE - 1));
    // SAFETY: at most SIZE bytes from a masked position lie in the two mappings.
    unsafe { shm::copy(bytes.as_ptr(), to, bytes.len()) };
    let control = segment.control(0).expect("in range");
    control.tail.store(tail, Ordering::Relaxed);
    control.commit(tail.wrapping_add(bytes.len() as u64));
}

fn record(time: u64, len: u32, padded: usize) -> Vec<u8> {
    let mut bytes = vec![0; padded];
    bytes[..8].copy_from_slice(&time.to_le_bytes());
    bytes[12..16].copy_from_slice(&len.to_le_bytes());
    bytes
}

#[test]
fn names_and_numbers() {
    let segment = segment();
    let reader = Reader::new(Arc::clone(&segment));
    let cpus = segment.cpus();
    assert_eq!(reader.rings(), cpus + cpus.max(4));
    let ring = |index| reader.ring(index).expect("in range");
    assert_eq!((ring(0).name(), ring(0).cpu(), ring(0).index()), ("cpu_0", Some(0), 0));
    assert_eq!((ring(cpus).name(), ring(cpus).cpu()), ("portable_0", None));
    assert!(reader.ring(reader.rings()).is_none());
}

#[test]
fn whole_records_with_their_times() {
    let segment = segment();
    let mut ring = reader(&segment);
    let records = [record(5, 24, 24), record(7, 29, 32), record(9, 25, 32)].concat();
    // Across the end of the ring.
    commit(&segment, SIZE as u64 - 40, &records);
    assert_eq!(ring.fill(), 88);
    let mut out = b"kept".to_vec();
    let drained = ring.drain(&mut out);
    let want = Drained {
        bytes: 88,
        events: 3,
        first_time: 5,
        last_time: 9,
        content_bytes: 81,
        ..Default::default()
    };
    assert_eq!((drained, &out[..4], &out[4..]), (want, &b"kept"[..], &records[..]));
    assert_eq!(ring.fill(), 0);
    assert_eq!(ring.drain(&mut out), Drained::default());
}

/// What is no record is dropped to the head and counted; the next records are read again.
#[test]
fn corrupt_lengths_are_dropped_and_counted() {
    for len in [0, 1, 23, 33, 4097, u32::MAX] {
        let segment = segment();
        let mut ring = reader(&segment);
        let bytes = [record(1, 24, 24), record(2, len, 32)].concat();
        commit(&segment, 0, &bytes);
        let mut out = Vec::new();
        let drained = ring.drain(&mut out);
        assert_eq!((drained.events, drained.bytes, drained.corrupt), (1, 24, 32), "{len}");
        commit(&segment, 56, &record(3, 24, 24));
        let drained = ring.drain(&mut out);
        assert_eq!((drained.events, drained.corrupt, out.len()), (1, 32, 48));
    }
}

#[test]
fn positions_that_cannot_be_are_skipped_and_counted() {
    let segment = segment();
    let mut ring = reader(&segment);
    let control = segment.control(0).expect("in range");
    for (head, tail) in [(0, 8), (5000, 0), (u64::MAX, 3), (0, u64::MAX - 5000)] {
        control.head.store(head, Ordering::Relaxed);
        control.tail.store(tail, Ordering::Relaxed);
        let before = ring.corrupt;
        let drained = ring.drain(&mut Vec::new());
        assert_eq!((drained.events, drained.corrupt), (0, before + SIZE as u64));
        commit(&segment, head, &record(3, 24, 24));
        assert_eq!(ring.drain(&mut Vec::new()).events, 1);
    }
}

/// K3 at the reader: times never go back in what it hands on, and never lie in the future.
#[test]
fn k3_times_are_made_to_fit() {
    let segment = segment();
    let mut ring = reader(&segment);
    let future = segment.now() + (1 << 40);
    let records = [record(50, 24, 24), record(future, 24, 24), record(40, 24, 24)].concat();
    commit(&segment, 0, &records);
    let mut out = Vec::new();
    let drained = ring.drain(&mut out);
    assert_eq!((drained.events, drained.corrupt), (2, 24));
    assert_eq!((drained.first_time, drained.last_time), (50, 50));
    assert_eq!(out, [record(50, 24, 24), record(50, 24, 24)].concat());
}

/// Two readers start at once on a full ring, so that one finds its copy taken by the other.
#[test]
fn two_readers_get_each_record_once() {
    let cpus = owlet_percpu::cpus();
    let options = SegmentOptions { cpus, ..Default::default() };
    let segment = Arc::new(Segment::create(&options).expect("a segment"));
    let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
    let (pid, tid) = (process::getpid(), process::gettid());
    for _ in 0..40 {
        let mut pushed = 0;
        while writer.push(1, pid, tid, &[&[1; 20]]).is_ok() {
            pushed += 1;
        }
        let start = Barrier::new(2);
        let read = |cpu: usize| {
            let _ = process::set_affinity(&[cpu]);
            let reader = Reader::new(Arc::clone(&segment));
            let mut rings: Vec<_> = (0..reader.rings()).filter_map(|i| reader.ring(i)).collect();
            start.wait();
            rings.iter_mut().map(|ring| ring.drain(&mut Vec::new()).events).sum::<u64>()
        };
        let drained: u64 = thread::scope(|scope| {
            let read = &read;
            let readers = [0, 1].map(|cpu| scope.spawn(move || read(cpu)));
            readers.into_iter().map(|reader| reader.join().expect("no panic")).sum()
        });
        assert_eq!(pushed, drained);
    }
}

proptest! {
    /// Whatever the ring holds: no crash, no hang, whole records only, nothing from outside.
    #[test]
    fn hostile_content_is_survived(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        lengths in prop::collection::vec((0_usize..75, 0_u32..80), 0..12),
        head in prop_oneof![any::<u64>(), 0_u64..9000],
        tail in prop_oneof![any::<u64>(), 0_u64..9000],
        positions in any::<bool>(),
    ) {
        let segment = segment();
        let mut ring = reader(&segment);
        let mut bytes = bytes;
        for (word, len) in lengths {
            if let Some(field) = bytes.get_mut(word * 8 + 4..word * 8 + 8) {
                field.copy_from_slice(&len.to_le_bytes());
            }
        }
        commit(&segment, tail, &bytes);
        if positions {
            segment.control(0).expect("in range").head.store(head, Ordering::Relaxed);
        }
        let mut out = Vec::new();
        let drained = ring.drain(&mut out);
        prop_assert_eq!(drained.bytes, out.len());
        prop_assert!(out.len() <= SIZE && drained.content_bytes <= out.len());
        let (mut rest, mut events, mut time) = (&out[..], 0, 0);
        while !rest.is_empty() {
            let (len, now) = read_header(rest, segment.max_record()).expect("a whole record");
            prop_assert!(now >= time);
            time = now;
            rest = &rest[len.next_multiple_of(8)..];
            events += 1;
        }
        prop_assert_eq!(events, drained.events);
        // Afterwards the ring works again.
        let head = segment.control(0).expect("in range").head.load(Ordering::Relaxed);
        commit(&segment, head, &record(u64::MAX / 4, 24, 24)[..24]);
        let drained = ring.drain(&mut out);
        prop_assert!(drained.events + drained.corrupt / 24 >= 1);
    }
}

/// A stranger scribbles over control blocks, log and data while others read, wait and write.
#[test]
fn x5_a_scribbling_process_hangs_and_crashes_nobody() {
    for clock in [Clock::Tsc, Clock::Monotonic] {
        let cpus = owlet_percpu::cpus();
        let options = SegmentOptions { ring_bytes: SIZE, cpus, clock, ..Default::default() };
        let segment = Arc::new(Segment::create(&options).expect("a segment"));
        let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
        segment.ensure_portable().expect("memory");
        let end = Instant::now() + Duration::from_millis(300);
        let (pid, tid) = (process::getpid(), process::gettid());
        thread::scope(|scope| {
            scope.spawn(|| scribble(&segment, end));
            scope.spawn(|| {
                while Instant::now() < end {
                    let _ = writer.push(1, pid, tid, &[&[1; 60]]);
                    let _ = writer.push(1, pid, tid, &[&[2; 30], &[3; 600]]);
                    let _ = segment.log_append(b"an entry");
                }
            });
            let mut waiter = Waiter::new(Arc::clone(&segment));
            let reader = Reader::new(Arc::clone(&segment));
            let mut rings: Vec<_> = (0..reader.rings()).filter_map(|i| reader.ring(i)).collect();
            let mut cursor = crate::LogCursor::default();
            let mut out = Vec::new();
            while Instant::now() < end {
                let soon = Instant::now() + Duration::from_millis(1);
                let _ = waiter.wait(RingSet::All, Watermark::percent(50), Some(soon));
                for ring in &mut rings {
                    out.clear();
                    assert!(ring.drain(&mut out).bytes <= SIZE);
                }
                while segment.log_read(&mut cursor).is_some() && Instant::now() < end {}
            }
        });
    }
}

fn scribble(segment: &Segment, end: Instant) {
    let mut number = 1_u64;
    while Instant::now() < end {
        for _ in 0..100 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12_345);
            let offset = layout::STATE + (number >> 33) as usize % (64 << 10);
            if offset < layout::STATE + 128 {
                continue;
            }
            let at = segment.at(offset & !7).cast::<u64>();
            let value =
                [0, 1, number, number >> 52, 8 * (number >> 56), u64::MAX][number as usize % 6];
            // SAFETY: inside the mapping; other threads reach it as atomics or by `shm::copy`.
            unsafe { at.write_volatile(value) };
        }
    }
}
