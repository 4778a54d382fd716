//! Loops whose counts are known: they test the counting itself.

use crate::harness::serve::Case;
use anyhow::Result;
use std::arch::asm;

/// The cases.
pub(crate) fn start() -> Result<Vec<Case>> {
    Ok(vec![
        Case::new("ten-nops", |n| {
            for _ in 0..n {
                // SAFETY: does nothing.
                unsafe { asm!(".rept 10", "nop", ".endr", options(nomem, nostack)) };
            }
        }),
        Case::new("two-locked", |n| {
            let mut word = 0_u64;
            for _ in 0..n {
                // SAFETY: adds to a live local and swaps a register with it.
                unsafe {
                    asm!(
                        "lock inc qword ptr [{at}]",
                        "xchg qword ptr [{at}], {value}",
                        at = in(reg) &raw mut word,
                        value = inout(reg) 0_u64 => _,
                        options(nostack)
                    );
                }
            }
        }),
        Case::new("one-syscall", |n| {
            for _ in 0..n {
                // SAFETY: takes no arguments.
                unsafe { libc::syscall(libc::SYS_getppid) };
            }
        }),
        Case::new("only-getuid", |n| {
            for _ in 0..n {
                // SAFETY: takes no arguments.
                unsafe { libc::syscall(libc::SYS_getuid) };
            }
        }),
        Case::new("one-string", |n| {
            let (from, mut to) = ([7_u8; 100], [0_u8; 100]);
            for _ in 0..n {
                // SAFETY: copies 100 bytes between two live locals of that size.
                unsafe {
                    asm!(
                        "rep movsb",
                        inout("rcx") 100_usize => _,
                        inout("rsi") from.as_ptr() => _,
                        inout("rdi") to.as_mut_ptr() => _,
                        options(nostack)
                    );
                }
            }
            std::hint::black_box(to);
        }),
    ])
}
