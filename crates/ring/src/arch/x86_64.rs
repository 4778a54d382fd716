//! The push as one restartable sequence (Linux 4.18, `Documentation/userspace-api/rseq`; the
//! kernel's side is `kernel/rseq.c`).
//!
//! # Protocol
//! The caller has made everything of the record but its time. The section then
//! 1. reads which CPU it runs on and finds that CPU's ring,
//! 2. reads head and tail and leaves when there is no room,
//! 3. reads the time stamp counter,
//! 4. copies the record to `data[head & mask]`,
//! 5. stores the new head: the commit, and its last instruction.
//!
//! If the thread is preempted, migrated or takes a signal between 1 and 5, the kernel sends it to
//! the abort handler, which starts over. So from 1 to 5 nobody else ran on this CPU's ring.
//!
//! # Invariants
//! 1. Only sections running on CPU n write head and data of ring n. Hence plain stores suffice,
//!    there is no state between "not there" and "committed", and times never go back in a ring.
//! 2. A record lies between head and head + len, and len <= ring size: the store can hit neither an
//!    unread record (2. checked it against tail) nor anything outside the ring's two mappings
//!    (the position is masked, whatever head and tail hold).
//! 3. The section changes no register that holds an input, so that starting over starts the same.
//! 4. The descriptor pointer is cleared on every way out, so that no thread points into code that
//!    `dlclose` takes away.
//!
//! # Stores
//! x86-64 keeps stores in order and loads in order, so the commit needs no fence to be a release;
//! the load of tail in 2. is an acquire. `positions.rs` has the reader's half and the letters.
//!
//! # Measured
//! 24-byte header + 8-byte payload, rdtsc included: see `examples/push_cost.rs`.

use super::{Outcome, Rings};
use core::arch::asm;
use core::mem::offset_of;

/// There are sections to run.
pub(crate) const SEQUENCES: bool = true;

/// A part of a payload, as the assembly sees it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Part {
    start: *const u8,
    len: usize,
}

impl Part {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len() }
    }
}

/// What both sections do first: arm, find the ring, check room, read the clock, write the header.
/// Leaves the record's address in `{dst}`, head in `{head}`, the ring's control block in `{ctl}`.
macro_rules! enter {
    ($($body:literal,)*) => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "77:\n",
            ".long 0, 0\n",
            ".quad 2f, 3f - 2f, 4f\n",
            ".popsection\n",
            "22:\n",
            "mov {head}, qword ptr [{rings} + {AREA}]\n",
            "lea rax, [rip + 77b]\n",
            "mov qword ptr fs:[{head} + 8], rax\n",
            "2:\n",
            "mov {ctl:e}, dword ptr fs:[{head} + 4]\n",
            "cmp {ctl}, qword ptr [{rings} + {CPUS}]\n",
            "jae 5f\n",
            "mov {dst}, {ctl}\n",
            "imul {dst}, qword ptr [{rings} + {STRIDE}]\n",
            "add {dst}, qword ptr [{rings} + {DATA}]\n",
            "shl {ctl}, {CONTROL_SHIFT}\n",
            "add {ctl}, qword ptr [{rings} + {CONTROLS}]\n",
            "mov {head}, qword ptr [{ctl} + {HEAD}]\n",
            "lea rax, [{head} + {len}]\n",
            "sub rax, qword ptr [{ctl} + {TAIL}]\n",
            "cmp rax, qword ptr [{rings} + {SIZE}]\n",
            "ja 6f\n",
            "rdtsc\n",
            "shl rdx, 32\n",
            "or rax, rdx\n",
            "mov rdx, qword ptr [{rings} + {SIZE}]\n",
            "dec rdx\n",
            "and rdx, {head}\n",
            "add {dst}, rdx\n",
            // The last word first: with an empty payload it is the header's own last word, which
            // is written below.
            "mov qword ptr [{dst} + {len} - 8], {last}\n",
            "mov qword ptr [{dst}], rax\n",
            "mov qword ptr [{dst} + 8], {word1}\n",
            "mov qword ptr [{dst} + 16], {word2}\n",
            $($body, "\n",)*
            "add {head}, {len}\n",
            "mov qword ptr [{ctl} + {HEAD}], {head}\n",
            "3:\n",
            "xor edx, edx\n",
            "8:\n",
            "mov rax, qword ptr [{rings} + {AREA}]\n",
            "mov qword ptr fs:[rax + 8], 0\n",
            ".pushsection .text.unlikely, \"ax\"\n",
            // The signature the kernel wants before an abort handler, made an undefined
            // instruction by the three bytes before it.
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "4:\n",
            "jmp 22b\n",
            "5:\n",
            "mov edx, 2\n",
            "jmp 8b\n",
            "6:\n",
            "mov edx, 1\n",
            "jmp 8b\n",
            ".popsection\n",
        )
    };
}

/// Pushes a record whose payload is one piece of whole words and a last word.
///
/// `words` are the payload's bytes before its last word (a multiple of 8), `last` its last word
/// with zeros behind the payload's end; `len` is the padded length of the record.
///
/// # Safety
/// `rings` must describe a mapped segment's rseq rings and this process's registered area, `len`
/// must be a multiple of 8 from 24 to the segment's longest record, and `src` readable for `words`
/// bytes, which are 24 + 8 less than `len`, or 0.
#[inline(always)]
pub(crate) unsafe fn push_words(
    rings: &Rings,
    len: usize,
    header: [u64; 2],
    src: *const u8,
    words: usize,
    last: u64,
) -> Outcome {
    let (status, ctl, head): (u64, u64, u64);
    // SAFETY: the caller vouches for the pointers; by invariant 2 the stores stay in the ring; by
    // invariants 1 and 3 a restart repeats the same stores before the commit. Memory is clobbered.
    unsafe {
        asm!(
            enter!(
                "xor edx, edx",
                "test {words}, {words}",
                "jz 9f",
                "7:",
                "mov rax, qword ptr [{src} + rdx]",
                "mov qword ptr [{dst} + rdx + 24], rax",
                "add rdx, 8",
                "cmp rdx, {words}",
                "jb 7b",
                "9:",
            ),
            rings = in(reg) rings,
            len = in(reg) len,
            word1 = in(reg) header[0],
            word2 = in(reg) header[1],
            src = in(reg) src,
            words = in(reg) words,
            last = in(reg) last,
            ctl = out(reg) ctl,
            head = out(reg) head,
            dst = out(reg) _,
            out("rax") _,
            out("rdx") status,
            AREA = const offset_of!(Rings, area),
            CPUS = const offset_of!(Rings, cpus),
            STRIDE = const offset_of!(Rings, stride),
            DATA = const offset_of!(Rings, data),
            CONTROLS = const offset_of!(Rings, controls),
            SIZE = const offset_of!(Rings, size),
            CONTROL_SHIFT = const crate::layout::CONTROL_SHIFT,
            HEAD = const crate::layout::HEAD,
            TAIL = const crate::layout::TAIL,
            options(nostack)
        );
    }
    outcome(status, ctl, head)
}

/// Pushes a record whose payload is `parts` one after the other.
///
/// # Safety
/// As [`push_words`], with `len` the padded sum of 24 and the parts' lengths, all parts readable.
#[inline(never)]
pub(crate) unsafe fn push_parts(
    rings: &Rings,
    len: usize,
    header: [u64; 2],
    parts: &[Part],
) -> Outcome {
    let (status, ctl, head): (u64, u64, u64);
    let range = parts.as_ptr_range();
    // SAFETY: as in `push_words`; rcx, rsi, rdi and the part cursor (in rdx) are set inside the
    // section, so invariant 3 holds. The direction flag is clear by the ABI.
    unsafe {
        asm!(
            enter!(
                "add {dst}, 24",
                "mov rdi, {dst}",
                "mov rdx, {parts}",
                "cmp rdx, {parts_end}",
                "je 9f",
                "7:",
                "mov rsi, qword ptr [rdx]",
                "mov rcx, qword ptr [rdx + 8]",
                "lea {dst}, [rdi + rcx]",
                "cmp rcx, 8",
                "jb 74f",
                "cmp rcx, 512",
                "ja 73f",
                // 8 to 512 bytes: words, and a last word that overlaps the one before.
                "72:",
                "mov rax, qword ptr [rsi]",
                "mov qword ptr [rdi], rax",
                "add rsi, 8",
                "add rdi, 8",
                "sub rcx, 8",
                "cmp rcx, 8",
                "jae 72b",
                "mov rax, qword ptr [rsi + rcx - 8]",
                "mov qword ptr [{dst} - 8], rax",
                "jmp 76f",
                "73:",
                "rep movsb",
                "jmp 76f",
                "74:",
                "test rcx, rcx",
                "jz 76f",
                "75:",
                "mov al, byte ptr [rsi]",
                "mov byte ptr [rdi], al",
                "inc rsi",
                "inc rdi",
                "dec rcx",
                "jnz 75b",
                "76:",
                "mov rdi, {dst}",
                "add rdx, 16",
                "cmp rdx, {parts_end}",
                "jb 7b",
                "9:",
            ),
            rings = in(reg) rings,
            len = in(reg) len,
            word1 = in(reg) header[0],
            word2 = in(reg) header[1],
            parts = in(reg) range.start,
            parts_end = in(reg) range.end,
            last = in(reg) 0_u64,
            ctl = out(reg) ctl,
            head = out(reg) head,
            dst = out(reg) _,
            out("rax") _,
            out("rcx") _,
            out("rsi") _,
            out("rdi") _,
            out("rdx") status,
            AREA = const offset_of!(Rings, area),
            CPUS = const offset_of!(Rings, cpus),
            STRIDE = const offset_of!(Rings, stride),
            DATA = const offset_of!(Rings, data),
            CONTROLS = const offset_of!(Rings, controls),
            SIZE = const offset_of!(Rings, size),
            CONTROL_SHIFT = const crate::layout::CONTROL_SHIFT,
            HEAD = const crate::layout::HEAD,
            TAIL = const crate::layout::TAIL,
            options(nostack)
        );
    }
    outcome(status, ctl, head)
}

#[inline(always)]
fn outcome(status: u64, ctl: u64, head: u64) -> Outcome {
    match status {
        0 => Outcome::Committed { control: ctl as usize, head },
        1 => Outcome::Full { control: ctl as usize },
        _ => Outcome::NoCpu,
    }
}
