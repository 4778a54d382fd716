use super::*;

/// SR-12: a normal wait spins for next to nothing, then sleeps ever longer, up to 10 ms.
#[test]
fn sr_12_pace_is_adaptive() {
    let spins = (0..).take_while(|a| pace(*a, false) == Pace::Spin).count();
    assert!(spins <= 4);
    let mut last = Duration::ZERO;
    for attempt in 4..1000 {
        match pace(attempt, false) {
            Pace::Sleep(t) => {
                assert!(t >= last && t <= Duration::from_millis(10));
                last = t;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(last, Duration::from_millis(10));
    assert_eq!(pace(u32::MAX, false), Pace::Sleep(Duration::from_millis(10)));
    assert_eq!(pace(u32::MAX, true), Pace::Sleep(Duration::from_micros(500)));
}

/// PO-03: a cookie taken when idle needs one grace period, one taken during a grace period the next.
#[test]
fn po_03_cookie_rounding() {
    let domain = Srcu::new();
    let idle = domain.snapshot();
    assert_eq!(idle, Cookie(2));
    let block = domain.block_slow();
    block.gp.seq.store(1, Ordering::Relaxed);
    assert_eq!(domain.snapshot(), Cookie(4));
    block.gp.seq.store(2, Ordering::Relaxed);
    assert!(domain.poll(idle));
    assert!(!domain.poll(Cookie(4)));
}

/// SR-05: grace periods and counters across their wrap.
#[test]
fn sr_05_wrap() {
    let domain = Srcu::new();
    let block = domain.block_slow();
    block.gp.seq.store(0_u64.wrapping_sub(200), Ordering::Relaxed);
    for word in [0, 1, 2, 3] {
        block.slots().add(word, 0_u64.wrapping_sub(50));
    }
    for round in 0..300 {
        let section = domain.read();
        let cookie = domain.snapshot();
        assert!(!domain.poll(cookie), "round {round}");
        drop(section);
        domain.synchronize();
        assert!(domain.poll(cookie), "round {round}");
    }
}
