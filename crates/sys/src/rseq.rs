//! Where the C library put this thread's restartable-sequence (rseq) area.
//!
//! glibc 2.35 and later register an area for every thread and publish its place as three symbols:
//! `__rseq_offset` from the thread pointer, `__rseq_size` and `__rseq_flags`. Only one registration
//! per thread is possible, so we use theirs and never make one of our own. The symbols are weak
//! here: musl and old glibc lack them, and [`area`] then says so.
//!
//! Size rules (`sysdeps/unix/sysv/linux/dl-rseq-symbols.S`, `kernel/rseq.c`):
//!
//! | `__rseq_size` | meaning |
//! |---|---|
//! | 0 | not registered (tunable `glibc.pthread.rseq=0`, or the kernel refused) |
//! | below 20 | no such ABI: treated as absent |
//! | 20 or 32 | the original ABI: 32 bytes allocated, fields up to `flags`; no `node_id`, no `mm_cid` |
//! | 28 and up (not 32) | feature size: `node_id` and `mm_cid` are there |

use core::arch::{asm, global_asm};

use crate::choke::{Family, call};
use crate::{Result, SysError};

/// Offset of `cpu_id_start` in the area.
pub const CPU_ID_START: usize = 0;
/// Offset of `cpu_id` in the area: the CPU, or a negative number while the thread is not registered.
pub const CPU_ID: usize = 4;
/// Offset of the pointer to the descriptor of the section being run.
pub const RSEQ_CS: usize = 8;
/// The signature in front of every abort handler (x86-64, as registered by glibc).
pub const SIGNATURE: u32 = 0x5305_3053;
/// Size of the area in the original ABI, as registered with the kernel.
const ORIGINAL_SIZE: u32 = 32;
const UNREGISTER: i32 = 1;

/// The area of the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Bytes from the thread pointer to the area; the same for every thread.
    pub offset: isize,
    /// `__rseq_size` as published.
    pub size: u32,
}

/// Why there is no area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The C library does not publish one (musl, glibc before 2.35), or this is no x86-64.
    NoSymbols,
    /// Published, but of size 0: switched off by a tunable, or refused by the kernel.
    NotRegistered,
    /// A size no ABI has.
    BadSize(u32),
    /// The area is there but this thread is not registered with it.
    ThreadNotRegistered,
}

impl Absent {
    /// One line for `doctor`.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::NoSymbols => "the C library does not register rseq (no __rseq_offset symbol)",
            Self::NotRegistered => {
                "rseq is not registered (GLIBC_TUNABLES glibc.pthread.rseq=0, or the kernel refused)"
            }
            Self::BadSize(_) => "the C library publishes an rseq area of unknown size",
            Self::ThreadNotRegistered => "the thread's rseq area holds no CPU number",
        }
    }
}

/// The size rules of the module header.
///
/// # Errors
/// [`Absent::NotRegistered`] or [`Absent::BadSize`].
pub fn check_size(size: u32) -> core::result::Result<(), Absent> {
    match size {
        0 => Err(Absent::NotRegistered),
        1..20 => Err(Absent::BadSize(size)),
        _ => Ok(()),
    }
}

/// True if an area of published size `size` has the field `mm_cid` (24..28).
#[must_use]
pub fn has_mm_cid(size: u32) -> bool {
    size >= 28 && size != ORIGINAL_SIZE
}

/// Finds the C library's area and checks that the calling thread is registered.
///
/// # Errors
/// [`Absent`] with the reason.
pub fn area() -> core::result::Result<Area, Absent> {
    if call(Family::Rseq, "rseq", || 0).is_err() {
        return Err(Absent::NotRegistered);
    }
    let (offset_at, size_at) = symbols();
    if offset_at.is_null() || size_at.is_null() {
        return Err(Absent::NoSymbols);
    }
    // SAFETY: a non-null address of the C library's `const ptrdiff_t __rseq_offset`.
    let offset = unsafe { *offset_at };
    // SAFETY: a non-null address of the C library's `const unsigned int __rseq_size`.
    let size = unsafe { *size_at };
    check_size(size)?;
    let area = Area { offset, size };
    // SAFETY: `size` is not 0, so the C library has allocated the area in every thread's TLS block.
    if unsafe { cpu_id(offset) } < 0 {
        return Err(Absent::ThreadNotRegistered);
    }
    Ok(area)
}

#[cfg(target_arch = "x86_64")]
global_asm!(".weak __rseq_offset", ".weak __rseq_size");

/// Addresses of the two symbols, null where the C library lacks them.
#[cfg(target_arch = "x86_64")]
fn symbols() -> (*const isize, *const u32) {
    let (offset, size);
    // SAFETY: two loads from the global offset table, which the linker makes for these operands.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {1}, qword ptr [rip + __rseq_size@GOTPCREL]",
            out(reg) offset,
            out(reg) size,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    (offset, size)
}

#[cfg(not(target_arch = "x86_64"))]
fn symbols() -> (*const isize, *const u32) {
    (core::ptr::null(), core::ptr::null())
}

/// This thread's `cpu_id`: the CPU it runs on, or a negative number while it is not registered.
///
/// # Safety
/// `offset` comes from [`area`] (or the area is known to be allocated there).
#[inline(always)]
#[must_use]
pub unsafe fn cpu_id(offset: isize) -> i32 {
    #[cfg(target_arch = "x86_64")]
    {
        let id: i32;
        // SAFETY: the caller vouches that the thread pointer plus `offset` is an rseq area.
        unsafe {
            asm!(
                "mov {id:e}, dword ptr fs:[{offset} + 4]",
                id = out(reg) id,
                offset = in(reg) offset,
                options(nostack, readonly, preserves_flags),
            );
        }
        id
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = offset;
        -1
    }
}

/// Takes the calling thread's registration away, as a foreign runtime or a raw `clone` would leave
/// it. For tests: readers must then take the portable words.
///
/// # Errors
/// `EINVAL` if the thread is not registered, `EPERM` if with another signature.
pub fn unregister_this_thread(area: Area) -> Result<()> {
    let at = thread_pointer().wrapping_add_signed(area.offset);
    let len = area.size.max(ORIGINAL_SIZE);
    call(Family::Rseq, "rseq", || {
        // SAFETY: the kernel compares address, length and signature with the registration and
        // touches nothing but that area.
        unsafe { libc::syscall(libc::SYS_rseq, at, len, UNREGISTER, SIGNATURE) }
    })
    .map(drop)
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: the x86-64 TLS ABI keeps the thread pointer at fs:0.
    unsafe { asm!("mov {}, fs:0", out(reg) tp, options(nostack, pure, readonly, preserves_flags)) };
    tp
}

#[cfg(not(target_arch = "x86_64"))]
fn thread_pointer() -> usize {
    0
}

/// An error for callers that need a [`SysError`] rather than a reason.
impl From<Absent> for SysError {
    fn from(_: Absent) -> Self {
        Self { call: "rseq", errno: libc::ENOSYS }
    }
}
