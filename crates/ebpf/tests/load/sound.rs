//! The verifier against the interpreter: what it accepts never touches what is not its own. Programs are
//! random, but made of pieces that go near the edges.

use owlet_ebpf::asm::{self, Alu, Atomic, Cond, Reg, Slot};
use owlet_ebpf::image::{Image, MapDef, ProgramDef, ProgramKind};
use owlet_ebpf::{Context, Fault, Limits, Module, load};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::Cell;

fn piece(words: &mut impl Iterator<Item = u32>) -> Vec<Slot> {
    let mut next = |end: u32| words.next().unwrap_or(0) % end;
    let reg = |n: u32| [Reg::R0, Reg::R1, Reg::R2, Reg::R6, Reg::R7, Reg::R10][n as usize];
    let size = [1_u8, 2, 4, 8][next(4) as usize];
    let off =
        [-513_i16, -512, -16, -12, -9, -8, -4, -1, 0, 1, 8, 12, 48, 52, 56][next(15) as usize];
    let imm = [0, 1, 4, 7, 8, 15, -1, -8, -16, 16][next(10) as usize];
    let (a, b) = (reg(next(6)), reg(next(6)));
    let dst = if a == Reg::R10 { Reg::R2 } else { a };
    match next(20) {
        16 | 17 => {
            let mut slots = asm::load_map(Reg::R1, 3).to_vec();
            slots.extend([
                asm::alu_imm(Alu::Mov, Reg::R2, [8, 12, 16][next(3) as usize]),
                asm::alu_imm(Alu::Mov, Reg::R3, 0),
                asm::call(131),
                asm::alu(Alu::Mov, if next(2) == 0 { Reg::R6 } else { Reg::R7 }, Reg::R0),
                asm::jump_imm(Cond::Ne, Reg::R0, 0, 2),
                ZERO,
                asm::exit(),
                asm::store_imm(size, if next(8) == 0 { Reg::R7 } else { Reg::R0 }, off.max(0), imm),
            ]);
            if next(4) != 0 {
                let helper = 132 + next(2).cast_signed();
                slots.extend([
                    asm::alu(Alu::Mov, Reg::R1, Reg::R0),
                    asm::alu_imm(Alu::Mov, Reg::R2, 0),
                    asm::call(helper),
                ]);
            }
            slots
        }
        18 | 19 => vec![
            asm::alu(Alu::Mov, Reg::R1, [Reg::R0, Reg::R6, Reg::R7][next(3) as usize]),
            asm::alu_imm(Alu::Mov, Reg::R2, 0),
            asm::call(132 + next(2).cast_signed()),
        ],
        0 | 1 => vec![asm::load(size, dst, b, off)],
        2 | 3 => vec![asm::store(size, a, off, b)],
        4 => vec![asm::store_imm(size, a, off, imm)],
        5 => vec![asm::alu(Alu::Mov, dst, b)],
        6 => vec![asm::alu_imm(Alu::Mov, dst, imm)],
        7 => vec![asm::alu_imm([Alu::Add, Alu::Sub, Alu::And][next(3) as usize], dst, imm)],
        8 => vec![asm::alu([Alu::Add, Alu::Sub][next(2) as usize], dst, b)],
        9 => {
            let op =
                [Atomic::Add, Atomic::FetchAdd, Atomic::Xchg, Atomic::CmpXchg][next(4) as usize];
            let src = if b == Reg::R10 { Reg::R1 } else { b };
            vec![asm::atomic(op, true, a, off & !7, src)]
        }
        10 => vec![
            asm::jump_imm([Cond::Eq, Cond::Ne, Cond::Lt, Cond::Sgt][next(4) as usize], dst, imm, 1),
            ZERO,
        ],
        11 => vec![asm::alu32(Alu::Mov, dst, b)],
        12 => asm::load_map_value(dst, 0, [0, 8, 15][next(3) as usize]).to_vec(),
        _ => {
            let mut slots = vec![asm::alu(Alu::Mov, Reg::R6, Reg::R1)];
            slots.push(asm::store_imm(8, Reg::R10, -8, imm));
            slots.extend(asm::load_map(Reg::R1, next(3).cast_signed()));
            slots.extend([
                asm::alu(Alu::Mov, Reg::R2, Reg::R10),
                asm::alu_imm(Alu::Add, Reg::R2, -8),
                asm::call(1),
                asm::jump_imm(Cond::Ne, Reg::R0, 0, 2),
                ZERO,
                asm::exit(),
            ]);
            if next(3) == 0 {
                slots.truncate(slots.len() - 3);
            }
            slots
        }
    }
}

const ZERO: Slot = asm::alu_imm(Alu::Mov, Reg::R0, 0);

fn program(words: &[u32]) -> Vec<Slot> {
    let mut words = words.iter().copied();
    let mut slots = vec![ZERO, asm::alu_imm(Alu::Mov, Reg::R2, 1)];
    slots.extend([asm::alu(Alu::Mov, Reg::R6, Reg::R1), asm::alu(Alu::Mov, Reg::R7, Reg::R10)]);
    slots.push(asm::store_imm(8, Reg::R10, -8, 0));
    while words.len() > 0 {
        slots.extend(piece(&mut words));
    }
    slots.extend([ZERO, asm::exit()]);
    slots
}

#[test]
fn what_is_accepted_does_no_harm() {
    let (accepted, writes, reserving) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[42; 32]);
    let config = Config { cases: 3000, failure_persistence: None, ..Config::default() };
    let words = prop::collection::vec(any::<u32>(), 1..25);
    let outcome = TestRunner::new_with_rng(config, rng).run(&words, |words| {
        let slots = program(&words);
        let maps = vec![
            MapDef::array("globals", 16, 1),
            MapDef::array("array", 12, 4),
            MapDef::hash("hash", 8, 8, 4),
            MapDef::ring("ring", 4096),
        ];
        let kind = ProgramKind::Exit;
        let code = asm::bytes(&slots);
        let program = ProgramDef { name: "main".to_owned(), kind, pattern: String::new(), code };
        let image = Image { maps, programs: vec![program] };
        let Ok(verified) = load::verify(image) else { return Ok(()) };
        accepted.set(accepted.get() + 1);
        let reserves = slots.iter().any(|slot| *slot == asm::call(131));
        reserving.set(reserving.get() + u32::from(reserves));
        let module = Module::interpreted(verified.image(), Limits::default()).unwrap();
        let map = module.map("hash").unwrap();
        for key in [0_u64, 1, 15, u64::MAX] {
            map.update(&key.to_le_bytes(), &[0xff; 8], owlet_ebpf::map::Update::Any).unwrap();
        }
        for first in [0, 1, u64::MAX, 1 << 63] {
            let context =
                Context { arg: [first, 7, u64::MAX, 0], ret: first, ip: 1 << 40, cookie: 0 };
            let before = context;
            match module.programs()[0].run_checked(&context) {
                // The verifier does not know the alignment of all atomics.
                Ok(_) => {}
                Err(Fault::Write { at }) if slots[at].op == 0xdb => writes.set(writes.get() + 1),
                Err(fault) => prop_assert!(false, "{:?}\n{:?}", fault, slots),
            }
            prop_assert_eq!(context, before);
            // None was left reserved, unless the run was cut short there.
            let left = module.map("ring").unwrap().stats().abandoned;
            prop_assert!(left == 0 || module.programs()[0].stats().faults > 0, "{:?}", slots);
        }
        Ok(())
    });
    outcome.unwrap();
    println!(
        "{} accepted, {} of them with records, {} unaligned atomics",
        accepted.get(),
        reserving.get(),
        writes.get()
    );
    assert!(reserving.get() > 20, "only {} reserve records", reserving.get());
    assert!(accepted.get() > 200, "only {} were accepted: nothing is shown", accepted.get());
}
