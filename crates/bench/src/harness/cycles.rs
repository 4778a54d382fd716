//! CPU cycles of the calling thread, where the machine counts them.
//!
//! Virtual machines mostly have no counter (`ENOENT`), and `perf_event_paranoid` may leave only the cycles in
//! user space, or none.

use std::fmt;
use std::fs::File;
use std::io::{Error, Read, Result};
use std::os::fd::FromRawFd;

/// `struct perf_event_attr`, version 0 (64 bytes; include/uapi/linux/perf_event.h): type 0 and event 0 are the
/// hardware's cycles.
const WORDS: usize = 8;
/// The second half of word 0: the size.
const SIZE: u64 = ((WORDS * size_of::<u64>()) as u64) << 32;
/// Word of the flags.
const FLAGS: usize = 5;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
/// Flag of the call: close on exec.
const CLOEXEC: u64 = 8;

/// A counter of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Cycles {
    counter: File,
    user_only: bool,
}

impl Cycles {
    /// Begins to count this thread's cycles; in user space only where that is all it may.
    pub(crate) fn open() -> Result<Self> {
        let all = open(EXCLUDE_HV).map(|counter| Self { counter, user_only: false });
        all.or_else(|_| {
            let counter = open(EXCLUDE_HV | EXCLUDE_KERNEL)?;
            Ok(Self { counter, user_only: true })
        })
    }

    /// Cycles so far.
    pub(crate) fn now(&self) -> Option<u64> {
        let mut count = [0; 8];
        (&self.counter).read_exact(&mut count).ok()?;
        Some(u64::from_ne_bytes(count))
    }
}

impl fmt::Display for Cycles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.user_only { "in user space only" } else { "user space and kernel" })
    }
}

fn open(flags: u64) -> Result<File> {
    let mut attr = [0_u64; WORDS];
    attr[0] = SIZE;
    attr[FLAGS] = flags;
    // SAFETY: the pointer is to as many bytes as the second word says, and the rest are numbers: this
    // thread, any CPU, no group.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, CLOEXEC) };
    match i32::try_from(fd) {
        // SAFETY: the kernel's answer is a new descriptor, which is nobody else's.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(Error::last_os_error()),
    }
}
