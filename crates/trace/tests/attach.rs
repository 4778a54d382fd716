//! TR-16: programs on functions and tracepoints inside them, switched independently.

use owlet::Probe;
use owlet::attach::{Program, programs};
use std::sync::{Arc, Mutex};

owlet::tracepoint! {
    /// Events of this test.
    pub mod both {
        /// One call.
        inside(n: u64);
    }
}

/// A function with a site of each kind.
#[owlet::traced]
#[inline(never)]
fn has_both(n: u64) -> u64 {
    owlet::trace!(both::inside, n);
    n * 2
}

#[test]
fn tr_16_a_traced_function_with_a_tracepoint_inside_composes() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let say = |text: &'static str| {
        let log = Arc::clone(&log);
        move || log.lock().unwrap().push(text)
    };
    let taken = || std::mem::take(&mut *log.lock().unwrap());
    let (enter, leave, event) = (say("entry"), say("exit"), say("event"));
    let entry = Program::entry(move |_| enter()).build();
    let exit = Program::exit(move |_| leave()).build();
    // A program may emit, and a probe may call: each is seen by the other.
    let probe: Probe<both::inside::Function> = Probe::new(Box::new(move |_| event()));
    assert_eq!((has_both(1), taken()), (2, vec![]));
    let mut attached = entry.attach("attach::has_both").unwrap();
    assert_eq!((has_both(2), taken()), (4, vec!["entry"]));
    both::inside::TRACEPOINT.register(&probe, 0).unwrap();
    attached.merge(exit.attach("attach::has_both").unwrap());
    assert_eq!((has_both(3), taken()), (6, vec!["entry", "event", "exit"]));
    attached.detach().unwrap();
    assert_eq!((has_both(4), taken()), (8, vec!["event"]));
    both::inside::TRACEPOINT.unregister(&probe).unwrap();
    assert_eq!((has_both(5), taken()), (10, vec![]));
    assert!(owlet::attach::find("attach::*").iter().all(|f| programs(f).is_empty()));
}

#[test]
fn tr_16_a_program_that_emits_and_a_probe_that_calls_meet_each_other_once() {
    owlet::tracepoint! {
        /// Events of this test.
        pub mod nested {
            /// Emitted by a program.
            by_program();
            /// Emitted by nobody but a function.
            by_function();
        }
    }
    #[owlet::traced(name = "nested::called")]
    fn called() {
        owlet::trace!(nested::by_function);
    }
    let program = Program::entry(|_| owlet::trace!(nested::by_program)).build();
    let probe: Probe<nested::by_program::Function> = Probe::new(Box::new(called));
    nested::by_program::TRACEPOINT.register(&probe, 0).unwrap();
    let attached = program.attach("nested::called").unwrap();
    called();
    // The probe's call comes from inside the program: missed, and it goes no deeper.
    assert_eq!((program.stats().runs, program.stats().missed), (1, 1));
    nested::by_program::TRACEPOINT.unregister(&probe).unwrap();
    called();
    assert_eq!((program.stats().runs, program.stats().missed), (2, 1));
    attached.detach().unwrap();
}
