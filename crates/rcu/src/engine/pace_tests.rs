use super::*;

const MS: u64 = 1_000_000;

/// SR-12: a normal wait spins for next to nothing, then sleeps ever longer, up to 10 ms; so does a
/// hurried one, up to 500 us.
#[test]
fn sr_12_pace_is_adaptive() {
    for (eagerness, looks, most) in [
        (Eagerness::Lazy, 3, 10_000),
        (Eagerness::Normal, 3, 10_000),
        (Eagerness::Hurried, 100, 500),
    ] {
        let mut last = Duration::ZERO;
        let mut age = 0;
        for attempt in 0..20_000 {
            match pace(attempt, age, eagerness) {
                Pace::Sleep(time) => {
                    assert!(attempt >= looks && time >= last, "{eagerness:?}");
                    last = time;
                    age += time.as_nanos() as u64;
                }
                _ => assert!(attempt < looks, "{eagerness:?} does not sleep"),
            }
        }
        assert_eq!(last, Duration::from_micros(most), "{eagerness:?}");
        assert_eq!(pace(u32::MAX, u64::MAX, eagerness), Pace::Sleep(Duration::from_micros(most)));
    }
}

/// After a wait of 10 ms the next look comes within 12 us, after a second within 1 %.
#[test]
fn looks_are_as_fine_as_the_age_allows() {
    for (age, within) in [(0, 12), (10 * MS, 12), (1000 * MS, 10_000)] {
        let Pace::Sleep(time) = pace(200, age, Eagerness::Normal) else { panic!("spins") };
        assert!(time <= Duration::from_micros(within), "{age}: {time:?}");
    }
}
