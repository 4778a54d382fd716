use super::*;
use crate::common::{NEVER, until};
use crate::domain::Domain;
use crate::engine::pace::{Pace, pause};
use crate::{Srcu, held};

/// SR-10: a request ends the leader's present sleep, however long that is, and prevents one that is about
/// to begin.
#[test]
fn sr_10_expedite_current_ends_a_sleep() {
    let domain = Srcu::new();
    let engine = Domain::engine(&domain);
    for late in [true, false] {
        let before = engine.turns.seq();
        let (leads, is_led) = std::sync::mpsc::channel();
        let leader = std::thread::spawn(move || {
            assert!(engine.turns.try_lead(held::identity()));
            engine.turns.begin();
            let hurried = engine.hurried();
            assert!(!hurried, "the request is the one of this grace period");
            leads.send(()).expect("heard");
            if !late {
                std::thread::sleep(Duration::from_millis(100));
            }
            // Sleeps are cut short now and then (a gate is opened for others, too).
            while engine.hurried() == hurried {
                pause(Pace::Sleep(NEVER), || engine.hurried() != hurried);
            }
            engine.turns.end();
            lead::resign(engine);
        });
        is_led.recv().expect("leads");
        if late {
            std::thread::sleep(Duration::from_millis(100));
        }
        domain.expedite_current();
        until("the leader's sleep is over", || leader.is_finished());
        leader.join().expect("no panic");
        assert_eq!(engine.turns.seq(), before.wrapping_add(2));
    }
}
