//! The few ptrace(2) requests that counting needs. All from one thread: the tracer is a thread.

use anyhow::{Context, Result, bail};
use std::io;

/// A traced, stopped or running thread. Dropping detaches.
pub(crate) struct Tracee {
    pid: libc::pid_t,
    stopped: bool,
}

/// Why a tracee stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is about to receive a signal.
    Signal(i32),
    /// A seccomp filter told the tracer about a system call.
    Seccomp,
    /// Any other event.
    Other,
}

impl Tracee {
    /// Attaches to the main thread of a child of this process without stopping it.
    pub(crate) fn seize(pid: libc::pid_t) -> Result<Self> {
        let tracee = Self { pid, stopped: false };
        tracee
            .request(libc::PTRACE_SEIZE, 0, libc::PTRACE_O_TRACESECCOMP as usize)
            .context("attach to the worker (is ptrace forbidden here?)")?;
        Ok(tracee)
    }

    /// Waits until it stops.
    pub(crate) fn wait(&mut self) -> Result<Stop> {
        let mut status = 0;
        // SAFETY: the pointer is to a live local.
        if unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } != self.pid {
            return Err(io::Error::last_os_error()).context("wait for the worker");
        }
        if !libc::WIFSTOPPED(status) {
            bail!("the worker ended while it was traced (status {status:#x})");
        }
        self.stopped = true;
        Ok(match status >> 16 {
            0 => Stop::Signal(libc::WSTOPSIG(status)),
            libc::PTRACE_EVENT_SECCOMP => Stop::Seccomp,
            _ => Stop::Other,
        })
    }

    /// Lets it run until it next stops, delivering `signal` unless 0.
    pub(crate) fn resume(&mut self, signal: i32) -> Result<()> {
        self.stopped = false;
        self.request(libc::PTRACE_CONT, 0, signal as usize).context("resume the worker")
    }

    /// Lets it execute one instruction, delivering `signal` unless 0.
    pub(crate) fn step(&mut self, signal: i32) -> Result<()> {
        self.stopped = false;
        self.request(libc::PTRACE_SINGLESTEP, 0, signal as usize).context("step the worker")
    }

    /// Address of the next instruction.
    pub(crate) fn instruction(&self) -> Result<u64> {
        let offset = std::mem::offset_of!(libc::user_regs_struct, rip);
        let mut word = 0_u64;
        // The raw request, unlike the C library's wrapper, stores the word through `data`.
        let at = std::ptr::from_mut(&mut word).expose_provenance();
        self.request(libc::PTRACE_PEEKUSER, offset, at).context("read the worker's registers")?;
        Ok(word)
    }

    /// Address of the thread's rseq area; 0 when it has none.
    pub(crate) fn rseq_area(&self) -> Result<usize> {
        // `struct ptrace_rseq_configuration` of linux/ptrace.h: pointer, size, signature, flags, pad.
        let mut area = [0_u64; 3];
        let at = area.as_mut_ptr().expose_provenance();
        self.request(PTRACE_GET_RSEQ_CONFIGURATION, size_of_val(&area), at)
            .context("find the worker's rseq area")?;
        Ok(area[0] as usize)
    }

    /// Writes one word of its memory.
    pub(crate) fn poke(&self, address: usize, word: usize) -> Result<()> {
        self.request(libc::PTRACE_POKEDATA, address, word).context("write the worker's memory")
    }

    fn request(&self, request: u32, address: usize, data: usize) -> io::Result<()> {
        // SAFETY: requests that store through a pointer get one to a live local of their size
        // from the functions above; the others take numbers.
        let result =
            unsafe { libc::syscall(libc::SYS_ptrace, request as usize, self.pid, address, data) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// linux/ptrace.h, since 5.13.
const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.stopped {
            let _ = self.request(libc::PTRACE_DETACH, 0, 0);
        }
    }
}
