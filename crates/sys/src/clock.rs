//! Clocks.
//!
//! The time stamp counter (TSC) is the clock of traces where it can be trusted: the kernel itself
//! must be using it as its clock source (it has then checked that the CPUs agree and that the
//! counter never stops), and reading it must be allowed. [`tsc_usable`] decides; [`Anchor`] and
//! [`frequency`] turn it into time, with checked arithmetic throughout: a sample that makes no sense
//! gives `None`, never a panic or a wrapped number.

use std::time::Duration;

use crate::choke::{Family, call, io};

const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline]
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// `CLOCK_MONOTONIC` as of the last tick, some milliseconds behind: cheaper, and without the time
/// stamp counter, which strict seccomp forbids.
#[inline]
#[must_use]
pub fn monotonic_coarse_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// `CLOCK_REALTIME` in nanoseconds since 1970.
#[must_use]
pub fn realtime_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// CPU time of the calling thread in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of the process in nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The time stamp counter; 0 on machines without one. 10 ns.
///
/// Not ordered against neighbouring loads and stores: it may be read some instructions early.
#[inline(always)]
#[must_use]
pub fn rdtsc() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 CPU has rdtsc. A process that has forbidden it to itself
        // (PR_SET_TSC) dies of it; `tsc_usable` asks first.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        0
    }
}

/// Whether the TSC can be the clock of a trace, and why (or why not).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscVerdict {
    /// May it be used?
    pub usable: bool,
    /// One line for `doctor`.
    pub why: &'static str,
}

/// Decides whether the TSC can be the clock of a trace. Reads a file and allocates; ask once.
#[must_use]
pub fn tsc_usable() -> TscVerdict {
    if !cfg!(target_arch = "x86_64") {
        return TscVerdict { usable: false, why: "not an x86-64 machine" };
    }
    let source = io(Family::Clock, "read clocksource", || std::fs::read_to_string(CLOCKSOURCE));
    judge_tsc(invariant_tsc(), source.as_deref().ok().map(str::trim), rdtsc_allowed())
}

/// The decision of [`tsc_usable`] as a function of what was found.
#[must_use]
pub fn judge_tsc(invariant: bool, clocksource: Option<&str>, allowed: bool) -> TscVerdict {
    let no = |why| TscVerdict { usable: false, why };
    match clocksource {
        _ if !allowed => no("the process may not read the TSC (PR_SET_TSC)"),
        _ if !invariant => no("the CPU does not promise a constant, nonstop TSC"),
        None => no("the kernel's clock source cannot be read (no sysfs)"),
        Some("tsc") => TscVerdict { usable: true, why: "invariant, and the kernel's clock source" },
        Some(_) => no("the kernel does not trust it (its clock source is another one)"),
    }
}

/// CPUID 8000_0007h, EDX bit 8: constant rate, and never stops.
fn invariant_tsc() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::__cpuid;
        __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

fn rdtsc_allowed() -> bool {
    let mut mode: libc::c_int = 0;
    let answer = call(Family::Clock, "prctl(PR_GET_TSC)", || {
        // SAFETY: the kernel writes one int to `mode`.
        libc::c_long::from(unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut mode, 0, 0, 0) })
    });
    // A kernel or filter without the call has not forbidden anything by it.
    answer.is_err() || mode == libc::PR_TSC_ENABLE
}

/// One instant on three clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// TSC (0 on machines without one).
    pub tsc: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, ns since 1970.
    pub realtime_ns: u64,
}

impl Anchor {
    /// Reads the three clocks, as close together as 16 tries give.
    ///
    /// The realtime clock is read between the TSC reads as well, so one step of it between two
    /// anchors shows as a difference between the two nanosecond clocks.
    #[must_use]
    pub fn now() -> Self {
        let mut best = None;
        for _ in 0..16 {
            let before = rdtsc();
            let monotonic_ns = monotonic_ns();
            let middle = rdtsc();
            let realtime_ns = realtime_ns();
            // A counter that went back (another CPU, an unsynchronised TSC) makes a useless try.
            let width = middle.checked_sub(before).unwrap_or(u64::MAX);
            let tsc = before.wrapping_add(width / 2);
            if best.is_none_or(|(narrowest, _)| width < narrowest) {
                best = Some((width, Self { tsc, monotonic_ns, realtime_ns }));
            }
        }
        best.map_or(Self { tsc: 0, monotonic_ns: 0, realtime_ns: 0 }, |(_, anchor)| anchor)
    }
}

/// TSC ticks per second between two anchors; `None` if they are less than 1 ms apart or make no
/// sense. The error is about 50 ns over the distance: 5 ppm at 10 ms, 0.05 ppm at 1 s.
#[must_use]
pub fn frequency(from: &Anchor, to: &Anchor) -> Option<u64> {
    let ticks = to.tsc.checked_sub(from.tsc)?;
    let ns = to.monotonic_ns.checked_sub(from.monotonic_ns)?;
    if ns < 1_000_000 || ticks == 0 {
        return None;
    }
    let hz = u128::from(ticks) * 1_000_000_000 / u128::from(ns);
    u64::try_from(hz).ok().filter(|hz| (1_000_000..1_000_000_000_000).contains(hz))
}

/// Sleeps for `distance` (at least 1 ms) between two anchors and returns the frequency with the
/// second one. Refine it later with an anchor that is further away.
#[must_use]
pub fn calibrate(distance: Duration) -> Option<(u64, Anchor)> {
    let from = Anchor::now();
    std::thread::sleep(distance.max(Duration::from_millis(1)));
    let to = Anchor::now();
    frequency(&from, &to).map(|hz| (hz, to))
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec; the clocks used here exist on every Linux, so the call
    // cannot fail. (Not through `call`: this is on the data plane where the TSC is not usable.)
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
