//! Every interleaving of the transitions of three threads, each of which enters, waits, is inside and
//! exits, twice, with grace periods that may end at any time.

use std::collections::{HashMap, HashSet, VecDeque};

use super::*;

const THREADS: usize = 3;
const ROUNDS: u8 = 2;

/// Where a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// About to enter.
    Out,
    /// Made a grace period due by entering, and has not asked for it yet.
    First,
    /// Waits for the grace period of that number.
    Waits(u32),
    /// Writes.
    Inside,
    /// Made one due by exiting, and has not asked for it yet.
    Last,
    Finished,
}

/// The world, with ghosts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    word: Word,
    at: [At; THREADS],
    rounds: [u8; THREADS],
    /// There may be a reader that found IDLE, or one that will without a grace period between.
    fast: bool,
    /// The grace period asked for began when `fast` readers could no longer come.
    covers_fast: bool,
    /// A writer has been there since a fast reader would have to see everything.
    unseen: bool,
    /// The grace period asked for began after the last writer left.
    covers_writers: bool,
    /// A poller has to ask for another.
    poller_asks: bool,
}

impl World {
    fn new() -> Self {
        Self {
            word: Word::IDLE,
            at: [At::Out; THREADS],
            rounds: [0; THREADS],
            fast: true,
            covers_fast: false,
            unseen: false,
            covers_writers: false,
            poller_asks: false,
        }
    }

    fn post(&mut self) {
        assert!(!self.word.is_posted(), "two grace periods asked for at once: {self:?}");
        self.word = self.word.post();
        self.covers_fast = self.word.state() != State::Idle;
        self.covers_writers = true;
    }

    /// What can happen next.
    fn next(&self) -> Vec<Self> {
        let mut out = Vec::new();
        for i in 0..THREADS {
            out.extend(self.step(i));
        }
        if self.poller_asks {
            let mut next = self.clone();
            next.poller_asks = false;
            next.post();
            out.push(next);
        }
        // The grace period asked for ends, and somebody finds out.
        if self.word.is_posted() && self.word.pass().1 != Passing::Nothing {
            let mut next = self.clone();
            if self.covers_fast {
                next.fast = false;
            }
            if self.covers_writers {
                next.unseen = false;
            }
            let (word, passing) = self.word.pass();
            next.word = word;
            next.poller_asks = passing == Passing::Again;
            next.fast |= word.state() == State::Idle;
            next.check();
            out.push(next);
        }
        out
    }

    fn step(&self, i: usize) -> Option<Self> {
        let mut next = self.clone();
        next.at[i] = match self.at[i] {
            At::Out => {
                let (word, entering) = self.word.enter();
                next.word = word;
                match entering {
                    Entering::First => At::First,
                    Entering::Shared => At::Waits(word.due()),
                    Entering::Slow => At::Inside,
                    Entering::Full => panic!("full"),
                }
            }
            At::First => {
                next.post();
                At::Waits(self.word.due())
            }
            At::Waits(due) => {
                if self.word.due() == due && self.word.state() == State::Enter {
                    return None;
                }
                At::Inside
            }
            At::Inside => {
                next.unseen = true;
                next.covers_writers = false;
                let (word, exiting) = self.word.exit();
                next.word = word;
                next.rounds[i] += 1;
                match exiting {
                    Exiting::Last => At::Last,
                    Exiting::Again | Exiting::Others => next.after(i),
                    Exiting::GaveUp | Exiting::Unbalanced => panic!("{exiting:?}: {self:?}"),
                }
            }
            At::Last => {
                next.post();
                next.after(i)
            }
            At::Finished => return None,
        };
        next.check();
        Some(next)
    }

    fn after(&self, i: usize) -> At {
        if self.rounds[i] == ROUNDS { At::Finished } else { At::Out }
    }

    fn check(&self) {
        for at in self.at {
            if at == At::Inside {
                // RS-01, RS-02.
                assert!(!self.fast, "somebody is inside while readers may be fast: {self:?}");
                assert_ne!(self.word.state(), State::Idle, "{self:?}");
            }
        }
        if self.word.state() == State::Idle {
            // RS-03.
            assert!(!self.unseen, "fast readers that miss what was written: {self:?}");
            assert_eq!(self.word.0 as u32, 0, "what readers compare: {self:?}");
        }
    }

    fn is_over(&self) -> bool {
        self.at.iter().all(|at| *at == At::Finished) && self.word.state() == State::Idle
    }
}

/// RS-01 to RS-06: no state is bad, none is a dead end, and from each the end can be reached.
#[test]
fn rs_05_every_interleaving_of_three_threads() {
    let mut known: HashMap<World, usize> = HashMap::from([(World::new(), 0)]);
    let mut came_from: Vec<Vec<usize>> = vec![Vec::new()];
    let mut over = Vec::new();
    let mut todo = VecDeque::from([World::new()]);
    while let Some(world) = todo.pop_front() {
        let from = known[&world];
        if world.is_over() {
            over.push(from);
        }
        for next in world.next() {
            let count = known.len();
            let id = *known.entry(next.clone()).or_insert_with(|| {
                came_from.push(Vec::new());
                todo.push_back(next);
                count
            });
            came_from[id].push(from);
        }
    }
    assert!(known.len() > 5000, "only {} states", known.len());
    // Backwards from the ends.
    let mut good: HashSet<usize> = over.iter().copied().collect();
    while let Some(id) = over.pop() {
        over.extend(came_from[id].iter().copied().filter(|from| good.insert(*from)));
    }
    assert_eq!(good.len(), known.len(), "states from which there is no way to the end");
}

/// RS-04: writers that follow each other wait for no grace period but the first, and never is more than
/// one asked for.
#[test]
fn rs_04_a_burst_waits_once() {
    let (mut word, entering) = Word::IDLE.enter();
    assert_eq!(entering, Entering::First);
    (word, _) = word.post().pass();
    let mut exiting;
    (word, exiting) = word.exit();
    assert_eq!(exiting, Exiting::Last);
    word = word.post();
    for _ in 0..1000 {
        let entering;
        (word, entering) = word.enter();
        assert_eq!(entering, Entering::Slow);
        (word, exiting) = word.exit();
        assert_eq!(exiting, Exiting::Again);
    }
    let passing;
    (word, passing) = word.pass();
    assert_eq!((passing, word.state()), (Passing::Again, State::Exit));
    let (word, passing) = word.post().pass();
    assert_eq!((passing, word.0 as u32), (Passing::Open, 0));
}

/// RS-06.
#[test]
fn rs_06_an_exit_without_an_enter_is_told() {
    assert_eq!(Word::IDLE.exit(), (Word::IDLE, Exiting::Unbalanced));
    let (word, _) = Word::IDLE.enter();
    // What it asked for is of no use to the next.
    let (word, gave_up) = word.post().exit();
    assert_eq!((gave_up, word.0 as u32), (Exiting::GaveUp, 0));
    // Another grace period than the one that was due is due next.
    assert_ne!(word.enter().0.due(), 1);
}
