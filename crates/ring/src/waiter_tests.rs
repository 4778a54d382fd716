use super::*;
use crate::{Clock, Notifier, NotifierOptions, Reader, SegmentOptions, Writer};
use std::sync::mpsc;

/// A waiter's own patience: whoever is back at all was not left to it.
const LONG: Duration = Duration::from_secs(3600);
/// A watchdog's.
const LATE: Duration = Duration::from_secs(120);

struct Rig {
    segment: Arc<Segment>,
    writer: Writer,
}

impl Rig {
    fn new(ring_bytes: usize) -> Self {
        let cpus = owlet_percpu::cpus();
        let options = SegmentOptions { cpus, ring_bytes, ..Default::default() };
        let segment = Arc::new(Segment::create(&options).expect("a segment"));
        let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
        Self { segment, writer }
    }

    fn push(&self, payload: usize) -> Result<(), Loss> {
        let bytes = [5; 8192];
        self.writer.push(1, process::getpid(), process::gettid(), &[&bytes[..payload]])
    }

    fn drain(&self) -> u64 {
        let reader = Reader::new(Arc::clone(&self.segment));
        let rings = (0..reader.rings()).filter_map(|index| reader.ring(index));
        rings.map(|mut ring| ring.drain(&mut Vec::new()).events).sum()
    }

    /// Starts a waiter; its outcome comes through the channel. Returns when it is armed.
    fn waiter(
        &self,
        set: RingSet,
        watermark: Watermark,
        deadline: Duration,
    ) -> mpsc::Receiver<(WaitOutcome, u64)> {
        let (send, receive) = mpsc::channel();
        let segment = Arc::clone(&self.segment);
        let before = self.segment.wake_words().waiters.load(Ordering::Relaxed);
        thread::spawn(move || {
            let mut waiter = Waiter::new(segment);
            let outcome = waiter.wait(set, watermark, Some(Instant::now() + deadline));
            let _ = send.send((outcome, waiter.rescued()));
        });
        while self.segment.wake_words().waiters.load(Ordering::Relaxed) == before {
            thread::yield_now();
        }
        self.until_armed();
        // Armed, but perhaps not asleep yet.
        thread::sleep(Duration::from_millis(3));
        receive
    }

    fn until_armed(&self) {
        while !self.is_armed() {
            thread::yield_now();
        }
    }

    fn is_armed(&self) -> bool {
        (0..self.segment.geometry().rings()).any(|index| {
            let control = self.segment.control(index).expect("in range");
            control.wake_at.load(Ordering::Relaxed) != wake::NOBODY
        })
    }

    fn direct_wakes(&self) -> u64 {
        self.segment.wake_words().direct_wakes.load(Ordering::Relaxed)
    }

    fn wakes(&self) -> u64 {
        self.segment.wake_words().wakes.load(Ordering::Relaxed)
    }

    fn notifier(&self) -> Notifier {
        Notifier::start(&self.segment, &NotifierOptions::default()).expect("a thread")
    }
}

/// Whether something takes less than half the time after which a waiter looks by itself, at least
/// once: a busy machine makes many a try late, but not each.
fn is_prompt(mut one: impl FnMut() -> Duration) -> bool {
    let end = Instant::now() + LATE;
    std::iter::repeat_with(|| one() < RESCUE / 2).take_while(|_| Instant::now() < end).any(|is| is)
}

fn outcome(receive: &mpsc::Receiver<(WaitOutcome, u64)>) -> WaitOutcome {
    receive.recv_timeout(LATE).expect("the waiter ends").0
}

#[test]
fn wk_01_data_from_before_the_wait_end_it_at_once() {
    let rig = Rig::new(1 << 16);
    assert_eq!(rig.push(8), Ok(()));
    let mut waiter = Waiter::new(Arc::clone(&rig.segment));
    assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, None), WaitOutcome::Ready);
    // Not drained, so still there.
    assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, None), WaitOutcome::Ready);
    assert_eq!(rig.drain(), 1);
    let soon = Instant::now() + Duration::from_millis(5);
    assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, Some(soon)), WaitOutcome::TimedOut);
}

/// One exchange and one futex call per arming, whatever the number of events.
#[test]
fn wk_02_one_wakeup_per_arming() {
    let rig = Rig::new(1 << 16);
    for round in 1..=20 {
        let end = rig.waiter(RingSet::All, Watermark::ANY, LONG);
        for _ in 0..50 {
            assert_eq!(rig.push(8), Ok(()));
        }
        assert_eq!(outcome(&end), WaitOutcome::Ready);
        // A CPU change in the middle may reach another ring of the set, armed as well.
        assert!((round..=2 * round).contains(&rig.direct_wakes()), "{}", rig.direct_wakes());
        rig.drain();
        // What is left armed fires once more at most; take it away.
        for index in 0..rig.segment.geometry().rings() {
            let control = rig.segment.control(index).expect("in range");
            control.wake_at.store(wake::NOBODY, Ordering::Relaxed);
        }
    }
}

/// However many events: at most one wakeup per deferral, none by the writer.
#[test]
fn wk_03_wakeups_are_bounded_by_the_deferral() {
    let rig = Rig::new(1 << 16);
    let _notifier = rig.notifier();
    let (start, length) = (Instant::now(), Duration::from_millis(300));
    let mut events = 0;
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut waiter = Waiter::new(Arc::clone(&rig.segment));
            let mut seen = 0;
            while waiter.wait(RingSet::All, Watermark::ANY, None) == WaitOutcome::Ready {
                seen += rig.drain();
            }
            seen + rig.drain()
        });
        while start.elapsed() < length || rig.wakes() == 0 && start.elapsed() < LATE {
            for _ in 0..20 {
                events += u64::from(rig.push(8).is_ok());
                std::hint::spin_loop();
            }
            thread::sleep(Duration::from_micros(20));
        }
        let most = start.elapsed().as_micros() as u64 / 2000 + 2;
        let wakes = rig.wakes();
        rig.segment.stop();
        assert_eq!(reader.join().expect("no panic"), events);
        assert!((1..=most).contains(&wakes), "{wakes} wakeups, at most {most} allowed");
        assert_eq!(rig.direct_wakes(), 0);
    });
}

#[test]
fn wk_04_spurious_wakeups_are_looked_through() {
    let rig = Rig::new(1 << 16);
    let end = rig.waiter(RingSet::All, Watermark::ANY, Duration::from_millis(150));
    for _ in 0..50 {
        rig.segment.wake_words().wake_everybody();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(end.try_recv().is_err(), "nothing has happened");
    assert_eq!(outcome(&end), WaitOutcome::TimedOut);
}

#[test]
fn wk_05_each_waiter_gets_its_own_watermark() {
    process::set_affinity(&[0]).expect("CPU 0 exists");
    let rig = Rig::new(1 << 16);
    let any = rig.waiter(RingSet::All, Watermark::ANY, LONG);
    let half = rig.waiter(RingSet::All, Watermark::percent(50), LONG);
    let most = rig.waiter(RingSet::All, Watermark::FULL, LONG);
    assert_eq!(rig.push(8), Ok(()));
    assert_eq!(outcome(&any), WaitOutcome::Ready);
    thread::sleep(Duration::from_millis(20));
    assert!(half.try_recv().is_err() && most.try_recv().is_err());
    let reader = Reader::new(Arc::clone(&rig.segment));
    let fill = || (0..reader.rings()).filter_map(|i| reader.ring(i)).map(|r| r.fill()).max();
    while fill() < Some(1 << 15) {
        rig.until_armed();
        assert_eq!(rig.push(1000), Ok(()));
    }
    assert_eq!(outcome(&half), WaitOutcome::Ready);
    assert!(most.try_recv().is_err());
    while fill() < Some((1 << 16) - (1 << 12)) {
        assert_eq!(rig.push(1000), Ok(()), "the last watermark comes before loss");
    }
    assert_eq!(outcome(&most), WaitOutcome::Ready);
}

/// Records so large that the last one does not fit below the watermark.
#[test]
fn wk_05_an_event_that_finds_no_room_wakes_too() {
    process::set_affinity(&[0]).expect("CPU 0 exists");
    let rig = Rig::new(1 << 14);
    let end = rig.waiter(RingSet::All, Watermark::FULL, LONG);
    assert_eq!(rig.push(8192), Ok(()));
    rig.until_armed();
    thread::sleep(Duration::from_millis(5));
    assert!(end.try_recv().is_err());
    // The second does not fit, and half the ring is below the watermark.
    assert_eq!(rig.push(8192), Err(Loss::Full));
    assert_eq!(outcome(&end), WaitOutcome::Ready);
    assert_eq!(rig.direct_wakes(), 1);
}

#[test]
fn wk_05_other_rings_do_not_count() {
    process::set_affinity(&[0]).expect("CPU 0 exists");
    let rig = Rig::new(1 << 16);
    let portable = rig.segment.geometry().rings() - 1;
    let end = rig.waiter(RingSet::One(portable), Watermark::ANY, Duration::from_millis(60));
    assert_eq!(rig.push(8), Ok(()));
    assert_eq!(outcome(&end), WaitOutcome::TimedOut);
    let nowhere = rig.segment.geometry().rings();
    let mut waiter = Waiter::new(Arc::clone(&rig.segment));
    let soon = Some(Instant::now() + Duration::from_millis(5));
    assert_eq!(waiter.wait(RingSet::One(nowhere), Watermark::ANY, soon), WaitOutcome::TimedOut);
}

#[test]
fn wk_06_stop_ends_every_wait_for_good() {
    for notifier in [false, true] {
        let stop = || {
            let rig = Rig::new(1 << 16);
            let _notifier = notifier.then(|| rig.notifier());
            let ends = [
                rig.waiter(RingSet::All, Watermark::ANY, LONG),
                rig.waiter(RingSet::One(0), Watermark::percent(50), LONG),
                rig.waiter(RingSet::One(1), Watermark::FULL, LONG),
            ];
            let start = Instant::now();
            rig.segment.stop();
            for end in &ends {
                assert_eq!(outcome(end), WaitOutcome::Stopped);
            }
            let elapsed = start.elapsed();
            let mut waiter = Waiter::new(Arc::clone(&rig.segment));
            assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, None), WaitOutcome::Stopped);
            let polled = waiter.wait_polling(RingSet::All, Watermark::ANY, LONG, None);
            assert_eq!(polled, WaitOutcome::Stopped);
            elapsed
        };
        assert!(is_prompt(stop));
    }
}

#[test]
fn wk_06_a_kick_ends_one_wait_and_is_not_missed_between_waits() {
    let rig = Rig::new(1 << 16);
    assert!(is_prompt(|| {
        let end = rig.waiter(RingSet::All, Watermark::ANY, LONG);
        let start = Instant::now();
        rig.segment.kick();
        assert_eq!(outcome(&end), WaitOutcome::Kicked);
        start.elapsed()
    }));
    let mut waiter = Waiter::new(Arc::clone(&rig.segment));
    rig.segment.kick();
    assert_eq!(rig.push(8), Ok(()));
    assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, None), WaitOutcome::Kicked);
    assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, None), WaitOutcome::Ready);
}

/// A writer killed between its commit and its wakeup: the waiter finds the data by itself.
#[test]
fn wk_06_a_writer_killed_before_its_wakeup_costs_100_ms() {
    let rig = Rig::new(1 << 16);
    let end = rig.waiter(RingSet::All, Watermark::ANY, LONG);
    let control = rig.segment.control(0).expect("in range");
    control.commit(32);
    assert_eq!(end.recv_timeout(LATE), Ok((WaitOutcome::Ready, 1)));
}

#[test]
fn wk_07_one_event_wakes_all_and_strands_nobody() {
    for notifier in [false, true] {
        let rig = Rig::new(1 << 16);
        let _notifier = notifier.then(|| rig.notifier());
        for _ in 0..20 {
            let ends: Vec<_> =
                (0..4).map(|_| rig.waiter(RingSet::All, Watermark::ANY, LONG)).collect();
            assert_eq!(rig.push(8), Ok(()));
            for end in &ends {
                let (outcome, rescued) = end.recv_timeout(LATE).expect("the waiter ends");
                assert_eq!((outcome, rescued), (WaitOutcome::Ready, 0));
            }
            rig.drain();
        }
    }
}

/// One of two readers takes everything; the other goes on waiting and gets the next event.
#[test]
fn wk_07_a_reader_that_came_too_late_waits_on() {
    let rig = Rig::new(1 << 16);
    let greedy = rig.waiter(RingSet::All, Watermark::ANY, LONG);
    let modest = rig.waiter(RingSet::All, Watermark::percent(10), LONG);
    assert_eq!(rig.push(8), Ok(()));
    assert_eq!(outcome(&greedy), WaitOutcome::Ready);
    assert_eq!(rig.drain(), 1);
    thread::sleep(Duration::from_millis(5));
    assert!(modest.try_recv().is_err());
    while rig.push(1000).is_ok() {}
    assert_eq!(outcome(&modest), WaitOutcome::Ready);
}

#[test]
fn wk_09_polling_asks_nobody_for_anything() {
    let rig = Rig::new(1 << 16);
    let _notifier = rig.notifier();
    let mut waiter = Waiter::new(Arc::clone(&rig.segment));
    let every = Duration::from_millis(1);
    let soon = Some(Instant::now() + Duration::from_millis(30));
    let polled = waiter.wait_polling(RingSet::All, Watermark::ANY, every, soon);
    assert_eq!(polled, WaitOutcome::TimedOut);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            assert!(!rig.is_armed());
            assert_eq!(rig.segment.wake_words().waiters.load(Ordering::Relaxed), 0);
            assert_eq!(rig.push(8), Ok(()));
        });
        let polled = waiter.wait_polling(RingSet::All, Watermark::ANY, every, None);
        assert_eq!(polled, WaitOutcome::Ready);
    });
    assert_eq!((rig.wakes(), rig.direct_wakes()), (0, 0));
}

#[test]
fn wk_10_writers_wake_when_the_notifier_has_left() {
    let rig = Rig::new(1 << 16);
    let notifier = rig.notifier();
    let end = rig.waiter(RingSet::All, Watermark::ANY, LONG);
    drop(notifier);
    rig.until_armed();
    assert_eq!(rig.push(8), Ok(()));
    assert_eq!(end.recv_timeout(LATE), Ok((WaitOutcome::Ready, 0)));
    assert_eq!((rig.wakes(), rig.direct_wakes()), (0, 1));
}

/// A recorder killed with its notifier: found out once, by time; then writers wake at once.
#[test]
fn wk_10_a_dead_notifier_is_found_out() {
    let rig = Rig::new(1 << 16);
    let words = rig.segment.wake_words();
    words.notifier.store(clock::monotonic_ns() - 10_000_000_000, Ordering::Relaxed);
    let end = rig.waiter(RingSet::All, Watermark::ANY, LONG);
    assert_eq!(rig.push(8), Ok(()));
    assert_eq!(outcome(&end), WaitOutcome::Ready);
    assert_eq!((words.notifier.load(Ordering::Relaxed), rig.direct_wakes()), (0, 0));
    rig.drain();
    let end = rig.waiter(RingSet::All, Watermark::ANY, LONG);
    assert_eq!(rig.push(8), Ok(()));
    assert_eq!(outcome(&end), WaitOutcome::Ready);
    assert_eq!(rig.direct_wakes(), 1);
}

/// A kernel or sandbox without membarrier for the waiter: it does not rely on being woken.
#[test]
fn wk_10_a_waiter_without_membarrier_looks_by_itself() {
    assert!(is_prompt(|| {
        let rig = Rig::new(1 << 16);
        let (send, receive) = mpsc::channel();
        let segment = Arc::clone(&rig.segment);
        thread::spawn(move || {
            use owlet_sys::fake::{Extent, Scope, fail};
            let family = owlet_sys::Family::Membarrier;
            let _plan = fail(family, 1, libc::EPERM, Scope::Thread, Extent::Forever);
            let mut waiter = Waiter::new(segment);
            let _ = send.send(waiter.wait(RingSet::All, Watermark::ANY, None));
        });
        rig.until_armed();
        thread::sleep(Duration::from_millis(3));
        // The commit alone, without the writer's look at `wake_at`: as if the two had missed each
        // other.
        rig.segment.control(0).expect("in range").commit(32);
        let start = Instant::now();
        assert_eq!(receive.recv_timeout(LATE), Ok(WaitOutcome::Ready));
        start.elapsed()
    }));
}

#[test]
fn wk_11_the_notifier_stays_on_its_cpus() {
    let last = owlet_percpu::cpus() - 1;
    let rig = Rig::new(1 << 16);
    let options = NotifierOptions { cpus: vec![last] };
    let _notifier = Notifier::start(&rig.segment, &options).expect("the CPU exists");
    let tasks = std::fs::read_dir("/proc/self/task").expect("a /proc");
    let status =
        tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let allowed: Vec<String> = status
        .filter(|status| status.starts_with("Name:\towlet-notify\n"))
        .filter_map(|status| {
            let mut lines = status.lines();
            lines.find_map(|line| Some(line.strip_prefix("Cpus_allowed_list:\t")?.to_owned()))
        })
        .collect();
    // Other tests of this process may have notifiers that may run anywhere.
    assert!(allowed.contains(&last.to_string()), "{allowed:?}");
    let nowhere = NotifierOptions { cpus: vec![100_000] };
    assert!(Notifier::start(&rig.segment, &nowhere).is_err());
}

#[test]
fn wk_12_a_lost_event_is_no_data_and_hides_none() {
    let rig = Rig::new(1 << 12);
    let end = rig.waiter(RingSet::All, Watermark::ANY, Duration::from_millis(60));
    assert_eq!(rig.push(5000), Err(Loss::TooLarge));
    assert_eq!(outcome(&end), WaitOutcome::TimedOut);
    assert_eq!(rig.push(8), Ok(()));
    while rig.push(1000) != Err(Loss::Full) {}
    let mut waiter = Waiter::new(Arc::clone(&rig.segment));
    assert_eq!(waiter.wait(RingSet::All, Watermark::ANY, None), WaitOutcome::Ready);
    assert!(rig.drain() > 0);
}

fn is_readable(fd: &WakeFd, timeout: Duration) -> bool {
    use std::os::fd::AsRawFd;
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut poll, 1, timeout.as_millis() as i32) == 1 }
}

#[test]
fn wk_13_the_descriptor_is_level_triggered() {
    for notifier in [false, true] {
        let rig = Rig::new(1 << 16);
        let _notifier = notifier.then(|| rig.notifier());
        let waiter = Waiter::new(Arc::clone(&rig.segment));
        let fd = waiter.wake_fd(RingSet::All, Watermark::ANY).expect("a descriptor");
        for _ in 0..50 {
            assert!(!is_readable(&fd, Duration::ZERO));
            assert_eq!(rig.push(8), Ok(()));
            assert!(is_readable(&fd, LATE));
            assert!(is_readable(&fd, Duration::ZERO), "readable until rearmed");
            fd.rearm();
            assert!(is_readable(&fd, LATE), "not drained: readable again");
            assert_eq!(rig.drain(), 1);
            fd.rearm();
            // The pump may have looked once more before the drain.
            while is_readable(&fd, Duration::from_millis(3)) {
                fd.rearm();
            }
        }
        rig.segment.stop();
        assert!(is_readable(&fd, LATE));
    }
}

#[test]
fn wk_13_dropping_the_descriptor_ends_its_thread() {
    let rig = Rig::new(1 << 16);
    let waiter = Waiter::new(Arc::clone(&rig.segment));
    for armed in [true, false] {
        let fd = waiter.wake_fd(RingSet::All, Watermark::ANY).expect("a descriptor");
        if !armed {
            assert_eq!(rig.push(8), Ok(()));
            assert!(is_readable(&fd, LATE));
        }
        drop(fd);
    }
    assert_eq!(rig.segment.wake_words().waiters.load(Ordering::Relaxed), 0);
}

#[test]
fn without_threads_or_descriptors_the_errors_are_passed_on() {
    use owlet_sys::fake::fail_nth;
    let rig = Rig::new(1 << 16);
    let waiter = Waiter::new(Arc::clone(&rig.segment));
    let _plan = fail_nth(owlet_sys::Family::Memory, 1, libc::EMFILE);
    assert!(waiter.wake_fd(RingSet::All, Watermark::ANY).is_err());
}

#[test]
fn the_clock_of_a_segment_moves() {
    for clock in [Clock::Tsc, Clock::Monotonic] {
        let options = SegmentOptions { clock, ..Default::default() };
        let segment = Segment::create(&options).expect("a segment");
        let first = segment.now();
        thread::sleep(Duration::from_millis(1));
        assert!(segment.now() > first);
    }
}
