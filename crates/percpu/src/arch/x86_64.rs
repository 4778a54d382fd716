//! Restartable sequences on x86-64.
//!
//! Skeleton of every sequence (kernel/rseq.c, include/uapi/linux/rseq.h):
//!
//! ```text
//!     mov ro, [HOT]; test; je out          [D] the rseq offset; 0 = undecided, or not this backend
//! 77: descriptor in section __rseq_cs: version, flags, start, length to commit, abort
//! 22: lea t, [77b]; mov fs:[ro + 8], t      arm: tell the kernel which sequence we are in
//!  2: ...                                   the sequence; leaves by its last store only, or by a
//!                                           jump out without having stored anything
//!  3:                                       past the commit: no restart from here on
//! .byte 0f b9 3d; .long 53053053            signature, as the tail of an undefined instruction
//!  4: jmp 22b                               the kernel sends an interrupted sequence here
//! ```
//!
//! The pointer at `fs:[ro + 8]` is left behind; the kernel clears it the next time it looks and finds
//! the thread outside. (Therefore code with sequences must not be unmapped while threads run: a
//! library that holds them is pinned.) Numeric labels keep inlined copies apart.
//!
//! [`increment_if_with`] has the offset and the number of slots from its caller's [`Hot`], and begins at
//! `22`: two loads less.
//!
//! No sequence has a barrier in it. x86-64 keeps loads in order, stores in order, and loads
//! before later stores; what is left (a store passing a later load) is what heavy fences are for.
//! No `options(nomem)`: to the compiler each sequence is a barrier, which is the light fence.

use core::arch::asm;

use crate::backend::{HOT, HOT_CPUS_AT, Hot};

/// `*(at + DISP + cpu * 128) += n` in one sequence, `at + DISP` being the word in the slot of CPU 0.
/// False, with nothing stored, if the backend is not rseq or this thread has no CPU number below
/// `cpus()`. (The displacement is part of the instruction, so it costs nothing.)
///
/// # Safety
/// `at + DISP` lies in the first bank of slot 0 of `cpus()` live slots of 128 bytes.
#[inline(always)]
pub(crate) unsafe fn add<const DISP: usize>(at: *mut u8, n: u64) -> bool {
    // SAFETY: HOT's offset is 0 or the C library's (invariant 2 of the crate), so the stores are to
    // the rseq area of this thread and, by the comparison (invariant 3), to a live slot.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "mov {ro}, qword ptr [rip + {hot}]",
            "test {ro}, {ro}",
            "je {out}",
            "22: lea {t}, [rip + 77b]",
            "mov qword ptr fs:[{ro} + 8], {t}",
            "2: mov {t:e}, dword ptr fs:[{ro} + 4]",
            "cmp {t:e}, dword ptr [rip + {hot} + {cpus_at}]",
            "jae {out}",
            "shl {t}, 7",
            "add qword ptr [{word} + {t} + {disp}], {n}",
            "3:",
            ".pushsection .text.unlikely, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4: jmp 22b",
            ".popsection",
            t = out(reg) _,
            ro = out(reg) _,
            hot = sym HOT,
            cpus_at = const HOT_CPUS_AT,
            disp = const DISP,
            word = in(reg) at,
            n = in(reg) n,
            out = label { return false },
            options(nostack),
        );
    }
    true
}

/// `*(at + DISP + cpu * 128) += 1` in one sequence; otherwise as [`add`].
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub(crate) unsafe fn increment<const DISP: usize>(at: *mut u8) -> bool {
    // SAFETY: as in `add`.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "mov {ro}, qword ptr [rip + {hot}]",
            "test {ro}, {ro}",
            "je {out}",
            "22: lea {t}, [rip + 77b]",
            "mov qword ptr fs:[{ro} + 8], {t}",
            "2: mov {t:e}, dword ptr fs:[{ro} + 4]",
            "cmp {t:e}, dword ptr [rip + {hot} + {cpus_at}]",
            "jae {out}",
            "shl {t}, 7",
            "inc qword ptr [{word} + {t} + {disp}]",
            "3:",
            ".pushsection .text.unlikely, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4: jmp 22b",
            ".popsection",
            t = out(reg) _,
            ro = out(reg) _,
            hot = sym HOT,
            cpus_at = const HOT_CPUS_AT,
            disp = const DISP,
            word = in(reg) at,
            out = label { return false },
            options(nostack),
        );
    }
    true
}

/// `*(at + DISP + cpu * 128) += 1` in one sequence, provided `*index == expected` in the same sequence.
/// False, with nothing stored, if it is not, or as for [`add`].
///
/// The comparison and the increment are one: once `index` has been changed and
/// `fence::heavy_rseq` has returned, no thread can commit an increment for the old value.
///
/// # Safety
/// As [`add`]; `index` is an atomic word, or the lower half of one.
#[inline(always)]
pub(crate) unsafe fn increment_if<const DISP: usize>(
    at: *mut u8,
    index: *const u32,
    expected: u32,
) -> bool {
    // SAFETY: as in `add`; `index` is only read, by one aligned load.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "mov {ro}, qword ptr [rip + {hot}]",
            "test {ro}, {ro}",
            "je {out}",
            "22: lea {t}, [rip + 77b]",
            "mov qword ptr fs:[{ro} + 8], {t}",
            "2: mov {t:e}, dword ptr fs:[{ro} + 4]",
            "cmp {t:e}, dword ptr [rip + {hot} + {cpus_at}]",
            "jae {out}",
            "cmp dword ptr [{index}], {expected:e}",
            "jne {out}",
            "shl {t}, 7",
            "inc qword ptr [{word} + {t} + {disp}]",
            "3:",
            ".pushsection .text.unlikely, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4: jmp 22b",
            ".popsection",
            t = out(reg) _,
            ro = out(reg) _,
            hot = sym HOT,
            cpus_at = const HOT_CPUS_AT,
            index = in(reg) index,
            expected = in(reg) expected,
            disp = const DISP,
            word = in(reg) at,
            out = label { return false },
            options(nostack),
        );
    }
    true
}

/// [`increment_if`] for a caller that has `hot` in a register.
///
/// # Safety
/// As [`increment_if`].
#[inline(always)]
pub(crate) unsafe fn increment_if_with<const DISP: usize>(
    hot: Hot,
    at: *mut u8,
    index: *const u32,
    expected: u32,
) -> bool {
    let ro = hot.offset();
    if ro == 0 {
        return false;
    }
    // SAFETY: the offset is the C library's (invariant 2 of the crate), the comparison is that of
    // invariant 3; otherwise as in `increment_if`.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "22: lea {t}, [rip + 77b]",
            "mov qword ptr fs:[{ro} + 8], {t}",
            "2: movzx {t:e}, word ptr fs:[{ro} + 4]",
            "cmp {t:x}, {cpus:x}",
            "jae {out}",
            "cmp dword ptr [{index}], {expected:e}",
            "jne {out}",
            "shl {t}, 7",
            "inc qword ptr [{word} + {t} + {disp}]",
            "3:",
            ".pushsection .text.unlikely, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4: jmp 22b",
            ".popsection",
            t = out(reg) _,
            ro = in(reg) ro,
            cpus = in(reg) hot.bits(),
            index = in(reg) index,
            expected = in(reg) expected,
            disp = const DISP,
            word = in(reg) at,
            out = label { return false },
            options(nostack),
        );
    }
    true
}

/// `*(base + at + DISP) += 1` in one instruction.
///
/// # Safety
/// The address is that of an aligned word of this thread's own.
#[inline(always)]
pub(crate) unsafe fn increment_own<const DISP: usize>(base: *mut u8, at: usize) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "inc dword ptr [{base} + {at} + {disp}]",
            base = in(reg) base,
            at = in(reg) at,
            disp = const DISP,
            options(nostack),
        );
    }
}
