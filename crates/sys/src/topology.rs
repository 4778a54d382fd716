//! How many CPU numbers there can be.
//!
//! `/sys/devices/system/cpu/possible` is the only right source: CPUs that are offline, outside our
//! cpuset or hot-plugged later have numbers below its end, while `sysconf` and the affinity mask
//! count what is there now.

use crate::choke::{Family, io};
use crate::{Result, SysError};

/// The file asked.
pub const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Number of CPU slots: one more than the highest possible CPU number. Allocates.
///
/// # Errors
/// The file is missing (no sysfs) or not understood (`EINVAL`).
pub fn possible_cpus() -> Result<usize> {
    let text = io(Family::Topology, "read cpu/possible", || std::fs::read_to_string(POSSIBLE))?;
    parse_cpu_list(&text).ok_or(SysError { call: "read cpu/possible", errno: libc::EINVAL })
}

/// One more than the highest number in a kernel CPU list such as `0-3,8`.
#[must_use]
pub fn parse_cpu_list(text: &str) -> Option<usize> {
    let mut end = None;
    for part in text.trim().split(',') {
        let last = part.rsplit('-').next()?;
        let last: usize = last.trim().parse().ok()?;
        end = end.max(last.checked_add(1));
    }
    end
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
    crate::choke::call(Family::Topology, "sched_getcpu", || {
        // SAFETY: sched_getcpu takes no arguments.
        libc::c_long::from(unsafe { libc::sched_getcpu() })
    })
}
