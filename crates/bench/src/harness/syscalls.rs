//! Counts system calls of a long run at full speed.
//!
//! A seccomp filter in the worker lets getuid(2), which the benchmark itself calls, pass and
//! reports every other system call to the tracer. A call that comes once in a thousand events
//! cannot hide from it as it could from a few stepped iterations. The filter cannot be taken back,
//! so the worker is good for nothing else afterwards.

use super::step::to_mark;
use super::trace::{Stop, Tracee};
use super::worker::Worker;
use anyhow::{Context, Result, bail};
use std::io;

/// System calls other than getuid in `n` iterations of `case`.
pub(crate) fn count(mut worker: Worker, case: &str, n: u64) -> Result<u64> {
    let mut tracee = Tracee::seize(worker.pid())?;
    worker.ask(&format!("count {case} {n}"))?;
    to_mark(&mut tracee)?;
    tracee.resume(0)?;
    let mut calls = 0_u64;
    loop {
        match tracee.wait()? {
            // The mark itself is a system call.
            Stop::Signal(libc::SIGUSR1) => return calls.checked_sub(1).context("no mark seen"),
            Stop::Seccomp => calls += 1,
            Stop::Other => {}
            Stop::Signal(signal) => bail!("signal {signal} while counting"),
        }
        tracee.resume(0)?;
    }
}

/// From now on this thread's system calls, all but getuid, stop it for the tracer. Called by the
/// worker.
pub(crate) fn show_to_tracer() -> Result<()> {
    let jump = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let (load, equal, ret) = (
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        (libc::BPF_RET | libc::BPF_K) as u16,
    );
    let mut filter = [
        jump(load, 0, 0, 0), // offset of `nr` in struct seccomp_data
        jump(equal, 1, 0, libc::SYS_getuid as u32),
        jump(ret, 0, 0, libc::SECCOMP_RET_TRACE),
        jump(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes numbers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error()).context("no new privileges");
    }
    // SAFETY: the program and its filter are live locals; the kernel copies them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            std::ptr::from_ref(&program),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error()).context("set a seccomp filter");
    }
    Ok(())
}
