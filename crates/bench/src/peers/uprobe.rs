//! The kernel's uprobes, in this process, on functions of its own: what programs on functions cost without
//! Owlet.
//!
//! A BPF program that returns 0, on functions that begin with a one-byte `nop` (`int3` when probed) or a
//! five-byte one (which the kernel turns into a call after the first hit, since 6.18), through
//! `uprobe.multi` links, with raw `bpf` calls. Needs root or `CAP_BPF` and `CAP_PERFMON`; without, the peer
//! is absent and says why. Numbers and offsets: `include/uapi/linux/bpf.h` of Linux 6.6.

use crate::harness::serve::{Case, clock, keep};
use anyhow::{Context, Result, bail};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Functions with a five-byte `nop`.
pub(crate) const FUNCTIONS: usize = 10_000;
/// Bytes from one to the next.
const STRIDE: usize = 16;

std::arch::global_asm!(
    ".pushsection .text.owlet_bench_uprobe,\"ax\",@progbits",
    ".p2align 6",
    ".globl owlet_bench_int3",
    ".hidden owlet_bench_int3",
    "owlet_bench_int3:",
    "nop",
    "lea rax, [rdi + 1]",
    "ret",
    ".p2align 6",
    ".globl owlet_bench_nop5",
    ".hidden owlet_bench_nop5",
    "owlet_bench_nop5:",
    ".rept {n}",
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "lea rax, [rdi + 1]",
    "ret",
    ".p2align 4",
    ".endr",
    ".popsection",
    n = const FUNCTIONS,
);

unsafe extern "C" {
    safe fn owlet_bench_int3(n: u64) -> u64;
    safe fn owlet_bench_nop5(n: u64) -> u64;
}

/// The n-th function with a five-byte `nop`.
fn nop5(n: usize) -> usize {
    owlet_bench_nop5 as *const () as usize + n * STRIDE
}

/// Where in this program's file an address of its text is.
fn file_offset(address: usize) -> Result<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (range, offset) = (words.next().unwrap_or(""), words.nth(1).unwrap_or(""));
        let Some((start, end)) = range.split_once('-') else { continue };
        let (start, end) = (usize::from_str_radix(start, 16)?, usize::from_str_radix(end, 16)?);
        if (start..end).contains(&address) {
            return Ok(u64::from_str_radix(offset, 16)? + (address - start) as u64);
        }
    }
    bail!("no mapping has {address:#x}")
}

const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const KPROBE: u32 = 2;
const UPROBE_MULTI: u32 = 48;

/// `union bpf_attr`, of which what is not set is zero.
struct Attr([u64; 16]);

impl Attr {
    fn half(mut self, at: usize, value: u32) -> Self {
        self.0[at / 8] |= u64::from(value) << (at % 8 * 8);
        self
    }

    fn word(mut self, at: usize, value: usize) -> Self {
        self.0[at / 8] = value as u64;
        self
    }

    /// What the words point to is alive until this returns.
    fn call(&self, command: i32) -> io::Result<OwnedFd> {
        let size = size_of_val(&self.0);
        // SAFETY: the block is alive and of the size given; the caller keeps what it points to.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), size) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// `r0 = 0; exit`.
fn program() -> io::Result<OwnedFd> {
    const CODE: [u64; 2] = [0xb7, 0x95];
    const LICENSE: &CStr = c"Dual MIT/GPL";
    Attr([0; 16])
        .half(0, KPROBE)
        .half(4, CODE.len() as u32)
        .word(8, CODE.as_ptr().addr())
        .word(16, LICENSE.as_ptr().addr())
        .half(68, UPROBE_MULTI)
        .call(PROG_LOAD)
}

/// The program on all these places of this program's file, in this process.
fn link(program: &OwnedFd, offsets: &[u64]) -> io::Result<OwnedFd> {
    const PATH: &CStr = c"/proc/self/exe";
    Attr([0; 16])
        .half(0, program.as_raw_fd() as u32)
        .half(8, UPROBE_MULTI)
        .word(16, PATH.as_ptr().addr())
        .word(24, offsets.as_ptr().addr())
        .half(48, offsets.len() as u32)
        .half(56, std::process::id())
        .call(LINK_CREATE)
}

/// One function of each kind, probed for as long as the worker lives.
pub(crate) fn hit_cases() -> Result<Vec<Case>> {
    let program = program().context("load a BPF program")?;
    let int3 = owlet_bench_int3 as *const () as usize;
    let links = [link(&program, &[file_offset(int3)?]), link(&program, &[file_offset(nop5(0))?])];
    let [int3, nop5] = links;
    // Kept open until the process ends.
    std::mem::forget((int3.context("uprobe.multi")?, nop5.context("uprobe.multi")?));
    Ok(vec![
        Case::new("uprobe-int3", |n| {
            for i in 0..n {
                keep(owlet_bench_int3(i));
            }
        }),
        Case::new("uprobe-nop5", |n| {
            for i in 0..n {
                keep(owlet_bench_nop5(i));
            }
        }),
    ])
}

/// `N` -> nanoseconds of attaching and of detaching.
pub(crate) fn batch_cases() -> Result<Vec<Case>> {
    let program = std::sync::Arc::new(program().context("load a BPF program")?);
    let one = std::sync::Arc::clone(&program);
    Ok(vec![
        Case::call("uprobe-singly", move |numbers| timed(&one, numbers, |n| (n, 1))),
        Case::call("uprobe-multi", move |numbers| timed(&program, numbers, |n| (1, n))),
    ])
}

/// `split`: links, and places of each.
fn timed(
    program: &OwnedFd,
    numbers: &[u64],
    split: fn(usize) -> (usize, usize),
) -> Result<Vec<u64>> {
    let &[n] = numbers else { bail!("takes N") };
    let n = (n as usize).min(FUNCTIONS);
    let first = file_offset(nop5(0))?;
    let offsets: Vec<u64> = (0..n).map(|i| first + (i * STRIDE) as u64).collect();
    let (links, places) = split(n);
    let mut open = Vec::with_capacity(links);
    let begun = clock(libc::CLOCK_MONOTONIC);
    for offsets in offsets.chunks(places) {
        open.push(link(program, offsets).context("uprobe.multi")?);
    }
    let attached = clock(libc::CLOCK_MONOTONIC);
    drop(open);
    Ok(vec![attached - begun, clock(libc::CLOCK_MONOTONIC) - attached])
}
