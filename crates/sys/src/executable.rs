//! Memory for machine code that is never writable and executable at once.
//!
//! A memory file is mapped writable, filled, unmapped, sealed against every further write and only then
//! mapped readable and executable. So no page changes its protection, which is what `PR_SET_MDWE` and
//! SELinux's `execmod` and `execmem` forbid, and a forked child that shares the pages cannot change them.

use std::os::fd::{AsFd, AsRawFd};

use crate::Result;
use crate::choke::{Family, call};
use crate::memory::{self, Mapping};

/// Machine code, executable and unchangeable.
#[derive(Debug)]
pub struct Executable {
    mapping: Mapping,
}

impl Executable {
    /// Makes executable memory that holds `code`.
    ///
    /// # Errors
    /// `EACCES`, `EPERM` (executable memory is forbidden: see [`crate::SysError::is_unavailable`]), `ENOMEM`,
    /// `EMFILE`, `EINVAL` (`code` is empty).
    pub fn new(code: &[u8]) -> Result<Self> {
        let fd = memory::memfd_create_executable(c"owlet-code")?;
        memory::allocate(&fd, code.len())?;
        let writable = Mapping::shared(&fd, 0, code.len())?;
        // SAFETY: the mapping is new, ours alone and as long as `code`.
        unsafe { writable.as_ptr().copy_from_nonoverlapping(code.as_ptr(), code.len()) };
        // The seal is refused while there is a writable mapping.
        drop(writable);
        seal(&fd)?;
        Mapping::executable(&fd, code.len()).map(|mapping| Self { mapping })
    }

    /// First byte.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.as_ptr()
    }
}

/// Size and content are fixed for ever.
fn seal(fd: impl AsFd) -> Result<()> {
    let raw = fd.as_fd().as_raw_fd();
    let size = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let seals = size | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
    call(Family::Memory, "fcntl(F_ADD_SEALS)", || {
        // SAFETY: takes no pointers; `raw` is open while `fd` is borrowed.
        libc::c_long::from(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals) })
    })
    .map(drop)
}
