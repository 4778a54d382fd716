//! A function with one program at an end takes a short way (`run`). These are about where it begins and ends:
//! TR-01, TR-03, TR-06, TR-10.

use owlet_attach::{AtExit, Attached, Batch, Call, Program, fake, traced};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// A counter and what adds one to it.
fn counter() -> (Arc<AtomicU64>, impl Fn(&Call<'_>) + Send + Sync + 'static) {
    let count = Arc::new(AtomicU64::new(0));
    let add = Arc::clone(&count);
    (count, move |_: &Call<'_>| {
        add.fetch_add(1, Ordering::Relaxed);
    })
}

mod subsets {
    #[owlet_attach::traced]
    pub(super) fn f() {}
}

/// Which ends a program has: entry, exit.
const ENDS: [(u64, u64); 6] = [(1, 0), (0, 1), (1, 1), (1, 0), (0, 1), (1, 1)];

fn program(which: usize) -> (Program, [Arc<AtomicU64>; 2]) {
    let ((enters, enter), (exits, exit)) = (counter(), counter());
    let builder = match ENDS[which] {
        (1, 0) => Program::entry(enter),
        (0, 1) => Program::exit(exit),
        _ => {
            let enter = move |call: &Call<'_>| {
                enter(call);
                AtExit::Run
            };
            Program::session(enter, exit)
        }
    };
    let builder = if which < 3 { builder } else { builder.sleepable() };
    (builder.build(), [enters, exits])
}

/// Every set of the six, each reached by one attach or detach from the one before (a Gray code): a call runs
/// each end of each program in the set once, and no other.
#[test]
fn tr_01_every_set_of_ends_and_flavours_runs_exactly_what_is_attached() {
    let programs: Vec<_> = (0..ENDS.len()).map(program).collect();
    let mut attached: Vec<Option<Attached>> = programs.iter().map(|_| None).collect();
    for step in 1_u32..1 << (ENDS.len() + 1) {
        let which = step.trailing_zeros() as usize % ENDS.len();
        attached[which] = match attached[which].take() {
            Some(old) => {
                old.detach().unwrap();
                None
            }
            None => Some(programs[which].0.attach("*::subsets::f").unwrap()),
        };
        let before: Vec<_> =
            programs.iter().map(|(_, counts)| counts.each_ref().map(get)).collect();
        subsets::f();
        for (n, (_, counts)) in programs.iter().enumerate() {
            let on = u64::from(attached[n].is_some());
            let expected = [before[n][0] + on * ENDS[n].0, before[n][1] + on * ENDS[n].1];
            assert_eq!(counts.each_ref().map(get), expected, "step {step}, program {n}");
        }
    }
}

fn get(count: &Arc<AtomicU64>) -> u64 {
    count.load(Ordering::Relaxed)
}

mod sleeping {
    use super::*;

    #[traced]
    pub(super) fn body(meanwhile: impl FnOnce()) {
        meanwhile();
    }
}

const BODY: &str = "*::sleeping::body";

/// Until it is dropped, no other test calls `body` or attaches to it.
fn body_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session that is alone: its word is `word` at exit, if its exit runs.
fn session(word: u64) -> (Program, Arc<AtomicU64>) {
    let seen = Arc::new(AtomicU64::new(0));
    let see = Arc::clone(&seen);
    let enter = move |call: &Call<'_>| {
        call.set_session(word);
        AtExit::Run
    };
    let exit = move |call: &Call<'_>| see.store(call.session(), Ordering::Relaxed);
    (Program::session(enter, exit).build(), seen)
}

#[test]
fn tr_06_a_lone_exit_and_a_lone_session_are_not_run_after_a_detach_in_the_body() {
    let _alone = body_alone();
    for memory in [true, false] {
        let detach = |attached: Attached| {
            let lists = if memory { usize::MAX } else { 0 };
            fake::memory_for(lists, || attached.detach()).unwrap();
        };
        let (exits, exit) = counter();
        let attached = Program::exit(exit).build().attach(BODY).unwrap();
        sleeping::body(|| detach(attached));
        sleeping::body(|| ());
        assert_eq!(get(&exits), 0);
        let (program, seen) = session(7);
        let attached = program.attach(BODY).unwrap();
        sleeping::body(|| ());
        assert_eq!(seen.swap(0, Ordering::Relaxed), 7);
        sleeping::body(|| detach(attached));
        sleeping::body(|| ());
        assert_eq!((get(&seen), program.stats().runs), (0, 3));
        // The entry of one that is marked dead.
        let (enters, enter) = counter();
        let attached = Program::entry(enter).build().attach(BODY).unwrap();
        sleeping::body(|| detach(attached));
        sleeping::body(|| ());
        assert_eq!(get(&enters), 1);
    }
}

/// What a call remembers is the link, not the program, nor that there was a session.
#[test]
fn tr_10_a_lone_session_that_is_attached_anew_in_the_body_has_no_exit() {
    let _alone = body_alone();
    let (program, seen) = session(7);
    let mut attached = Some(program.attach(BODY).unwrap());
    sleeping::body(|| {
        attached.take().unwrap().detach().unwrap();
        attached = Some(program.attach(BODY).unwrap());
    });
    assert_eq!((get(&seen), program.stats().runs), (0, 1));
    // Another's word is not for the exit program that has come instead.
    let words = Arc::new(AtomicU64::new(u64::MAX));
    let see = Arc::clone(&words);
    let exit = Program::exit(move |call| see.store(call.session(), Ordering::Relaxed)).build();
    sleeping::body(|| {
        attached.take().unwrap().detach().unwrap();
        attached = Some(exit.attach(BODY).unwrap());
    });
    assert_eq!((get(&seen), get(&words)), (0, 0));
}

/// A call that begins the short way and ends the long one, and the other way round.
#[test]
fn tr_10_a_session_keeps_its_word_when_others_come_and_go_in_the_body() {
    let _alone = body_alone();
    let ((program, seen), (other, others)) = (session(7), session(8));
    let attached = program.attach(BODY).unwrap();
    let mut second = None;
    sleeping::body(|| second = Some(other.attach(BODY).unwrap()));
    assert_eq!((seen.swap(0, Ordering::Relaxed), get(&others)), (7, 0));
    sleeping::body(|| second.take().unwrap().detach().unwrap());
    assert_eq!((seen.swap(0, Ordering::Relaxed), get(&others)), (7, 0));
    attached.detach().unwrap();
}

/// A vetoed session that is alone.
#[test]
fn tr_10_a_lone_session_may_veto_its_exit() {
    let _alone = body_alone();
    let (exits, exit) = counter();
    let attached = Program::session(|_| AtExit::Skip, exit).build().attach(BODY).unwrap();
    sleeping::body(|| ());
    assert_eq!(get(&exits), 0);
    attached.detach().unwrap();
}

mod busy {
    #[owlet_attach::traced]
    #[inline(never)]
    pub(super) fn f(n: u64) -> u64 {
        std::hint::black_box(n) + 1
    }
}

/// A program that says so when it runs after it is gone.
struct Canary(Arc<AtomicBool>, AtomicBool);

impl Canary {
    fn run(&self) {
        assert!(!self.1.load(Ordering::Relaxed), "run after it was freed");
        assert!(!self.0.load(Ordering::Relaxed), "run after its detach had returned");
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

fn canary(kind: u64) -> (Program, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let canary = Arc::new(Canary(Arc::clone(&gone), AtomicBool::new(false)));
    let run = {
        let canary = Arc::clone(&canary);
        move || canary.run()
    };
    let program = match kind % 3 {
        0 => Program::entry(move |_| run()),
        1 => Program::exit(move |_| run()),
        _ => {
            let enter = move |_: &Call<'_>| {
                run();
                AtExit::Run
            };
            Program::session(enter, move |_| canary.run())
        }
    };
    (program.build(), gone)
}

/// Sets it also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lists of one become lists of two and of one again, of the other program, under calls.
#[test]
fn tr_03_a_second_program_comes_and_the_first_goes_under_calls() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let (started, starts) = mpsc::channel();
        for _ in 0..3 {
            let (stop, started) = (&stop, started.clone());
            scope.spawn(move || {
                started.send(()).unwrap();
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(busy::f(n), n + 1);
                    n += 1;
                }
            });
        }
        (0..3).for_each(|_| starts.recv().unwrap());
        let (mut last, mut kept) = (canary(0), None);
        for round in 1..400 {
            let next = canary(round / 7 + round);
            let second = Batch::new().add(&next.0, "*::busy::f").attach().unwrap();
            if let Some(first) = kept.replace(second) {
                Attached::detach(first).unwrap();
                last.1.store(true, Ordering::Relaxed);
            }
            // Its own call is one that finds it.
            let runs = next.0.stats().runs;
            assert_eq!(busy::f(1), 2);
            assert!(next.0.stats().runs > runs);
            assert!(!last.0.stats().stopped && !next.0.stats().stopped);
            last = next;
        }
        kept.map(Attached::detach).transpose().unwrap();
    });
}
