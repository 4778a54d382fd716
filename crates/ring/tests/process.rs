//! The rings in the circumstances of a real process: signals, forks, sandboxes, CPU changes,
//! stopped readers.

use owlet_ring::{
    Clock, Loss, Notifier, NotifierOptions, Reader, RingSet, Segment, SegmentOptions, WaitOutcome,
    Waiter, Watermark, Writer,
};
use owlet_sys::process;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CLOCKS: [Clock; 2] = [Clock::Tsc, Clock::Monotonic];

fn segment(ring_bytes: usize, clock: Clock, deferral_us: u32) -> Arc<Segment> {
    let cpus = owlet_percpu::cpus();
    let options = SegmentOptions { cpus, ring_bytes, clock, deferral_us, ..Default::default() };
    Arc::new(Segment::create(&options).expect("a segment"))
}

fn ids() -> (u32, u32) {
    (process::getpid(), process::gettid())
}

/// Header words and payload of every record, by ring.
fn drain(segment: &Arc<Segment>) -> Vec<Vec<([u64; 3], Vec<u8>)>> {
    let reader = Reader::new(Arc::clone(segment));
    let rings = (0..reader.rings()).filter_map(|index| reader.ring(index));
    let read = |mut ring: owlet_ring::RingReader| {
        let mut bytes = Vec::new();
        assert_eq!(ring.drain(&mut bytes).corrupt, 0);
        let (mut rest, mut records) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let word = |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().expect("8"));
            let len = (word(8) >> 32) as usize;
            records.push(([word(0), word(8), word(16)], rest[24..len].to_vec()));
            rest = &rest[len.next_multiple_of(8)..];
        }
        records
    };
    rings.map(read).collect()
}

fn lost(segment: &Arc<Segment>) -> [u64; owlet_ring::LOSS_COUNT] {
    let reader = Reader::new(Arc::clone(segment));
    let mut sum = [0; owlet_ring::LOSS_COUNT];
    for index in 0..reader.rings() {
        let drained = reader.ring(index).expect("in range").drain(&mut Vec::new());
        sum.iter_mut().zip(drained.lost).for_each(|(sum, lost)| *sum += lost);
    }
    sum
}

/// Runs `child` in a forked process and says how it ended: exit status or signal.
fn in_child(child: impl FnOnce() -> i32) -> Result<i32, i32> {
    // SAFETY: the children of these tests make system calls and push; they take no lock.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork works");
    if pid == 0 {
        let status = child();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::syscall(libc::SYS_exit, status) };
    }
    let mut status = 0;
    // SAFETY: a child of ours; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) {
        Ok(libc::WEXITSTATUS(status))
    } else {
        Err(libc::WTERMSIG(status))
    }
}

/// From here on every system call of the calling process but `exit` kills it. (Not strict seccomp:
/// that forbids the time stamp counter too.)
fn forbid_system_calls() -> bool {
    const LOAD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut lines = [
        line(LOAD, 0, 0, 0),
        line(EQUAL, 0, 1, libc::SYS_exit as u32),
        line(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        line(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let (mode, program) = (libc::SECCOMP_MODE_FILTER, &raw const program);
    // SAFETY: a valid program; the kernel copies it.
    unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, program, 0, 0) == 0 }
}

/// How a child ends that pushes where every system call kills.
fn push_without_system_calls(clock: Clock, waiting: bool, notifier: bool) -> Result<i32, i32> {
    let segment = segment(1 << 20, clock, 2000);
    let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
    let notifier =
        notifier.then(|| Notifier::start(&segment, &NotifierOptions::default()).expect("a thread"));
    let sleeper = waiting.then(|| {
        let segment = Arc::clone(&segment);
        let end = Some(Instant::now() + Duration::from_secs(120));
        let wait = move || Waiter::new(segment).wait(RingSet::All, Watermark::ANY, end);
        let sleeper = std::thread::spawn(wait);
        std::thread::sleep(Duration::from_millis(20));
        sleeper
    });
    let (pid, tid) = ids();
    let ended = in_child(|| {
        let mut list: [&[u8]; 2] = [&[1; 8], &[2; 30]];
        if !forbid_system_calls() {
            return 8;
        }
        for _ in 0..20_000 {
            let _ = writer.push(1, pid, tid, &list);
            let _ = writer.push(1, pid, tid, &list[..1]);
            list.reverse();
        }
        writer.count_loss(Loss::NoSchema);
        7
    });
    let _ = writer.push(1, pid, tid, &[b"wakes whom the child could not wake"]);
    if let Some(sleeper) = sleeper {
        assert_eq!(sleeper.join().expect("no panic"), WaitOutcome::Ready);
    }
    drop(notifier);
    ended
}

/// No system call without a waiter, and none with one that a notifier serves.
#[test]
fn wk_02_no_system_call() {
    for clock in CLOCKS {
        assert_eq!(push_without_system_calls(clock, false, false), Ok(7), "{clock:?}");
        assert_eq!(push_without_system_calls(clock, true, true), Ok(7), "{clock:?}");
        // The one system call there may be, without a notifier: this test can fail.
        assert_eq!(push_without_system_calls(clock, true, false), Err(libc::SIGSYS));
    }
}

static IN_HANDLER: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
static HANDLER_WRITER: std::sync::OnceLock<[Writer; 2]> = std::sync::OnceLock::new();
static HANDLER_CLOCK: AtomicUsize = AtomicUsize::new(0);

extern "C" fn emit(_: libc::c_int) {
    let which = HANDLER_CLOCK.load(Ordering::Relaxed);
    if let Some(writers) = HANDLER_WRITER.get() {
        let (pid, tid) = ids();
        let pushed = writers[which].push(2, pid, tid, &[b"in a handler", b"!"]).is_ok();
        IN_HANDLER[usize::from(pushed)].fetch_add(1, Ordering::Relaxed);
    }
}

/// Events of a signal handler that interrupts pushes, commits and wakeups: each is recorded or
/// counted, none spoils another, and the waiter misses none.
#[test]
fn wk_08_events_of_signal_handlers() {
    let writers = CLOCKS.map(|clock| Writer::new(segment(1 << 20, clock, 2000)).expect("a writer"));
    let writers = HANDLER_WRITER.get_or_init(|| writers);
    // SAFETY: a handler that only pushes, which is async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR1, emit as *const () as libc::sighandler_t) };
    for (which, writer) in writers.iter().enumerate() {
        HANDLER_CLOCK.store(which, Ordering::Relaxed);
        IN_HANDLER.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        let segment = writer.segment();
        let (pid, tid) = ids();
        let done = AtomicU64::new(0);
        let (mut pushed, mut failed) = (0, 0);
        let (seen, rescued) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut waiter = Waiter::new(Arc::clone(segment));
                let mut seen = HashMap::new();
                loop {
                    let outcome = waiter.wait(RingSet::All, Watermark::ANY, None);
                    for (header, _) in drain(segment).into_iter().flatten() {
                        *seen.entry(header[1] as u32).or_insert(0) += 1;
                    }
                    if outcome == WaitOutcome::Stopped {
                        return (seen, waiter.rescued());
                    }
                }
            });
            scope.spawn(|| {
                while done.load(Ordering::Acquire) == 0 {
                    // SAFETY: the thread `tid` lives until the scope ends.
                    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR1) };
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(400) {
                for _ in 0..50 {
                    match writer.push(1, pid, tid, &[b"not in a handler"]) {
                        Ok(()) => pushed += 1,
                        Err(_) => failed += 1,
                    }
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            done.store(1, Ordering::Release);
            std::thread::sleep(Duration::from_millis(20));
            segment.stop();
            reader.join().expect("no panic")
        });
        let handled = IN_HANDLER[1].load(Ordering::Relaxed);
        assert!(handled > 50, "only {handled} signals came");
        assert_eq!(seen.get(&1).copied().unwrap_or(0), pushed);
        assert_eq!(seen.get(&2).copied().unwrap_or(0), handled);
        let all_lost = failed + IN_HANDLER[0].load(Ordering::Relaxed) as u64;
        assert_eq!(lost(segment).iter().sum::<u64>(), all_lost);
        assert_eq!(rescued, 0);
    }
}

/// A forked child goes on with its parent's writer; a waiter in a child is woken by the parent's
/// notifier and by the parent's writer.
#[test]
fn wk_10_fork() {
    for clock in CLOCKS {
        let segment = segment(1 << 16, clock, 2000);
        let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
        let ended = in_child(|| {
            let (pid, tid) = ids();
            i32::from(writer.push(3, pid, tid, &[b"of the child"]).is_ok())
        });
        assert_eq!(ended, Ok(1));
        let (pid, tid) = ids();
        assert_eq!(writer.push(4, pid, tid, &[b"of the parent"]), Ok(()));
        let mut found: Vec<_> = drain(&segment).into_iter().flatten().collect();
        found.sort_by_key(|(header, _)| header[1] as u32);
        assert_eq!(found.len(), 2);
        assert_ne!(found[0].0[2], found[1].0[2], "each has its own ids");
        for with_notifier in [false, true] {
            let notifier = with_notifier
                .then(|| Notifier::start(&segment, &NotifierOptions::default()).expect("a thread"));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(50));
                    let (pid, tid) = ids();
                    assert_eq!(writer.push(5, pid, tid, &[b"wakes the child"]), Ok(()));
                });
                let ended = in_child(|| {
                    let mut waiter = Waiter::new(Arc::clone(&segment));
                    let end = Some(Instant::now() + Duration::from_secs(120));
                    let outcome = waiter.wait(RingSet::All, Watermark::ANY, end);
                    i32::from(outcome == WaitOutcome::Ready && waiter.rescued() == 0)
                });
                assert_eq!(ended, Ok(1), "notifier: {with_notifier}");
            });
            drain(&segment);
            drop(notifier);
        }
    }
}

/// WK-06: the caller learns of a writer's end by its pidfd and kicks.
#[test]
fn wk_06_the_end_of_a_writer_is_passed_on_by_a_kick() {
    let segment = segment(1 << 16, Clock::Tsc, 2000);
    let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().expect("a child");
    let pidfd = process::pidfd_open(child.id()).expect("a pidfd");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !process::pidfd_wait(&pidfd, Duration::from_secs(1)).expect("a pidfd") {}
            segment.kick();
        });
        child.kill().expect("it runs");
        let mut waiter = Waiter::new(Arc::clone(&segment));
        assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, None), WaitOutcome::Kicked);
    });
    child.wait().expect("a status");
}

/// L1: two threads at a moderate rate and a blocking reader: all numbers arrive, none twice, no loss.
#[test]
fn l1_moderate_rate_is_exact() {
    const EVENTS: u64 = 5000;
    for clock in CLOCKS {
        let segment = segment(1 << 18, clock, 2000);
        let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
        let notifier = Notifier::start(&segment, &NotifierOptions::default()).expect("a thread");
        let mut next = HashMap::new();
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let writer = &writer;
                scope.spawn(move || {
                    let (pid, tid) = ids();
                    for number in 0..EVENTS {
                        let parts = [&thread.to_le_bytes()[..], &number.to_le_bytes()];
                        assert_eq!(writer.push(1, pid, tid, &[&parts.concat()]), Ok(()));
                        if number % 25 == 24 {
                            std::thread::sleep(Duration::from_micros(500));
                        }
                    }
                });
            }
            let mut waiter = Waiter::new(Arc::clone(&segment));
            let mut seen = 0;
            while seen < 2 * EVENTS {
                assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, None), WaitOutcome::Ready);
                for (_, payload) in drain(&segment).into_iter().flatten() {
                    let word =
                        |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("8"));
                    assert!(next.insert((word(0), word(8)), ()).is_none(), "twice");
                    seen += 1;
                }
            }
        });
        drop(notifier);
        assert_eq!(next.len() as u64, 2 * EVENTS);
        assert_eq!(lost(&segment), [0; owlet_ring::LOSS_COUNT]);
    }
}

/// K3: a thread that changes its CPU before each event: its own times and each ring's never go
/// back.
#[test]
fn k3_times_never_go_back() {
    for clock in CLOCKS {
        let segment = segment(1 << 20, clock, 2000);
        let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let (pid, tid) = ids();
                    for number in 0..3000_u64 {
                        let cpu = number as usize % owlet_percpu::cpus();
                        let _ = process::set_affinity(&[cpu]);
                        let payload = number.to_le_bytes();
                        assert_eq!(writer.push(1, pid, tid, &[&payload]), Ok(()));
                    }
                });
            }
        });
        let mut threads: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
        for ring in drain(&segment) {
            assert!(ring.is_sorted_by_key(|(header, _)| header[0]));
            for (header, payload) in ring {
                let number = u64::from_le_bytes(payload.try_into().expect("8"));
                threads.entry(header[2]).or_default().push((number, header[0]));
            }
        }
        assert_eq!(threads.len(), 3);
        for mut events in threads.into_values() {
            events.sort_unstable();
            assert_eq!(events.len(), 3000);
            assert!(events.is_sorted_by_key(|(_, time)| *time), "{clock:?}");
        }
    }
}

/// D4: nobody reads. Events are dropped and counted; no push waits for anybody.
#[test]
fn d4_without_a_reader_nobody_waits() {
    for clock in CLOCKS {
        let segment = segment(1 << 14, clock, 2000);
        let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
        let (pid, tid) = ids();
        let before = owlet_sys::clock::thread_cpu_ns();
        let kept = (0..200_000).filter(|_| writer.push(1, pid, tid, &[&[0; 8]]).is_ok()).count();
        let each = (owlet_sys::clock::thread_cpu_ns() - before) / 200_000;
        assert_eq!(lost(&segment)[Loss::Full.index()], 200_000 - kept as u64);
        assert!(each < 2000, "{each} ns for each event that found no room");
    }
}

/// N2: the container's small /dev/shm does not matter. Needs the right to make a mount namespace.
#[test]
fn n2_a_tiny_dev_shm_does_not_matter() {
    let ended = in_child(|| {
        let tmpfs = c"tmpfs".as_ptr();
        // SAFETY: takes no pointers.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return 2;
        }
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let null = core::ptr::null();
        // SAFETY: valid C strings; this mount namespace is the child's alone.
        unsafe { libc::mount(null, c"/".as_ptr(), null, private, null.cast()) };
        let (shm, size) = (c"/dev/shm".as_ptr(), c"size=1m".as_ptr());
        // SAFETY: as above.
        if unsafe { libc::mount(tmpfs, shm, tmpfs, 0, size.cast()) } != 0 {
            return 2;
        }
        let options = SegmentOptions { ring_bytes: 8 << 20, ..Default::default() };
        let Ok(segment) = Segment::create(&options) else { return 1 };
        let Ok(writer) = Writer::new(Arc::new(segment)) else { return 1 };
        let (pid, tid) = ids();
        for _ in 0..10_000 {
            let _ = writer.push(1, pid, tid, &[&[1; 512]]);
        }
        0
    });
    assert!(matches!(ended, Ok(0 | 2)), "{ended:?}");
    if ended == Ok(2) {
        println!("skipped: no right to make a mount namespace");
    }
}

/// Another process reaches the segment by its descriptor's path, as an inherited session does.
#[test]
fn a_segment_is_found_by_path() {
    let ours = segment(1 << 16, Clock::Tsc, 2000);
    let path = format!("/proc/{}/fd/{}", process::getpid(), ours.fd().as_raw_fd());
    let file = std::fs::File::options().read(true).write(true).open(path).expect("a memfd");
    let theirs = Arc::new(Segment::open(file.into()).expect("a segment"));
    let writer = Writer::new(theirs).expect("a writer");
    let (pid, tid) = ids();
    assert_eq!(writer.push(1, pid, tid, &[b"by path"]), Ok(()));
    assert_eq!(drain(&ours).into_iter().flatten().count(), 1);
}
