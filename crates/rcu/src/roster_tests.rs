use super::*;

/// GP-12, LV-01: however many tasks ended without unregistering, the leader finds them all at one look.
#[test]
fn gp_12_tasks_that_have_ended_are_buried_together() {
    static PLACE: Place = Place::new(Kind::Tasks, "graves");
    let roster = PLACE.roster(|_| {});
    let ended: Vec<_> = (0..20)
        .map(|_| {
            std::thread::spawn(|| {
                let roster = PLACE.roster(|_| {});
                roster.register().mark.online(&roster.clock, &Real);
            })
        })
        .collect();
    ended.into_iter().for_each(|thread| thread.join().expect("no panic"));
    // Joined is not yet gone, for the kernel.
    crate::common::until("all are gone", || roster.orphans() == 20);
    let _scan = Scan::begin(&roster.clock, &roster.list, &Real);
    assert_eq!(roster.holdouts().count(), 20);
    assert!(roster.bury_orphans());
    assert_eq!((roster.buried(), roster.holdouts().count()), (20, 0));
    assert!(!roster.bury_orphans());
}
