//! GP-03, GP-04, GP-05, SR-06: what two threads must never have read, for every flavour.
//!
//! A case is two roles that run against each other on fresh words, again and again. Cases come in pairs
//! that mirror each other, since of each pair x86-64 shows one only if a grace period does not wait at
//! all, and the other already if it orders nothing. `a_wait_that_does_not_wait_is_found_out` runs them with such a
//! wait: those that this machine can show must show. (`owlet-torture litmus` has more roles, and goes on
//! for longer.)

mod common;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use owlet_rcu::{ClassicSrcu, Qsbr, Srcu, Tasks, TasksTrace};

/// A word with a pair of cache lines to itself.
#[derive(Default)]
#[repr(align(128))]
struct Word(AtomicU32);

impl Word {
    fn set(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the roles of a round share.
#[derive(Default)]
struct Words {
    x: Word,
    y: Word,
}

/// A flavour: how to run something in a section, and how to wait.
struct Flavour {
    name: &'static str,
    section: fn(&mut dyn FnMut()),
    wait: fn(),
}

static SRCU: Srcu = Srcu::new();
static FENCED: Srcu = Srcu::fenced("fenced");
static CLASSIC: ClassicSrcu = ClassicSrcu::new();
static TRACE: TasksTrace = TasksTrace::new();
static QSBR: Qsbr = Qsbr::new();
static TASKS: Tasks = Tasks::new();

macro_rules! sections_of {
    ($domain:ident) => {
        Flavour {
            name: stringify!($domain),
            section: |body| {
                let _section = $domain.read();
                body();
            },
            wait: || $domain.synchronize_expedited(),
        }
    };
}

const FLAVOURS: [Flavour; 6] = [
    sections_of!(SRCU),
    sections_of!(FENCED),
    sections_of!(CLASSIC),
    sections_of!(TRACE),
    Flavour {
        name: "QSBR",
        section: |body| {
            let mut reader = QSBR.register();
            let _online = reader.online();
            body();
        },
        wait: || QSBR.synchronize_expedited(),
    },
    Flavour {
        name: "TASKS",
        section: |body| {
            let _task = TASKS.register();
            body();
        },
        wait: || TASKS.synchronize_expedited(),
    },
];

/// Sections that nobody waits for.
const BUSTED: Flavour = Flavour { name: "busted", section: |body| body(), wait: || () };

type Role = fn(&Words, &Flavour, &mut Delay) -> u32;

/// Two roles, and what they must not have read.
struct Case {
    name: &'static str,
    roles: [Role; 2],
    forbidden: fn(u32, u32) -> bool,
    /// x86-64 shows it where nobody waits.
    shows: bool,
}

/// In a section: `first`, then `second`.
fn read(f: &Flavour, d: &mut Delay, first: impl Fn() -> u32, second: impl Fn() -> u32) -> u32 {
    let mut seen = 0;
    (f.section)(&mut || {
        let before = first();
        d.pass();
        seen = 2 * before + second();
    });
    seen
}

fn set(word: &Word) -> u32 {
    word.set();
    0
}

const CASES: [Case; 5] = [
    Case {
        name: "gp_03 late read",
        roles: [
            |w, f, d| read(f, d, || w.y.get(), || w.x.get()),
            |w, f, _| {
                w.x.set();
                (f.wait)();
                set(&w.y)
            },
        ],
        forbidden: |by_reader, _| by_reader == 2,
        shows: false,
    },
    Case {
        name: "gp_03 early read",
        roles: [
            |w, f, d| read(f, d, || w.x.get(), || w.y.get()),
            |w, f, _| {
                w.x.set();
                (f.wait)();
                set(&w.y)
            },
        ],
        forbidden: |by_reader, _| by_reader == 1,
        shows: true,
    },
    Case {
        name: "gp_04 early store",
        roles: [
            |w, f, d| read(f, d, || set(&w.x), || w.y.get()),
            |w, f, _| {
                w.y.set();
                (f.wait)();
                w.x.get()
            },
        ],
        forbidden: |by_reader, by_updater| by_reader == 0 && by_updater == 0,
        shows: false,
    },
    Case {
        name: "gp_04 late store",
        roles: [
            |w, f, d| read(f, d, || w.y.get(), || set(&w.x)),
            |w, f, _| {
                w.y.set();
                (f.wait)();
                w.x.get()
            },
        ],
        forbidden: |by_reader, by_updater| by_reader == 0 && by_updater == 0,
        shows: true,
    },
    Case {
        name: "gp_05 two waiters",
        roles: [
            |w, f, _| {
                w.x.set();
                (f.wait)();
                w.y.get()
            },
            |w, f, _| {
                w.y.set();
                (f.wait)();
                w.x.get()
            },
        ],
        forbidden: |a, b| a == 0 && b == 0,
        shows: true,
    },
];

/// SR-06: the ends of a classic section are full barriers.
const CLASSIC_ENDS: Case = Case {
    name: "sr_06",
    roles: [
        |w, _, _| {
            let section = CLASSIC.read();
            w.x.set();
            drop(section);
            w.y.get()
        },
        |w, _, _| {
            w.y.set();
            let _section = CLASSIC.read();
            w.x.get()
        },
    ],
    forbidden: |a, b| a == 0 && b == 0,
    shows: true,
};

/// A delay between two accesses: mostly none, now and then long enough for a whole grace period.
struct Delay(u64);

impl Delay {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % most
    }

    fn spin(&mut self, most: u64) {
        (0..self.below(most)).for_each(|_| std::hint::spin_loop());
    }

    fn pass(&mut self) {
        match self.below(8) {
            0..3 => {}
            3..6 => self.spin(200),
            6 => thread::yield_now(),
            _ => thread::sleep(Duration::from_micros(20)),
        }
    }
}

/// Where both wait for each other, closely.
struct Line(AtomicU64);

impl Line {
    fn wait(&self, round: usize) {
        self.0.fetch_add(1, Ordering::AcqRel);
        let mut looks = 0_u32;
        while self.0.load(Ordering::Acquire) < 2 * (round as u64 + 1) {
            looks += 1;
            if looks.is_multiple_of(500) { thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

const ROUNDS: usize = 2000;

/// How often the forbidden outcome was seen, in so many rounds or as many as there is time for.
fn play(case: &Case, flavour: &Flavour, seed: u64) -> usize {
    let words: Vec<Words> = (0..ROUNDS).map(|_| Words::default()).collect();
    let line = Line(AtomicU64::new(0));
    let enough = Instant::now() + Duration::from_millis(250);
    let end = AtomicU32::new(ROUNDS as u32);
    let side = |me: usize| -> Vec<u32> {
        let mut delay = Delay(seed * 2 + me as u64);
        let mut seen = Vec::with_capacity(ROUNDS);
        for (round, words) in words.iter().enumerate() {
            if me == 0 && Instant::now() > enough {
                // The other one hears of it at the line of this round.
                end.fetch_min(round as u32 + 1, Ordering::Relaxed);
            }
            line.wait(round);
            delay.spin(64);
            seen.push((case.roles[me])(words, flavour, &mut delay));
            if round as u32 + 1 >= end.load(Ordering::Relaxed) {
                break;
            }
        }
        seen
    };
    let (a, b) = thread::scope(|s| {
        let other = s.spawn(|| side(1));
        (side(0), other.join().expect("no panic"))
    });
    a.into_iter().zip(b).filter(|(a, b)| (case.forbidden)(*a, *b)).count()
}

#[test]
fn gp_03_gp_04_gp_05_forbidden_outcomes_do_not_occur() {
    for flavour in &FLAVOURS {
        for case in &CASES {
            let seen = play(case, flavour, 1);
            assert_eq!(seen, 0, "{} of {}", case.name, flavour.name);
        }
    }
}

#[test]
fn sr_06_classic_sections_are_full_barriers() {
    for seed in 1..6 {
        assert_eq!(play(&CLASSIC_ENDS, &FLAVOURS[2], seed), 0, "both read the past");
    }
    CLASSIC.synchronize();
    // Readers that fence for themselves need no heavy fence.
    assert_eq!(CLASSIC.stats().membarriers, 0);
}

/// The cases mean something: without a grace period this machine shows what they forbid.
#[test]
fn gp_03_gp_04_gp_05_a_wait_that_does_not_wait_is_found_out() {
    for case in CASES.iter().filter(|case| case.shows) {
        let end = Instant::now() + common::LATE;
        let shown =
            (1..).take_while(|_| Instant::now() < end).any(|seed| play(case, &BUSTED, seed) > 0);
        assert!(shown, "{} is never seen, whatever a grace period does", case.name);
    }
}
