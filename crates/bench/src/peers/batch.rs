//! Attaching programs to many functions at once, or to one after the other: the cases of `batch-attach`.
//!
//! Ten thousand functions of 64 bytes, whose sites and table entries are what `#[traced]` makes of a
//! function; an assembler's loop makes them, because the attribute takes milliseconds of compiling for
//! each. Their slow paths share one piece of Rust.
//!
//! `NAME N P SLEEPING GP_US THREADS` -> [`Answer`]. Programs are normal, or sleepable ones that sleep 2 ms.
//! THREADS call the functions meanwhile and check every result. The Tasks-like grace period, which the
//! variants `before` and `source` wait for together with one of Tasks-Trace, is as long as a registered
//! thread takes that has a quiescent state every GP_US.

use crate::harness::cycles::Cycles;
use crate::harness::serve::{Case, clock};
use anyhow::{Result, bail, ensure};
use owlet_attach::__private::{CaptureValue as _, Captured, Description, Wrap, call, here};
use owlet_attach::{Attached, Batch, Function, Program, patch};
use owlet_rcu::{Tasks, TasksTrace, wait_all};
use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Functions.
pub(crate) const FUNCTIONS: usize = 10_000;
/// Bytes from one to the next.
const STRIDE: usize = 64;
/// What a sleeping program sleeps.
const SLEEP: Duration = Duration::from_millis(2);

static TASKS: Tasks = Tasks::named("tasks-like");
static TRACE: TasksTrace = TasksTrace::named("trace-like");

/// "batch::f00000" and so on.
static NAMES: [[u8; 13]; FUNCTIONS] = {
    let mut all = [*b"batch::f00000"; FUNCTIONS];
    let mut i = 0;
    while i < FUNCTIONS {
        let (mut digit, mut rest) = (12, i);
        while rest > 0 {
            all[i][digit] = b'0' + (rest % 10) as u8;
            rest /= 10;
            digit -= 1;
        }
        i += 1;
    }
    all
};

static ALL: [Function; FUNCTIONS] = {
    let mut all = [const { MaybeUninit::<Function>::uninit() }; FUNCTIONS];
    let mut i = 0;
    while i < FUNCTIONS {
        let Ok(name) = std::str::from_utf8(&NAMES[i]) else { panic!() };
        all[i] = MaybeUninit::new(Function::new(Description {
            name,
            file: file!(),
            line: line!(),
            params: &["n"],
            modifiable: false,
        }));
        i += 1;
    }
    // SAFETY: all of them are initialised.
    unsafe { std::mem::transmute::<[MaybeUninit<Function>; FUNCTIONS], [Function; FUNCTIONS]>(all) }
};

std::arch::global_asm!(
    ".pushsection .text.owlet_bench_batch,\"ax\",@progbits",
    ".p2align 6",
    ".globl owlet_bench_batch",
    ".hidden owlet_bench_batch",
    "owlet_bench_batch:",
    ".set owlet_bench_i, 0",
    ".rept {n}",
    "2: .byte 0xa9",
    ".long 3f - . - 4",
    "lea rax, [rdi + 1]",
    "ret",
    "3: .byte 0xbe", // mov esi, imm32
    ".long owlet_bench_i",
    "jmp {slow}",
    ".p2align 6",
    ".pushsection owlet_functions,\"aR\",@progbits",
    ".p2align 4",
    ".long 2b - .",
    ".long 3b - .",
    ".long {all} + owlet_bench_i * {size} - .",
    ".long 1",
    ".popsection",
    ".set owlet_bench_i, owlet_bench_i + 1",
    ".endr",
    ".popsection",
    n = const FUNCTIONS,
    size = const size_of::<Function>(),
    all = sym ALL,
    slow = sym slow,
);

unsafe extern "C" {
    safe fn owlet_bench_batch(n: u64) -> u64;
}

/// What the attribute puts behind the label of a site.
extern "C" fn slow(n: u64, index: u32) -> u64 {
    let function = &ALL[index as usize];
    let captured = Captured::new(function, here(function), [(&&&Wrap(&n)).capture()]);
    call(&captured, move || n + 1, |ret| (&&&Wrap(ret)).capture())
}

fn function(i: usize) -> extern "C" fn(u64) -> u64 {
    let address = (owlet_bench_batch as *const ()).wrapping_byte_add(i * STRIDE);
    // SAFETY: a function of that type begins every `STRIDE` bytes.
    unsafe { std::mem::transmute::<*const (), extern "C" fn(u64) -> u64>(address) }
}

/// What was asked for.
#[derive(Clone, Copy)]
struct Request {
    n: usize,
    programs: usize,
    sleeping: bool,
    gp: Duration,
    threads: usize,
}

/// What one of the two took.
#[derive(Clone, Copy, Default)]
pub(crate) struct Took {
    pub(crate) wall_ns: u64,
    /// Of the thread that attached.
    pub(crate) cpu_ns: u64,
    /// That this thread waited for.
    pub(crate) grace_periods: u64,
    pub(crate) membarriers: u64,
    pub(crate) mprotects: u64,
    pub(crate) writes: u64,
    /// Of the thread that attached; [`UNCOUNTED`] where the machine counts none.
    pub(crate) cycles: u64,
}

/// Cycles that nobody counted.
pub(crate) const UNCOUNTED: u64 = u64::MAX;

/// Of attaching, of detaching, and what the threads saw meanwhile.
#[derive(Clone, Copy, Default)]
pub(crate) struct Answer {
    pub(crate) attach: Took,
    pub(crate) detach: Took,
    pub(crate) calls: u64,
    pub(crate) wrong: u64,
    pub(crate) first_hit_ns: u64,
}

const NUMBERS: usize = 17;

impl Answer {
    fn numbers(&self) -> Vec<u64> {
        let took = |t: &Took| {
            let Took { wall_ns, cpu_ns, grace_periods, membarriers, mprotects, writes, cycles } =
                *t;
            [wall_ns, cpu_ns, grace_periods, membarriers, mprotects, writes, cycles]
        };
        let mut all = [took(&self.attach), took(&self.detach)].concat();
        all.extend([self.calls, self.wrong, self.first_hit_ns]);
        all
    }

    /// The answer of [`cases`].
    pub(crate) fn of(numbers: &[u64]) -> Result<Self> {
        ensure!(numbers.len() == NUMBERS, "{numbers:?}");
        let took = |n: &[u64]| Took {
            wall_ns: n[0],
            cpu_ns: n[1],
            grace_periods: n[2],
            membarriers: n[3],
            mprotects: n[4],
            writes: n[5],
            cycles: n[6],
        };
        let (attach, detach) = (took(&numbers[..7]), took(&numbers[7..14]));
        let (calls, wrong, first_hit_ns) = (numbers[14], numbers[15], numbers[16]);
        Ok(Self { attach, detach, calls, wrong, first_hit_ns })
    }
}

/// A way to attach and to detach; each says how often it waited for a grace period of its own.
type Attach = fn(&Request, &[Program]) -> Result<(Vec<Attached>, u64)>;
type Detach = fn(Vec<Attached>) -> Result<u64>;

const VARIANTS: [(&str, Attach, Detach); 4] = [
    ("before", |r, p| singly(r, p, wait), |all| detach_after_waits(all, true)),
    (
        "source",
        |r, p| {
            wait();
            Ok((vec![batch(r, p)?], 1))
        },
        |all| {
            wait();
            detach_after_waits(all, false).map(|_| 1)
        },
    ),
    ("ours", |r, p| Ok((vec![batch(r, p)?], 0)), detach_singly),
    ("singly", |r, p| singly(r, p, || ()).map(|(all, _)| (all, 0)), detach_singly),
];

/// The cases.
pub(crate) fn cases() -> Result<Vec<Case>> {
    let cases = VARIANTS.into_iter().map(|(name, attach, detach)| {
        Case::call(name, move |numbers| Ok(run(numbers, attach, detach)?.numbers()))
    });
    Ok(cases.collect())
}

/// The variant `ours` where memory may never become executable: through `/proc/self/mem` only.
pub(crate) fn cases_without_windows() -> Result<Vec<Case>> {
    const SET_MDWE: i32 = 65;
    const REFUSE_EXEC_GAIN: u64 = 1;
    // SAFETY: takes numbers.
    if unsafe { libc::prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0_u64, 0_u64, 0_u64) } != 0 {
        bail!("PR_SET_MDWE: {}", std::io::Error::last_os_error());
    }
    let (_, attach, detach) = VARIANTS[2];
    Ok(vec![Case::call("ours-mem", move |n| Ok(run(n, attach, detach)?.numbers()))])
}

/// As the source's: Tasks and Tasks-Trace, together.
fn wait() {
    wait_all(&[&TASKS, &TRACE]);
}

fn batch(request: &Request, programs: &[Program]) -> Result<Attached> {
    let mut batch = Batch::new();
    for program in programs {
        for function in &ALL[..request.n] {
            batch = batch.add_to(program, function, 0);
        }
    }
    Ok(batch.attach()?)
}

fn singly(
    request: &Request,
    programs: &[Program],
    before_each: fn(),
) -> Result<(Vec<Attached>, u64)> {
    let mut all = Vec::with_capacity(request.n * programs.len());
    for program in programs {
        for function in &ALL[..request.n] {
            before_each();
            all.push(Batch::new().add_to(program, function, 0).attach()?);
        }
    }
    let waits = all.len() as u64;
    Ok((all, waits))
}

/// The library's own waits are counted by the library.
fn detach_singly(all: Vec<Attached>) -> Result<u64> {
    all.into_iter().try_for_each(Attached::detach)?;
    Ok(0)
}

fn detach_after_waits(all: Vec<Attached>, each: bool) -> Result<u64> {
    let waits = all.len() as u64;
    for attached in all {
        if each {
            wait();
        }
        attached.detach_async()?;
    }
    Ok(waits)
}

fn run(numbers: &[u64], attach: Attach, detach: Detach) -> Result<Answer> {
    let &[n, programs, sleeping, gp_us, threads] = numbers else {
        bail!("takes N P SLEEPING GP_US THREADS")
    };
    let request = Request {
        n: (n as usize).clamp(1, FUNCTIONS),
        programs: programs as usize,
        sleeping: sleeping != 0,
        gp: Duration::from_micros(gp_us),
        threads: threads as usize,
    };
    let program = |_| {
        let short = Program::entry(|_| ());
        let long = Program::entry(|_| std::thread::sleep(SLEEP)).sleepable();
        if request.sleeping { long.build() } else { short.build() }
    };
    let programs: Vec<_> = (0..request.programs).map(program).collect();
    // So that the table has been read.
    ensure!(!owlet_attach::find("batch::*").is_empty(), "the table has no functions of ours");
    let (stop, calls, wrong) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let ready = Barrier::new(request.threads + 2);
    let answer = std::thread::scope(|scope| {
        let (stop, calls, wrong, ready) = (&stop, &calls, &wrong, &ready);
        scope.spawn(move || {
            let mut task = TASKS.register();
            ready.wait();
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(request.gp);
                task.quiescent();
            }
        });
        for thread in 0..request.threads {
            scope.spawn(move || {
                ready.wait();
                let (mut at, mut made, mut bad) = (thread * 7919, 0, 0);
                while !stop.load(Ordering::Relaxed) {
                    at = (at + 1) % request.n;
                    bad += u64::from(function(at)(made) != made + 1);
                    made += 1;
                }
                calls.fetch_add(made, Ordering::Relaxed);
                wrong.fetch_add(bad, Ordering::Relaxed);
            });
        }
        ready.wait();
        let answer = measure(&request, &programs, attach, detach);
        stop.store(true, Ordering::Relaxed);
        answer
    });
    owlet_attach::quiesce();
    let mut answer = answer?;
    answer.calls = calls.into_inner();
    answer.wrong = wrong.into_inner();
    Ok(answer)
}

fn measure(
    request: &Request,
    programs: &[Program],
    attach: Attach,
    detach: Detach,
) -> Result<Answer> {
    let counter = Cycles::open().ok();
    let before = Now::take(counter.as_ref());
    let (all, waits) = attach(request, programs)?;
    let attached = before.until(waits);
    let hit = clock(libc::CLOCK_MONOTONIC);
    ensure!(function(request.n - 1)(1) == 2, "a wrong result");
    let first_hit_ns = clock(libc::CLOCK_MONOTONIC) - hit;
    ensure!(programs.iter().all(|program| program.stats().runs > 0), "a program did not run");
    std::thread::sleep(Duration::from_millis(2));
    let before = Now::take(counter.as_ref());
    let waits = detach(all)?;
    let detach = before.until(waits);
    Ok(Answer { attach: attached, detach, first_hit_ns, ..Answer::default() })
}

/// Clocks and counters.
struct Now<'c> {
    counter: Option<&'c Cycles>,
    cycles: Option<u64>,
    wall: u64,
    cpu: u64,
    calls: [u64; 2],
    membarriers: u64,
    patch: patch::Counts,
}

impl<'c> Now<'c> {
    fn take(counter: Option<&'c Cycles>) -> Self {
        let patch = patch::counts();
        let (normal, sleepable) = owlet_attach::grace_periods();
        let own = [TASKS.stats(), TRACE.stats()];
        let membarriers = own.iter().chain([&normal, &sleepable]).map(|s| s.membarriers);
        Self {
            membarriers: membarriers.sum::<u64>() + patch.syncs,
            calls: [normal.calls, sleepable.calls],
            patch,
            counter,
            cycles: counter.and_then(Cycles::now),
            cpu: clock(libc::CLOCK_THREAD_CPUTIME_ID),
            wall: clock(libc::CLOCK_MONOTONIC),
        }
    }

    fn until(&self, waits: u64) -> Took {
        let (wall, cpu) = (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_THREAD_CPUTIME_ID));
        let cycles = self.counter.and_then(Cycles::now);
        let now = Self::take(None);
        // One wait for both flavours is one.
        let calls = now.calls.iter().zip(self.calls).map(|(now, before)| now - before).max();
        let written = |c: patch::Counts| c.mem_writes + c.window_writes;
        Took {
            wall_ns: wall - self.wall,
            cpu_ns: cpu - self.cpu,
            grace_periods: waits + calls.unwrap_or(0),
            membarriers: now.membarriers - self.membarriers,
            mprotects: 2 * (now.patch.windows - self.patch.windows),
            writes: written(now.patch) - written(self.patch),
            cycles: cycles.zip(self.cycles).map_or(UNCOUNTED, |(now, before)| now - before),
        }
    }
}
