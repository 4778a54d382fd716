use super::*;
use crate::{Reader, SegmentOptions};
use proptest::prelude::*;

fn segment(cpus: usize, ring_bytes: usize, clock: Clock) -> Arc<Segment> {
    let options = SegmentOptions { cpus, ring_bytes, clock, ..Default::default() };
    Arc::new(Segment::create(&options).expect("a segment"))
}

fn both() -> [Writer; 2] {
    [Clock::Tsc, Clock::Monotonic].map(|clock| {
        let cpus = owlet_percpu::cpus();
        Writer::new(segment(cpus, 1 << 16, clock)).expect("a writer")
    })
}

fn push(writer: &Writer, id: u32, parts: &[&[u8]]) -> Result<(), Loss> {
    writer.push(id, process::getpid(), process::gettid(), parts)
}

/// All records of all rings, in no order across rings.
fn drain(segment: &Arc<Segment>) -> Vec<(u32, Vec<u8>)> {
    let reader = Reader::new(Arc::clone(segment));
    let mut records = Vec::new();
    for index in 0..reader.rings() {
        let mut bytes = Vec::new();
        let drained = reader.ring(index).expect("in range").drain(&mut bytes);
        assert_eq!((drained.corrupt, drained.bytes), (0, bytes.len()));
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("4"));
            let (id, len) = (word(8), word(12) as usize);
            assert_eq!((word(16), word(20)), (process::getpid(), process::gettid()));
            let padded = len.next_multiple_of(8);
            assert!(rest[len..padded].iter().all(|&byte| byte == 0), "padding is zero");
            records.push((id, rest[RECORD_HEADER..len].to_vec()));
            rest = &rest[padded..];
        }
    }
    records
}

fn lost(segment: &Segment) -> [u64; crate::LOSS_COUNT] {
    let mut sum = [0; crate::LOSS_COUNT];
    for index in 0..segment.geometry().rings() {
        let counters = segment.lost_at(layout::CONTROLS + index * layout::CONTROL_LEN);
        for (sum, counter) in sum.iter_mut().zip(counters) {
            *sum += counter.load(Ordering::Relaxed);
        }
    }
    sum
}

#[test]
fn the_backend_is_the_fast_one_where_it_can_be() {
    let [tsc, monotonic] = both();
    let sequences = owlet_percpu::backend() == Backend::Rseq;
    assert_eq!(tsc.backend(), if sequences { "rseq" } else { "portable" });
    assert_eq!(monotonic.backend(), "portable");
}

/// Every length, on a ring whose memory is full of old bytes, comes out byte for byte.
#[test]
fn every_length_of_one_part() {
    let data: Vec<u8> = (0..1200_u32).map(|n| (n * 7 + 1) as u8).collect();
    for writer in both() {
        for round in 0..3 {
            for len in (0..600).chain([900, 1199, 1200]) {
                let part = &data[round..][..len - round.min(len)];
                assert_eq!(push(&writer, len as u32 + 1, &[part]), Ok(()));
                assert_eq!(drain(writer.segment()), [(len as u32 + 1, part.to_vec())]);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_parts(
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..700), 0..PARTS_MAX),
        skip in 0_usize..64,
    ) {
        for writer in both() {
            // Another position and old bytes under it.
            for _ in 0..skip {
                prop_assert_eq!(push(&writer, 1, &[&[0xee; 1000]]), Ok(()));
                drain(writer.segment());
            }
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(push(&writer, 9, &parts), Ok(()));
            prop_assert_eq!(drain(writer.segment()), [(9, parts.concat())]);
        }
    }
}

/// P1: payloads around and far beyond the longest record: counted, and nothing else is lost.
#[test]
fn p1_too_large_is_counted_and_harms_nothing() {
    for clock in [Clock::Tsc, Clock::Monotonic] {
        for ring_bytes in [4096, 1 << 17] {
            let segment = segment(owlet_percpu::cpus(), ring_bytes, clock);
            let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
            let max = segment.max_record();
            let data = vec![3; max * 10];
            let mut too_large = 0;
            for len in [max - 25, max - 24, max - 23, max - 1, max, max + 1, max * 10] {
                assert_eq!(push(&writer, 1, &[b"before"]), Ok(()));
                drain(&segment);
                let fits = len + RECORD_HEADER <= max;
                too_large += u64::from(!fits);
                let want = if fits { Ok(()) } else { Err(Loss::TooLarge) };
                assert_eq!(push(&writer, 2, &[&data[..len]]), want, "{len} of {max}");
                let got = drain(&segment);
                assert_eq!(got, if fits { vec![(2, data[..len].to_vec())] } else { vec![] });
                assert_eq!(push(&writer, 3, &[b"after"]), Ok(()));
                assert_eq!(drain(&segment), [(3, b"after".to_vec())]);
            }
            assert_eq!(lost(&segment)[Loss::TooLarge.index()], too_large);
            assert_eq!(lost(&segment).iter().sum::<u64>(), too_large);
        }
    }
}

#[test]
fn too_many_parts_are_too_large() {
    for writer in both() {
        assert_eq!(push(&writer, 1, &[&b"x"[..]; PARTS_MAX]), Ok(()));
        assert_eq!(push(&writer, 1, &[&b"x"[..]; PARTS_MAX + 1]), Err(Loss::TooLarge));
        assert_eq!(drain(writer.segment()), [(1, vec![b'x'; PARTS_MAX])]);
    }
}

/// A full ring drops the new event, counts it, and keeps every old one.
#[test]
fn full_is_counted_exactly() {
    owlet_sys::process::set_affinity(&[0]).expect("CPU 0 exists");
    for clock in [Clock::Tsc, Clock::Monotonic] {
        let segment = segment(owlet_percpu::cpus(), 4096, clock);
        let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
        for round in 0..5_u64 {
            let results: Vec<_> = (0..200).map(|n| push(&writer, n + 1, &[&[1; 8]])).collect();
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 4096 / 32);
            assert!(results[..128].iter().all(Result::is_ok));
            let ids: Vec<_> = drain(&segment).into_iter().map(|(id, _)| id).collect();
            assert_eq!(ids, (1..=128).collect::<Vec<_>>());
            assert_eq!(lost(&segment)[Loss::Full.index()], 72 * (round + 1));
        }
    }
}

#[test]
fn a_cpu_without_a_ring_uses_the_portable_ones() {
    if owlet_percpu::cpus() < 2 || owlet_sys::process::set_affinity(&[1]).is_err() {
        return;
    }
    let segment = segment(1, 4096, Clock::Tsc);
    let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
    assert_eq!(push(&writer, 1, &[b"one part"]), Ok(()));
    assert_eq!(push(&writer, 2, &[b"two", b"parts"]), Ok(()));
    let reader = Reader::new(Arc::clone(&segment));
    assert_eq!(reader.ring(0).expect("in range").fill(), 0);
    let portable = segment.control(2).expect("in range");
    assert_ne!(portable.last_time.load(Ordering::Relaxed), 0, "its owner wrote it, no section");
    assert_eq!(drain(&segment), [(1, b"one part".to_vec()), (2, b"twoparts".to_vec())]);
}

#[test]
fn busy_rings_are_stepped_over_and_counted() {
    let cpus = 1;
    let segment = segment(cpus, 4096, Clock::Monotonic);
    let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
    let owner = |index: usize| segment.control(cpus + index).expect("in range").owner;
    for (index, left) in [(0, 3), (2, 2), (3, 1), (1, 0)] {
        owner(index).store(77, Ordering::Relaxed);
        let want = if left > 0 { Ok(()) } else { Err(Loss::Busy) };
        assert_eq!(push(&writer, 1, &[b"x"]), want);
    }
    // A handler that interrupted this very thread's push in the last free ring.
    let tag = u64::from(writer.namespace(process::getpid())) << 32 | u64::from(process::gettid());
    owner(1).store(tag, Ordering::Relaxed);
    assert_eq!(push(&writer, 1, &[b"x"]), Err(Loss::Recursion));
    owner(1).store(0, Ordering::Relaxed);
    assert_eq!(push(&writer, 2, &[b"y"]), Ok(()));
    assert_eq!(drain(&segment).len(), 4);
    let lost = lost(&segment);
    assert_eq!((lost[Loss::Busy.index()], lost[Loss::Recursion.index()]), (1, 1));
}

#[test]
fn losses_before_the_ring_are_counted() {
    for writer in both() {
        writer.count_loss(Loss::NoSchema);
        writer.count_loss(Loss::BadValue);
        writer.count_loss(Loss::BadValue);
        let lost = lost(writer.segment());
        assert_eq!((lost[Loss::NoSchema.index()], lost[Loss::BadValue.index()]), (1, 2));
    }
}

/// Whatever a stranger put into the control block, the writer stays inside the ring.
#[test]
fn hostile_positions_keep_the_writer_inside() {
    for clock in [Clock::Tsc, Clock::Monotonic] {
        let segment = segment(owlet_percpu::cpus(), 4096, clock);
        let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
        let odd = [0, 1, 7, 4095, 4097, u64::MAX, u64::MAX - 7, 1 << 63, 0x1234_5678_9abc_def1];
        for head in odd {
            for tail in odd {
                for index in 0..segment.geometry().rings() {
                    let control = segment.control(index).expect("in range");
                    control.head.store(head, Ordering::Relaxed);
                    control.tail.store(tail, Ordering::Relaxed);
                    control.wake_at.store(head, Ordering::Relaxed);
                    control.last_time.store(tail, Ordering::Relaxed);
                }
                for parts in [&[&[1_u8; 400][..]][..], &[&[2; 300], &[3; 3000]]] {
                    let _ = push(&writer, 1, parts);
                }
            }
        }
        assert_eq!(segment.config(), b"");
        assert_eq!(lost(&segment)[Loss::TooLarge.index()], 0);
    }
}
