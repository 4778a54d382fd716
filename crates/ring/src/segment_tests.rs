use super::*;
use owlet_sys::fake::fail_nth;
use std::collections::HashSet;
use std::os::fd::AsRawFd;

fn options() -> SegmentOptions {
    let config = b"what to record".to_vec();
    SegmentOptions { ring_bytes: 5000, cpus: 3, log_bytes: 1, config, ..Default::default() }
}

fn duplicate(segment: &Segment) -> OwnedFd {
    segment.fd().try_clone_to_owned().expect("a descriptor")
}

#[test]
fn opened_as_created() {
    let ours = Segment::create(&options()).expect("a segment");
    let theirs = Segment::open(duplicate(&ours)).expect("a segment");
    for segment in [&ours, &theirs] {
        assert_eq!(segment.config(), b"what to record");
        assert_eq!((segment.cpus(), segment.ring_bytes()), (3, 8192));
        assert_eq!((segment.max_record(), segment.clock()), (8192, Clock::Tsc));
        assert_eq!(segment.deferral(), Duration::from_millis(2));
    }
    assert_eq!(ours.claim_ids(2), Some(1));
    assert_eq!(theirs.claim_ids(1), Some(3));
    assert_eq!(ours.log_append(b"entry"), Ok(()));
    assert_eq!(theirs.log_read(&mut LogCursor::default()), Some(b"entry".to_vec()));
    assert!(!theirs.is_stopped());
    ours.stop();
    assert!(theirs.is_stopped());
}

#[test]
fn each_ring_is_mapped_twice_in_a_row() {
    let segment = Segment::create(&options()).expect("a segment");
    segment.ensure_portable().expect("memory");
    let size = segment.ring_bytes();
    for index in 0..segment.geometry().rings() {
        let data = segment.data(index);
        for at in [0, 1, size - 1] {
            // SAFETY: inside the ring's first mapping, which nobody else uses.
            unsafe { data.wrapping_add(at).write_volatile(index as u8 + 1) };
            // SAFETY: inside the ring's second mapping.
            let copy = unsafe { data.wrapping_add(at + size).read_volatile() };
            assert_eq!(copy, index as u8 + 1);
        }
    }
}

#[test]
fn ids_are_given_once_and_run_out() {
    let segment = Segment::create(&options()).expect("a segment");
    let ids: Vec<u32> = std::thread::scope(|scope| {
        let claim = || (0..500).filter_map(|_| segment.claim_ids(3)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 2000);
    assert!(ids.iter().all(|id| id % 3 == 1));
    assert_eq!(segment.claim_ids(0), None);
    assert_eq!(segment.claim_ids(u32::MAX), None);
    assert_eq!(segment.claim_ids(u32::MAX - 6000), Some(6001));
    assert_eq!(segment.claim_ids(1), None);
}

#[test]
fn options_out_of_range_are_refused() {
    for bad in [
        SegmentOptions { cpus: 0, ..options() },
        SegmentOptions { cpus: layout::MAX_CPUS + 1, ..options() },
        SegmentOptions { ring_bytes: usize::MAX, ..options() },
        SegmentOptions { log_bytes: usize::MAX, ..options() },
    ] {
        let error = Segment::create(&bad).expect_err("out of range");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
}

/// A segment's file with some of its bytes changed.
fn forged(change: impl FnOnce(&mut Vec<u8>)) -> Result<Segment, SegmentError> {
    let segment = Segment::create(&options()).expect("a segment");
    let mut bytes = Vec::new();
    // SAFETY: the front of the mapping up to the data.
    unsafe { shm::append(segment.at(0), segment.geometry().data_off(), &mut bytes) };
    bytes.resize(segment.geometry().total(), 0);
    change(&mut bytes);
    let fd = memory::memfd_create(c"forged").expect("a memfd");
    memory::set_len(&fd, bytes.len()).expect("a size");
    if !bytes.is_empty() {
        let map = Mapping::shared(&fd, 0, bytes.len()).expect("a mapping");
        // SAFETY: the mapping is as long as the bytes.
        unsafe { shm::copy(bytes.as_ptr(), map.as_ptr(), bytes.len()) };
    }
    memory::seal_size(&fd).expect("seals");
    Segment::open(fd)
}

#[test]
fn c2_another_layout_version_is_refused_by_name() {
    assert!(forged(|_| {}).is_ok());
    let error = forged(|bytes| bytes[8] = 9).expect_err("another version");
    assert!(matches!(error, SegmentError::Version { found: 9, expected: layout::VERSION }));
    let text = error.to_string();
    assert!(text.contains("version 9") && text.contains("version 1"), "{text}");
}

#[test]
fn x5_garbage_and_truncated_segments_are_refused() {
    let refused = |change: fn(&mut Vec<u8>)| {
        let error = forged(change).expect_err("no segment");
        assert!(matches!(error, SegmentError::Invalid(_)), "{error}");
    };
    refused(|bytes| bytes.clear());
    refused(|bytes| bytes.truncate(4095));
    refused(|bytes| bytes.truncate(4096));
    refused(|bytes| bytes.truncate(bytes.len() - 4096));
    refused(|bytes| bytes.extend([0; 4096]));
    refused(|bytes| bytes.fill(0));
    refused(|bytes| bytes.fill(0xff));
    refused(|bytes| bytes[24] = 200);
    refused(|bytes| bytes[90] ^= 1);
}

#[test]
fn x5_other_files_are_refused() {
    let null = std::fs::File::open("/dev/null").expect("a /dev/null");
    let unsealed = memory::memfd_create(c"unsealed").expect("a memfd");
    memory::set_len(&unsealed, 1 << 20).expect("a size");
    for fd in [OwnedFd::from(null), unsealed] {
        let error = Segment::open(fd).expect_err("no segment");
        assert!(error.to_string().contains("no memory file of sealed size"), "{error}");
    }
}

/// Every system call of creating and opening fails once: an error each time, then success.
#[test]
fn x5_every_failing_call_is_an_error() {
    let mut failed = 0;
    let segment = loop {
        let plan = fail_nth(owlet_sys::Family::Memory, failed + 1, libc::ENOSPC);
        let result = Segment::create(&options());
        drop(plan);
        match result {
            Ok(segment) => break segment,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        failed += 1;
    };
    assert!(failed >= 6, "only {failed} calls were made");
    let mut failed = 0;
    loop {
        let fd = duplicate(&segment);
        let plan = fail_nth(owlet_sys::Family::Memory, failed + 1, libc::ENOMEM);
        let result = Segment::open(fd);
        drop(plan);
        if result.is_ok() {
            break;
        }
        failed += 1;
    }
    assert!(failed >= 5, "only {failed} calls were made");
}

#[test]
fn n2_no_memory_says_how_much_was_wanted() {
    let _plan = fail_nth(owlet_sys::Family::Memory, 3, libc::ENOSPC);
    let error = Segment::create(&options()).expect_err("no memory");
    assert!(error.to_string().starts_with("cannot allocate 40 KiB for the rings"), "{error}");
}

#[test]
fn f3_the_descriptor_is_closed_on_exec() {
    let segment = Segment::create(&options()).expect("a segment");
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::fcntl(segment.fd().as_raw_fd(), libc::F_GETFD) };
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
}
