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

/// M4: a domain that is dropped with objects waiting leaves its roster to the next one, once they are freed.
#[test]
fn m4_a_roster_with_objects_waiting_is_used_again() {
    use crate::{Qsbr, Tasks, free::Limits};
    let rosters = all().count();
    let at_rest = |roster: &'static Roster| {
        roster.used.load(Ordering::Acquire) != ORPHANED || roster.engine.is_at_rest()
    };
    let limits = Limits::DEFAULT.linger(Duration::from_millis(1));
    for _ in 0..30 {
        let (qsbr, tasks) = (Qsbr::named("waiting"), Tasks::named("waiting"));
        qsbr.set_retire_limits(limits);
        tasks.set_retire_limits(limits);
        (0..600_u64).for_each(|n| qsbr.retire(Box::new(n)));
        (0..600_u64).for_each(|n| tasks.retire(Box::new(n)));
        drop(qsbr);
        drop(tasks);
        crate::common::until("all is freed", || all().all(at_rest));
    }
    // Other tests of the process may make a few, too.
    let more = all().count() - rosters;
    assert!(more <= 20, "{more} rosters for 2 domains at a time");
}
