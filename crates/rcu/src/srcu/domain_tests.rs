use super::*;
use crate::{Cookie, Domain};

/// SR-05: grace periods and counters across their wrap.
#[test]
fn sr_05_wrap() {
    let domain = Srcu::new();
    for round in 0..300 {
        let section = domain.read();
        let cookie = domain.snapshot();
        assert!(!domain.poll(cookie), "round {round}");
        drop(section);
        domain.synchronize();
        assert!(domain.poll(cookie), "round {round}");
    }
    assert_eq!(domain.stats().grace_periods, 300);
    let first: &dyn Domain = &domain;
    assert!(first.poll(Cookie::completed()));
}
