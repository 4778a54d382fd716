//! The sequences on x86-64. Skeleton and reasons: `owlet_percpu`'s `arch/x86_64.rs`.
//!
//! All leave without a store if this thread is not registered, if its CPU has no lane, or if the lane is
//! frozen; what they find in the lane is stable until their last store, since everybody else who takes a
//! lane's open block freezes it first and then has every sequence restarted (`lanes`, `[F3]`).
//!
//! Stores of `push` before the commit: the object's words, behind those that count; and the stamp, which
//! an aborted run leaves later than it need be.

use core::arch::asm;
use core::mem::offset_of;

use super::{Swap, Words};
use crate::free::block::{Block, FULL, HEADER, KINDS};
use crate::free::lanes::{Lane, SHIFT};
use crate::free::store::Store;

/// Where the open block of a kind is in a lane.
const fn open_at(kind: usize) -> usize {
    Store::LANES + offset_of!(Lane, open) + kind * 8
}

/// Puts an object into this CPU's open block of the kind, in one sequence: words, stamp, and as the
/// commit count and bytes. False, with nothing done, if there is no room or no sequence may run here.
///
/// # Safety
/// `store` is a store, and `KIND` below [`KINDS`]; `words` are what is freed as that kind says.
#[inline(always)]
pub(crate) unsafe fn push<const KIND: usize>(
    store: *const Store,
    words: Words,
    weight: u64,
) -> bool {
    const { assert!(KIND < KINDS) };
    let [first, second] = words;
    if Block::words(KIND) == 1 {
        // SAFETY: the offset in `area` is the C library's (or 0), so the stores are to the rseq area of
        // this thread, and to the open block, which is live while it is found in the lane.
        unsafe {
            asm!(
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "77: .long 0, 0",
                ".quad 2f, 3f - 2f, 4f",
                ".popsection",
                "22: mov {b}, qword ptr [{store} + {area}]",
                "test {b}, {b}",
                "je {out}",
                "lea {t}, [rip + 77b]",
                "mov qword ptr fs:[{b} + 8], {t}",
                "2: mov {t:e}, dword ptr fs:[{b} + 4]",
                "cmp {t}, qword ptr [{store} + {cpus}]",
                "jae {out}",
                "shl {t}, {shift}",
                "add {t}, {store}",
                "cmp dword ptr [{t} + {frozen}], 0",
                "jne {out}",
                "mov {b}, qword ptr [{t} + {open}]",
                "test {b}, {b}",
                "je {out}",
                "mov {t}, qword ptr [{b} + {fill}]",
                "test {t}, {full}",
                "jnz {out}",
                "movzx {t:e}, {t:x}",
                "mov qword ptr [{b} + {t}*8 + {items}], {first}",
                "mov {t}, qword ptr [{store} + {seq}]",
                "mov {t}, qword ptr [{t}]",
                "mov qword ptr [{b} + {stamp}], {t}",
                "add qword ptr [{b} + {fill}], {weight}",
                "3:",
                ".pushsection .text.unlikely, \"ax\"",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "4: jmp 22b",
                ".popsection",
                t = out(reg) _,
                b = out(reg) _,
                store = in(reg) store,
                first = in(reg) first,
                weight = in(reg) weight,
                area = const Store::AREA,
                cpus = const Store::CPUS,
                seq = const Store::SEQ,
                shift = const SHIFT,
                frozen = const Store::LANES + offset_of!(Lane, frozen),
                open = const open_at(KIND),
                fill = const offset_of!(Block, fill),
                stamp = const offset_of!(Block, stamp),
                items = const Block::items_at(KIND),
                full = const FULL,
                out = label { return false },
                options(nostack),
            );
        }
        return true;
    }
    // SAFETY: as above.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "22: mov {b}, qword ptr [{store} + {area}]",
            "test {b}, {b}",
            "je {out}",
            "lea {t}, [rip + 77b]",
            "mov qword ptr fs:[{b} + 8], {t}",
            "2: mov {t:e}, dword ptr fs:[{b} + 4]",
            "cmp {t}, qword ptr [{store} + {cpus}]",
            "jae {out}",
            "shl {t}, {shift}",
            "add {t}, {store}",
            "cmp dword ptr [{t} + {frozen}], 0",
            "jne {out}",
            "mov {b}, qword ptr [{t} + {open}]",
            "test {b}, {b}",
            "je {out}",
            "mov {t}, qword ptr [{b} + {fill}]",
            "test {t}, {full}",
            "jnz {out}",
            "movzx {t:e}, {t:x}",
            "shl {t:e}, 4",
            "mov qword ptr [{b} + {t} + {items}], {first}",
            "mov qword ptr [{b} + {t} + {items} + 8], {second}",
            "mov {t}, qword ptr [{store} + {seq}]",
            "mov {t}, qword ptr [{t}]",
            "mov qword ptr [{b} + {stamp}], {t}",
            "add qword ptr [{b} + {fill}], {weight}",
            "3:",
            ".pushsection .text.unlikely, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4: jmp 22b",
            ".popsection",
            t = out(reg) _,
            b = out(reg) _,
            store = in(reg) store,
            first = in(reg) first,
            second = in(reg) second,
            weight = in(reg) weight,
            area = const Store::AREA,
            cpus = const Store::CPUS,
            seq = const Store::SEQ,
            shift = const SHIFT,
            frozen = const Store::LANES + offset_of!(Lane, frozen),
            open = const open_at(KIND),
            fill = const offset_of!(Block, fill),
            stamp = const offset_of!(Block, stamp),
            items = const Block::items_at(KIND),
            full = const FULL,
            out = label { return false },
            options(nostack),
        );
    }
    true
}

/// Makes `new` (null: none) this CPU's open block of the kind, in one sequence, if it has none or a full
/// one. Full barrier when done (not when not).
///
/// # Safety
/// As [`push`]; `new` is an empty block of this store and kind that the caller has to itself.
#[inline(never)]
pub(crate) unsafe fn swap<const KIND: usize>(store: *const Store, new: *mut Block) -> Swap {
    const { assert!(KIND < KINDS) };
    let old: *mut Block;
    let outcome: u64;
    // SAFETY: as in `push`.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "22: mov {b}, qword ptr [{store} + {area}]",
            "test {b}, {b}",
            "je 7f",
            "lea {t}, [rip + 77b]",
            "mov qword ptr fs:[{b} + 8], {t}",
            "2: mov {t:e}, dword ptr fs:[{b} + 4]",
            "cmp {t}, qword ptr [{store} + {cpus}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {store}",
            "cmp dword ptr [{t} + {frozen}], 0",
            "jne 7f",
            "mov {b}, qword ptr [{t} + {open}]",
            "test {b}, {b}",
            "je 5f",
            "test qword ptr [{b} + {fill}], {full}",
            "jz 8f",
            "5: mov qword ptr [{t} + {open}], {new}",
            "3: xor {t:e}, {t:e}",
            "6:",
            ".pushsection .text.unlikely, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4: jmp 22b",
            "7: mov {t:e}, 1",
            "jmp 6b",
            "8: mov {t:e}, 2",
            "jmp 6b",
            ".popsection",
            t = out(reg) outcome,
            b = out(reg) old,
            store = in(reg) store,
            new = in(reg) new,
            area = const Store::AREA,
            cpus = const Store::CPUS,
            shift = const SHIFT,
            frozen = const Store::LANES + offset_of!(Lane, frozen),
            open = const open_at(KIND),
            fill = const offset_of!(Block, fill),
            full = const FULL,
            options(nostack),
        );
    }
    swapped(outcome, old)
}

fn swapped(outcome: u64, old: *mut Block) -> Swap {
    match outcome {
        0 => Swap::Done(old),
        1 => Swap::Closed,
        _ => Swap::Room,
    }
}

/// Takes the last address out of this CPU's block of memory to be used again, in one sequence whose
/// commit is the count that is left. 0, with nothing done, if there is none. Fetches the lines of the
/// address whose turn will come eight later (or, near the end, of words of the header: a hint).
///
/// # Safety
/// As [`push`].
#[inline(always)]
pub(crate) unsafe fn pull(store: *const Store) -> usize {
    let at: usize;
    // SAFETY: as in `push`; the block is live while it is found in the lane.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "22: mov {b}, qword ptr [{store} + {area}]",
            "test {b}, {b}",
            "je 7f",
            "lea {t}, [rip + 77b]",
            "mov qword ptr fs:[{b} + 8], {t}",
            "2: mov {t:e}, dword ptr fs:[{b} + 4]",
            "cmp {t}, qword ptr [{store} + {cpus}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {store}",
            "cmp dword ptr [{t} + {frozen}], 0",
            "jne 7f",
            "mov {b}, qword ptr [{t} + {ready}]",
            "test {b}, {b}",
            "je 7f",
            "mov {t}, qword ptr [{b} + {left}]",
            "sub {t}, 1",
            "jb 7f",
            "mov {at}, qword ptr [{b} + {t}*8 + {items} - 64]",
            "prefetcht0 [{at}]",
            "prefetcht0 [{at} + 64]",
            "mov {at}, qword ptr [{b} + {t}*8 + {items}]",
            "mov qword ptr [{b} + {left}], {t}",
            "3:",
            ".pushsection .text.unlikely, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4: jmp 22b",
            "7: xor {at:e}, {at:e}",
            "jmp 3b",
            ".popsection",
            t = out(reg) _,
            b = out(reg) _,
            at = out(reg) at,
            store = in(reg) store,
            area = const Store::AREA,
            cpus = const Store::CPUS,
            shift = const SHIFT,
            frozen = const Store::LANES + offset_of!(Lane, frozen),
            ready = const Store::LANES + offset_of!(Lane, ready),
            left = const offset_of!(Block, stamp),
            items = const HEADER,
            options(nostack),
        );
    }
    at
}

/// Makes `new` this CPU's block of memory to be used again, in one sequence, if it has none or one that is
/// used up.
///
/// # Safety
/// As [`push`]; `new` is such a block of this store that the caller has to itself.
#[inline(never)]
pub(crate) unsafe fn offer(store: *const Store, new: *mut Block) -> Swap {
    let old: *mut Block;
    let outcome: u64;
    // SAFETY: as in `pull`.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "22: mov {b}, qword ptr [{store} + {area}]",
            "test {b}, {b}",
            "je 7f",
            "lea {t}, [rip + 77b]",
            "mov qword ptr fs:[{b} + 8], {t}",
            "2: mov {t:e}, dword ptr fs:[{b} + 4]",
            "cmp {t}, qword ptr [{store} + {cpus}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {store}",
            "cmp dword ptr [{t} + {frozen}], 0",
            "jne 7f",
            "mov {b}, qword ptr [{t} + {ready}]",
            "test {b}, {b}",
            "je 5f",
            "cmp qword ptr [{b} + {left}], 0",
            "jne 8f",
            "5: mov qword ptr [{t} + {ready}], {new}",
            "3: xor {t:e}, {t:e}",
            "6:",
            ".pushsection .text.unlikely, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4: jmp 22b",
            "7: mov {t:e}, 1",
            "jmp 6b",
            "8: mov {t:e}, 2",
            "jmp 6b",
            ".popsection",
            t = out(reg) outcome,
            b = out(reg) old,
            store = in(reg) store,
            new = in(reg) new,
            area = const Store::AREA,
            cpus = const Store::CPUS,
            shift = const SHIFT,
            frozen = const Store::LANES + offset_of!(Lane, frozen),
            ready = const Store::LANES + offset_of!(Lane, ready),
            left = const offset_of!(Block, stamp),
            options(nostack),
        );
    }
    swapped(outcome, old)
}
