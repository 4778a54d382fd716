//! What a result was measured on. No names of hosts, users or paths.

use std::ffi::CStr;
use std::fs;

/// The machine and the moment.
pub(crate) struct Machine {
    /// As the kernel names the processor.
    pub(crate) cpu: String,
    /// CPUs this process may use.
    pub(crate) cpus: usize,
    /// Kernel name and release.
    pub(crate) kernel: String,
    /// Name and version of the C library.
    pub(crate) libc: String,
    /// Where the kernel takes the time from.
    pub(crate) clock: String,
    /// UTC, `YYYY-MM-DD`.
    pub(crate) date: String,
    /// UTC, `hh:mm`.
    pub(crate) time: String,
}

impl Machine {
    /// This machine, now.
    pub(crate) fn here() -> Self {
        let (date, time) = now();
        Self {
            cpu: cpu_model(),
            cpus: cpus(),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease")),
            libc: libc_version(),
            clock: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            date,
            time,
        }
    }
}

/// CPUs this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Load average of the last minute.
pub(crate) fn load() -> f64 {
    read("/proc/loadavg").split(' ').next().and_then(|s| s.parse().ok()).unwrap_or(f64::NAN)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn cpu_model() -> String {
    let info = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| "unknown".to_owned());
    match (field("cpu family"), field("model\t")) {
        (Some(family), Some(number)) => format!("{model} (family {family} model {number})"),
        _ => model,
    }
}

#[cfg(target_env = "gnu")]
fn libc_version() -> String {
    // SAFETY: returns a pointer to a string that lives as long as the process.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: the string above ends in NUL.
    let version = unsafe { CStr::from_ptr(version) };
    format!("glibc {}", version.to_string_lossy())
}

#[cfg(not(target_env = "gnu"))]
fn libc_version() -> String {
    "not glibc".to_owned()
}

fn now() -> (String, String) {
    // SAFETY: a null pointer is allowed and means: only return the time.
    let seconds = unsafe { libc::time(std::ptr::null_mut()) };
    // SAFETY: all-zero bytes are a valid `tm`.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals.
    unsafe { libc::gmtime_r(&raw const seconds, &raw mut tm) };
    (
        format!("{:04}-{:02}-{:02}", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday),
        format!("{:02}:{:02}", tm.tm_hour, tm.tm_min),
    )
}
