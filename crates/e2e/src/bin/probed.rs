//! A program that knows nothing of Owlet, for probes of the kernel: threads that call functions, leave one
//! by a panic, and pass a USDT probe with a semaphore, all counted.
//!
//! `probed THREADS CALLS [calm]`: says `ready`, does it when a line comes, says what it has done, and ends when
//! its input does. A calm one does not panic.

use std::hint::black_box;
use std::io::{BufRead as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

/// How often the probe found its semaphore raised.
static RAISED: AtomicU64 = AtomicU64::new(0);

#[cfg(target_arch = "x86_64")]
mod usdt {
    core::arch::global_asm!(
        ".pushsection .note.stapsdt,\"\",\"note\"",
        ".balign 4",
        ".4byte 8, 992f-991f, 3",
        ".asciz \"stapsdt\"",
        "991: .8byte owlet_probed_site",
        ".8byte _.stapsdt.base",
        ".8byte owlet_probed_semaphore",
        ".asciz \"probed\"",
        ".asciz \"pass\"",
        ".asciz \"8@%rdi -4@%esi 8@(%rdx) -4@$-3\"",
        "992: .balign 4",
        ".popsection",
        ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat",
        ".weak _.stapsdt.base",
        ".hidden _.stapsdt.base",
        "_.stapsdt.base: .space 1",
        ".size _.stapsdt.base,1",
        ".popsection",
        ".pushsection .probes,\"aw\"",
        ".globl owlet_probed_semaphore",
        "owlet_probed_semaphore: .zero 2",
        ".popsection",
        ".pushsection .text",
        ".globl owlet_probed_pass",
        ".type owlet_probed_pass,@function",
        "owlet_probed_pass:",
        "owlet_probed_site: nop",
        "movzwl owlet_probed_semaphore(%rip), %eax",
        "ret",
        ".size owlet_probed_pass, .-owlet_probed_pass",
        // Never called: it begins with what is a breakpoint already.
        ".globl owlet_probed_trap",
        ".type owlet_probed_trap,@function",
        "owlet_probed_trap: int3",
        "ret",
        ".size owlet_probed_trap, .-owlet_probed_trap",
        // As short as functions are, and beginnings that cannot be executed elsewhere as they are.
        ".globl owlet_short_ret",
        ".type owlet_short_ret,@function",
        "owlet_short_ret: ret",
        ".size owlet_short_ret, .-owlet_short_ret",
        ".globl owlet_short_tail",
        ".type owlet_short_tail,@function",
        "owlet_short_tail: jmp owlet_short_rip",
        ".size owlet_short_tail, .-owlet_short_tail",
        ".globl owlet_short_rip",
        ".type owlet_short_rip,@function",
        "owlet_short_rip: movzbl 993f(%rip), %eax",
        "addq %rdi, %rax",
        "ret",
        "993: .byte 7",
        ".size owlet_short_rip, .-owlet_short_rip",
        ".globl owlet_short_endbr",
        ".type owlet_short_endbr,@function",
        "owlet_short_endbr: endbr64",
        "leaq 9(%rdi), %rax",
        "ret",
        ".size owlet_short_endbr, .-owlet_short_endbr",
        ".popsection",
        options(att_syntax)
    );
    unsafe extern "C" {
        /// Passes the probe; whether its semaphore is raised.
        pub(super) safe fn owlet_probed_pass(seq: u64, half: i32, word: &u64) -> u32;
        /// Nothing.
        pub(super) safe fn owlet_short_ret();
        /// The next one's.
        pub(super) safe fn owlet_short_tail(n: u64) -> u64;
        /// Seven more.
        pub(super) safe fn owlet_short_rip(n: u64) -> u64;
        /// Nine more.
        pub(super) safe fn owlet_short_endbr(n: u64) -> u64;
    }
}

mod work {
    use super::{AtomicU64, Ordering, black_box};

    /// The end of a call.
    #[inline(never)]
    pub(super) fn leaf(n: u64) -> u64 {
        black_box(n) * 3
    }

    /// Calls another one.
    #[inline(never)]
    pub(super) fn step(n: u64) -> u64 {
        black_box(leaf(n)) + 1
    }

    /// Calls itself.
    #[inline(never)]
    pub(super) fn deep(depth: u64) -> u64 {
        if black_box(depth) == 0 { 0 } else { deep(depth - 1) + 1 }
    }

    /// Is left without a return.
    #[inline(never)]
    pub(super) fn fall(n: u64) -> u64 {
        if black_box(n) < u64::MAX {
            std::panic::resume_unwind(Box::new(n));
        }
        n
    }

    /// Generic: its name has types in it.
    #[inline(never)]
    pub(super) fn sum<T: Into<u64>>(value: T, to: &AtomicU64) {
        to.fetch_add(value.into(), Ordering::Relaxed);
    }
}

/// Their results are the same, whoever watches.
#[cfg(target_arch = "x86_64")]
fn short(n: u64) {
    usdt::owlet_short_ret();
    let results = [usdt::owlet_short_tail(n), usdt::owlet_short_rip(n), usdt::owlet_short_endbr(n)];
    assert_eq!(results, [n + 7, n + 7, n + 9]);
}

fn calls(thread: u64, calls: u64, calm: bool, sum: &AtomicU64) {
    for n in 0..calls {
        let seq = thread * calls + n;
        work::sum(work::step(seq), sum);
        #[cfg(target_arch = "x86_64")]
        if usdt::owlet_probed_pass(seq, -(n as i32), &(seq * 2)) != 0 {
            RAISED.fetch_add(1, Ordering::Relaxed);
        }
        #[cfg(target_arch = "x86_64")]
        short(seq);
        if n % 16 == 0 {
            work::sum(work::deep(3), sum);
            if !calm {
                drop(std::panic::catch_unwind(|| work::fall(seq)));
            }
        }
    }
}

fn unix_ns() -> u128 {
    UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos())
}

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<u64>().unwrap_or(1));
    let (threads, count) = (words.next().unwrap_or(1), words.next().unwrap_or(1));
    let calm = std::env::args().any(|word| word == "calm");
    let mut input = std::io::stdin().lock();
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let (sum, begin) = (AtomicU64::new(0), unix_ns());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let sum = &sum;
                let builder = std::thread::Builder::new().name("worker".into());
                drop(builder.spawn_scoped(scope, move || calls(thread, count, calm, sum)));
            }
        });
        let (sum, raised) = (sum.into_inner(), RAISED.load(Ordering::Relaxed));
        writeln!(out, "did {sum} {raised} {begin} {}", unix_ns())?;
        line.clear();
    }
    Ok(())
}
