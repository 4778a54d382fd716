//! Programs on a thousand functions under fire.
//!
//! Threads call them at random: bodies that sleep, call each other and unwind. Others attach batches of
//! programs of every kind and both flavours, over patterns that overlap, and detach them in every way; some
//! batches contain a function whose site is somebody else's, and are rolled back while their programs run.
//! Signals interrupt everything with more calls, and children are forked. What is judged: results; that a
//! program is alive whenever it runs (it has a mark that its destructor changes, in memory that is never
//! freed); that whoever attached a program sees his own calls once each, and none after the detach; and that
//! in the end everything is gone: programs, links, sites that are on.
//!
//! A list or a program that is used after it was freed may also crash: the run is a process of its own, and
//! whoever started it turns that into a verdict.

mod functions;
mod supervise;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use owlet_attach::{AtExit, AttachError, Attached, Batch, Call, Function, Program};
use serde::{Deserialize, Serialize};

use crate::rng::Rng;
use functions::{Body, COUNT, EACH, Traced};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// How long to go on.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Backend to torture.
    #[arg(long, value_enum, default_value = "auto")]
    backend: crate::Backend,
    /// Threads that call.
    #[arg(long, default_value_t = 8)]
    callers: u64,
    /// Threads that attach and detach.
    #[arg(long, default_value_t = 3)]
    changers: u64,
    /// No signals.
    #[arg(long)]
    no_signals: bool,
    /// No forks.
    #[arg(long)]
    no_forks: bool,
    /// One JSON value on standard output instead of a line of text.
    #[arg(long)]
    json: bool,
    /// Be the process that is tortured.
    #[arg(long, hide = true)]
    child: bool,
}

/// What came out.
#[derive(Default, Serialize, Deserialize)]
struct Outcome {
    held: bool,
    backend: String,
    seconds: u64,
    seed: u64,
    calls: u64,
    runs: u64,
    batches: u64,
    rolled_back: u64,
    detached: u64,
    deferred: u64,
    signals: u64,
    forks: u64,
    grace_periods: u64,
    syncs: u64,
    /// Programs that ran when they had been dropped.
    dead: u64,
    /// Calls that returned something else.
    wrong: u64,
    /// Calls of the attaching thread that were not seen once.
    uncounted: u64,
    /// Children that came to another end.
    children: u64,
    /// Errors where there should be none.
    errors: u64,
    /// Programs that were never dropped.
    leaked: u64,
    /// Functions that are on in the end.
    still_on: u64,
    stalled: bool,
    /// The end of a process that had nothing to say any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    died: Option<String>,
}

static CALLS: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicU64 = AtomicU64::new(0);
static BATCHES: AtomicU64 = AtomicU64::new(0);
static ROLLED_BACK: AtomicU64 = AtomicU64::new(0);
static DETACHED: AtomicU64 = AtomicU64::new(0);
static DEFERRED: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static FORKS: AtomicU64 = AtomicU64::new(0);
static DEAD: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);
static CHILDREN: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);
static LIVING: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);
static SEED: AtomicU64 = AtomicU64::new(0);

fn note(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

const ALIVE: u64 = 0x600d_600d_600d_600d;
const GONE: u64 = 0xdead_dead_dead_dead;

/// A program's mark and its count of calls with its own number; never freed, used again much later.
struct Mark {
    state: AtomicU64,
    own: AtomicU64,
}

/// What a program owns.
struct Owned(&'static Mark);

impl Owned {
    fn new() -> Self {
        note(&LIVING);
        Self(Box::leak(Box::new(Mark { state: AtomicU64::new(ALIVE), own: AtomicU64::new(0) })))
    }

    /// One run: the mark must be good.
    fn check(&self, call: &Call<'_>, number: u64) {
        note(&RUNS);
        if self.0.state.load(Ordering::Relaxed) != ALIVE {
            note(&DEAD);
        }
        if call.arg(0).is_some_and(|n| n.word() == number) {
            note(&self.0.own);
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.state.store(GONE, Ordering::Relaxed);
        LIVING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Numbers from here on are of calls by the attaching threads, each used once.
const OWN: u64 = 1 << 40;

/// A random program, and how often each call with its number runs it.
fn program(rng: &mut Rng, number: u64) -> (Program, &'static Mark, u64) {
    let owned = Owned::new();
    let mark = owned.0;
    // A moment inside, now and then.
    let pause = rng.below(4) == 0;
    let sleepable = rng.below(3) == 0;
    let run = move |call: &Call<'_>| {
        owned.check(call, number);
        if pause && call.arg(0).is_some_and(|n| n.word() % 64 == 0) {
            let time = if sleepable { 300 } else { 20 };
            std::thread::sleep(Duration::from_micros(time));
        }
        owned.check(call, u64::MAX);
    };
    let (program, times) = match rng.below(4) {
        0 => (Program::entry(run), 1),
        1 => (Program::exit(run), 1),
        _ => {
            let run = std::sync::Arc::new(run);
            let exit = std::sync::Arc::clone(&run);
            let veto = rng.below(4) == 0;
            let entry = move |call: &Call<'_>| {
                run(call);
                call.set_session(call.arg(0).map_or(0, |n| n.word()));
                if veto { AtExit::Skip } else { AtExit::Run }
            };
            let exit = move |call: &Call<'_>| {
                if call.session() != call.arg(0).map_or(0, |n| n.word()) {
                    note(&WRONG);
                }
                exit(call);
            };
            (Program::session(entry, exit), if veto { 1 } else { 2 })
        }
    };
    let program = if sleepable { program.sleepable() } else { program };
    (program.build(), mark, times)
}

/// A pattern, and a function that it matches.
fn pattern(rng: &mut Rng, all: &[Traced]) -> (String, Traced) {
    let at = rng.below(COUNT);
    let (g, m, f) = (at / (10 * EACH), at / EACH % 10, at % EACH);
    let pattern = match rng.below(6) {
        0 => "*::many::*".to_owned(),
        1 => format!("*::many::g{g}::*"),
        2 => format!("*::many::g?::m{m}::f{f}"),
        3 => format!("*::g{g}::m{m}::f?"),
        _ => format!("*::many::g{g}::m{m}::f{f}"),
    };
    (pattern, all[at as usize])
}

fn call(function: Traced, n: u64, how: Body) {
    note(&CALLS);
    if function(n, how) != n + 1 {
        note(&WRONG);
    }
}

fn caller(all: &[Traced], seed: u64, stream: u64) {
    let mut rng = Rng::new(seed, stream);
    while !stopped() {
        // Mostly a few functions that are hot.
        let at = if rng.below(2) == 0 { rng.below(8) } else { rng.below(COUNT) };
        let function = all[at as usize];
        let n = rng.below(1 << 30);
        match rng.below(200) {
            0 => call(function, n, Body::Sleeps(Duration::from_micros(rng.below(8000)))),
            1 => {
                note(&CALLS);
                if std::panic::catch_unwind(|| function(n, Body::Panics)).is_ok() {
                    note(&WRONG);
                }
            }
            2..8 => call(function, n, Body::Calls(all[rng.below(COUNT) as usize])),
            _ => call(function, n, Body::Plain),
        }
    }
}

/// Attaches, looks whether its own calls are seen, detaches, looks whether they are not.
fn changer(all: &[Traced], seed: u64, stream: u64, own: &AtomicU64) {
    let mut rng = Rng::new(seed, stream);
    while !stopped() {
        let number = OWN + own.fetch_add(1, Ordering::Relaxed);
        let mut batch = Batch::new();
        let mut mine = Vec::new();
        for _ in 0..=rng.below(3) {
            let (program, mark, times) = program(&mut rng, number);
            let (pattern, function) = pattern(&mut rng, all);
            batch = batch.add(&program, &pattern);
            mine.push((function, mark, times));
        }
        let spoilt = rng.below(4) == 0;
        if spoilt {
            let (program, ..) = program(&mut rng, number);
            batch = batch.add(&program, "*::functions::held");
        }
        note(&BATCHES);
        match batch.attach() {
            Ok(attached) if !spoilt => one_life(&mut rng, attached, &mine, number),
            Err(AttachError::SiteBusy { .. }) if spoilt => note(&ROLLED_BACK),
            // Others have filled the function.
            Err(AttachError::TooMany { .. }) => {}
            _ => note(&ERRORS),
        }
    }
}

/// What a changer attached, from its first call to its last.
fn one_life(rng: &mut Rng, attached: Attached, mine: &[(Traced, &Mark, u64)], number: u64) {
    let own = |mark: &Mark| mark.own.load(Ordering::Relaxed);
    for (function, mark, times) in mine {
        let before = own(mark);
        call(*function, number, Body::Plain);
        if own(mark) != before + times {
            note(&UNCOUNTED);
        }
    }
    if rng.below(3) == 0 {
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
    }
    let after: Vec<_> = mine.iter().map(|(_, mark, _)| own(mark)).collect();
    match rng.below(3) {
        0 => {
            note(&DEFERRED);
            if attached.detach_async().is_err() {
                note(&ERRORS);
            }
        }
        1 => drop(attached),
        _ => {
            note(&DETACHED);
            if attached.detach().is_err() {
                note(&ERRORS);
            }
            // Nobody keeps the programs: they have been dropped, here.
            if mine.iter().any(|(_, mark, _)| mark.state.load(Ordering::Relaxed) != GONE) {
                note(&ERRORS);
            }
        }
    }
    for ((function, mark, _), after) in mine.iter().zip(after) {
        call(*function, number, Body::Plain);
        if own(mark) != after {
            note(&UNCOUNTED);
        }
    }
}

/// Calls functions out of whatever the thread was doing.
extern "C" fn handler(_: i32) {
    note(&SIGNALS);
    let n = SIGNALS.load(Ordering::Relaxed);
    let at = (n.wrapping_mul(0x9e37_79b9) >> 7) as usize;
    call(functions::many::g0::ALL[at % 10][at / 10 % EACH as usize], 1, Body::Plain);
}

fn interrupt(stream: u64) {
    let mut rng = Rng::new(SEED.load(Ordering::Relaxed), stream);
    // SAFETY: the handler calls functions whose programs are async-signal-safe: atomics and sleeps.
    unsafe { libc::signal(libc::SIGUSR1, handler as extern "C" fn(i32) as libc::sighandler_t) };
    while !stopped() {
        std::thread::sleep(Duration::from_micros(300 + rng.below(1000)));
        let me = owlet_sys::process::getpid().cast_signed();
        // SAFETY: the process handles the signal, on whichever thread.
        unsafe { libc::kill(me, libc::SIGUSR1) };
    }
}

/// Children call functions with the programs that the parent had, and attach one of their own.
fn fork_children(all: &[Traced], stream: u64) {
    let mut rng = Rng::new(SEED.load(Ordering::Relaxed), stream);
    while !stopped() {
        std::thread::sleep(Duration::from_millis(50 + rng.below(100)));
        note(&FORKS);
        // SAFETY: the child runs what a fork of a threaded process may run here, and ends.
        match unsafe { libc::fork() } {
            0 => {
                let before = WRONG.load(Ordering::Relaxed) + DEAD.load(Ordering::Relaxed);
                for _ in 0..200 {
                    call(all[rng.below(COUNT) as usize], rng.below(1 << 30), Body::Plain);
                }
                let after = WRONG.load(Ordering::Relaxed) + DEAD.load(Ordering::Relaxed);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(before != after)) };
            }
            pid => {
                let mut status = 0;
                // SAFETY: waits for the child.
                let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
                if waited == pid && status != 0 {
                    note(&CHILDREN);
                }
            }
        }
    }
}

/// Puts somebody else's byte on the site of `held`.
fn hold_a_site() -> anyhow::Result<()> {
    use std::os::unix::fs::FileExt;
    let start = functions::held as *const () as usize;
    // SAFETY: the first bytes of a function.
    let code = unsafe { std::slice::from_raw_parts(start as *const u8, 64) };
    let site = code.iter().position(|byte| *byte == 0xa9).context("the site of `held`")?;
    let mem = std::fs::OpenOptions::new().write(true).open("/proc/self/mem")?;
    mem.write_all_at(&[0xcc], (start + site) as u64).context("write /proc/self/mem")
}

/// Runs the torture and prints the verdict.
pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    let outcome = if options.child { torture(options)? } else { supervise::run(options)? };
    report(options, &outcome);
    Ok(outcome.held)
}

fn torture(options: &Options) -> anyhow::Result<Outcome> {
    options.backend.apply();
    let _ = owlet_percpu::backend();
    SEED.store(options.seed, Ordering::Relaxed);
    hold_a_site()?;
    let all = functions::all();
    let own = AtomicU64::new(0);
    let stalled = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for n in 0..options.callers {
            let all = &all;
            threads.push(scope.spawn(move || caller(all, options.seed, n + 1)));
        }
        for n in 0..options.changers {
            let (all, own) = (&all, &own);
            threads.push(scope.spawn(move || changer(all, options.seed, n + 101, own)));
        }
        if !options.no_signals {
            threads.push(scope.spawn(|| interrupt(201)));
        }
        if !options.no_forks {
            threads.push(scope.spawn(|| fork_children(&all, 202)));
        }
        std::thread::sleep(Duration::from_secs(options.seconds));
        STOP.store(true, Ordering::Relaxed);
        let patience = Instant::now() + Duration::from_secs(60);
        while threads.iter().any(|thread| !thread.is_finished()) {
            if Instant::now() > patience {
                eprintln!("owlet-torture: threads do not end");
                // Nothing can be joined.
                std::process::exit(1);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        threads.into_iter().any(|thread| thread.join().is_err())
    });
    owlet_attach::quiesce();
    Ok(judge(options, stalled))
}

/// Whether programs are attached to a function, or one of its bytes says so.
fn is_on(function: &'static Function) -> bool {
    // SAFETY: sites are text, which stays.
    let jumps = |at: usize| unsafe { (at as *const u8).read_volatile() } == 0xe9;
    function.is_on() || owlet_attach::sites(function).into_iter().any(jumps)
}

fn judge(options: &Options, stalled: bool) -> Outcome {
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (normal, sleepable) = owlet_attach::grace_periods();
    let still_on = owlet_attach::functions().into_iter().filter(|function| is_on(function));
    let mut outcome = Outcome {
        held: false,
        backend: format!("{:?}", owlet_percpu::backend()).to_lowercase(),
        seconds: options.seconds,
        seed: options.seed,
        calls: get(&CALLS),
        runs: get(&RUNS),
        batches: get(&BATCHES),
        rolled_back: get(&ROLLED_BACK),
        detached: get(&DETACHED),
        deferred: get(&DEFERRED),
        signals: get(&SIGNALS),
        forks: get(&FORKS),
        grace_periods: normal.grace_periods + sleepable.grace_periods,
        syncs: owlet_attach::patch::counts().syncs,
        dead: get(&DEAD),
        wrong: get(&WRONG),
        uncounted: get(&UNCOUNTED),
        children: get(&CHILDREN),
        errors: get(&ERRORS),
        leaked: get(&LIVING),
        still_on: still_on.count() as u64,
        stalled,
        died: None,
    };
    let Outcome { dead, wrong, uncounted, children, errors, leaked, still_on, .. } = outcome;
    let faults = dead + wrong + uncounted + children + errors + leaked + still_on;
    outcome.held = faults == 0 && !stalled && outcome.runs > 0 && outcome.batches > 0;
    outcome
}

fn report(options: &Options, outcome: &Outcome) {
    let value = serde_json::to_value(outcome).unwrap_or_default();
    if options.json || options.child {
        say!("{value}");
        return;
    }
    let verdict = if outcome.held { "PASS" } else { "FAIL" };
    let mut line = format!("attach: {verdict}");
    for (name, value) in value.as_object().into_iter().flatten().filter(|(n, _)| *n != "held") {
        line.push_str(&format!(" {name}={}", value.to_string().trim_matches('"')));
    }
    say!("{line}");
}
