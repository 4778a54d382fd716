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
