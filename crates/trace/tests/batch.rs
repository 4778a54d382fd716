//! TP-02, alone in its process so that waits can be counted exactly.

use owlet::Probe;
use std::sync::Arc;

owlet::tracepoint! {
    /// Three, to unregister from.
    pub mod tp {
        batch_a();
        batch_b();
        batch_c();
    }
}

#[test]
fn tp_02_one_wait_covers_many_unregistrations() {
    let points = [&tp::batch_a::TRACEPOINT, &tp::batch_b::TRACEPOINT, &tp::batch_c::TRACEPOINT];
    let alive: Vec<_> = (0..60)
        .map(|n| {
            let held = Arc::new(n);
            let inner = Arc::clone(&held);
            let probe: Probe<dyn Fn() + Send + Sync> =
                Probe::new(Box::new(move || assert!(*inner < 60)));
            points[n % 3].register(&probe, 0).unwrap();
            (held, probe, points[n % 3])
        })
        .collect();
    owlet::trace!(tp::batch_a);
    owlet::trace!(tp::batch_b);
    owlet::trace!(tp::batch_c);
    let before = owlet::grace_periods();
    for (_, probe, point) in &alive {
        point.unregister_async(probe).unwrap();
    }
    assert_eq!(owlet::grace_periods().calls, before.calls, "an unregistration waited");
    owlet::synchronize().unwrap();
    let after = owlet::grace_periods();
    assert_eq!(after.calls, before.calls + 1);
    assert_eq!(after.grace_periods, before.grace_periods + 1);
    assert!(after.membarriers <= before.membarriers + 1);
    for (held, probe, _) in alive {
        assert!(!probe.stopped());
        drop(probe);
        assert_eq!(Arc::strong_count(&held), 1, "a list is still there");
    }
}
