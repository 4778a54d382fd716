//! The measured side: a process that runs one peer's cases on request.
//!
//! Lines on standard input, lines on standard output. A peer that cannot run says so and ends.
//!
//! | request | answer | does |
//! |---|---|---|
//! | (start) | `ready CASE..` or `absent WHY` | |
//! | `run CASE THREADS CPU N` | `ok CPU_NS WALL_NS ..` per thread | N iterations in each thread, pinned from CPU on, after a warm-up of [`warm_up`] |
//! | `step CASE N` | `ok` | three marks; N iterations between the first two, 2 N between the last two |
//! | `count CASE N` | `ok` | lets a tracer see all system calls but getuid; two marks, N iterations between |
//! | `call CASE NUMBER..` | `ok NUMBER..` | what is no loop: the case says what the numbers mean |
//!
//! A mark is SIGUSR1 to the thread itself; it is for a tracer, which swallows it.

use super::inner::{die_with_parent, pin};
use super::syscalls;
use crate::peers;
use anyhow::{Context, Result, bail};
use std::arch::asm;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Barrier;

/// A loop of `n` iterations of what is measured.
type Loop = Box<dyn Fn(u64) + Send + Sync>;
/// What is no loop: from numbers to numbers.
type Call = Box<dyn Fn(&[u64]) -> Result<Vec<u64>> + Send + Sync>;

enum Body {
    Loop(Loop),
    Call(Call),
}

/// One thing a peer can be asked to run.
pub(crate) struct Case {
    /// One word.
    name: &'static str,
    body: Body,
}

impl Case {
    /// A loop under `name`.
    pub(crate) fn new(name: &'static str, body: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { name, body: Body::Loop(Box::new(body)) }
    }

    /// What is no loop, under `name`; runs on the worker's main thread.
    pub(crate) fn call(
        name: &'static str,
        body: impl Fn(&[u64]) -> Result<Vec<u64>> + Send + Sync + 'static,
    ) -> Self {
        Self { name, body: Body::Call(Box::new(body)) }
    }
}

/// `value`, of which the compiler knows nothing any more; costs no instruction, unlike `black_box`.
#[inline(always)]
pub(crate) fn keep(mut value: u64) -> u64 {
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {0} */", inout(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Iterations every thread does before its `n` measured ones.
pub(crate) fn warm_up(n: u64) -> u64 {
    n / 16 + 1
}

/// Serves until standard input ends.
pub(crate) fn serve(peer: &str) -> Result<ExitCode> {
    die_with_parent();
    let mut out = std::io::stdout().lock();
    let cases = match peers::start(peer) {
        Ok(cases) => cases,
        Err(why) => {
            writeln!(out, "absent {why:#}")?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let names: Vec<_> = cases.iter().map(|case| case.name).collect();
    writeln!(out, "ready {}", names.join(" "))?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = answer(&cases, &line).with_context(|| format!("request {line:?}"))?;
        writeln!(out, "ok{answer}")?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(cases: &[Case], line: &str) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let [verb, case, numbers @ ..] = words.as_slice() else { bail!("too short") };
    let numbers: Vec<u64> = numbers.iter().map(|n| n.parse()).collect::<Result<_, _>>()?;
    let body = &cases.iter().find(|c| c.name == *case).context("no such case")?.body;
    match (*verb, numbers.as_slice(), body) {
        ("run", [threads, cpu, n], Body::Loop(body)) => {
            Ok(run(body, *threads as usize, *cpu as usize, *n))
        }
        ("step", [n], Body::Loop(body)) => {
            let mark = Mark::of_this_thread();
            pin(0);
            body(*n);
            mark.set();
            body(*n);
            mark.set();
            body(2 * n);
            mark.set();
            Ok(String::new())
        }
        ("count", [n], Body::Loop(body)) => {
            let mark = Mark::of_this_thread();
            body(*n);
            syscalls::show_to_tracer()?;
            mark.set();
            body(*n);
            mark.set();
            Ok(String::new())
        }
        ("call", numbers, Body::Call(body)) => {
            Ok(body(numbers)?.iter().map(|n| format!(" {n}")).collect())
        }
        _ => bail!("unknown request"),
    }
}

fn run(body: &Loop, threads: usize, cpu: usize, n: u64) -> String {
    let start = Barrier::new(threads);
    let measure = |i: usize| {
        pin(cpu + i);
        body(warm_up(n));
        start.wait();
        let (wall, cpu) = (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_THREAD_CPUTIME_ID));
        body(n);
        let spent = clock(libc::CLOCK_THREAD_CPUTIME_ID) - cpu;
        format!(" {spent} {}", clock(libc::CLOCK_MONOTONIC) - wall)
    };
    std::thread::scope(|scope| {
        let measure = &measure;
        let running: Vec<_> = (0..threads).map(|i| scope.spawn(move || measure(i))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// Nanoseconds of `clock`.
pub(crate) fn clock(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live local.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How a thread marks a place for its tracer: SIGUSR1 to itself, which is one system call.
struct Mark {
    pid: u32,
    tid: libc::pid_t,
}

impl Mark {
    fn of_this_thread() -> Self {
        // SAFETY: takes no arguments.
        Self { pid: std::process::id(), tid: unsafe { libc::gettid() } }
    }

    fn set(&self) {
        // SAFETY: three numbers; the signal is swallowed by the tracer that asked for the mark.
        unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.tid, libc::SIGUSR1) };
    }
}
