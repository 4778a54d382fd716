//! RS-01 to RS-07, with grace periods that end when the test says so and with real ones.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use owlet_rcu::Srcu;
use owlet_rcu::rcu_sync::grace::{Expedited, GracePeriod, HeavyFence, Normal};
use owlet_rcu::rcu_sync::{RcuSync, grace};

/// Grace periods that end when told.
#[derive(Default)]
struct Manual {
    asked: AtomicU64,
    ended: Mutex<u64>,
    end: Condvar,
    waits: AtomicU64,
    wakers: Mutex<Vec<Waker>>,
}

impl Manual {
    /// Ends every grace period asked for so far.
    fn end(&self) {
        *self.ended.lock().unwrap() = self.asked.load(Ordering::SeqCst);
        self.end.notify_all();
        self.wakers.lock().unwrap().drain(..).for_each(Waker::wake);
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Until `n` threads have begun to wait.
    fn expect_waits(&self, n: u64) {
        let begun = Instant::now();
        while self.waits.load(Ordering::SeqCst) < n {
            if begun.elapsed() > Duration::from_secs(60) {
                eprintln!("{n} threads were to wait for a grace period");
                std::process::abort();
            }
            thread::yield_now();
        }
    }
}

impl GracePeriod for &Manual {
    fn snapshot(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn start(&self) -> u64 {
        self.snapshot()
    }

    fn poll(&self, cookie: u64) -> bool {
        *self.ended.lock().unwrap() >= cookie
    }

    fn wait(&self, cookie: u64) {
        self.waits.fetch_add(1, Ordering::SeqCst);
        let mut ended = self.ended.lock().unwrap();
        while *ended < cookie {
            ended = self.end.wait(ended).unwrap();
        }
    }

    fn wake(&self, _: u64, waker: &Waker) -> grace::Wake {
        self.wakers.lock().unwrap().push(waker.clone());
        grace::Wake::none()
    }
}

/// RS-01: not idle from the return of `enter` to a grace period after the last exit.
#[test]
fn rs_01_idle_until_entered_and_again_after_a_grace_period() {
    let gp = Manual::default();
    let sync = RcuSync::new(&gp);
    assert!(sync.is_idle());
    thread::scope(|s| {
        let writer = s.spawn(|| sync.enter());
        gp.expect_waits(1);
        assert!(!sync.is_idle(), "no reader becomes fast while somebody enters");
        assert!(!writer.is_finished());
        gp.end();
        let slow = writer.join().unwrap();
        assert!(!sync.is_idle());
        let other = sync.enter();
        drop(slow);
        gp.end();
        assert!(!sync.is_idle(), "one is still inside");
        drop(other);
        assert!(!sync.is_idle());
        assert!(!sync.looks_idle());
    });
    assert_eq!(gp.asked(), 2);
    gp.end();
    assert!(sync.is_idle(), "a grace period has passed");
    assert_eq!(sync.stats().blocking, 1);
    assert_eq!(sync.stats().asked, 1);
}

/// RS-04: a thousand back to back wait once and ask once; what was asked for does not open, what is asked
/// for then does.
#[test]
fn rs_04_a_thousand_pairs_wait_for_one_grace_period() {
    let gp = Manual::default();
    let sync = RcuSync::new(&gp);
    thread::scope(|s| {
        s.spawn(|| (0..1000).for_each(|_| drop(sync.enter())));
        gp.expect_waits(1);
        gp.end();
    });
    assert_eq!((sync.stats().blocking, gp.asked()), (1, 2));
    gp.end();
    assert!(!sync.is_idle(), "999 were there since");
    assert_eq!(gp.asked(), 3);
    assert!(!sync.is_idle());
    gp.end();
    assert!(sync.is_idle());
    assert_eq!(gp.asked(), 3);
}

/// RS-05: entered again while a grace period is due, readers stay slow after its end.
#[test]
fn rs_05_entered_during_exit() {
    let gp = Manual::default();
    let sync = RcuSync::new(&gp);
    let first = sync.enter_async();
    gp.end();
    drop(first.wait());
    let inside = sync.enter();
    gp.end();
    assert!(!sync.is_idle(), "held");
    drop(inside);
    assert_eq!(gp.asked(), 3, "another grace period is due");
    gp.end();
    assert!(sync.is_idle());
}

/// RS-06: all who enter together share a grace period, and return after it.
#[test]
fn rs_06_many_enter_together() {
    let gp = Manual::default();
    let sync = RcuSync::new(&gp);
    let inside = AtomicU64::new(0);
    thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                let slow = sync.enter();
                inside.fetch_add(1, Ordering::SeqCst);
                std::mem::forget(slow);
            });
        }
        gp.expect_waits(8);
        assert_eq!((inside.load(Ordering::SeqCst), sync.holders()), (0, 8));
        assert_eq!(gp.asked(), 1);
        gp.end();
    });
    assert_eq!(inside.load(Ordering::SeqCst), 8);
    (0..8).for_each(|_| sync.exit());
    gp.end();
    assert!(sync.is_idle());
}

#[test]
#[should_panic(expected = "exited that nobody has entered")]
fn rs_06_unbalanced_exit_is_diagnosed() {
    RcuSync::new(HeavyFence).exit();
}

/// RS-06: what is due is waited for.
#[test]
fn rs_06_drop_waits_for_the_grace_period_that_is_due() {
    let gp = Manual::default();
    let sync = RcuSync::new(&gp);
    let entering = sync.enter_async();
    gp.end();
    drop(entering.wait());
    assert_eq!(gp.asked(), 2);
    let before = gp.waits.load(Ordering::SeqCst);
    let dropped = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            drop(sync);
            dropped.store(true, Ordering::SeqCst);
        });
        gp.expect_waits(before + 1);
        assert!(!dropped.load(Ordering::SeqCst));
        gp.end();
    });
    assert!(dropped.load(Ordering::SeqCst));
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// RS-07: three overlap and share; one gives up; one polls; one is awaited.
#[test]
fn rs_07_entering_without_waiting() {
    let gp = Manual::default();
    let sync = RcuSync::new(&gp);
    let (polled, given_up, awaited) = (sync.enter_async(), sync.enter_async(), sync.enter_async());
    assert_eq!(gp.asked(), 1);
    assert!(!polled.poll_passed());
    drop(given_up);
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(flag.clone());
    let mut cx = Context::from_waker(&waker);
    {
        let mut awaited = pin!(awaited);
        assert!(awaited.as_mut().poll(&mut cx).is_pending());
        gp.end();
        assert!(flag.0.load(Ordering::SeqCst), "woken");
        assert!(polled.poll_passed());
        let Poll::Ready(slow) = awaited.as_mut().poll(&mut cx) else { panic!("it has passed") };
        drop(slow);
    }
    assert_eq!(sync.holders(), 1);
    drop(polled.wait());
    assert_eq!((sync.holders(), sync.stats().blocking), (0, 0));
    gp.end();
    assert!(sync.is_idle());
}

/// RS-07: what was begun without waiting can be waited for, together with others, and that is counted.
#[test]
fn rs_07_waiting_for_what_was_begun() {
    let gp = Manual::default();
    let sync = RcuSync::new(&gp);
    let (one, other) = (sync.enter_async(), sync.enter_async());
    let inside = AtomicU64::new(0);
    thread::scope(|s| {
        for entering in [one, other] {
            let inside = &inside;
            s.spawn(move || {
                let slow = entering.wait();
                inside.fetch_add(1, Ordering::SeqCst);
                drop(slow);
            });
        }
        gp.expect_waits(2);
        assert_eq!((inside.load(Ordering::SeqCst), gp.asked()), (0, 1));
        gp.end();
    });
    assert_eq!((inside.into_inner(), sync.stats().blocking), (2, 2));
    gp.end();
}

/// RS-07: all give up; readers are fast again at once, and what they had asked for opens nothing later.
#[test]
fn rs_07_all_give_up() {
    let gp = Manual::default();
    let sync = RcuSync::new(&gp);
    drop(sync.enter_async());
    assert!(sync.is_idle());
    let again = sync.enter_async();
    assert!(!again.poll_passed());
    assert_eq!(gp.asked(), 2);
    gp.end();
    assert!(again.poll_passed());
    drop(again);
    gp.end();
}

/// Ends readers however the test goes.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// RS-01 to RS-03 with the grace periods of a domain: what a fast reader does is seen by who has entered,
/// what a writer did by every fast reader.
fn protects<G: GracePeriod>(domain: &Srcu, sync: &RcuSync<G>) {
    const ROUNDS: u64 = 300;
    let (stop, fast) = (AtomicBool::new(false), AtomicU64::new(0));
    // Readers on the short cut count without atomic additions, each in a word of its own.
    let counts = [const { AtomicU64::new(0) }; 2];
    let data = AtomicU64::new(0);
    thread::scope(|s| {
        for count in &counts {
            let (stop, fast, data) = (&stop, &fast, &data);
            s.spawn(move || {
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    let section = domain.read();
                    if sync.is_idle() {
                        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        if count.load(Ordering::Relaxed) % 64 == 1 {
                            thread::yield_now();
                        }
                        let now = data.load(Ordering::Relaxed);
                        assert!(now >= last && now.is_multiple_of(2), "{now} after {last}");
                        last = now;
                        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        fast.fetch_add(1, Ordering::Relaxed);
                    }
                    drop(section);
                }
            });
        }
        let _stop = Stop(&stop);
        for round in 0..ROUNDS {
            let slow = sync.enter();
            let before: Vec<u64> = counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
            assert!(before.iter().all(|n| n.is_multiple_of(2)), "a reader is on the short cut");
            data.fetch_add(1, Ordering::Relaxed);
            data.fetch_add(1, Ordering::Relaxed);
            let after: Vec<u64> = counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
            assert_eq!(before, after, "a reader took the short cut");
            drop(slow);
            if round % 4 == 0 {
                let had = fast.load(Ordering::Relaxed);
                while fast.load(Ordering::Relaxed) == had {
                    thread::yield_now();
                }
            }
        }
    });
    let stats = sync.stats();
    assert!(stats.blocking >= ROUNDS / 4 - 1, "{stats:?}: readers were fast in between");
    assert!(stats.asked >= ROUNDS / 4 - 1, "{stats:?}: after a grace period each time");
}

/// RS-02: whoever enters waits for a section whose reader is on the short cut.
#[test]
fn rs_02_a_reader_on_the_short_cut_is_waited_for() {
    let domain = Srcu::new();
    for expedited in [false, true] {
        let entered = AtomicBool::new(false);
        let section = domain.read();
        thread::scope(|s| {
            let enter = |slow: &dyn Fn()| {
                slow();
                entered.store(true, Ordering::SeqCst);
            };
            let (normal, hurried) =
                (RcuSync::new(Normal(&domain)), RcuSync::new(Expedited(&domain)));
            assert!(normal.is_idle() && hurried.is_idle());
            s.spawn(move || {
                if expedited {
                    enter(&|| drop(hurried.enter()));
                } else {
                    enter(&|| drop(normal.enter()));
                }
            });
            thread::sleep(Duration::from_millis(100));
            assert!(!entered.load(Ordering::SeqCst), "a section is open");
            drop(section);
        });
        assert!(entered.into_inner());
    }
}

/// RS-03: no reader is fast before the end of a grace period that began after the last exit.
#[test]
fn rs_03_a_section_from_before_the_exit_keeps_readers_slow() {
    let domain = Srcu::new();
    let sync = RcuSync::new(Normal(&domain));
    for _ in 0..3 {
        let slow = sync.enter();
        let section = domain.read();
        drop(slow);
        for _ in 0..20 {
            assert!(!sync.is_idle(), "whoever is inside has not seen what was written");
            thread::sleep(Duration::from_millis(1));
        }
        drop(section);
        while !sync.is_idle() {
            thread::yield_now();
        }
    }
    assert_eq!(sync.stats().asked, 3);
}

#[test]
fn rs_03_a_domain_s_grace_periods() {
    let domain = Srcu::new();
    protects(&domain, &RcuSync::new(Normal(&domain)));
    protects(&domain, &RcuSync::new(Expedited(&domain)));
}

/// RS-07 with a domain: the worker wakes the task.
#[test]
fn rs_07_awaited_with_a_domain() {
    let domain = Srcu::new();
    let sync = RcuSync::new(Normal(&domain));
    let section = domain.read();
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(flag.clone());
    let mut cx = Context::from_waker(&waker);
    let mut entering = pin!(sync.enter_async());
    assert!(entering.as_mut().poll(&mut cx).is_pending());
    assert!(!sync.is_idle());
    drop(section);
    while !flag.0.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
    while entering.as_mut().poll(&mut cx).is_pending() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// The default: a membarrier at each end that somebody waits for or asks for.
#[test]
fn rs_04_heavy_fences() {
    let sync = RcuSync::default();
    for _ in 0..10 {
        let slow = sync.enter();
        assert!(!sync.is_idle());
        drop(slow);
        assert!(sync.is_idle());
    }
    assert_eq!(sync.stats().blocking, 10);
    assert!(format!("{sync:?}").contains("Idle"));
}
