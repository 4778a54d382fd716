use std::sync::mpsc;
use std::thread;

use super::*;
use crate::callback::queue::Urgency;
use crate::{Domain, Srcu, worker};

const LATE: Duration = Duration::from_secs(60);

/// CB-07: the worker is told of a head that the collection before has taken already. It has the
/// queue in hand until the next collection, or it would never hear of what is posted until then.
#[test]
fn cb_07_told_of_what_was_collected_already() {
    let domain = Srcu::new();
    let (engine, queue) = (domain.engine(), &domain.engine().0.callbacks);
    for _ in 0..3 {
        // What a poster does whose head has just been collected.
        queue.want(0);
        assert!(worker::drive(engine));
        // It looks, finds nothing, and is woken for other reasons before the window is over.
        for _ in 0..50 {
            worker::wake();
            thread::sleep(Duration::from_millis(1));
        }
        let (done, called) = mpsc::channel();
        crate::callback::call(engine, Urgency::Lazy, move || {
            let _ = done.send(());
        });
        called.recv_timeout(LATE).expect("called");
    }
}
