//! Both engines on every operation at its edges, on calls, fuel and forbidden memory.

use crate::common::{both, compiled, compiled_with, context, image, interpreted};
use owlet_ebpf::asm::{self, Alu, Atomic, Cond, Reg, Slot};
use owlet_ebpf::image::MapDef;
use owlet_ebpf::{Engine, Fault, Limits, Module};
use owlet_sys::Family;

const EDGES: [u64; 12] = [
    0,
    1,
    2,
    31,
    63,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

const OPS: [Alu; 14] = [
    Alu::Add,
    Alu::Sub,
    Alu::Mul,
    Alu::Div,
    Alu::Or,
    Alu::And,
    Alu::Lsh,
    Alu::Rsh,
    Alu::Mod,
    Alu::Xor,
    Alu::Mov,
    Alu::Arsh,
    Alu::SDiv,
    Alu::SMod,
];

/// What the instruction set document says, in other words than the interpreter's.
fn meaning(op: Alu, wide: bool, a: u64, b: u64) -> u64 {
    if wide {
        let (i, j) = (a as i64, b as i64);
        return match op {
            Alu::Add => a.wrapping_add(b),
            Alu::Sub => a.wrapping_sub(b),
            Alu::Mul => a.wrapping_mul(b),
            Alu::Div => a.checked_div(b).unwrap_or(0),
            Alu::Mod => a.checked_rem(b).unwrap_or(a),
            Alu::Or => a | b,
            Alu::And => a & b,
            Alu::Xor => a ^ b,
            Alu::Mov => b,
            Alu::Lsh => a.wrapping_shl(b as u32),
            Alu::Rsh => a.wrapping_shr(b as u32),
            Alu::Arsh => i.wrapping_shr(b as u32) as u64,
            Alu::SDiv => {
                if j == 0 {
                    0
                } else {
                    i.wrapping_div(j) as u64
                }
            }
            Alu::SMod => {
                if j == 0 {
                    a
                } else {
                    i.wrapping_rem(j) as u64
                }
            }
        };
    }
    let (a, b) = (a as u32, b as u32);
    let (i, j) = (a as i32, b as i32);
    u64::from(match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Div => a.checked_div(b).unwrap_or(0),
        Alu::Mod => a.checked_rem(b).unwrap_or(a),
        Alu::Or => a | b,
        Alu::And => a & b,
        Alu::Xor => a ^ b,
        Alu::Mov => b,
        Alu::Lsh => a.wrapping_shl(b),
        Alu::Rsh => a.wrapping_shr(b),
        Alu::Arsh => i.wrapping_shr(b) as u32,
        Alu::SDiv => {
            if j == 0 {
                0
            } else {
                i.wrapping_div(j) as u32
            }
        }
        Alu::SMod => {
            if j == 0 {
                a
            } else {
                i.wrapping_rem(j) as u32
            }
        }
    })
}

/// Runs `slots` with two numbers in `a` and `b`; the result is in `a`.
fn binary(slots: &[Slot], a: (Reg, u64), b: (Reg, u64)) -> u64 {
    let mut all = asm::load64(b.0, b.1).to_vec();
    all.extend(asm::load64(a.0, a.1));
    all.extend(slots);
    all.extend([asm::alu(Alu::Mov, Reg::R0, a.0), asm::exit()]);
    both(Vec::new(), &all)
}

#[test]
fn arithmetic_at_its_edges() {
    // Every place that the compiler treats differently: rax, rcx, rdx, and others.
    let pairs = [
        (Reg::R0, Reg::R3),
        (Reg::R3, Reg::R0),
        (Reg::R4, Reg::R1),
        (Reg::R6, Reg::R4),
        (Reg::R9, Reg::R8),
    ];
    for (n, op) in OPS.into_iter().enumerate() {
        for (i, a) in EDGES.into_iter().enumerate() {
            for (j, b) in EDGES.into_iter().enumerate() {
                let (dst, src) = pairs[(n + i * EDGES.len() + j) % pairs.len()];
                let got = binary(&[asm::alu(op, dst, src)], (dst, a), (src, b));
                assert_eq!(got, meaning(op, true, a, b), "{op:?} {a:#x} {b:#x}");
                let got = binary(&[asm::alu32(op, dst, src)], (dst, a), (src, b));
                assert_eq!(got, meaning(op, false, a, b), "{op:?} 32 {a:#x} {b:#x}");
            }
            for imm in [0, 1, -1, 5, 64, i32::MIN, i32::MAX] {
                let (dst, src) = pairs[(n + i) % pairs.len()];
                let wide = i64::from(imm) as u64;
                let got = binary(&[asm::alu_imm(op, dst, imm)], (dst, a), (src, 0));
                assert_eq!(got, meaning(op, true, a, wide), "{op:?} {a:#x} {imm}");
                let got = binary(&[asm::alu32_imm(op, dst, imm)], (dst, a), (src, 0));
                assert_eq!(got, meaning(op, false, a, wide), "{op:?} 32 {a:#x} {imm}");
            }
        }
    }
}

#[test]
fn a_register_with_itself() {
    for op in OPS {
        for a in EDGES {
            for reg in [Reg::R0, Reg::R3, Reg::R4, Reg::R7] {
                let slots = [asm::alu(op, reg, reg)];
                let got = binary(&slots, (reg, a), (Reg::R5, 0));
                assert_eq!(got, meaning(op, true, a, a), "{op:?} {a:#x} {reg:?}");
            }
        }
    }
}

#[test]
fn swaps_and_extensions() {
    let v = 0x8182_8384_8586_8788_u64;
    for reg in [Reg::R0, Reg::R2, Reg::R5, Reg::R8] {
        let one = |slot| binary(&[slot], (reg, v), (Reg::R1, 0));
        assert_eq!(one(asm::to_be(reg, 16)), 0x8887);
        assert_eq!(one(asm::to_be(reg, 32)), 0x8887_8685);
        assert_eq!(one(asm::to_be(reg, 64)), 0x8887_8685_8483_8281);
        assert_eq!(one(asm::bswap(reg, 16)), 0x8887);
        assert_eq!(one(asm::bswap(reg, 32)), 0x8887_8685);
        assert_eq!(one(asm::bswap(reg, 64)), 0x8887_8685_8483_8281);
        assert_eq!(one(asm::to_le(reg, 16)), 0x8788);
        assert_eq!(one(asm::to_le(reg, 32)), 0x8586_8788);
        assert_eq!(one(asm::to_le(reg, 64)), v);
        assert_eq!(one(asm::neg(true, reg)), v.wrapping_neg());
        assert_eq!(one(asm::neg(false, reg)), 0x7a79_7878);
        for src in [Reg::R0, Reg::R1, Reg::R9] {
            let sx = |wide, bits| {
                let slots = [asm::mov_sx(wide, bits, reg, src)];
                if src == reg {
                    binary(&slots, (reg, v), (Reg::R6, 0))
                } else {
                    binary(&slots, (reg, 0), (src, v))
                }
            };
            assert_eq!(sx(true, 8), 0xffff_ffff_ffff_ff88);
            assert_eq!(sx(true, 16), 0xffff_ffff_ffff_8788);
            assert_eq!(sx(true, 32), 0xffff_ffff_8586_8788);
            assert_eq!(sx(false, 8), 0xffff_ff88);
            assert_eq!(sx(false, 16), 0xffff_8788);
        }
    }
}

#[test]
fn every_condition() {
    type Meaning = fn(u64, u64) -> bool;
    let conds: [(Cond, Meaning, Meaning); 11] = [
        (Cond::Eq, |a, b| a == b, |a, b| a as u32 == b as u32),
        (Cond::Ne, |a, b| a != b, |a, b| a as u32 != b as u32),
        (Cond::Gt, |a, b| a > b, |a, b| a as u32 > b as u32),
        (Cond::Ge, |a, b| a >= b, |a, b| a as u32 >= b as u32),
        (Cond::Lt, |a, b| a < b, |a, b| (a as u32) < b as u32),
        (Cond::Le, |a, b| a <= b, |a, b| a as u32 <= b as u32),
        (Cond::Set, |a, b| a & b != 0, |a, b| (a & b) as u32 != 0),
        (Cond::Sgt, |a, b| a as i64 > b as i64, |a, b| a as i32 > b as i32),
        (Cond::Sge, |a, b| a as i64 >= b as i64, |a, b| a as i32 >= b as i32),
        (Cond::Slt, |a, b| (a as i64) < b as i64, |a, b| (a as i32) < b as i32),
        (Cond::Sle, |a, b| a as i64 <= b as i64, |a, b| a as i32 <= b as i32),
    ];
    let (x, y) = (Reg::R1, Reg::R8);
    let run = |branch: Slot, a, b| {
        let no = asm::alu_imm(Alu::Mov, x, 0);
        let slots = [branch, no, asm::ja(1), asm::alu_imm(Alu::Mov, x, 1)];
        binary(&slots, (x, a), (y, b)) == 1
    };
    for (cond, wide, narrow) in conds {
        for a in EDGES {
            for b in EDGES {
                assert_eq!(
                    run(asm::jump(cond, x, y, 2), a, b),
                    wide(a, b),
                    "{cond:?} {a:#x} {b:#x}"
                );
                let got = run(asm::jump32(cond, x, y, 2), a, b);
                assert_eq!(got, narrow(a, b), "{cond:?} 32 {a:#x} {b:#x}");
                let imm = b as i32;
                let sign = i64::from(imm) as u64;
                assert_eq!(
                    run(asm::jump_imm(cond, x, imm, 2), a, 0),
                    wide(a, sign),
                    "{cond:?} {a:#x} {imm}"
                );
                let got = run(asm::jump32_imm(cond, x, imm, 2), a, 0);
                assert_eq!(got, narrow(a, sign), "{cond:?} 32 {a:#x} {imm}");
            }
        }
    }
}

#[test]
fn loads_and_stores() {
    let v = 0x8182_8384_8586_8788_u64;
    for reg in [Reg::R0, Reg::R1, Reg::R2, Reg::R5, Reg::R6, Reg::R7, Reg::R8, Reg::R9] {
        // Bases that need other encodings: rbp, r12 and r13 like registers, short and long offsets.
        for base in [Reg::R10, Reg::R7, Reg::R4] {
            if base == reg {
                continue;
            }
            for at in [-8_i16, -136, -512] {
                let mut slots = vec![asm::alu(Alu::Mov, base, Reg::R10)];
                if base == Reg::R10 {
                    slots.clear();
                }
                slots.extend(asm::load64(reg, v));
                slots.extend([
                    asm::store_imm(8, base, at, -1),
                    asm::store(4, base, at, reg),
                    asm::store(2, base, at + 4, reg),
                    asm::store(1, base, at + 6, reg),
                    asm::load(8, Reg::R0, base, at),
                    asm::exit(),
                ]);
                assert_eq!(
                    both(Vec::new(), &slots),
                    0xff88_8788_8586_8788,
                    "{reg:?} {base:?} {at}"
                );
            }
        }
    }
    let load = |slot: Slot| {
        let mut slots = asm::load64(Reg::R1, v).to_vec();
        slots.extend([asm::store(8, Reg::R10, -8, Reg::R1), slot, asm::exit()]);
        both(Vec::new(), &slots)
    };
    assert_eq!(load(asm::load(1, Reg::R0, Reg::R10, -8)), 0x88);
    assert_eq!(load(asm::load(2, Reg::R0, Reg::R10, -7)), 0x8687);
    assert_eq!(load(asm::load(4, Reg::R0, Reg::R10, -7)), 0x8485_8687);
    assert_eq!(load(asm::load_sx(1, Reg::R0, Reg::R10, -8)), 0xffff_ffff_ffff_ff88);
    assert_eq!(load(asm::load_sx(2, Reg::R0, Reg::R10, -8)), 0xffff_ffff_ffff_8788);
    assert_eq!(load(asm::load_sx(4, Reg::R0, Reg::R10, -8)), 0xffff_ffff_8586_8788);
}

#[test]
fn every_atomic() {
    let cases: [(Atomic, u64, bool); 10] = [
        (Atomic::Add, 0xf0 + 0x3c, false),
        (Atomic::Or, 0xf0 | 0x3c, false),
        (Atomic::And, 0xf0 & 0x3c, false),
        (Atomic::Xor, 0xf0 ^ 0x3c, false),
        (Atomic::FetchAdd, 0xf0 + 0x3c, true),
        (Atomic::FetchOr, 0xf0 | 0x3c, true),
        (Atomic::FetchAnd, 0xf0 & 0x3c, true),
        (Atomic::FetchXor, 0xf0 ^ 0x3c, true),
        (Atomic::Xchg, 0x3c, true),
        (Atomic::CmpXchg, 0x3c, false),
    ];
    let upper = 0xaaaa_bbbb_0000_0000_u64;
    for (op, after, fetches) in cases {
        for wide in [true, false] {
            for src in [Reg::R0, Reg::R2, Reg::R8] {
                if op == Atomic::CmpXchg && src == Reg::R0 {
                    continue;
                }
                let mut slots = asm::load64(Reg::R3, upper | 0xf0).to_vec();
                slots.extend([asm::store(8, Reg::R10, -16, Reg::R3)]);
                // The comparison holds.
                slots.extend(asm::load64(Reg::R0, upper | 0xf0));
                slots.extend(asm::load64(src, if wide { 0x3c } else { upper | 0x3c }));
                slots.extend([
                    asm::atomic(op, wide, Reg::R10, -16, src),
                    asm::store(8, Reg::R10, -8, if op == Atomic::CmpXchg { Reg::R0 } else { src }),
                    asm::load(8, Reg::R0, Reg::R10, -16),
                    asm::load(8, Reg::R1, Reg::R10, -8),
                    asm::alu_imm(Alu::Mul, Reg::R0, 3),
                    asm::alu(Alu::Add, Reg::R0, Reg::R1),
                    asm::exit(),
                ]);
                let old_upper = match op {
                    Atomic::And | Atomic::FetchAnd | Atomic::Xchg | Atomic::CmpXchg if wide => 0,
                    _ => upper,
                };
                let memory = old_upper | after;
                let register = match (op == Atomic::CmpXchg || fetches, wide) {
                    (true, true) => upper | 0xf0,
                    (true, false) => 0xf0,
                    (false, true) => 0x3c,
                    (false, false) => upper | 0x3c,
                };
                let expected = memory.wrapping_mul(3).wrapping_add(register);
                assert_eq!(both(Vec::new(), &slots), expected, "{op:?} {wide} {src:?}");
            }
        }
    }
}

/// A call changes R1 to R5 and keeps R6 to R9; frames do not overlap; a pointer into the caller's frame
/// works in the callee.
#[test]
fn local_calls() {
    let slots = [
        asm::alu_imm(Alu::Mov, Reg::R6, 600),
        asm::store_imm(8, Reg::R10, -8, 5),
        asm::alu(Alu::Mov, Reg::R1, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R1, -8),
        asm::call_local(4),
        asm::load(8, Reg::R1, Reg::R10, -8),
        asm::alu(Alu::Add, Reg::R0, Reg::R1),
        asm::alu(Alu::Add, Reg::R0, Reg::R6),
        asm::exit(),
        // Adds 1 to what R1 points to, returns its own frame's number through another function.
        asm::alu_imm(Alu::Mov, Reg::R6, 1),
        asm::atomic(Atomic::Add, true, Reg::R1, 0, Reg::R6),
        asm::store_imm(8, Reg::R10, -8, 70),
        asm::alu_imm(Alu::Mov, Reg::R1, 3),
        asm::call_local(3),
        asm::load(8, Reg::R1, Reg::R10, -8),
        asm::alu(Alu::Add, Reg::R0, Reg::R1),
        asm::exit(),
        // Writes into a frame of its own.
        asm::store_imm(8, Reg::R10, -8, 9),
        asm::alu_imm(Alu::Mov, Reg::R6, 44),
        asm::alu(Alu::Mov, Reg::R0, Reg::R1),
        asm::exit(),
    ];
    assert_eq!(both(Vec::new(), &slots), 3 + 70 + 6 + 600);
}

/// Eight functions deep; helpers work, and the stack is aligned for them, at every level.
#[test]
fn calls_to_the_last_frame() {
    let mut slots = vec![asm::alu(Alu::Mov, Reg::R6, Reg::R1)];
    for _ in 0..7 {
        slots.extend([
            asm::alu(Alu::Mov, Reg::R1, Reg::R6),
            asm::call_local(2),
            asm::alu_imm(Alu::Add, Reg::R0, 1),
            asm::exit(),
            asm::alu(Alu::Mov, Reg::R6, Reg::R1),
            asm::call(16 + 158),
        ]);
    }
    slots.extend([
        asm::alu(Alu::Mov, Reg::R1, Reg::R6),
        asm::alu_imm(Alu::Mov, Reg::R2, 3),
        asm::alu(Alu::Mov, Reg::R3, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R3, -8),
        asm::call(183),
        asm::load(8, Reg::R0, Reg::R10, -8),
        asm::exit(),
    ]);
    assert_eq!(both(Vec::new(), &slots), u64::MAX.wrapping_add(7));
}

/// Which map a lookup is in may depend on the way to it: the compiler must not take the nearest one.
#[test]
fn one_lookup_in_two_maps() {
    let map = |name, byte| MapDef { data: vec![byte], ..MapDef::array(name, 8, 1) };
    let ([a, b], [c, d]) = (asm::load_map(Reg::R1, 0), asm::load_map(Reg::R1, 1));
    for (first, expected) in [(11, 1), (12, 2)] {
        let slots = [
            asm::load(8, Reg::R6, Reg::R1, 0),
            asm::store_imm(8, Reg::R10, -8, 0),
            asm::jump_imm(Cond::Ne, Reg::R6, first, 3),
            a,
            b,
            asm::ja(2),
            c,
            d,
            asm::alu(Alu::Mov, Reg::R2, Reg::R10),
            asm::alu_imm(Alu::Add, Reg::R2, -8),
            asm::call(1),
            asm::load(8, Reg::R0, Reg::R0, 0),
            asm::exit(),
        ];
        assert_eq!(both(vec![map("a", 1), map("b", 2)], &slots), expected);
    }
}

#[test]
fn helpers_of_the_call() {
    let run = |number, before: &[Slot], after: &[Slot]| {
        let mut slots = before.to_vec();
        slots.push(asm::call(number));
        slots.extend(after);
        slots.push(asm::exit());
        both(Vec::new(), &slots)
    };
    assert_eq!(run(173, &[], &[]), 66, "get_func_ip");
    assert_eq!(run(174, &[], &[]), 77, "get_attach_cookie");
    assert_eq!(run(185, &[], &[]), 4, "get_func_arg_cnt");
    let to_stack = [asm::alu(Alu::Mov, Reg::R2, Reg::R10), asm::alu_imm(Alu::Add, Reg::R2, -8)];
    assert_eq!(run(184, &to_stack, &[asm::load(8, Reg::R0, Reg::R10, -8)]), 55, "get_func_ret");
    let arg = |n| {
        [
            asm::alu_imm(Alu::Mov, Reg::R2, n),
            asm::alu(Alu::Mov, Reg::R3, Reg::R10),
            asm::alu_imm(Alu::Add, Reg::R3, -8),
        ]
    };
    let result = [asm::load(8, Reg::R0, Reg::R10, -8)];
    assert_eq!([0, 1, 2].map(|n| run(183, &arg(n), &result)), [11, 22, 33], "get_func_arg");
    assert_eq!(run(183, &arg(4), &[]).cast_signed(), -22, "there are four");
    let pid = u64::from(std::process::id());
    assert_eq!(run(14, &[], &[asm::alu_imm(Alu::Rsh, Reg::R0, 32)]), pid, "get_current_pid_tgid");
    let comm = [
        asm::alu(Alu::Mov, Reg::R1, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R1, -16),
        asm::alu_imm(Alu::Mov, Reg::R2, 16),
    ];
    let name = run(16, &comm, &[asm::load(8, Reg::R0, Reg::R10, -16)]).to_le_bytes();
    let expected = std::fs::read("/proc/thread-self/comm").unwrap();
    assert_eq!(name[..4], expected[..4], "get_current_comm");
}

#[test]
fn time_and_chance() {
    let (_, program) = compiled(&image(Vec::new(), &[asm::call(5), asm::exit()]));
    let (a, b) = (program.run(&context()), program.run(&context()));
    assert!(a <= b && a != 0, "{a} {b}");
    let (_, program) = compiled(&image(Vec::new(), &[asm::call(7), asm::exit()]));
    let numbers: std::collections::HashSet<_> = (0..100).map(|_| program.run(&context())).collect();
    assert!(numbers.len() > 95 && numbers.iter().all(|n| *n <= u32::MAX.into()), "{numbers:?}");
}

#[test]
fn printk_is_counted() {
    let slots = [
        asm::store_imm(8, Reg::R10, -8, 0),
        asm::alu(Alu::Mov, Reg::R1, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R1, -8),
        asm::alu_imm(Alu::Mov, Reg::R2, 8),
        asm::call(6),
        asm::exit(),
    ];
    let (module, program) = compiled(&image(Vec::new(), &slots));
    assert_eq!((program.run(&context()), program.run(&context())), (0, 0));
    assert_eq!(module.printk_dropped(), 2);
}

/// Endless programs end: at once, behind a helper, in the depth of calls. The registers of the caller
/// survive it.
#[test]
fn fuel_ends_what_does_not_end() {
    let endless = [asm::alu_imm(Alu::Mov, Reg::R0, 7), asm::ja(-1)];
    let branch =
        [asm::alu_imm(Alu::Mov, Reg::R6, 7), asm::jump_imm(Cond::Eq, Reg::R6, 7, -1), asm::exit()];
    let deep = [
        asm::call_local(1),
        asm::exit(),
        asm::alu_imm(Alu::Mov, Reg::R6, 1),
        asm::alu_imm(Alu::Mov, Reg::R9, 2),
        asm::call_local(1),
        asm::exit(),
        asm::call(8),
        asm::alu_imm(Alu::Mov, Reg::R7, 1),
        asm::alu_imm(Alu::Mov, Reg::R8, 2),
        asm::ja(-4),
    ];
    for slots in [&endless[..], &branch, &deep] {
        let image = image(Vec::new(), slots);
        let (_, one) = interpreted(&image);
        let (_, other) = compiled_with(&image, Limits { fuel: 10_000, ..Limits::default() });
        assert_eq!(one.run_checked(&context()), Err(Fault::Fuel));
        assert_eq!(one.run(&context()), 0);
        assert_eq!(one.stats().exhausted, 2);
        // The sum lives in a register that the program uses, too.
        let sum = (0..100_u64).fold(0, |sum, n| sum + n + other.run(&context()));
        assert_eq!((sum, other.stats().exhausted), (4950, 100));
    }
    let two = Module::interpreted(
        &image(Vec::new(), &endless),
        Limits { fuel: u32::MAX, ..Limits::default() },
    );
    assert!(two.is_err(), "fuel is a signed number in compiled code");
}

/// Exactly as many backward jumps as there is fuel.
#[test]
fn fuel_is_counted_alike() {
    let slots = [
        asm::load(8, Reg::R1, Reg::R1, 0),
        asm::alu_imm(Alu::Mov, Reg::R0, 1),
        asm::alu_imm(Alu::Sub, Reg::R1, 1),
        asm::jump_imm(Cond::Ne, Reg::R1, 0, -2),
        asm::exit(),
    ];
    let image = image(Vec::new(), &slots);
    let limits = Limits { fuel: 10, ..Limits::default() };
    let one = Module::interpreted(&image, limits).unwrap();
    let (_other, program) = compiled_with(&image, limits);
    for times in [10, 11, 12, 13] {
        let context = owlet_ebpf::Context { arg: [times, 0, 0, 0], ..context() };
        let expected = u64::from(times <= 11);
        assert_eq!(one.program("main").unwrap().run(&context), expected, "{times}");
        assert_eq!(program.run(&context), expected, "{times}");
    }
}

/// The interpreter stops at whatever is not the program's.
#[test]
fn the_interpreter_lets_nothing_through() {
    let fault = |slots: &[Slot]| {
        let image = image(vec![MapDef::array("a", 12, 3), MapDef::hash("h", 8, 8, 4)], slots);
        let (_, program) = interpreted(&image);
        let fault = program.run_checked(&context()).expect_err("a fault");
        assert_eq!((program.run(&context()), program.stats().faults), (0, 2));
        fault
    };
    let read = |slots: &[Slot]| matches!(fault(slots), Fault::Read { .. });
    let write = |slots: &[Slot]| matches!(fault(slots), Fault::Write { .. });
    assert!(read(&[asm::load(8, Reg::R0, Reg::R1, 56), asm::exit()]), "behind the context");
    assert!(read(&[asm::load(8, Reg::R0, Reg::R1, 49), asm::exit()]), "over its end");
    assert!(read(&[asm::load(1, Reg::R0, Reg::R1, -1), asm::exit()]), "before it");
    assert!(write(&[asm::store_imm(8, Reg::R1, 0, 0), asm::exit()]), "it is read-only");
    assert!(write(&[asm::store_imm(8, Reg::R10, 0, 0), asm::exit()]), "above the stack");
    assert!(write(&[asm::store_imm(8, Reg::R10, -520, 0), asm::exit()]), "below it");
    assert!(write(&[asm::store_imm(8, Reg::R10, -516, 0), asm::exit()]), "over its end");
    let null = [asm::alu_imm(Alu::Mov, Reg::R1, 0), asm::load(1, Reg::R0, Reg::R1, 0), asm::exit()];
    assert!(read(&null), "null");
    let value = |off: i16, size: u8| {
        let [a, b] = asm::load_map_value(Reg::R1, 0, 0);
        [a, b, asm::store_imm(size, Reg::R1, off, 0), asm::exit()]
    };
    assert!(write(&value(12, 1)), "between values");
    assert!(write(&value(8, 8)), "over the end of a value");
    assert!(write(&value(48, 4)), "behind the last value");
    let [a, b] = asm::load_map(Reg::R1, 1);
    let misuse = [a, b, asm::load(8, Reg::R0, Reg::R1, 0), asm::exit()];
    assert!(read(&misuse), "a map is no memory");
    let unaligned = [asm::atomic(Atomic::Add, true, Reg::R10, -12, Reg::R1), asm::exit()];
    assert!(write(&unaligned), "atomics are aligned");
    let argument = |slots: &[Slot], n| match fault(slots) {
        Fault::Argument { argument, .. } => argument == n,
        _ => false,
    };
    assert!(argument(&[asm::call(1), asm::exit()], 1), "no map");
    let [a, b] = asm::load_map(Reg::R1, 0);
    assert!(argument(&[a, b, asm::call(1), asm::exit()], 2), "no key");
    let over_end = [
        a,
        b,
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -3),
        asm::call(1),
        asm::exit(),
    ];
    assert!(argument(&over_end, 2), "a key over the end of the stack");
    assert!(argument(&[asm::alu_imm(Alu::Mov, Reg::R1, 8), asm::call(173), asm::exit()], 1), "ctx");
}

/// The n-th call about memory fails: the program is interpreted and says why; no image is lost.
#[test]
fn without_executable_memory_programs_are_interpreted() {
    let image = image(Vec::new(), &[asm::alu_imm(Alu::Mov, Reg::R0, 9), asm::exit()]);
    let mut engines = Vec::new();
    for nth in 1..=8 {
        const EPERM: i32 = 1;
        let plan = owlet_sys::fake::fail_nth(Family::Memory, nth, EPERM);
        let (_, program) = compiled(&image);
        drop(plan);
        assert_eq!(program.run(&context()), 9);
        engines.push(program.engine());
        if program.engine() == Engine::Interpreter && cfg!(target_arch = "x86_64") {
            assert_eq!(program.engine_why(), "executable memory is forbidden here");
        }
    }
    assert_eq!(engines[0], Engine::Interpreter);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(engines[7], Engine::Jit, "seven calls make executable memory: {engines:?}");
    }
}

/// Code is never writable and executable at once, and what is mapped stays as it is.
#[test]
#[cfg(target_arch = "x86_64")]
fn code_is_not_writable() {
    let (_module, program) = compiled(&image(Vec::new(), &[asm::call(5), asm::exit()]));
    assert_eq!(program.engine(), Engine::Jit, "{}", program.engine_why());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let code: Vec<_> = maps.lines().filter(|line| line.contains("memfd:owlet-code")).collect();
    assert!(!code.is_empty());
    // Another test may be filling a mapping that is not executable yet.
    assert!(code.iter().all(|line| line.contains(" r-xs ") || line.contains(" rw-s ")), "{code:?}");
    // And nothing else of this process is.
    let both = |line: &&str| {
        let permissions = line.split_whitespace().nth(1).unwrap_or_default();
        permissions.contains('w') && permissions.contains('x')
    };
    assert_eq!(maps.lines().find(both), None);
}

/// Where no page may become executable that was not so from the start, programs are compiled all the same.
#[test]
#[cfg(target_arch = "x86_64")]
fn code_is_made_under_mdwe() {
    const PR_SET_MDWE: i32 = 65;
    const CHILD: &str = "OWLET_TEST_MDWE";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "engines::code_is_made_under_mdwe", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(PR_SET_MDWE, 1_u64, 0_u64, 0_u64, 0_u64) } != 0 {
        println!("skipped: the kernel has no MDWE");
        return;
    }
    let (_module, program) =
        compiled(&image(Vec::new(), &[asm::alu_imm(Alu::Mov, Reg::R0, 9), asm::exit()]));
    assert_eq!(program.engine(), Engine::Jit, "{}", program.engine_why());
    assert_eq!(program.run(&context()), 9);
}
