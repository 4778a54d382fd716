//! What protects a reader elsewhere, and what protection costs at least: the cases of `rcu-read`.
//!
//! Every case is the same loop around the same section, as `PAIR` in all peers: enter, load a
//! pointer, load the word behind it, leave.

use crate::harness::serve::{Case, keep};
use anyhow::Result;
use arc_swap::ArcSwap;
use haphazard::HazardPointer;
use std::arch::asm;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The section of all cases that protect a plain pointer.
#[inline(always)]
pub(crate) fn section(shared: &AtomicPtr<u64>) -> u64 {
    let at = shared.load(Ordering::Acquire);
    // SAFETY: the benchmarks never replace what they read.
    keep(unsafe { *at })
}

/// What the sections read.
pub(crate) fn shared() -> &'static AtomicPtr<u64> {
    static WORD: AtomicU64 = AtomicU64::new(7);
    static SHARED: AtomicPtr<u64> = AtomicPtr::new(WORD.as_ptr());
    black_box(&SHARED)
}

/// A line of this thread's own.
#[repr(align(128))]
struct Line(AtomicU64);

/// Bounds: no protection; a plain and a locked increment and decrement of a line of one's own.
pub(crate) fn floor() -> Result<Vec<Case>> {
    Ok(vec![
        Case::new("none", |n| {
            let shared = shared();
            for _ in 0..n {
                section(shared);
            }
        }),
        Case::new("plain-inc", |n| {
            let (shared, line) = (shared(), Line(AtomicU64::new(0)));
            let at = line.0.as_ptr();
            for _ in 0..n {
                // SAFETY: a live local.
                unsafe { asm!("inc qword ptr [{}]", in(reg) at, options(nostack)) };
                section(shared);
                // SAFETY: a live local.
                unsafe { asm!("dec qword ptr [{}]", in(reg) at, options(nostack)) };
            }
        }),
        Case::new("lock-inc", |n| {
            let (shared, line) = (shared(), Line(AtomicU64::new(0)));
            for _ in 0..n {
                line.0.fetch_add(1, Ordering::SeqCst);
                section(shared);
                line.0.fetch_sub(1, Ordering::SeqCst);
            }
            black_box(&line.0);
        }),
    ])
}

/// `crossbeam-epoch`: pin and unpin.
pub(crate) fn crossbeam() -> Result<Vec<Case>> {
    use crossbeam_epoch::{Atomic, pin};
    static SHARED: LazyLock<Atomic<u64>> = LazyLock::new(|| Atomic::new(7));
    Ok(vec![Case::new("crossbeam-epoch", |n| {
        let shared = black_box(&*SHARED);
        for _ in 0..n {
            let guard = pin();
            let at = shared.load(Ordering::Acquire, &guard);
            // SAFETY: never null, never replaced.
            keep(unsafe { *at.deref() });
        }
    })])
}

/// `seize`: a guard of a collector.
pub(crate) fn seize() -> Result<Vec<Case>> {
    use seize::{Collector, Guard};
    static COLLECTOR: LazyLock<Collector> = LazyLock::new(Collector::new);
    Ok(vec![Case::new("seize", |n| {
        let (shared, collector) = (shared(), black_box(&*COLLECTOR));
        for _ in 0..n {
            let guard = collector.enter();
            let at = guard.protect(shared, Ordering::Acquire);
            // SAFETY: never null, never replaced.
            keep(unsafe { *at });
        }
    })])
}

/// `haphazard`: a hazard pointer kept by the thread, and one taken for each section.
pub(crate) fn haphazard() -> Result<Vec<Case>> {
    type Shared = haphazard::AtomicPtr<u64>;
    static SHARED: LazyLock<Shared> = LazyLock::new(|| Shared::from(Box::new(7)));
    Ok(vec![
        Case::new("haphazard", |n| {
            let (shared, mut hazard) = (black_box(&*SHARED), HazardPointer::new());
            for _ in 0..n {
                if let Some(word) = shared.safe_load(&mut hazard) {
                    keep(*word);
                }
                hazard.reset_protection();
            }
        }),
        Case::new("haphazard-new", |n| {
            let shared = black_box(&*SHARED);
            for _ in 0..n {
                let mut hazard = HazardPointer::new();
                if let Some(word) = shared.safe_load(&mut hazard) {
                    keep(*word);
                }
            }
        }),
    ])
}

/// `arc-swap`: `load`, which borrows, and the `Cache` that looks whether anything changed.
pub(crate) fn arc_swap() -> Result<Vec<Case>> {
    static SHARED: LazyLock<ArcSwap<u64>> = LazyLock::new(|| ArcSwap::from_pointee(7));
    Ok(vec![
        Case::new("arc-swap", |n| {
            let shared = black_box(&*SHARED);
            for _ in 0..n {
                keep(**shared.load());
            }
        }),
        Case::new("arc-swap-cache", |n| {
            let mut cache = arc_swap::Cache::<&ArcSwap<u64>, Arc<u64>>::new(black_box(&SHARED));
            for _ in 0..n {
                keep(**cache.load());
            }
        }),
    ])
}
