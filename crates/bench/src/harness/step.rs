//! Counts instructions by executing them one at a time.
//!
//! The machines this runs on have no hardware counters, and valgrind gives its program no rseq, so
//! it would count another code path than the one people run. Single-stepping counts what runs. Two
//! things must be put right:
//!
//! - A restartable sequence is restarted when its thread is stopped in it, and a stepped thread is
//!   stopped after every instruction: it would restart for ever. So before every step the tracer
//!   clears the thread's `rseq_cs` word: the kernel then sees no section in flight. The section
//!   loses its protection, which one thread alone on its rings does not need.
//! - A repeated string instruction stops once for each repetition. It is counted once.
//!
//! The worker marks the ends of runs of n and of 2 n iterations; their difference is free of what
//! the ends cost, and divided by n it is the count of one iteration.

use super::inner::pin;
use super::trace::{Stop, Tracee};
use super::worker::Worker;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Counts of one iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Instructions in user space.
    pub(crate) instructions: f64,
    /// Of these, atomic read-modify-writes: with a lock prefix, or `xchg` with memory.
    pub(crate) locked: f64,
    /// Of these, system calls.
    pub(crate) syscalls: f64,
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            instructions: self.instructions - other.instructions,
            locked: self.locked - other.locked,
            syscalls: self.syscalls - other.syscalls,
        }
    }
}

/// More steps than any honest run takes: a thread that gets nowhere is given up.
const MOST_STEPS: u64 = 3_000_000;

/// Iterations that a count over `n` makes in all.
pub(crate) fn iterations(n: u64) -> u64 {
    n + n + 2 * n
}

/// Counts one iteration of `case` as the mean over `n`.
pub(crate) fn count(worker: &mut Worker, case: &str, n: u64) -> Result<Counts> {
    // On the CPU of the stepped thread, where the two take turns without waking another CPU.
    let tracer = || {
        pin(0);
        count_runs(worker, case, n)
    };
    let counted = std::thread::scope(|scope| scope.spawn(tracer).join());
    let counted = counted.map_err(|_| anyhow!("the tracer panicked"))?;
    let counted = counted.with_context(|| format!("step through {case}"))?;
    worker.answer()?;
    Ok(counted)
}

fn count_runs(worker: &mut Worker, case: &str, n: u64) -> Result<Counts> {
    let memory = File::open(format!("/proc/{}/mem", worker.pid()))?;
    let mut tracee = Tracee::seize(worker.pid())?;
    worker.ask(&format!("step {case} {n}"))?;
    to_mark(&mut tracee)?;
    let mut kinds = HashMap::new();
    let once = steps_to_mark(&mut tracee, &memory, &mut kinds)?;
    let twice = steps_to_mark(&mut tracee, &memory, &mut kinds)?;
    let difference = twice - once;
    let per = |count: f64| count / n as f64;
    Ok(Counts {
        instructions: per(difference.instructions),
        locked: per(difference.locked),
        syscalls: per(difference.syscalls),
    })
}

/// Lets the worker run until its next mark.
pub(crate) fn to_mark(tracee: &mut Tracee) -> Result<()> {
    loop {
        match tracee.wait()? {
            Stop::Signal(libc::SIGUSR1) => return Ok(()),
            Stop::Signal(signal) => tracee.resume(signal)?,
            _ => tracee.resume(0)?,
        }
    }
}

fn steps_to_mark(
    tracee: &mut Tracee,
    memory: &File,
    kinds: &mut HashMap<u64, Kind>,
) -> Result<Counts> {
    let rseq = tracee.rseq_area().unwrap_or(0);
    let mut counts = Counts::default();
    let mut last = 0;
    for _ in 0..MOST_STEPS {
        if rseq != 0 {
            tracee.poke(rseq + RSEQ_CS, 0)?;
        }
        let at = tracee.instruction()?;
        if at != last {
            let kind = *kinds.entry(at).or_insert_with(|| Kind::at(memory, at));
            counts.instructions += 1.0;
            counts.locked += f64::from(u8::from(kind == Kind::Locked));
            counts.syscalls += f64::from(u8::from(kind == Kind::Syscall));
        }
        last = at;
        tracee.step(0)?;
        match tracee.wait()? {
            Stop::Signal(libc::SIGUSR1) => return Ok(counts),
            Stop::Signal(libc::SIGTRAP) => {}
            other => bail!("unexpected stop while stepping: {other:?}"),
        }
    }
    bail!("no end after {MOST_STEPS} instructions (a restartable sequence that never ends?)")
}

/// Offset of `rseq_cs` in `struct rseq` of linux/rseq.h.
const RSEQ_CS: usize = 8;

/// What an instruction counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Locked,
    Syscall,
}

impl Kind {
    fn at(memory: &File, address: u64) -> Self {
        let mut code = [0; 15];
        match memory.read_at(&mut code, address) {
            Ok(n) => Self::of(&code[..n]),
            Err(_) => Self::Plain, // the vDSO's neighbours cannot be read; they hold no lock
        }
    }

    /// Judges x86-64 code: legacy prefixes, REX, opcode, ModRM.
    fn of(mut code: &[u8]) -> Self {
        while let [prefix, rest @ ..] = code {
            match prefix {
                0xf0 => return Self::Locked,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3 | 0x40..=0x4f => code = rest,
                _ => break,
            }
        }
        match code {
            [0x0f, 0x05, ..] => Self::Syscall,
            [0x86 | 0x87, modrm, ..] if modrm >> 6 != 3 => Self::Locked,
            _ => Self::Plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_told_apart() {
        let check = |code: &[u8], kind| assert_eq!(Kind::of(code), kind, "{code:x?}");
        check(&[0x0f, 0x05], Kind::Syscall);
        check(&[0xf0, 0x48, 0xff, 0x07], Kind::Locked); // lock inc qword ptr [rdi]
        check(&[0x64, 0xf0, 0x48, 0xff, 0x07], Kind::Locked); // with a segment in front
        check(&[0x48, 0x87, 0x07], Kind::Locked); // xchg [rdi], rax
        check(&[0x48, 0x87, 0xc7], Kind::Plain); // xchg rdi, rax
        check(&[0x48, 0xff, 0x07], Kind::Plain); // inc qword ptr [rdi]
        check(&[0x0f, 0x31], Kind::Plain); // rdtsc
    }

    #[test]
    fn counts_subtract() {
        let a = Counts { instructions: 30.0, locked: 3.0, syscalls: 1.0 };
        let b = Counts { instructions: 10.0, locked: 1.0, syscalls: 1.0 };
        assert_eq!(a - b, Counts { instructions: 20.0, locked: 2.0, syscalls: 0.0 });
    }
}
