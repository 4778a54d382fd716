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

/// Domains without memory of their own: fenced whatever they are, and called by their names.
#[test]
fn the_shared_block_is_fenced() {
    let shared = block::reserve();
    assert!(shared.is_fenced() && shared.tagged().near().is_none());
    for fenced in [false, true] {
        let domain = Srcu::with("mine", fenced);
        domain.block.store(shared.tagged().as_ptr(), Ordering::Release);
        let fences = domain.stats().membarriers;
        let section = domain.read();
        let cookie = domain.snapshot();
        drop(section);
        domain.synchronize();
        assert!(domain.poll(cookie));
        assert_eq!((domain.stats().membarriers, domain.name()), (fences, "mine"));
    }
}
