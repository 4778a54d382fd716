//! The product's side of `rcu-read`, `rcu-sync` and `rcu-poll`. The cases and their numbers are
//! those of `urcu/bench.c`, so that one loop in the benchmark asks both.

use super::flavours::{
    Classic, Expedited, Fast, Fenced, Flavour, Memb, Membarrier, Notify, Protect, Raw, Trace,
    Voluntary, Wait, quiescent_each,
};
use super::readers::{section, shared};
use crate::harness::inner::pin;
use crate::harness::serve::{Case, clock};
use anyhow::{Result, bail};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Condvar, Mutex};
use std::time::Duration;

/// Idle threads beside a grace period.
const PARKED: usize = 8;

fn read<P: Protect>(name: &'static str) -> Case {
    Case::new(name, |n| {
        let (shared, mut thread) = (shared(), P::thread());
        for _ in 0..n {
            P::section(&mut thread, || section(shared));
        }
    })
}

/// The cases of `rcu-read`.
pub(crate) fn read_cases() -> Result<Vec<Case>> {
    Ok(vec![
        read::<Fast>("srcu"),
        read::<Raw>("srcu-raw"),
        read::<Classic>("srcu-classic"),
        read::<Fenced>("srcu-fenced"),
        Case::new("qsbr", |n| {
            let shared = shared();
            quiescent_each(n, 1, || {
                section(shared);
            });
        }),
        Case::new("qsbr-64", |n| {
            let shared = shared();
            quiescent_each(n, 64, || {
                section(shared);
            });
        }),
        read::<Notify>("qsbr-notify"),
        read::<Trace>("tasks-trace"),
        read::<Memb>("memb-imitated"),
    ])
}

/// The cases of `rcu-sync`.
pub(crate) fn sync_cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    waits::<Membarrier>(&mut cases, ["membarrier-sync", "membarrier-parked", "membarrier-busy"]);
    grace::<Fast>(
        &mut cases,
        ["srcu-sync", "srcu-parked", "srcu-busy", "srcu-leave", "srcu-stats"],
    );
    grace::<Expedited>(
        &mut cases,
        [
            "expedited-sync",
            "expedited-parked",
            "expedited-busy",
            "expedited-leave",
            "expedited-stats",
        ],
    );
    grace::<Classic>(
        &mut cases,
        ["classic-sync", "classic-parked", "classic-busy", "classic-leave", "classic-stats"],
    );
    grace::<Fenced>(
        &mut cases,
        ["fenced-sync", "fenced-parked", "fenced-busy", "fenced-leave", "fenced-stats"],
    );
    grace::<Notify>(
        &mut cases,
        ["qsbr-sync", "qsbr-parked", "qsbr-busy", "qsbr-leave", "qsbr-stats"],
    );
    grace::<Voluntary>(
        &mut cases,
        ["tasks-sync", "tasks-parked", "tasks-busy", "tasks-leave", "tasks-stats"],
    );
    grace::<Trace>(
        &mut cases,
        ["trace-sync", "trace-parked", "trace-busy", "trace-leave", "trace-stats"],
    );
    cases.extend(super::wait_all::cases());
    Ok(cases)
}

/// What is measured of waiting, under the names given.
fn waits<W: Wait>(cases: &mut Vec<Case>, names: [&'static str; 3]) {
    let [sync, parked, busy] = names;
    cases.extend([
        Case::new(sync, |n| (0..n).for_each(|_| W::synchronize())),
        Case::call(parked, with_parked::<W>),
        Case::call(busy, with_busy::<W>),
    ]);
}

/// [`waits`], and what readers have to do with it.
fn grace<F: Flavour>(cases: &mut Vec<Case>, names: [&'static str; 5]) {
    let [sync, parked, busy, leave, stats] = names;
    waits::<F>(cases, [sync, parked, busy]);
    cases.extend([
        Case::call(leave, after_leave::<F>),
        Case::call(stats, |_| {
            let stats = F::domain().stats();
            Ok(vec![stats.grace_periods, stats.membarriers])
        }),
    ]);
}

/// `BATCHES BATCH` -> CPU and wall nanoseconds of each batch of grace periods.
fn timed<F: Wait>(numbers: &[u64]) -> Result<Vec<u64>> {
    let &[batches, batch] = numbers else { bail!("takes BATCHES BATCH") };
    let mut out = Vec::new();
    for _ in 0..batches {
        let (cpu, wall) = (clock(libc::CLOCK_THREAD_CPUTIME_ID), clock(libc::CLOCK_MONOTONIC));
        (0..batch).for_each(|_| F::synchronize());
        let wall = clock(libc::CLOCK_MONOTONIC) - wall;
        out.extend([clock(libc::CLOCK_THREAD_CPUTIME_ID) - cpu, wall]);
    }
    Ok(out)
}

/// [`timed`] with threads of the flavour that sleep, outside of any section.
fn with_parked<F: Wait>(numbers: &[u64]) -> Result<Vec<u64>> {
    let (end, wake, ready) = (Mutex::new(false), Condvar::new(), Barrier::new(PARKED + 1));
    std::thread::scope(|scope| {
        for _ in 0..PARKED {
            scope.spawn(|| {
                pin(1);
                let mut thread = F::thread();
                F::section(&mut thread, || section(shared()));
                ready.wait();
                let mut end = end.lock();
                while let Ok(guard) = end {
                    if *guard {
                        break;
                    }
                    end = wake.wait(guard);
                }
            });
        }
        pin(0);
        ready.wait();
        std::thread::sleep(Duration::from_millis(1));
        let result = timed::<F>(numbers);
        if let Ok(mut end) = end.lock() {
            *end = true;
        }
        wake.notify_all();
        result
    })
}

/// [`timed`] with one thread on another CPU that has sections without pause.
fn with_busy<F: Wait>(numbers: &[u64]) -> Result<Vec<u64>> {
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut thread = F::thread();
            ready.wait();
            F::sections(&mut thread, &stop, || {
                section(shared());
            });
        });
        pin(0);
        ready.wait();
        std::thread::sleep(Duration::from_millis(1));
        let result = timed::<F>(numbers);
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// `ROUNDS HOLD_NS` -> nanoseconds from the exit of a reader, who was inside for that long, to the
/// return, of each round.
fn after_leave<F: Flavour>(numbers: &[u64]) -> Result<Vec<u64>> {
    let &[rounds, hold] = numbers else { bail!("takes ROUNDS HOLD_NS") };
    let (go, inside, left) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let wait = |at: &AtomicU64, value| {
        while at.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut thread = F::thread();
            for round in 1..=rounds {
                wait(&go, round);
                F::section(&mut thread, || {
                    let until = clock(libc::CLOCK_MONOTONIC) + hold;
                    inside.store(round, Ordering::Release);
                    let mut now = 0;
                    while now < until {
                        section(shared());
                        now = clock(libc::CLOCK_MONOTONIC);
                    }
                    left.store(now, Ordering::Relaxed);
                });
                go.store(0, Ordering::Release);
            }
        });
        pin(0);
        let round = |round| {
            go.store(round, Ordering::Release);
            wait(&inside, round);
            F::synchronize();
            let back = clock(libc::CLOCK_MONOTONIC);
            wait(&go, 0);
            back.saturating_sub(left.load(Ordering::Relaxed))
        };
        Ok((1..=rounds).map(round).collect())
    })
}

/// The cases of `rcu-poll`.
pub(crate) fn poll_cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    poll::<Fast>(
        &mut cases,
        ["srcu-poll", "srcu-poll-false", "srcu-snapshot", "srcu-start-poll"],
        ["srcu-covered", "srcu-covered-elsewhere", "srcu-comes-about"],
    );
    poll::<Notify>(
        &mut cases,
        ["qsbr-poll", "qsbr-poll-false", "qsbr-snapshot", "qsbr-start-poll"],
        ["qsbr-covered", "qsbr-covered-elsewhere", "qsbr-comes-about"],
    );
    Ok(cases)
}

fn poll<F: Flavour>(cases: &mut Vec<Case>, loops: [&'static str; 4], calls: [&'static str; 3]) {
    let [yes, no, snapshot, start_poll] = loops;
    let [covered, elsewhere, comes_about] = calls;
    cases.extend([
        Case::new(yes, |n| {
            let cookie = F::snapshot();
            F::synchronize();
            for _ in 0..n {
                black_box(F::poll(black_box(cookie)));
            }
        }),
        Case::new(no, |n| {
            // Nobody asks for a grace period, so it stays false.
            let cookie = F::snapshot();
            for _ in 0..n {
                black_box(F::poll(black_box(cookie)));
            }
        }),
        Case::new(snapshot, |n| {
            for _ in 0..n {
                black_box(F::snapshot());
            }
        }),
        Case::new(start_poll, |n| {
            for _ in 0..n {
                black_box(F::start_poll());
            }
        }),
        Case::call(covered, self::covered::<F>),
        Case::call(elsewhere, covered_elsewhere::<F>),
        Case::call(comes_about, self::comes_about::<F>),
    ]);
}

/// `N` -> number of cookies that were true too early, that were false after a grace period, and
/// that took another number of grace periods than one.
fn covered<F: Flavour>(numbers: &[u64]) -> Result<Vec<u64>> {
    let &[n] = numbers else { bail!("takes N") };
    let domain = F::domain();
    let (mut early, mut late, mut more) = (0, 0, 0);
    for _ in 0..n {
        let before = domain.stats().grace_periods;
        let cookie = F::snapshot();
        early += u64::from(F::poll(cookie));
        F::synchronize();
        late += u64::from(!F::poll(cookie));
        more += u64::from(domain.stats().grace_periods != before + 1);
    }
    Ok(vec![early, late, more])
}

/// `N` -> number of cookies that were false after another thread's grace period.
fn covered_elsewhere<F: Flavour>(numbers: &[u64]) -> Result<Vec<u64>> {
    let &[n] = numbers else { bail!("takes N") };
    let turn = Barrier::new(2);
    let late = std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..n {
                turn.wait();
                F::synchronize();
                turn.wait();
            }
        });
        let mut late = 0;
        for _ in 0..n {
            let cookie = F::snapshot();
            turn.wait();
            turn.wait();
            late += u64::from(!F::poll(cookie));
        }
        late
    });
    Ok(vec![late])
}

/// `N` -> nanoseconds from `start_poll` until its cookie is true although nobody else asks for
/// anything; one that takes longer than ten seconds is left out.
fn comes_about<F: Flavour>(numbers: &[u64]) -> Result<Vec<u64>> {
    let &[n] = numbers else { bail!("takes N") };
    let once = |_| {
        let start = clock(libc::CLOCK_MONOTONIC);
        let cookie = F::start_poll();
        loop {
            let done = F::poll(cookie);
            let taken = clock(libc::CLOCK_MONOTONIC) - start;
            if done || taken > 10_000_000_000 {
                return done.then_some(taken);
            }
            std::thread::yield_now();
        }
    };
    Ok((0..n).filter_map(once).collect())
}
