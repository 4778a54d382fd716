//! Cells tied to a domain: what readers see, what becomes of old values, and what is refused.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use owlet_rcu::callback::quiesce_all;
use owlet_rcu::{
    ClassicSrcu, Head, Qsbr, Rcu, Retired, Srcu, StaticDomain, TasksTrace, domain, wait_all,
};

domain!(Config);
domain!(
    /// Another one.
    pub Other
);

/// Two halves that belong together, and a mark that drop removes.
struct Pair {
    a: u64,
    b: u64,
    alive: AtomicBool,
}

static ALIVE: AtomicUsize = AtomicUsize::new(0);

impl Pair {
    fn new(n: u64) -> Self {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Self { a: n, b: !n, alive: AtomicBool::new(true) }
    }

    fn check(&self) -> u64 {
        assert!(self.alive.load(Ordering::Relaxed), "freed while it was read");
        assert_eq!(self.a, !self.b, "not initialised, or of two values");
        self.a
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        assert!(self.alive.swap(false, Ordering::Relaxed), "twice");
        // What a reader that is left would see.
        self.a = 0xdead;
        self.b = 0xdead;
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// GP-07: readers see initialised values, one per dereference, none that is gone; every way out.
#[test]
fn gp_07_publish_and_subscribe() {
    let cell: Rcu<Pair, Config> = Rcu::new(Pair::new(1));
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    let section = Config::read();
                    let pair = cell.read(&section);
                    let seen = pair.check();
                    assert!(seen >= last, "backwards");
                    last = seen;
                    for _ in 0..3 {
                        // The writer is to come in between.
                        thread::yield_now();
                        assert_eq!(pair.check(), seen, "two values from one dereference");
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut kept: Option<Retired<Pair, Config>> = None;
        let until = Instant::now() + Duration::from_secs(2);
        for n in (2..).take_while(|_| Instant::now() < until) {
            let old = if n % 2 == 0 {
                cell.replace(Pair::new(n))
            } else {
                cell.update(|p| Pair::new(p.a + 1))
            };
            assert_eq!(old.check(), n - 1);
            match n % 4 {
                0 => old.retire(),
                1 => drop(old),
                2 if n % 128 == 2 => assert_eq!(old.wait().check(), n - 1),
                _ => {
                    // Polled until somebody's grace period has passed.
                    if let Some(Ok(pair)) = kept.take().map(Retired::poll) {
                        pair.check();
                    }
                    kept = Some(old);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(cell);
    Config::srcu().retire_barrier();
    assert_eq!(ALIVE.load(Ordering::Relaxed), 0, "leaked");
    assert!(reads.load(Ordering::Relaxed) > 0);
}

/// Concurrent updates: none is lost.
#[test]
fn updates_are_atomic() {
    let domain = Arc::new(Srcu::new());
    let cell = Rcu::with_domain(0_u64, domain.clone());
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| (0..2000).for_each(|_| cell.update(|n| n + 1).retire()));
        }
    });
    let section = domain.read();
    assert_eq!(*cell.read(&section), 8000);
}

/// GP-09: within a section one may update, retire and wait for other domains, but not for one's own.
#[test]
fn gp_09_updates_inside_a_section() {
    let domain = Srcu::new();
    let cell = Rcu::with_domain(String::from("old"), &domain);
    let section = domain.read();
    let seen = cell.read(&section);
    let retired = cell.update(|s| format!("{s}er"));
    cell.replace("new".into()).retire();
    let retired = retired.poll().expect_err("we still read it");
    assert_eq!(
        (seen.as_str(), cell.read(&section).as_str(), retired.as_str()),
        ("old", "new", "old")
    );
    Other::srcu().synchronize();
    wait_all(&[Other::srcu(), Config::srcu()]);
    if cfg!(debug_assertions) {
        // A token's section: a guard could be another thread's by now.
        let token = domain.read_lock();
        let cookie = retired.cookie();
        assert!(catch_unwind(AssertUnwindSafe(|| domain.wait(cookie))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| domain.synchronize())).is_err());
        // SAFETY: the token of this domain and thread.
        unsafe { domain.read_unlock(token) };
    }
    drop(section);
    assert_eq!(retired.wait(), "old");
    domain.retire_barrier();
}

/// A reference outlives the cell, if its section does.
#[test]
fn a_section_keeps_the_value_of_a_dropped_cell() {
    let domain = Srcu::new();
    let cell = Rcu::with_domain(Pair2(Arc::new(())), &domain);
    let section = domain.read();
    let seen = cell.read(&section);
    let count = seen.0.clone();
    drop(cell);
    domain.retire_flush();
    thread::sleep(Duration::from_millis(150));
    assert_eq!(Arc::strong_count(&seen.0), 2, "freed while it was read");
    drop(section);
    domain.retire_barrier();
    assert_eq!(Arc::strong_count(&count), 1, "leaked");
}

struct Pair2(Arc<()>);

/// BA-02: old values of cells are retired like boxes, and what waits for those and for callbacks is
/// one call: `retire_barrier`, or with the sections `quiesce`, or of several domains `quiesce_all`.
#[test]
fn ba_02_one_barrier_waits_for_cells_boxes_and_callbacks() {
    const EACH: u64 = 300;
    let waits: [fn(&Srcu); 3] =
        [Srcu::retire_barrier, Srcu::quiesce, |domain| quiesce_all(&[domain], 1)];
    for wait in waits {
        let domain = Srcu::named("ba_02_one_barrier");
        let counted = Arc::new(());
        let cell = Rcu::with_domain(Pair2(counted.clone()), &domain);
        let section = domain.read();
        for _ in 0..EACH {
            cell.replace(Pair2(counted.clone())).retire();
            drop(cell.update(|old| Pair2(old.0.clone())));
            domain.retire(Box::new(counted.clone()));
            let counted = counted.clone();
            domain.call(move || drop(counted));
        }
        assert_eq!(Arc::strong_count(&counted) as u64, 2 + 4 * EACH, "freed while it was read");
        drop(section);
        wait(&domain);
        assert_eq!(Arc::strong_count(&counted), 2, "not all was waited for");
        assert_eq!(domain.retire_stats().freed, 3 * EACH, "old values are retired with the boxes");
        assert_eq!(domain.callback_stats().queued, EACH, "closures alone are callbacks");
    }
}

/// Guards of another domain: an error where the domain is a value.
#[test]
fn gp_14_guards_of_other_domains_are_refused() {
    fn refused<T>(f: impl FnOnce() -> T) -> bool {
        catch_unwind(AssertUnwindSafe(f)).is_err()
    }
    let (one, two) = (Srcu::new(), Srcu::new());
    let cell = Rcu::with_domain(1, &one);
    assert_eq!(*cell.read(&one.read()), 1);
    assert!(refused(|| *cell.read(&two.read())));

    let (one, two) = (Arc::new(Srcu::new()), Arc::new(Srcu::new()));
    let cell = Rcu::with_domain(1, one.clone());
    assert_eq!(*cell.read(&one.read()), 1);
    assert!(refused(|| *cell.read(&two.read())));

    let (one, two) = (ClassicSrcu::new(), ClassicSrcu::new());
    let cell = Rcu::with_domain(1, &one);
    assert_eq!(*cell.read(&one.read()), 1);
    assert!(refused(|| *cell.read(&two.read())));

    let (one, two) = (TasksTrace::new(), TasksTrace::new());
    let cell = Rcu::with_domain(1, &one);
    assert_eq!(*cell.read(&one.read()), 1);
    assert!(refused(|| *cell.read(&two.read())));
    assert_eq!(cell.replace(2).wait(), 1);
}

/// GP-07, GP-14 with QSBR: a value lasts until its readers' next quiescent state, whoever replaces it;
/// a guard is of one domain; updates and `Debug` look at the value in a section of their own.
#[test]
fn gp_07_cells_of_a_qsbr_domain() {
    static DOMAIN: Qsbr = Qsbr::new();
    let cell: Rcu<Pair, &Qsbr> = Rcu::with_domain(Pair::new(1), &DOMAIN);
    let mut reader = DOMAIN.register();
    let mut online = reader.online();
    let section = online.read();
    let seen = cell.read(&section);
    // By this thread, which is online, and by one that has never registered.
    let own = cell.update(|pair| Pair::new(pair.a + 1));
    let others = thread::scope(|s| s.spawn(|| cell.update(|p| Pair::new(p.a + 1))).join());
    let others = others.expect("no panic");
    let cookie = DOMAIN.start_poll();
    thread::sleep(common::SOON);
    assert!(!DOMAIN.poll(cookie), "we still read it");
    assert_eq!([seen.check(), own.check(), others.check()], [1, 1, 2]);
    assert_eq!(cell.read(&online.read()).check(), 3);
    let two = Qsbr::new();
    let mut stranger = two.register();
    let foreign = catch_unwind(AssertUnwindSafe(|| cell.read(&stranger.online().read()).check()));
    assert!(foreign.is_err(), "a guard of another domain");
    while !DOMAIN.poll(cookie) {
        online.quiescent();
    }
    assert_eq!(online.offline(|| own.wait().check()), 1);
    others.retire();
    drop(online);
    // A domain in an `Arc` lasts as long as what is retired in it.
    let shared = Arc::new(Qsbr::new());
    let counted = Arc::new(());
    let cell = Rcu::with_domain(Pair2(counted.clone()), shared.clone());
    drop(cell.update(|old| Pair2(old.0.clone())));
    drop((cell, shared));
    common::until("both are freed", || Arc::strong_count(&counted) == 1);
}

/// MU-03: heads on the caller's stack, on several domains, until all their callbacks have run.
#[test]
fn mu_03_heads_on_the_caller_s_stack() {
    #[repr(C)]
    struct OnStack<'a> {
        head: Head,
        calls: &'a AtomicU64,
        poison: AtomicU64,
    }
    unsafe fn called(head: NonNull<Head>) {
        // SAFETY: the first field of an `OnStack` that its poster keeps until the barrier.
        let this = unsafe { head.cast::<OnStack<'_>>().as_ref() };
        assert_eq!(this.poison.load(Ordering::Relaxed), 1, "the stack frame is gone");
        this.calls.fetch_add(1, Ordering::Relaxed);
    }
    let domains = [Srcu::new(), Srcu::new(), Srcu::new()];
    #[inline(never)]
    fn wait_for_all(domains: &[Srcu], calls: &AtomicU64) {
        let heads =
            [(); 6].map(|()| OnStack { head: Head::new(), calls, poison: AtomicU64::new(1) });
        // The same domain twice, too.
        for (head, domain) in heads.iter().zip(domains.iter().cycle()) {
            // SAFETY: on this stack until the barriers below have returned.
            unsafe { domain.call_head(NonNull::from(head).cast(), called) };
        }
        for domain in domains {
            domain.barrier();
        }
        heads.iter().for_each(|h| h.poison.store(2, Ordering::Relaxed));
    }
    let calls = AtomicU64::new(0);
    for round in 1..200 {
        wait_for_all(&domains, &calls);
        assert_eq!(calls.load(Ordering::Relaxed), 6 * round);
    }
}

/// What must not compile. The compiler's own words are compared, so only with the one they are from.
#[test]
fn compile_failures() {
    let rustc = std::process::Command::new("rustc").arg("--version").output();
    let version =
        rustc.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    if !version.starts_with("rustc 1.95.") {
        println!("skipped: the expected messages are rustc 1.95's, this is {}", version.trim());
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
