//! How many CPU numbers there can be.
//!
//! `/sys/devices/system/cpu/possible` is the only right source: CPUs that are offline, outside our
//! cpuset or hot-plugged later have numbers below its end, while `sysconf` and the affinity mask
//! count what is there now.

use std::ffi::CStr;

use crate::choke::{Family, call};
use crate::{Result, SysError};

/// The file asked.
pub const POSSIBLE: &CStr = c"/sys/devices/system/cpu/possible";

/// Number of CPU slots: one more than the highest possible CPU number.
///
/// # Errors
/// The file is missing (no sysfs) or not understood (`EINVAL`).
pub fn possible_cpus() -> Result<usize> {
    let mut buffer = [0_u8; 1024];
    let text = read_file(POSSIBLE, &mut buffer)?;
    parse_cpu_list(text).ok_or(SysError { call: "read cpu/possible", errno: libc::EINVAL })
}

/// One more than the highest number in a kernel CPU list such as `0-3,8`.
#[must_use]
pub fn parse_cpu_list(text: &[u8]) -> Option<usize> {
    let mut end = None;
    for part in text.trim_ascii().split(|b| *b == b',') {
        let last = part.rsplit(|b| *b == b'-').next()?;
        let last: usize = core::str::from_utf8(last).ok()?.trim_ascii().parse().ok()?;
        end = end.max(Some(last.checked_add(1)?));
    }
    end
}

/// Reads the first bytes of a file without allocating: this runs where a program first meets us,
/// which may be a signal handler.
fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let fd = call(Family::Topology, "open cpu/possible", || {
        // SAFETY: a valid C string.
        libc::c_long::from(unsafe { libc::open(path.as_ptr(), flags) })
    })?;
    let fd = i32::try_from(fd).unwrap_or(-1);
    let got = call(Family::Topology, "read cpu/possible", || {
        // SAFETY: `buffer` is valid for writes of its length.
        let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        libc::c_long::try_from(n).unwrap_or(-1)
    });
    // SAFETY: `fd` is ours; nobody else knows it.
    unsafe { libc::close(fd) };
    let got = usize::try_from(got?).unwrap_or(0);
    Ok(buffer.get(..got).unwrap_or(&[]))
}

/// What is left when [`possible_cpus`] fails: configured CPUs as the C library sees them, at least 1.
#[must_use]
pub fn configured_cpus() -> usize {
    // SAFETY: sysconf takes no pointers.
    let n = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(n).unwrap_or(1).max(1)
}

/// The CPU the calling thread runs on, by the C library (vDSO); `None` if it does not know.
#[must_use]
pub fn current_cpu() -> Option<usize> {
    call_cpu().ok().and_then(|cpu| usize::try_from(cpu).ok())
}

fn call_cpu() -> Result<libc::c_long> {
    call(Family::Topology, "sched_getcpu", || {
        // SAFETY: sched_getcpu takes no arguments.
        libc::c_long::from(unsafe { libc::sched_getcpu() })
    })
}

/// Moves the calling thread to `cpu`, or to any CPU of `0..cpus` for `None`.
///
/// # Errors
/// `EINVAL`: the CPU is offline or outside our cpuset, so no thread of ours can be on it.
pub fn set_affinity(cpu: Option<usize>, cpus: usize) -> Result<()> {
    let mut set = [0_u64; CPU_SET_WORDS];
    for (i, word) in set.iter_mut().enumerate() {
        for bit in 0..64 {
            let this = i * 64 + bit;
            if cpu.map_or(this < cpus, |cpu| this == cpu) {
                *word |= 1 << bit;
            }
        }
    }
    write_affinity(&set)
}

/// The calling thread's affinity mask, to be given back to [`restore_affinity`].
///
/// # Errors
/// `EINVAL` on machines with more than 8192 CPUs; filters.
pub fn affinity() -> Result<AffinityMask> {
    let mut set = [0_u64; CPU_SET_WORDS];
    call(Family::Topology, "sched_getaffinity", || {
        // SAFETY: the kernel writes at most the given number of bytes.
        unsafe {
            libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&set), set.as_mut_ptr())
        }
    })?;
    Ok(AffinityMask(set))
}

/// Puts the calling thread's affinity mask back.
///
/// # Errors
/// `EINVAL` if no CPU of the mask is left.
pub fn restore_affinity(mask: &AffinityMask) -> Result<()> {
    write_affinity(&mask.0)
}

/// Words of a mask: room for 8192 CPUs, the most Linux can be built for.
const CPU_SET_WORDS: usize = 128;

/// A thread's affinity mask.
#[derive(Clone, Debug)]
pub struct AffinityMask([u64; CPU_SET_WORDS]);

fn write_affinity(set: &[u64; CPU_SET_WORDS]) -> Result<()> {
    call(Family::Topology, "sched_setaffinity", || {
        // SAFETY: the kernel reads the given number of bytes.
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(set), set.as_ptr()) }
    })
    .map(drop)
}
