//! Memory that becomes scarce: whoever learns of it calls [`trim`]; the worker can look for it.
//!
//! | source | scarce when |
//! |---|---|
//! | `memory.events` of the process's cgroup (v2) | `high`, `max` or `oom` has gone up since the last look |
//! | `/proc/pressure/memory` (PSI) | tasks were held up for want of memory a tenth of the last 10 s |
//!
//! What cannot be read does not count. The worker looks while it has something to free, once a second at
//! most; what is kept otherwise is a few pages. After a trim nothing is kept for five seconds.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::read_to_string;

use owlet_sys::clock::monotonic_ns;

use crate::engine;

static WATCHED: AtomicBool = AtomicBool::new(false);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
static EVENTS: AtomicU64 = AtomicU64::new(0);
const EVERY_NS: u64 = 1_000_000_000;

/// Frees what is ready in all domains, gives empty blocks back to the system, and keeps none for five
/// seconds: for whoever learns that memory is scarce. Waits for nothing. Returns the bytes given back.
pub fn trim() -> usize {
    engine::all().map(super::barrier::trim).sum()
}

/// Has the worker look for signs of scarce memory, and [`trim`]; see the module's header. Off at first,
/// because it reads files.
pub fn watch_pressure(on: bool) {
    let events = cgroup_events().unwrap_or(0);
    EVENTS.store(events, Ordering::Relaxed);
    WATCHED.store(on, Ordering::Relaxed);
}

/// The worker's look.
pub(super) fn look() {
    if !WATCHED.load(Ordering::Relaxed) {
        return;
    }
    let (now, last) = (monotonic_ns(), LOOKED_AT.load(Ordering::Relaxed));
    if now.saturating_sub(last) < EVERY_NS {
        return;
    }
    LOOKED_AT.store(now, Ordering::Relaxed);
    let events = cgroup_events().unwrap_or(0);
    let more = events > EVENTS.swap(events, Ordering::Relaxed);
    let stalled = read_to_string("/proc/pressure/memory").ok();
    let stalled = stalled.as_deref().and_then(some_avg10).is_some_and(|percent| percent >= 10.0);
    if more || stalled {
        trim();
    }
}

fn cgroup_events() -> Option<u64> {
    let own = read_to_string("/proc/self/cgroup").ok()?;
    let path = unified_path(&own)?;
    let events = read_to_string(format!("/sys/fs/cgroup{path}/memory.events")).ok()?;
    Some(scarce_events(&events))
}

/// The path in the unified hierarchy, from `/proc/self/cgroup`.
fn unified_path(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// `high`, `max` and `oom` of `memory.events`, together.
fn scarce_events(text: &str) -> u64 {
    let of = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        matches!(name, "high" | "max" | "oom").then(|| count.trim().parse::<u64>().ok())?
    };
    text.lines().filter_map(of).sum()
}

/// `avg10` of the line `some`, in percent.
fn some_avg10(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KF-11: what the files say, in the kernel's words.
    #[test]
    fn kf_11_signs_of_scarce_memory_are_read() {
        assert_eq!(unified_path("1:name=x:/a\n0::/user.slice/b\n"), Some("/user.slice/b"));
        assert_eq!(unified_path("1:memory:/a\n"), None);
        let events = "low 7\nhigh 2\nmax 30\noom 1\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(scarce_events(events), 33);
        let psi = "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 total=1\n";
        assert_eq!(some_avg10(psi), Some(12.5));
        assert_eq!(some_avg10("full avg10=1.00"), None);
    }
}
