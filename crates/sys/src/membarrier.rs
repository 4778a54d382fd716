//! `membarrier(2)`: a full barrier on every running thread, paid for by the caller alone.
//!
//! `kernel/sched/membarrier.c` (Linux 4.14 for the private commands, 5.10 for the rseq one). The
//! plain GLOBAL command takes 8 to 12 ms and is deliberately absent. Registrations survive `fork`
//! and are cleared by `exec`.
//!
//! | command | gives |
//! |---|---|
//! | [`private_expedited`] | a full barrier on every running thread of this process |
//! | [`private_expedited_rseq`] | the same, and every restartable section in flight restarts |
//! | [`private_expedited_sync_core`] | the same as the first, and an instruction-stream barrier |
//! | [`global_expedited`] | a full barrier on running threads of every process that registered |

use crate::choke::{Family, call};
use crate::{Result, SysError};

/// `MEMBARRIER_CMD_GLOBAL_EXPEDITED` and its registration.
const GLOBAL_EXPEDITED: i32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 5;
const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 6;
const PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
const REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;

/// The commands the kernel supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supported(i32);

impl Supported {
    /// [`private_expedited`] exists.
    #[must_use]
    pub fn private(self) -> bool {
        self.0 & PRIVATE_EXPEDITED != 0
    }

    /// [`private_expedited_rseq`] exists.
    #[must_use]
    pub fn rseq(self) -> bool {
        self.0 & PRIVATE_EXPEDITED_RSEQ != 0
    }

    /// [`private_expedited_sync_core`] exists.
    #[must_use]
    pub fn sync_core(self) -> bool {
        self.0 & PRIVATE_EXPEDITED_SYNC_CORE != 0
    }

    /// [`global_expedited`] exists.
    #[must_use]
    pub fn global(self) -> bool {
        self.0 & GLOBAL_EXPEDITED != 0
    }
}

/// Asks the kernel which commands it supports.
///
/// # Errors
/// `ENOSYS` or `EPERM` where the kernel or a seccomp filter has none.
pub fn query() -> Result<Supported> {
    command(0).map(Supported)
}

/// Registers this process for [`private_expedited`].
///
/// # Errors
/// `ENOSYS`, `EPERM`, or `EINVAL` on kernels before 4.14.
pub fn register_private_expedited() -> Result<()> {
    command(REGISTER_PRIVATE_EXPEDITED).map(drop)
}

/// A full barrier on every running thread of this process, and in the caller.
///
/// # Errors
/// `EPERM` if not registered or filtered, `ENOSYS`.
pub fn private_expedited() -> Result<()> {
    command(PRIVATE_EXPEDITED).map(drop)
}

/// Registers this process for [`private_expedited_rseq`].
///
/// # Errors
/// As [`register_private_expedited`]; `EINVAL` before 5.10.
pub fn register_private_expedited_rseq() -> Result<()> {
    command(REGISTER_PRIVATE_EXPEDITED_RSEQ).map(drop)
}

/// [`private_expedited`], and every restartable section in flight restarts.
///
/// # Errors
/// As [`private_expedited`].
pub fn private_expedited_rseq() -> Result<()> {
    command(PRIVATE_EXPEDITED_RSEQ).map(drop)
}

/// Registers this process for [`private_expedited_sync_core`].
///
/// # Errors
/// As [`register_private_expedited`]; `EINVAL` before 4.16.
pub fn register_private_expedited_sync_core() -> Result<()> {
    command(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE).map(drop)
}

/// [`private_expedited`], and every thread executes a core-serialising instruction before it
/// returns to user code: what cross-modified code needs.
///
/// # Errors
/// As [`private_expedited`].
pub fn private_expedited_sync_core() -> Result<()> {
    command(PRIVATE_EXPEDITED_SYNC_CORE).map(drop)
}

/// Registers this process as one that [`global_expedited`] of others reaches.
///
/// # Errors
/// As [`register_private_expedited`]; `EINVAL` before 4.16.
pub fn register_global_expedited() -> Result<()> {
    command(REGISTER_GLOBAL_EXPEDITED).map(drop)
}

/// A full barrier on running threads of every registered process. The caller need not register.
///
/// # Errors
/// `ENOSYS`, `EPERM`, or `EINVAL` before 4.16.
pub fn global_expedited() -> Result<()> {
    command(GLOBAL_EXPEDITED).map(drop)
}

fn command(cmd: i32) -> Result<i32> {
    call(Family::Membarrier, "membarrier", || {
        // SAFETY: membarrier takes no pointers; flags and cpu id are 0.
        unsafe { libc::syscall(libc::SYS_membarrier, cmd, 0, 0) }
    })
    .and_then(|mask| {
        i32::try_from(mask).map_err(|_| SysError { call: "membarrier", errno: libc::EOVERFLOW })
    })
}
