//! Who we are, what we are called, and whether somebody else is still alive.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::choke::{Family, call, io};
use crate::{Result, SysError};

/// Longest thread name in bytes (the kernel's `TASK_COMM_LEN` less the NUL).
pub const NAME_MAX: usize = 15;

/// Process id, asked of the kernel (never cached: right after fork too).
#[must_use]
pub fn getpid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    let id = unsafe { libc::syscall(libc::SYS_getpid) };
    u32::try_from(id).unwrap_or(0)
}

/// Thread id, asked of the kernel.
#[must_use]
pub fn gettid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    u32::try_from(id).unwrap_or(0)
}

/// True if this process has no thread of that number (any more). A system call; async-signal-safe.
/// False in doubt.
#[must_use]
pub fn thread_is_gone(tid: u32) -> bool {
    let answer = call(Family::Process, "tgkill", || {
        // SAFETY: takes no pointers; signal 0 is not sent.
        unsafe { libc::syscall(libc::SYS_tgkill, getpid(), tid, 0) }
    });
    answer.is_err_and(|e| e.errno == libc::ESRCH)
}

/// Effective user id.
#[must_use]
pub fn geteuid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// Name of a thread: bytes up to the first NUL of the kernel's 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Name([u8; NAME_MAX + 1]);

impl Name {
    /// The bytes; not necessarily UTF-8.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|b| *b == 0).next().unwrap_or(&[])
    }
}

/// Name of the calling thread (`PR_GET_NAME`).
///
/// # Errors
/// Only where a filter forbids it.
pub fn thread_name() -> Result<Name> {
    let mut name = Name::default();
    call(Family::Process, "prctl(PR_GET_NAME)", || {
        // SAFETY: the kernel writes at most 16 bytes, which `name` has.
        libc::c_long::from(unsafe { libc::prctl(libc::PR_GET_NAME, name.0.as_mut_ptr(), 0, 0, 0) })
    })?;
    Ok(name)
}

/// Name of any thread of this process, "" if it has none or is gone. Allocates.
#[must_use]
pub fn name_of_thread(tid: u32) -> String {
    let path = format!("/proc/self/task/{tid}/comm");
    let name = io(Family::Process, "read comm", || std::fs::read(path)).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

/// Names the calling thread; longer names are cut to [`NAME_MAX`] bytes.
///
/// # Errors
/// Only where a filter forbids it.
pub fn set_thread_name(name: &str) -> Result<()> {
    let mut buffer = Name::default();
    for (to, from) in buffer.0.iter_mut().take(NAME_MAX).zip(name.bytes()) {
        *to = from;
    }
    call(Family::Process, "prctl(PR_SET_NAME)", || {
        // SAFETY: `buffer` is a NUL-terminated string of at most 16 bytes.
        libc::c_long::from(unsafe { libc::prctl(libc::PR_SET_NAME, buffer.0.as_ptr(), 0, 0, 0) })
    })
    .map(drop)
}

/// Sets this thread's timer slack, the kernel's licence to be late (50 us by default).
///
/// # Errors
/// Only where a filter forbids it.
pub fn set_timer_slack(slack: Duration) -> Result<()> {
    let ns = libc::c_ulong::try_from(slack.as_nanos()).unwrap_or(libc::c_ulong::MAX);
    call(Family::Process, "prctl(PR_SET_TIMERSLACK)", || {
        // SAFETY: takes no pointers.
        libc::c_long::from(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns, 0, 0, 0) })
    })
    .map(drop)
}

/// This thread's timer slack.
///
/// # Errors
/// Only where a filter forbids it.
pub fn timer_slack() -> Result<Duration> {
    let ns = call(Family::Process, "prctl(PR_GET_TIMERSLACK)", || {
        // SAFETY: takes no pointers.
        libc::c_long::from(unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) })
    })?;
    Ok(Duration::from_nanos(u64::try_from(ns).unwrap_or(0)))
}

/// Confines the calling thread to `cpus`; numbers the C library has no bit for are ignored.
///
/// # Errors
/// `EINVAL` (none of them is usable), or a filter's answer.
pub fn set_affinity(cpus: &[usize]) -> Result<()> {
    const BITS: usize = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: a cpu_set_t is an array of integers; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < BITS) {
        // SAFETY: `cpu` has a bit in `set`.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    call(Family::Process, "sched_setaffinity", || {
        // SAFETY: `set` is valid for the size given; 0 is the calling thread.
        libc::c_long::from(unsafe {
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
        })
    })
    .map(drop)
}

/// Opens a pidfd, close-on-exec: a handle on a process that cannot come to mean another one.
///
/// # Errors
/// `ESRCH` (no such process), `ENOSYS` (before Linux 5.3), `EPERM`.
pub fn pidfd_open(pid: u32) -> Result<OwnedFd> {
    let fd = call(Family::Process, "pidfd_open", || {
        // SAFETY: takes no pointers.
        unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }
    })?;
    let fd = i32::try_from(fd).map_err(|_| SysError { call: "pidfd_open", errno: libc::EBADF })?;
    // SAFETY: a descriptor the kernel has just given us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits until the process behind `pidfd` has exited; false if `timeout` was up first.
/// Does not reap: the parent's wait status stays where it is.
///
/// # Errors
/// `EINTR`, `ENOMEM`.
pub fn pidfd_wait(pidfd: impl AsFd, timeout: Duration) -> Result<bool> {
    let mut poll = libc::pollfd { fd: pidfd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let ready = call(Family::Process, "poll", || {
        // SAFETY: one valid pollfd.
        libc::c_long::from(unsafe { libc::poll(&raw mut poll, 1, ms) })
    })?;
    Ok(ready > 0)
}

/// When `pid` started, in clock ticks since boot: with the pid it names a process for good.
/// Allocates.
///
/// # Errors
/// `ENOENT` (no such process), `EINVAL` (not understood).
pub fn start_time(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let stat = io(Family::Process, "read /proc/PID/stat", || std::fs::read(path))?;
    parse_start_time(&stat).ok_or(SysError { call: "read /proc/PID/stat", errno: libc::EINVAL })
}

/// Field 22 of /proc/PID/stat. The name in field 2 may hold spaces and parentheses: count from
/// the last `)`.
#[must_use]
pub fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let close = stat.iter().rposition(|b| *b == b')')?;
    let rest = core::str::from_utf8(stat.get(close.checked_add(1)?..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Inode number of this process's PID namespace. Allocates.
///
/// # Errors
/// `ENOENT` (no /proc), `EINVAL` (not understood).
pub fn pid_namespace() -> Result<u64> {
    let name = "readlink /proc/self/ns/pid";
    let link = io(Family::Process, name, || std::fs::read_link("/proc/self/ns/pid"))?;
    link.to_str()
        .and_then(|s| s.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok())
        .ok_or(SysError { call: name, errno: libc::EINVAL })
}

/// The same number, async-signal-safe.
///
/// # Errors
/// `ENOENT` (no /proc), or a filter's answer.
pub fn pid_namespace_inode() -> Result<u64> {
    // SAFETY: a stat is plain integers; all zero is one.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    call(Family::Process, "stat /proc/self/ns/pid", || {
        // SAFETY: a valid C string, and room for the answer.
        libc::c_long::from(unsafe { libc::stat(c"/proc/self/ns/pid".as_ptr(), &raw mut stat) })
    })?;
    Ok(stat.st_ino)
}

/// Blocks every signal in the calling thread: for helper threads, which must not take signals
/// that the program waits for.
pub fn block_signals() {
    // SAFETY: a sigset_t is plain integers; `sigfillset` makes it a valid one.
    let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: `all` is ours.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: `all` is a valid set; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, core::ptr::null_mut()) };
}

/// Number of threads of this process. Allocates.
///
/// # Errors
/// `ENOENT` (no /proc).
pub fn thread_count() -> Result<usize> {
    io(Family::Process, "read /proc/self/task", || {
        Ok(std::fs::read_dir("/proc/self/task")?.flatten().count())
    })
}
