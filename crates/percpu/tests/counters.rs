//! Per-CPU counters lose nothing: threads, migrations, signals, threads without rseq.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use owlet_percpu::{Backend, Entered, PerCpuCounters, Slots, backend, backend_why, cpus};
use owlet_sys::topology;

const EACH: u64 = 2_000_000;

#[test]
fn sum_is_exact_under_migration() {
    let counters = PerCpuCounters::new().expect("memory");
    std::thread::scope(|s| {
        for _ in 0..6 {
            s.spawn(|| {
                for i in 0..EACH {
                    counters.add(3, 1);
                    if i % 50_000 == 0 {
                        // Another CPU, if there is one we may use.
                        let _ = topology::set_affinity(Some(i as usize % cpus()), cpus());
                    }
                }
            });
        }
    });
    assert_eq!(counters.sum(3), 6 * EACH, "{:?}: {}", backend(), backend_why());
    assert_eq!(counters.sum(2), 0);
}

static FROM_HANDLER: AtomicU64 = AtomicU64::new(0);
static HANDLER_SLOTS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: i32) {
    let base = HANDLER_SLOTS.load(Ordering::Relaxed) as usize;
    if let Some(base) = std::ptr::NonNull::new(base as *mut u64) {
        // SAFETY: the test's counters, alive while its timer runs.
        let slots = unsafe { Slots::from_raw(base) };
        slots.add(0, 1);
        FROM_HANDLER.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn sum_is_exact_under_signals() {
    let counters = PerCpuCounters::new().expect("memory");
    HANDLER_SLOTS.store(counters.slots().base().as_ptr() as u64, Ordering::Relaxed);
    // SAFETY: installs a handler that is async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        // SAFETY: takes no arguments.
        let target = unsafe { libc::pthread_self() } as usize;
        let stop = &stop;
        s.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the target thread outlives this scope.
                unsafe { libc::pthread_kill(target as libc::pthread_t, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        for _ in 0..20 * EACH {
            counters.add(0, 1);
        }
        stop.store(true, Ordering::Relaxed);
    });
    HANDLER_SLOTS.store(0, Ordering::Relaxed);
    let handled = FROM_HANDLER.load(Ordering::Relaxed);
    assert!(handled > 10, "the timer did not run: {handled}");
    assert_eq!(counters.sum(0), 20 * EACH + handled);
}

/// Case X4: a thread that lost (or never had) its registration works, in words of its own.
#[test]
fn x4_threads_without_rseq_count_too() {
    let counters = PerCpuCounters::new().expect("memory");
    std::thread::scope(|s| {
        for i in 0..4 {
            let counters = &counters;
            s.spawn(move || {
                if i % 2 == 0
                    && let Ok(area) = owlet_sys::rseq::area()
                {
                    owlet_sys::rseq::unregister_this_thread(area).expect("was registered");
                }
                for _ in 0..EACH {
                    counters.add(1, 1);
                }
            });
        }
    });
    assert_eq!(counters.sum(1), 4 * EACH);
}

#[test]
fn increment_if_compares() {
    let counters = PerCpuCounters::new().expect("memory");
    let index = AtomicU32::new(1);
    assert_eq!(counters.slots().increment_if(0, &index, 0), Entered::Moved);
    assert_eq!(counters.sum(0), 0);
    let how = counters.slots().increment_if(0, &index, 1);
    let want = if backend() == Backend::Rseq { Entered::Sequence } else { Entered::Atomic };
    assert_eq!(how, want);
    assert_eq!(counters.sum(0), 1);
}

/// The sequence that is given what it needs: the same, and for a thread without rseq the atomic bank.
#[test]
fn increment_at_if_low_compares() {
    let word = AtomicU64::new(7 << 32 | 1);
    let counters = PerCpuCounters::new().expect("memory");
    let increment = |expected| {
        let (hot, at) = (owlet_percpu::hot(), counters.slots().base().cast());
        // SAFETY: the second word of the first slot.
        unsafe { Slots::increment_at_if_low::<8>(hot, at, &word, expected) }
    };
    let _ = backend();
    assert_eq!(increment(0), Entered::Moved);
    assert_eq!(counters.sum(1), 0);
    let sequence = backend() == Backend::Rseq;
    assert_eq!(increment(1), if sequence { Entered::Sequence } else { Entered::Atomic });
    std::thread::scope(|s| {
        s.spawn(|| {
            if let Ok(area) = owlet_sys::rseq::area() {
                owlet_sys::rseq::unregister_this_thread(area).expect("was registered");
            }
            assert_eq!(increment(1), Entered::Atomic);
            assert_eq!(increment(0), Entered::Moved);
        });
    });
    assert_eq!((counters.sum(0), counters.sum(1)), (0, 2));
}
