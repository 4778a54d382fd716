//! Probe lists where memory runs out and where code may not be written; the rest is in
//! `tests/probes.rs`. One test at a time: a commit walks over all sites of the binary.

use crate::RegisterError;
use crate::probe::{Probe, fail_allocations};
use crate::tracepoint::{Hooks, Tracepoint, run};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use owlet_wire::schema::{Kind, Level, SchemaRef};
use std::sync::{Mutex, MutexGuard, PoisonError};

type Function = dyn Fn(u64) + Send + Sync;

const fn point(name: &'static str, hooks: Option<Hooks>) -> Tracepoint<Function> {
    let desc = SchemaRef {
        name,
        kind: Kind::Event,
        level: Level::Info,
        file: "",
        line: 0,
        doc: "",
        fields: &[],
    };
    Tracepoint::new(desc, hooks)
}

fn emit(point: &'static Tracepoint<Function>, n: u64) {
    run(point, |function: &Function| function(n), |_| {});
}

pub(crate) fn one() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn counting() -> (&'static AtomicU64, Probe<Function>) {
    let sum: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    let probe: Probe<Function> = Probe::new(Box::new(move |n| {
        sum.fetch_add(n, Ordering::Relaxed);
    }));
    (sum, probe)
}

#[test]
fn tp_05_out_of_memory_on_add_changes_nothing() {
    let _one = one();
    static POINT: Tracepoint<Function> = point("unit:add", None);
    let (a, b) = (counting(), counting());
    assert_eq!(fail_allocations(|| POINT.register(&a.1, 0)), Err(RegisterError::OutOfMemory));
    assert!(!POINT.core().is_on());
    POINT.register(&a.1, 0).unwrap();
    assert_eq!(fail_allocations(|| POINT.register(&b.1, 0)), Err(RegisterError::OutOfMemory));
    emit(&POINT, 1);
    assert_eq!((a.0.load(Ordering::Relaxed), b.0.load(Ordering::Relaxed)), (1, 0));
    POINT.unregister(&a.1).unwrap();
}

#[test]
fn tp_05_out_of_memory_on_remove_stops_the_probe_and_is_cleaned_later() {
    let _one = one();
    static POINT: Tracepoint<Function> = point("unit:remove", None);
    let (a, b, c) = (counting(), counting(), counting());
    for probe in [&a.1, &b.1, &c.1] {
        POINT.register(probe, 0).unwrap();
    }
    fail_allocations(|| POINT.unregister(&b.1)).unwrap();
    emit(&POINT, 1);
    let sums = || [&a, &b, &c].map(|(sum, _)| sum.load(Ordering::Relaxed));
    assert_eq!(sums(), [1, 0, 1]);
    // Unknown now, and free to come back.
    assert!(POINT.unregister(&b.1).is_err());
    POINT.register(&b.1, 1).unwrap();
    emit(&POINT, 10);
    assert_eq!(sums(), [11, 10, 11]);
    // The last live one among stubs: off, without needing memory.
    fail_allocations(|| {
        POINT.unregister(&a.1).unwrap();
        POINT.unregister(&c.1).unwrap();
        POINT.unregister(&b.1).unwrap();
    });
    assert!(!POINT.core().is_on());
    emit(&POINT, 100);
    assert_eq!(sums(), [11, 10, 11]);
}

#[test]
fn tp_06_hooks_are_balanced_when_memory_runs_out() {
    let _one = one();
    static BALANCE: AtomicU32 = AtomicU32::new(0);
    const HOOKS: Hooks = Hooks {
        register: || {
            BALANCE.fetch_add(1, Ordering::Relaxed);
            Ok(())
        },
        unregister: || {
            BALANCE.fetch_sub(1, Ordering::Relaxed);
        },
    };
    static POINT: Tracepoint<Function> = point("unit:hooks", Some(HOOKS));
    let (_, probe) = counting();
    assert!(fail_allocations(|| POINT.register(&probe, 0)).is_err());
    assert_eq!(BALANCE.load(Ordering::Relaxed), 0);
}

#[test]
fn a_hook_that_changes_probes_is_refused_not_deadlocked() {
    let _one = one();
    static INNER: Tracepoint<Function> = point("unit:inner", None);
    static ANSWER: Mutex<Option<RegisterError>> = Mutex::new(None);
    const HOOKS: Hooks = Hooks {
        register: || {
            let (_, probe) = counting();
            *ANSWER.lock().unwrap() = INNER.register(&probe, 0).err();
            assert!(crate::synchronize().is_err());
            Ok(())
        },
        unregister: || {},
    };
    static POINT: Tracepoint<Function> = point("unit:hook-in-hook", Some(HOOKS));
    let (_, probe) = counting();
    POINT.register(&probe, 0).unwrap();
    assert_eq!(*ANSWER.lock().unwrap(), Some(RegisterError::InsideHook));
    POINT.unregister(&probe).unwrap();
}

#[cfg(owlet_site = "toggle")]
mod sites {
    use super::*;
    use crate::Refused;
    use crate::site::refuse;

    static POINT: Tracepoint<Function> = point("unit:site", None);

    fn site() -> bool {
        let mut on = false;
        crate::__site!(POINT, { on = true });
        on
    }

    #[test]
    fn each_way_of_writing_switches_the_site() {
        let _one = one();
        let (_, probe) = counting();
        for (mem, mprotect) in [(0, libc::EACCES), (libc::ENOENT, 0)] {
            assert!(!site());
            refuse(mem, mprotect, || {
                POINT.register(&probe, 0).unwrap();
                assert!(site());
                POINT.unregister(&probe).unwrap();
            });
            assert!(!site());
        }
    }

    #[test]
    fn a_refusal_fails_the_session_with_a_hint() {
        use crate::session::{self, AttachError};
        use owlet_ring::{Clock, Segment, SegmentOptions};
        use owlet_wire::config::{Rule, SessionConfig};
        let _one = one();
        assert!(!site());
        let config = SessionConfig {
            session: 1,
            rules: vec![Rule { pattern: "unit:site".to_owned(), enable: true }],
            level: Level::Trace,
            filter: String::new(),
            rendezvous: String::new(),
            recorder_pid: 0,
        };
        let options = SegmentOptions {
            ring_bytes: 1 << 16,
            cpus: owlet_percpu::cpus(),
            clock: Clock::Monotonic,
            log_bytes: 1 << 16,
            config: config.encode(),
            deferral_us: 2000,
        };
        let segment = Segment::create(&options).unwrap();
        let fd = || segment.fd().try_clone_to_owned().unwrap();
        let error = refuse(libc::ENOENT, libc::EACCES, || session::attach(fd())).unwrap_err();
        assert!(matches!(error, AttachError::Sites(_)));
        assert!(error.hint().contains("flag-sites") && error.to_string().contains("mprotect"));
        assert!(!site() && !POINT.core().is_on());
        assert_eq!(session::count(), 0);
        // Nothing is left of it: the same session can be joined once writing is allowed.
        let (id, matched) = session::attach(fd()).unwrap();
        assert_eq!((matched.enabled, site()), (1, true));
        assert!(session::detach(id) && !site());
    }

    #[test]
    fn a_refusal_is_told_and_changes_nothing() {
        let _one = one();
        let (_, probe) = counting();
        let refused = refuse(libc::ENOENT, libc::EACCES, || POINT.register(&probe, 0));
        let expected = Refused { mem_errno: libc::ENOENT, mprotect_errno: libc::EACCES };
        assert_eq!(refused, Err(RegisterError::Sites(expected)));
        assert!(!site() && !POINT.core().is_on());
        assert_eq!(refuse(libc::ENOENT, libc::EACCES, crate::site::probe), Err(expected));
        // Refused only afterwards: the probe stops, the site finds an empty list.
        POINT.register(&probe, 0).unwrap();
        refuse(libc::ENOENT, libc::EACCES, || POINT.unregister(&probe)).unwrap();
        assert!(site() && !POINT.core().is_on());
        // And the next change puts it right.
        POINT.register(&probe, 0).unwrap();
        POINT.unregister(&probe).unwrap();
        assert!(!site());
    }
}
