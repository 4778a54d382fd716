//! A filter that refuses membarrier and rseq, as container sandboxes do.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use anyhow::{Context, bail};
use clap::ValueEnum;

/// What the refused calls answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Answer {
    /// As if the kernel did not know them.
    Enosys,
    /// Forbidden.
    Eperm,
}

impl Answer {
    fn errno(self) -> u32 {
        match self {
            Self::Enosys => libc::ENOSYS.cast_unsigned(),
            Self::Eperm => libc::EPERM.cast_unsigned(),
        }
    }
}

/// Runs `command` under the filter, in place of this process.
pub(crate) fn exec(answer: Answer, command: &[OsString]) -> anyhow::Result<bool> {
    let Some((program, args)) = command.split_first() else { bail!("no command") };
    install(answer, Scope::ThisThread)?;
    let error = std::process::Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// Where a filter applies, and to what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// This thread and what it starts; membarrier and rseq.
    ThisThread,
    /// All threads from now on; membarrier only, because glibc ends the process if rseq worked for
    /// the first thread and fails for a later one.
    AllThreadsLate,
}

/// Installs the filter.
pub(crate) fn install(answer: Answer, scope: Scope) -> anyhow::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let equals = |k: u32, jt: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt,
        jf: 0,
        k,
    };
    let membarrier = u32::try_from(libc::SYS_membarrier)?;
    let late = scope == Scope::AllThreadsLate;
    let rseq = if late { membarrier } else { u32::try_from(libc::SYS_rseq)? };
    let refuse = libc::SECCOMP_RET_ERRNO | answer.errno();
    let mut filter = [
        // seccomp_data.nr
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        equals(membarrier, 2),
        equals(rseq, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, refuse),
    ];
    let program =
        libc::sock_fprog { len: u16::try_from(filter.len())?, filter: filter.as_mut_ptr() };
    // SAFETY: takes no pointers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error()).context("prctl(PR_SET_NO_NEW_PRIVS)");
    }
    let flags = if late { libc::SECCOMP_FILTER_FLAG_TSYNC } else { 0 };
    // SAFETY: `program` and the filter it points to are valid for the call.
    let answer = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    if answer != 0 {
        return Err(std::io::Error::last_os_error()).context("seccomp");
    }
    Ok(())
}
