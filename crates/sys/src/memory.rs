//! Shared memory objects and mappings.
//!
//! A segment is a memfd, close-on-exec from birth, that is given its size, has its pages allocated
//! (so that a full memory cgroup or tmpfs is an error here and not a SIGBUS in somebody's program)
//! and is then sealed against shrinking and growing: a mapping of a sealed object can never fault.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::choke::{Family, call};
use crate::{Result, SysError};

/// Size of a page, by the C library.
#[must_use]
pub fn page_size() -> usize {
    // SAFETY: sysconf takes no pointers.
    let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(n).unwrap_or(4096)
}

/// Copies up to `len` bytes of this process's memory from `from`, which may be any number at all: says how
/// many it got, 0 where nothing is mapped. By `process_vm_readv(2)`, which asks for no privilege here, as a
/// process may always look at itself; a few hundred nanoseconds; async-signal-safe.
///
/// # Errors
/// Where a filter forbids the call (`EPERM`, `ENOSYS`).
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
pub unsafe fn read_own(from: u64, to: *mut u8, len: usize) -> Result<usize> {
    let local = libc::iovec { iov_base: to.cast(), iov_len: len };
    let from = std::ptr::without_provenance_mut(usize::try_from(from).unwrap_or(0));
    let remote = libc::iovec { iov_base: from, iov_len: len };
    let pid = libc::c_long::from(crate::process::getpid());
    let got = call(Family::Memory, "process_vm_readv", || {
        // SAFETY: the kernel writes only where `local` says, which the caller vouches for, and reads
        // what can be read; both structures outlive the call.
        unsafe {
            libc::syscall(
                libc::SYS_process_vm_readv,
                pid,
                &raw const local,
                1_u64,
                &raw const remote,
                1_u64,
                0_u64,
            )
        }
    });
    match got {
        Ok(got) => Ok(usize::try_from(got).unwrap_or(0)),
        Err(SysError { errno: libc::EFAULT, .. }) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Makes a memfd, close-on-exec, that allows seals. `name` shows in /proc/PID/fd.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSYS`.
pub fn memfd_create(name: &CStr) -> Result<OwnedFd> {
    memfd(name, 0)
}

/// As [`memfd_create`], for a file that may be mapped executable. Where the kernel forbids that by
/// default (`vm.memfd_noexec`, Linux 6.3), one asks for it; older kernels do not know the question.
///
/// # Errors
/// As [`memfd_create`]; `EACCES` (`vm.memfd_noexec` is 2).
pub fn memfd_create_executable(name: &CStr) -> Result<OwnedFd> {
    match memfd(name, libc::MFD_EXEC) {
        Err(SysError { errno: libc::EINVAL, .. }) => memfd(name, 0),
        answer => answer,
    }
}

fn memfd(name: &CStr, more: libc::c_uint) -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | more;
    let fd = call(Family::Memory, "memfd_create", || {
        // SAFETY: `name` is a valid C string.
        libc::c_long::from(unsafe { libc::memfd_create(name.as_ptr(), flags) })
    })?;
    let fd =
        i32::try_from(fd).map_err(|_| SysError { call: "memfd_create", errno: libc::EBADF })?;
    // SAFETY: a descriptor the kernel has just given us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives the object `len` bytes and allocates their pages.
///
/// # Errors
/// `ENOSPC`, `ENOMEM`, `EFBIG`, `EPERM` (sealed).
pub fn allocate(fd: impl AsFd, len: usize) -> Result<()> {
    set_len(&fd, len)?;
    allocate_range(&fd, 0, len)
}

/// Gives the object `len` bytes, none of which have pages yet: see [`allocate_range`].
///
/// # Errors
/// `EFBIG`, `EPERM` (sealed).
pub fn set_len(fd: impl AsFd, len: usize) -> Result<()> {
    let raw = fd.as_fd().as_raw_fd();
    let size = file_offset("ftruncate", len)?;
    call(Family::Memory, "ftruncate", || {
        // SAFETY: takes no pointers; `raw` is open while `fd` is borrowed.
        libc::c_long::from(unsafe { libc::ftruncate(raw, size) })
    })
    .map(drop)
}

/// Allocates the pages of a range inside the object. What has pages keeps its content.
///
/// # Errors
/// `ENOSPC`, `ENOMEM`, `EPERM` (sealed and outside), `EINTR`.
pub fn allocate_range(fd: impl AsFd, offset: usize, len: usize) -> Result<()> {
    let raw = fd.as_fd().as_raw_fd();
    let (offset, len) = (file_offset("fallocate", offset)?, file_offset("fallocate", len)?);
    call(Family::Memory, "fallocate", || {
        // SAFETY: takes no pointers; `raw` is open while `fd` is borrowed.
        libc::c_long::from(unsafe { libc::fallocate(raw, 0, offset, len) })
    })
    .map(drop)
}

fn file_offset(call: &'static str, offset: usize) -> Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| SysError { call, errno: libc::EFBIG })
}

/// Seals the object: its size is fixed for ever, and so are its seals.
///
/// # Errors
/// `EINVAL` (not a memfd), `EPERM` (already sealed against seals).
pub fn seal_size(fd: impl AsFd) -> Result<()> {
    let raw = fd.as_fd().as_raw_fd();
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    call(Family::Memory, "fcntl(F_ADD_SEALS)", || {
        // SAFETY: takes no pointers; `raw` is open while `fd` is borrowed.
        libc::c_long::from(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals) })
    })
    .map(drop)
}

/// True if the object can neither shrink nor grow. Check it before mapping what a stranger sent.
///
/// # Errors
/// `EINVAL` if it is no memfd.
pub fn is_size_sealed(fd: impl AsFd) -> Result<bool> {
    let raw = fd.as_fd().as_raw_fd();
    let seals = call(Family::Memory, "fcntl(F_GET_SEALS)", || {
        // SAFETY: takes no pointers; `raw` is open while `fd` is borrowed.
        libc::c_long::from(unsafe { libc::fcntl(raw, libc::F_GET_SEALS) })
    })?;
    let want = libc::c_long::from(libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
    Ok(seals & want == want)
}

/// Size of the object in bytes.
///
/// # Errors
/// `EBADF`, `EOVERFLOW`.
pub fn len(fd: impl AsFd) -> Result<usize> {
    let raw = fd.as_fd().as_raw_fd();
    let end = call(Family::Memory, "lseek", || {
        // SAFETY: takes no pointers; `raw` is open while `fd` is borrowed.
        unsafe { libc::lseek(raw, 0, libc::SEEK_END) }
    })?;
    usize::try_from(end).map_err(|_| SysError { call: "lseek", errno: libc::EOVERFLOW })
}

/// A mapping, unmapped when dropped.
///
/// Says nothing about who else writes there; users go through atomics and raw pointers.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a Mapping is an address range; the bytes behind it are reached only through the raw
// pointer, whose users answer for their own accesses.
unsafe impl Send for Mapping {}
// SAFETY: as for Send: shared access to a Mapping gives the same raw pointer and nothing else.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, shared, readable and writable.
    ///
    /// # Errors
    /// `ENOMEM`, `EACCES`, `EINVAL` (offset not a multiple of a page, `len` 0).
    pub fn shared(fd: impl AsFd, offset: usize, len: usize) -> Result<Self> {
        Self::map(None, len, MapKind::Shared(fd.as_fd().as_raw_fd(), offset))
    }

    /// Maps `len` bytes of `fd` from its start, shared, readable and executable.
    ///
    /// # Errors
    /// `EACCES`, `EPERM` (forbidden), `ENOMEM`, `EINVAL` (`len` 0).
    pub fn executable(fd: impl AsFd, len: usize) -> Result<Self> {
        Self::map(None, len, MapKind::Executable(fd.as_fd().as_raw_fd()))
    }

    /// Maps zeroed memory of this process alone.
    ///
    /// # Errors
    /// `ENOMEM`, `EINVAL` (`len` 0).
    pub fn anonymous(len: usize) -> Result<Self> {
        Self::map(None, len, MapKind::Anonymous)
    }

    /// Maps `len` bytes of `fd` from `offset` twice, one right behind the other, so that byte
    /// `len + i` is byte `i`: what runs over the end of a ring is where it belongs. The mapping's
    /// length is `2 * len`; both `offset` and `len` are multiples of the page size.
    ///
    /// # Errors
    /// As [`Mapping::shared`].
    pub fn mirrored(fd: impl AsFd, offset: usize, len: usize) -> Result<Self> {
        Self::pieces(fd, [(offset, len), (offset, len)])
    }

    /// Maps pieces (offset, length) of `fd` one right behind the other, in the order given; all
    /// numbers are multiples of the page size.
    ///
    /// # Errors
    /// As [`Mapping::shared`].
    pub fn pieces(
        fd: impl AsFd,
        pieces: impl IntoIterator<Item = (usize, usize), IntoIter: Clone>,
    ) -> Result<Self> {
        let pieces = pieces.into_iter();
        let total = pieces.clone().try_fold(0_usize, |sum, (_, len)| sum.checked_add(len));
        let total = total.ok_or(SysError { call: "mmap", errno: libc::ENOMEM })?;
        let raw = fd.as_fd().as_raw_fd();
        let reserved = Self::map(None, total, MapKind::Reserve)?;
        let mut at = reserved.base.as_ptr();
        for (offset, len) in pieces {
            let mapped = Self::map(Some(at), len, MapKind::Shared(raw, offset))?;
            // Part of `reserved`, which unmaps all pieces.
            core::mem::forget(mapped);
            at = at.wrapping_add(len);
        }
        Ok(reserved)
    }

    /// First byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: empty mappings do not exist.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps the memory for the life of the process and returns its first byte.
    #[must_use]
    pub fn leak(self) -> NonNull<u8> {
        let base = self.base;
        core::mem::forget(self);
        base
    }

    /// The mapping again that [`Mapping::leak`] let go of.
    ///
    /// # Safety
    /// `base` came from [`Mapping::leak`] of a mapping of `len` bytes, and nobody else uses or adopts
    /// it.
    #[must_use]
    pub unsafe fn adopt(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Asks that a forked child find the pages zeroed (`MADV_WIPEONFORK`, Linux 4.14). Only for
    /// anonymous mappings.
    ///
    /// # Errors
    /// `EINVAL` where the kernel does not know it.
    pub fn wipe_on_fork(&self) -> Result<()> {
        self.advise("madvise(MADV_WIPEONFORK)", libc::MADV_WIPEONFORK)
    }

    /// Keeps the pages out of core dumps.
    ///
    /// # Errors
    /// `EINVAL` for special mappings.
    pub fn dont_dump(&self) -> Result<()> {
        self.advise("madvise(MADV_DONTDUMP)", libc::MADV_DONTDUMP)
    }

    /// Makes the page-table entries of a range of the mapping, for writing (`MADV_POPULATE_WRITE`,
    /// Linux 5.14), so that the first access costs no fault. The range is cut to the mapping.
    ///
    /// # Errors
    /// `EINVAL` where the kernel does not know it, `ENOMEM`.
    pub fn populate(&self, offset: usize, len: usize) -> Result<()> {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        let at = self.base.as_ptr().wrapping_add(offset);
        call(Family::Memory, "madvise(MADV_POPULATE_WRITE)", || {
            // SAFETY: the range lies in a mapping of ours; the advice changes no content.
            libc::c_long::from(unsafe { libc::madvise(at.cast(), len, libc::MADV_POPULATE_WRITE) })
        })
        .map(drop)
    }

    fn advise(&self, name: &'static str, advice: i32) -> Result<()> {
        call(Family::Memory, name, || {
            // SAFETY: the range is a mapping of ours; neither advice changes what it holds now.
            libc::c_long::from(unsafe {
                libc::madvise(self.base.as_ptr().cast(), self.len, advice)
            })
        })
        .map(drop)
    }

    fn map(at: Option<*mut u8>, len: usize, kind: MapKind) -> Result<Self> {
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, offset, prot, flags) = match kind {
            MapKind::Shared(fd, offset) => (fd, offset, read_write, libc::MAP_SHARED),
            MapKind::Executable(fd) => (fd, 0, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_SHARED),
            MapKind::Anonymous => (-1, 0, read_write, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
            MapKind::Reserve => (-1, 0, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
        };
        let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
        let offset = libc::off_t::try_from(offset)
            .map_err(|_| SysError { call: "mmap", errno: libc::EOVERFLOW })?;
        let hint = at.unwrap_or(core::ptr::null_mut());
        let mut got = core::ptr::null_mut();
        call(Family::Memory, "mmap", || {
            // SAFETY: without MAP_FIXED the kernel picks free addresses. With it, `pieces` names
            // a range inside a reservation it has just made and nobody else knows.
            got = unsafe { libc::mmap(hint.cast(), len, prot, flags | fixed, fd, offset) };
            if got == libc::MAP_FAILED { -1 } else { 0 }
        })?;
        NonNull::new(got.cast::<u8>())
            .map(|base| Self { base, len })
            .ok_or(SysError { call: "mmap", errno: libc::ENOMEM })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Not through the choke point: a test that makes calls fail must not make memory leak.
        // SAFETY: the range is ours since `map`, and whoever used the pointer borrowed `self` or
        // answers for the end of its use.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[derive(Clone, Copy)]
enum MapKind {
    Shared(i32, usize),
    Executable(i32),
    Anonymous,
    Reserve,
}
