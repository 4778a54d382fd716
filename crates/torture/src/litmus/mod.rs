//! The outcomes that grace periods forbid, looked for on this machine's hardware.
//!
//! A test is a few roles that run against each other on fresh words, again and again, each after a random
//! delay; what the roles have read is the outcome of the round. Forbidden ones must not occur. The rule
//! of the cycle (GP-06): an outcome is forbidden if and only if its cycle has at least as many grace
//! periods as sections, so one test has an outcome that is allowed, and only counted: it
//! shows that the delays are long enough for the others to mean something.

mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::flavour::{Flavour, Name, broken, quiescent, srcu};
use crate::rng::Rng;
use tests::Test;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Rounds of each test.
    #[arg(long, default_value = "20000")]
    rounds: NonZeroUsize,
    /// Milliseconds after which a test ends with the rounds it has had.
    #[arg(long, default_value_t = 3000)]
    millis: u64,
    /// Flavours, separated by commas; all that must hold, if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    flavours: Vec<Name>,
    /// Seed of the delays.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Backend to test.
    #[arg(long, value_enum, default_value = "auto")]
    backend: crate::Backend,
    /// Only tests whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// One JSON object on standard output instead of lines of text.
    #[arg(long)]
    json: bool,
}

/// A word on a cache line pair of its own.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Word(AtomicU32);

impl Word {
    #[inline(always)]
    fn set(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    #[inline(always)]
    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the roles of one round share.
#[derive(Default)]
pub(super) struct Cell {
    x: Word,
    y: Word,
    z: Word,
    w: Word,
}

/// A delay between two accesses.
pub(super) struct Delay(Rng);

impl Delay {
    /// Mostly nothing; sometimes long enough for others to do something meanwhile.
    fn pass(&mut self) {
        match self.0.below(16) {
            0..8 => {}
            8..14 => self.spin(64),
            14 => self.spin(4000),
            _ => std::thread::yield_now(),
        }
    }

    /// Now and then long enough for a whole grace period of others.
    fn pass_long(&mut self) {
        match self.0.below(8) {
            0..3 => {}
            3..5 => std::thread::yield_now(),
            n => std::thread::sleep(Duration::from_micros((n - 4) * 60)),
        }
        self.spin(200);
    }

    fn spin(&mut self, most: u64) {
        for _ in 0..self.0.below(most) {
            std::hint::spin_loop();
        }
    }
}

/// What came out of one test.
#[derive(Serialize)]
struct Outcome {
    flavour: String,
    test: &'static str,
    held: bool,
    rounds: usize,
    /// How often each outcome was seen: what the roles have read, in the order of the roles.
    seen: BTreeMap<String, u64>,
    /// How often the one the test is about was seen.
    counted: u64,
    forbidden: bool,
}

/// Runs every test and prints a line for each.
pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    options.backend.apply();
    let flavours = if options.flavours.is_empty() { Name::REAL } else { &options.flavours };
    let mut outcomes = Vec::new();
    for flavour in flavours {
        outcomes.extend(match flavour {
            Name::Srcu => run_all::<srcu::Fast>(options, *flavour),
            Name::SrcuClassic => run_all::<srcu::Classic>(options, *flavour),
            Name::SrcuFenced => run_all::<srcu::Fenced>(options, *flavour),
            Name::Qsbr => run_all::<quiescent::Quiescent>(options, *flavour),
            Name::Tasks => run_all::<quiescent::Voluntary>(options, *flavour),
            Name::TasksTrace => run_all::<srcu::Trace>(options, *flavour),
            Name::Busted => run_all::<broken::Busted>(options, *flavour),
            Name::Trivial => run_all::<broken::Trivial>(options, *flavour),
        });
    }
    anyhow::ensure!(!outcomes.is_empty(), "no test's name contains {:?}", options.only);
    let held = outcomes.iter().all(|outcome| outcome.held);
    if options.json {
        say!("{}", serde_json::to_string(&outcomes)?);
    } else {
        say!(
            "litmus: {} tests={} rounds={} seed={} backend={:?}",
            if held { "PASS" } else { "FAIL" },
            outcomes.len(),
            options.rounds,
            options.seed,
            owlet_percpu::backend()
        );
    }
    Ok(held)
}

fn run_all<F: Flavour>(options: &Options, name: Name) -> Vec<Outcome> {
    let chosen = tests::all::<F>().into_iter().filter(|test| test.name.contains(&options.only));
    chosen
        .map(|test| {
            let outcome = run_one(&test, options, name);
            if !options.json {
                let verdict = match (outcome.held, outcome.forbidden) {
                    (false, _) => "FAIL",
                    (true, true) => "PASS",
                    (true, false) => "NOTE",
                };
                say!(
                    "{} {}: {verdict} {}={} rounds={} seen={:?}",
                    outcome.flavour,
                    outcome.test,
                    if outcome.forbidden { "forbidden" } else { "allowed" },
                    outcome.counted,
                    outcome.rounds,
                    outcome.seen
                );
            }
            outcome
        })
        .collect()
}

/// Where the roles of a round wait for each other.
struct Line {
    arrived: AtomicU64,
    roles: u64,
}

impl Line {
    fn wait(&self, round: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (round as u64 + 1) * self.roles;
        let mut looks = 0_u32;
        while self.arrived.load(Ordering::Acquire) < all {
            looks += 1;
            if looks > 2000 || self.roles > 2 && looks > 50 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

fn run_one<F: Flavour>(test: &Test<F>, options: &Options, name: Name) -> Outcome {
    let rounds = (options.rounds.get() / test.cost).max(1);
    let end = AtomicUsize::new(rounds);
    let limit = Instant::now() + Duration::from_millis(options.millis);
    let cells: Vec<Cell> = (0..rounds).map(|_| Cell::default()).collect();
    let line = Line { arrived: AtomicU64::new(0), roles: test.roles.len() as u64 };
    let read: Vec<Vec<u32>> = std::thread::scope(|s| {
        let roles = test.roles.iter().enumerate().map(|(i, role)| {
            let (cells, line, end) = (&cells, &line, &end);
            let mut delay = Delay(Rng::new(options.seed, i as u64 + 1));
            s.spawn(move || {
                let mut seat = F::sit();
                let cpus = owlet_percpu::cpus();
                let _ = owlet_sys::topology::set_affinity(Some(i % cpus), cpus);
                let play = |(round, cell): (usize, &Cell)| {
                    if i == 0 && end.load(Ordering::Relaxed) == rounds && Instant::now() > limit {
                        // Everybody hears of it at the line of this round or the next.
                        end.store((round + 2).min(rounds), Ordering::Relaxed);
                    }
                    if round >= end.load(Ordering::Relaxed) {
                        return None;
                    }
                    // A thread that waits for the others is in no section.
                    F::rest(&mut seat, || line.wait(round));
                    delay.spin(100);
                    Some(role(&mut seat, cell, &mut delay))
                };
                cells.iter().enumerate().map_while(play).collect()
            })
        });
        let roles: Vec<_> = roles.collect();
        roles.into_iter().map(|role| role.join().unwrap_or_default()).collect()
    });
    let rounds = end.load(Ordering::Relaxed);
    let mut seen = BTreeMap::new();
    let mut counted = 0;
    for round in 0..rounds {
        let of: Vec<u32> = read.iter().filter_map(|of| of.get(round).copied()).collect();
        counted += u64::from((test.wanted)(&of));
        *seen.entry(of.iter().map(u32::to_string).collect::<Vec<_>>().join(",")).or_insert(0) += 1;
    }
    Outcome {
        flavour: name.text(),
        test: test.name,
        held: !test.forbidden || counted == 0,
        rounds,
        seen,
        counted,
        forbidden: test.forbidden,
    }
}
