//! Waiting for several domains at once: the cases of `rcu-sync` about `wait_all`.
//!
//! `NAME K ROUNDS` -> for each round, in nanoseconds: `wait_all` of the first K domains; each of
//! them alone, one number each; all of them one after the other.

use super::flavours::{
    Fast, Fast2, Flavour, Notify, Notify2, Protect, QSBR, QSBR_2, TASKS, TASKS_2, Trace, Trace2,
    Voluntary, Voluntary2,
};
use super::readers::{section, shared};
use crate::harness::inner::pin;
use crate::harness::serve::{Case, clock};
use anyhow::{Context, Result, bail};
use owlet_rcu::{Domain, wait_all};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Most domains.
const MOST: usize = 8;
/// What the first reader of `wait-all-held` is inside for, and how much longer each next one.
const HELD: (u64, u64) = (1_000_000, 200_000);

/// A domain, and how a thread has one section in it.
type Member = (&'static dyn Domain, fn(&mut dyn FnMut()));

fn member<F: Flavour>() -> Member {
    (F::domain(), |f| F::section(&mut F::thread(), f))
}

/// Each flavour once, then each once more.
fn members() -> [Member; MOST] {
    [
        member::<Fast>(),
        member::<Notify>(),
        member::<Trace>(),
        member::<Voluntary>(),
        member::<Fast2>(),
        member::<Notify2>(),
        member::<Trace2>(),
        member::<Voluntary2>(),
    ]
}

/// The cases.
pub(crate) fn cases() -> [Case; 4] {
    [
        Case::new("wait-all-sync", |n| {
            let domains = members().map(|(domain, _)| domain);
            (0..n).for_each(|_| wait_all(&domains));
        }),
        Case::call("wait-all-idle", |numbers| rounds(numbers, || ())),
        Case::call("wait-all-busy", beside_busy),
        Case::call("wait-all-held", held),
    ]
}

fn sizes(numbers: &[u64]) -> Result<(usize, u64)> {
    let &[k, rounds] = numbers else { bail!("takes K ROUNDS") };
    Ok(((k as usize).clamp(1, MOST), rounds))
}

/// `before` brings about what there is to be waited for.
fn rounds(numbers: &[u64], before: impl Fn()) -> Result<Vec<u64>> {
    let (k, rounds) = sizes(numbers)?;
    let all = members().map(|(domain, _)| domain);
    let domains = all.get(..k).context("too many")?;
    let timed = |f: &dyn Fn()| {
        before();
        let start = clock(libc::CLOCK_MONOTONIC);
        f();
        clock(libc::CLOCK_MONOTONIC) - start
    };
    let mut out = Vec::new();
    for _ in 0..rounds {
        out.push(timed(&|| wait_all(domains)));
        out.extend(domains.iter().map(|domain| timed(&|| domain.synchronize())));
        out.push(timed(&|| domains.iter().for_each(|domain| domain.synchronize())));
    }
    Ok(out)
}

/// With a thread on another CPU that has sections in all domains, without pause.
fn beside_busy(numbers: &[u64]) -> Result<Vec<u64>> {
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let (mut qsbr, mut qsbr_2) = (QSBR.register(), QSBR_2.register());
            let (mut qsbr, mut qsbr_2) = (qsbr.online(), qsbr_2.online());
            let (mut tasks, mut tasks_2) = (TASKS.register(), TASKS_2.register());
            ready.wait();
            while !stop.load(Ordering::Relaxed) {
                Fast::section(&mut (), || section(shared()));
                Fast2::section(&mut (), || section(shared()));
                Trace::section(&mut (), || section(shared()));
                Trace2::section(&mut (), || section(shared()));
                qsbr.quiescent();
                qsbr_2.quiescent();
                tasks.quiescent();
                tasks_2.quiescent();
            }
        });
        pin(0);
        ready.wait();
        std::thread::sleep(Duration::from_millis(1));
        let result = rounds(numbers, || ());
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// With a sleeping reader in each domain, of which the last is the last to leave.
fn held(numbers: &[u64]) -> Result<Vec<u64>> {
    let (k, _) = sizes(numbers)?;
    let (inside, outside) = (Barrier::new(k + 1), Barrier::new(k + 1));
    let (stop, base) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (i, (_, section)) in (0..).zip(members().into_iter().take(k)) {
            let (inside, outside, stop, base) = (&inside, &outside, &stop, &base);
            scope.spawn(move || {
                loop {
                    outside.wait();
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    section(&mut || {
                        inside.wait();
                        let until = base.load(Ordering::Relaxed) + HELD.0 + i * HELD.1;
                        let now = clock(libc::CLOCK_MONOTONIC);
                        std::thread::sleep(Duration::from_nanos(until.saturating_sub(now)));
                    });
                }
            });
        }
        // All have left when they come back to `outside`, where the next round begins.
        let result = rounds(numbers, || {
            outside.wait();
            base.store(clock(libc::CLOCK_MONOTONIC), Ordering::Relaxed);
            inside.wait();
        });
        stop.store(true, Ordering::Relaxed);
        outside.wait();
        result
    })
}
