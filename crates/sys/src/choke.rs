//! The choke point every system call of this crate passes.

use crate::{Result, SysError};

/// A family of calls; the unit in which tests make calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Family {
    /// `membarrier(2)`.
    Membarrier,
    /// The rseq area: its lookup and (un)registration.
    Rseq,
    /// `futex(2)`.
    Futex,
    /// `memfd_create`, `ftruncate`, `fallocate`, seals, `mmap`, `madvise`.
    Memory,
    /// Clocks and the files about clock sources.
    Clock,
    /// CPU topology.
    Topology,
    /// Process and thread ids, names, pidfd.
    Process,
    /// The socket directory.
    RuntimeDir,
}

/// Number of families.
#[cfg(any(test, feature = "fake"))]
pub(crate) const FAMILIES: usize = Family::RuntimeDir as usize + 1;

/// Makes `f`, a libc call that answers -1 and sets `errno` on failure.
#[inline]
pub(crate) fn call(
    family: Family,
    name: &'static str,
    f: impl FnOnce() -> libc::c_long,
) -> Result<libc::c_long> {
    check(family, name)?;
    let saved = errno();
    let answer = f();
    if answer == -1 {
        let error = errno();
        set_errno(saved);
        return Err(SysError { call: name, errno: error });
    }
    Ok(answer)
}

/// Like [`call`] for things that go through the standard library (files in /proc and /sys).
pub(crate) fn io<T>(
    family: Family,
    name: &'static str,
    f: impl FnOnce() -> std::io::Result<T>,
) -> Result<T> {
    check(family, name)?;
    let saved = errno();
    let answer = f();
    set_errno(saved);
    answer.map_err(|e| SysError { call: name, errno: e.raw_os_error().unwrap_or(libc::EIO) })
}

#[cfg(any(test, feature = "fake"))]
fn check(family: Family, name: &'static str) -> Result<()> {
    match crate::fake::take(family) {
        Some(errno) => Err(SysError { call: name, errno }),
        None => Ok(()),
    }
}

#[cfg(not(any(test, feature = "fake")))]
#[inline(always)]
fn check(_: Family, _: &'static str) -> Result<()> {
    Ok(())
}

#[inline]
fn errno() -> i32 {
    // SAFETY: the C library promises a valid pointer to this thread's errno.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: `at` is this thread's own errno, valid as long as the thread.
    unsafe { *at }
}

#[inline]
pub(crate) fn set_errno(value: i32) {
    // SAFETY: as in `errno`.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as in `errno`.
    unsafe { *at = value };
}
