//! The reader-writer lock under fire.
//!
//! Readers and writers take one lock in every way it has, hold it for a moment, across a yield or a sleep,
//! give up after random times, give it back on other threads, and make it more and less than it was.
//! Meanwhile threads are moved between CPUs, live for one hold, and handlers of signals try to read. What
//! is judged: two words that writers keep equal, without any order of their own, on lines of their own; that
//! writers meet nobody; that both words are never older than they were; and that everybody gets on.

//!
//! `world`: the lock and what is counted; `threads`: who is there; `readers`, `writers`, `sprint`: what they
//! do; `shaker`: signals and migrations.

mod readers;
mod shaker;
mod sprint;
mod threads;
mod world;
mod writers;

use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::{Args, ValueEnum};
use owlet_rcu::rwlock;
use serde::Serialize;

use self::world::World;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// How long to go on with each policy.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Policies, separated by commas; all, if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    policies: Vec<Policy>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Backend to torture.
    #[arg(long, value_enum, default_value = "auto")]
    backend: crate::Backend,
    /// Reader threads.
    #[arg(long, default_value_t = 3)]
    readers: u64,
    /// Writer threads.
    #[arg(long, default_value_t = 2)]
    writers: u64,
    /// How long there must be no writer for readers to go back to the fast way.
    #[arg(long, default_value_t = 30, value_name = "MICROSECONDS")]
    reopen: u64,
    /// Nothing but short holds, one thread to a CPU, with the readers' store buffers kept full, and readers
    /// that are fast between any two writers: the run for the membarrier.
    #[arg(long)]
    sprint: bool,
    /// One JSON value on standard output instead of lines of text.
    #[arg(long)]
    json: bool,
}

/// Who is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// First come, first served.
    Burst,
    /// Phases alternate.
    Fair,
    /// Writers find gaps.
    Readers,
}

/// What came out.
#[derive(Serialize)]
struct Outcome {
    policy: String,
    held: bool,
    backend: String,
    seconds: u64,
    seed: u64,
    reads: u64,
    fast: u64,
    writes: u64,
    gave_up: u64,
    moved: u64,
    signals: u64,
    threads: u64,
    membarriers: u64,
    torn: u64,
    stale: u64,
    met: u64,
    stalled: bool,
}

/// Runs the torture and prints the verdict.
pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    options.backend.apply();
    let _ = owlet_percpu::backend();
    let all = [Policy::Burst, Policy::Fair, Policy::Readers];
    let policies = if options.policies.is_empty() { &all[..] } else { &options.policies };
    let outcomes: Vec<_> = policies.iter().map(|policy| torture(options, *policy)).collect();
    let held = outcomes.iter().all(|outcome| outcome.held);
    if options.json {
        say!("{}", serde_json::to_string(&outcomes)?);
        return Ok(held);
    }
    for o in &outcomes {
        say!(
            "rwlock {}: {} reads={} fast={} writes={} gave-up={} moved={} signals={} threads={} \
             membarriers={} torn={} stale={} met={}{}",
            o.policy,
            if o.held { "PASS" } else { "FAIL" },
            o.reads,
            o.fast,
            o.writes,
            o.gave_up,
            o.moved,
            o.signals,
            o.threads,
            o.membarriers,
            o.torn,
            o.stale,
            o.met,
            if o.stalled { " STALLED" } else { "" }
        );
    }
    say!("rwlock: {} seed={}", if held { "PASS" } else { "FAIL" }, options.seed);
    Ok(held)
}

fn torture(options: &Options, policy: Policy) -> Outcome {
    let rules = match policy {
        Policy::Burst => rwlock::Policy::WriterBurst,
        Policy::Fair => rwlock::Policy::PhaseFair,
        Policy::Readers => rwlock::Policy::ReaderPreferring,
    };
    let reopen = if options.sprint { 0 } else { options.reopen };
    let lock = rwlock::Options::new().policy(rules).reopen_after(Duration::from_micros(reopen));
    // Handlers may come late: it stays for ever.
    let world: &'static World = Box::leak(Box::new(World::new(lock.build_raw())));
    shaker::install_handler(world);
    std::thread::scope(|s| {
        if options.sprint {
            threads::spawn_sprint(s, world, options.seed);
        } else {
            threads::spawn_all(s, world, options);
        }
        if world.watch(options) {
            say!(
                "{}",
                serde_json::to_string(&world.outcome(options, policy, true)).unwrap_or_default()
            );
            // SAFETY: ends the process at once; stalled threads cannot be joined.
            unsafe { libc::_exit(1) };
        }
        world.stop.store(true, Ordering::Relaxed);
        world.expect_end(options, policy);
    });
    world.ended.store(true, Ordering::Relaxed);
    world.outcome(options, policy, false)
}
