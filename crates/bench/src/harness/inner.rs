//! Getting the CPUs one thinks one has.
//!
//! With `kernel.sched_autogroup_enabled=1` nice values only count within a session. So the large
//! size runs in a session of its own and, as root, gives that session's group the highest weight.
//! `--small` does not: its verdicts are counts, and a CI machine has other work to do.

use anyhow::{Context, Result};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

const INNER: &str = "OWLET_BENCH_INNER";

/// Runs this program again in its own session; its exit status. `None` when this already is that
/// second run, or when none is wanted.
pub(crate) fn rerun_with_cpus_to_ourselves(small: bool) -> Result<Option<ExitCode>> {
    if small {
        return Ok(None);
    }
    if std::env::var_os(INNER).is_some() {
        return Ok(None);
    }
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1)).env(INNER, "1");
    // SAFETY: between fork and exec only calls that are async-signal-safe.
    unsafe { command.pre_exec(own_session) };
    let status = command.status().context("run again in a session of its own")?;
    Ok(Some(ExitCode::from(status.code().map_or(2, |code| code as u8))))
}

fn own_session() -> std::io::Result<()> {
    // SAFETY: setsid takes no pointers.
    if unsafe { libc::setsid() } == -1 {
        return Err(std::io::Error::last_os_error());
    }
    die_with_parent();
    Ok(())
}

/// Asks the kernel to end this process when the thread that started it ends.
pub(crate) fn die_with_parent() {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
}

/// Gives this session's scheduling group the highest weight; what came of it, in words.
pub(crate) fn raise_priority(small: bool) -> String {
    if small {
        return "as given (small)".to_owned();
    }
    match fs::write("/proc/self/autogroup", "-20") {
        Ok(()) => "autogroup nice -20".to_owned(),
        Err(error) => format!("as given (autogroup: {error})"),
    }
}

/// Keeps the calling thread on the `cpu`-th CPU, modulo those this process may use; false when the
/// kernel refuses.
pub(crate) fn pin(cpu: usize) -> bool {
    let cpus = allowed();
    // SAFETY: all-zero bytes are a valid, empty set.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index came out of a set of the same size.
    unsafe { libc::CPU_SET(cpus[cpu % cpus.len()], &mut one) };
    // SAFETY: the set is a live local of the size given.
    unsafe { libc::sched_setaffinity(0, size_of_val(&one), &raw const one) == 0 }
}

/// The CPUs the first thread to ask may use, which is one that was never pinned.
fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        // SAFETY: all-zero bytes are a valid, empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is a live local of the size given.
        unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
        // SAFETY: every index is below CPU_SETSIZE.
        let has = |i: &usize| unsafe { libc::CPU_ISSET(*i, &set) };
        let mut cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(has).collect();
        if cpus.is_empty() {
            cpus.push(0);
        }
        cpus
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pinned_thread_stays() {
        std::thread::spawn(|| {
            assert!(super::pin(1));
            assert_eq!(crate::harness::machine::cpus(), 1);
        })
        .join()
        .unwrap();
    }
}
