//! Generated programs run in both engines: same result, same maps.

use crate::common::{compiled, context, image, interpreted};
use owlet_ebpf::asm::{self, Alu, Atomic, Cond, Reg, Slot};
use owlet_ebpf::image::MapDef;
use owlet_ebpf::map::Map;
use owlet_ebpf::{Engine, Fault};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Registers that hold numbers. R9 keeps the context, R10 the stack.
const NUMBERS: [Reg; 9] =
    [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5, Reg::R6, Reg::R7, Reg::R8];
/// Bytes below R10 that hold numbers; below are the places for keys, values and counters.
const DATA: i16 = 128;
const KEY: i16 = -136;
const VALUE: i16 = -152;
const COUNTER: i16 = -160;
/// Number of the ring buffer among the maps.
const RING: i32 = 4;

/// Makes a program out of random words: whatever they are, the program is valid and ends.
struct Builder<'a> {
    words: std::slice::Iter<'a, u32>,
    slots: Vec<Slot>,
    /// Slots of calls, to be pointed at the function in the end.
    calls: Vec<usize>,
    loops: i16,
}

impl Builder<'_> {
    fn word(&mut self) -> u32 {
        self.words.next().copied().unwrap_or(0)
    }

    fn below(&mut self, end: u32) -> u32 {
        self.word() % end
    }

    fn reg(&mut self) -> Reg {
        NUMBERS[self.below(9) as usize]
    }

    /// Numbers near the edges.
    fn imm(&mut self) -> i32 {
        match self.below(4) {
            0 => [0, 1, -1, i32::MIN, i32::MAX, 31, 32, 63, 64, 127, 128, -128, -129]
                [self.below(13) as usize],
            _ => self.word().cast_signed(),
        }
    }

    fn push(&mut self, slots: &[Slot]) {
        self.slots.extend_from_slice(slots);
    }

    /// Numbers into R1 to R5, which a call has left undefined.
    fn refill(&mut self) {
        for reg in [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5] {
            let imm = self.imm();
            self.push(&[asm::alu_imm(Alu::Mov, reg, imm)]);
        }
    }

    fn alu(&mut self) {
        let op = [
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
        ][self.below(14) as usize];
        let (dst, src, imm) = (self.reg(), self.reg(), self.imm());
        let slot = match self.below(4) {
            0 => asm::alu(op, dst, src),
            1 => asm::alu_imm(op, dst, imm),
            2 => asm::alu32(op, dst, src),
            _ => asm::alu32_imm(op, dst, imm),
        };
        self.push(&[slot]);
    }

    fn unary(&mut self) {
        let (dst, src) = (self.reg(), self.reg());
        let bits = [16, 32, 64][self.below(3) as usize];
        let slot = match self.below(9) {
            0 => asm::neg(true, dst),
            1 => asm::neg(false, dst),
            2 => asm::to_be(dst, bits),
            3 => asm::to_le(dst, bits),
            4 => asm::bswap(dst, bits),
            5 => asm::mov_sx(true, [8, 16, 32][self.below(3) as usize], dst, src),
            6 => asm::mov_sx(false, [8, 16][self.below(2) as usize], dst, src),
            _ => {
                let value = u64::from(self.word()) << 32 | u64::from(self.word());
                let value = if self.below(2) == 0 { value } else { value >> 33 };
                return self.push(&asm::load64(dst, value));
            }
        };
        self.push(&[slot]);
    }

    /// A base register and an offset with room for `size` bytes, aligned if asked.
    fn place(&mut self, size: i16, aligned: bool) -> (Reg, i16) {
        let room = DATA - size + 1;
        let mut off = i16::try_from(self.below(room as u32)).unwrap();
        if aligned {
            off -= off % size;
        }
        if self.below(3) == 0 {
            // The map's value, whose address must not reach the result.
            self.push(&asm::load_map_value(Reg::R1, 0, 0));
            (Reg::R1, off)
        } else if self.below(4) == 0 {
            let base = if self.below(2) == 0 { Reg::R0 } else { Reg::R4 };
            self.push(&[asm::alu(Alu::Mov, base, Reg::R10), asm::alu_imm(Alu::Add, base, -700)]);
            (base, 700 - DATA + off)
        } else {
            (Reg::R10, off - DATA)
        }
    }

    /// Overwrites an address that [`Builder::place`] gave.
    fn forget(&mut self, base: Reg) {
        if base != Reg::R10 {
            let imm = self.imm();
            self.push(&[asm::alu_imm(Alu::Mov, base, imm)]);
        }
    }

    fn memory(&mut self) {
        let size = [1_u8, 2, 4, 8][self.below(4) as usize];
        let (base, off) = self.place(size.into(), false);
        // Not the base: that would load or store an address.
        let mut reg = self.reg();
        while reg == base {
            reg = if reg == Reg::R8 { Reg::R0 } else { Reg::R8 };
        }
        let imm = self.imm();
        let slot = match self.below(5) {
            0 => asm::store_imm(size, base, off, imm),
            1 | 2 => asm::store(size, base, off, reg),
            3 if size != 8 => asm::load_sx(size, reg, base, off),
            _ => asm::load(size, reg, base, off),
        };
        self.push(&[slot]);
        self.forget(base);
    }

    fn atomic(&mut self) {
        let wide = self.below(2) == 0;
        let (base, off) = self.place(if wide { 8 } else { 4 }, true);
        let op = [
            Atomic::Add,
            Atomic::Or,
            Atomic::And,
            Atomic::Xor,
            Atomic::FetchAdd,
            Atomic::FetchOr,
            Atomic::FetchAnd,
            Atomic::FetchXor,
            Atomic::Xchg,
            Atomic::CmpXchg,
        ][self.below(10) as usize];
        let mut reg = self.reg();
        while reg == base {
            reg = if reg == Reg::R8 { Reg::R0 } else { Reg::R8 };
        }
        if op == Atomic::CmpXchg && base == Reg::R0 {
            return self.forget(base);
        }
        if op == Atomic::CmpXchg && self.below(2) == 0 {
            // So that it sometimes succeeds.
            self.push(&[asm::load(if wide { 8 } else { 4 }, Reg::R0, base, off)]);
        }
        self.push(&[asm::atomic(op, wide, base, off, reg)]);
        self.forget(base);
    }

    fn helper(&mut self) {
        if self.below(3) == 0 {
            return self.places();
        }
        let key = self.below(6).cast_signed();
        let value = self.imm();
        let map = 1 + self.below(3).cast_signed();
        self.push(&[
            asm::store_imm(8, Reg::R10, KEY, key),
            asm::store_imm(8, Reg::R10, VALUE, value),
            asm::store_imm(8, Reg::R10, VALUE + 8, key),
            asm::alu(Alu::Mov, Reg::R2, Reg::R10),
            asm::alu_imm(Alu::Add, Reg::R2, KEY.into()),
        ]);
        match self.below(6) {
            0 | 1 => {
                self.push(&asm::load_map(Reg::R1, map));
                self.push(&[
                    asm::call(1),
                    asm::jump_imm(Cond::Eq, Reg::R0, 0, 3),
                    asm::alu_imm(Alu::Mov, Reg::R1, value),
                    asm::atomic(Atomic::FetchAdd, true, Reg::R0, 0, Reg::R1),
                    asm::alu(Alu::Mov, Reg::R0, Reg::R1),
                ]);
            }
            2 | 3 => {
                self.push(&asm::load_map(Reg::R1, map));
                let flag = self.below(4).cast_signed();
                self.push(&[
                    asm::alu(Alu::Mov, Reg::R3, Reg::R10),
                    asm::alu_imm(Alu::Add, Reg::R3, VALUE.into()),
                    asm::alu_imm(Alu::Mov, Reg::R4, flag),
                    asm::call(2),
                ]);
            }
            4 => {
                self.push(&asm::load_map(Reg::R1, map));
                self.push(&[asm::call(3)]);
            }
            _ => {
                let number = [173, 174, 185, 8][self.below(4) as usize];
                self.push(&[asm::alu(Alu::Mov, Reg::R1, Reg::R9), asm::call(number)]);
                if number == 8 {
                    // Which CPU is nobody's business.
                    self.push(&[asm::alu_imm(Alu::Mov, Reg::R0, 8)]);
                }
            }
        }
        self.refill();
    }

    fn branch(&mut self, depth: u32) {
        let cond = [
            Cond::Eq,
            Cond::Gt,
            Cond::Ge,
            Cond::Set,
            Cond::Ne,
            Cond::Sgt,
            Cond::Sge,
            Cond::Lt,
            Cond::Le,
            Cond::Slt,
            Cond::Sle,
        ][self.below(11) as usize];
        let (dst, src, imm) = (self.reg(), self.reg(), self.imm());
        let kind = self.below(4);
        let at = self.slots.len();
        self.push(&[asm::exit()]);
        self.body(depth + 1);
        let off = i16::try_from(self.slots.len() - at - 1).unwrap();
        self.slots[at] = match kind {
            0 => asm::jump(cond, dst, src, off),
            1 => asm::jump_imm(cond, dst, imm, off),
            2 => asm::jump32(cond, dst, src, off),
            _ => asm::jump32_imm(cond, dst, imm, off),
        };
    }

    /// Over something that is never run, and back, by all jumps that ask for nothing.
    fn jump(&mut self, depth: u32) {
        let wide = self.below(2) == 0;
        let at = self.slots.len();
        self.push(&[asm::exit()]);
        if depth < 3 {
            self.body(depth + 1);
        } else {
            self.alu();
        }
        let len = i32::try_from(self.slots.len() - at).unwrap();
        // There, to a jump that leads back; and from there on.
        self.slots[at] =
            if wide { asm::ja32(len - 1) } else { asm::ja(i16::try_from(len - 1).unwrap()) };
        self.push(&[asm::ja(1)]);
        self.slots.push(asm::ja(0));
        let back = if self.below(2) == 0 { asm::ja32(-2) } else { asm::ja(-2) };
        self.push(&[asm::ja(1), back]);
    }

    /// A record: reserved, filled in, submitted or discarded; or sent at once.
    fn record(&mut self) {
        let (word, size) = (self.imm(), 8 + 8 * self.below(8).cast_signed());
        let keep = self.below(3).cast_signed();
        self.push(&asm::load_map(Reg::R1, RING));
        if keep == 2 {
            self.push(&[
                asm::alu(Alu::Mov, Reg::R2, Reg::R10),
                asm::alu_imm(Alu::Add, Reg::R2, (-DATA).into()),
                asm::alu_imm(Alu::Mov, Reg::R3, size),
                asm::alu_imm(Alu::Mov, Reg::R4, 0),
                asm::call(130),
            ]);
        } else {
            self.push(&[
                asm::alu_imm(Alu::Mov, Reg::R2, size),
                asm::alu_imm(Alu::Mov, Reg::R3, 0),
                asm::call(131),
                asm::jump_imm(Cond::Eq, Reg::R0, 0, 4),
                asm::store_imm(8, Reg::R0, 0, word),
                asm::alu(Alu::Mov, Reg::R1, Reg::R0),
                asm::alu_imm(Alu::Mov, Reg::R2, 0),
                asm::call(132 + keep),
            ]);
        }
        let what = self.below(4).cast_signed();
        self.push(&asm::load_map(Reg::R1, RING));
        self.push(&[asm::alu_imm(Alu::Mov, Reg::R2, what), asm::call(134)]);
        self.refill();
    }

    /// A helper that fills a place in the stack, or says something about the run.
    fn places(&mut self) {
        let number = [4, 45, 112, 113, 114, 115, 16, 183, 184, 6, 5, 7, 14, 10_001, 10_002, 10_003]
            [self.below(16) as usize];
        let room = 1 + self.below(16).cast_signed();
        let place =
            |reg| [asm::alu(Alu::Mov, reg, Reg::R10), asm::alu_imm(Alu::Add, reg, VALUE.into())];
        self.push(&[0, 8].map(|at| asm::store_imm(8, Reg::R10, VALUE + at, -1)));
        match number {
            4 | 45 | 112..=115 => {
                self.push(&place(Reg::R1));
                self.push(&[asm::alu_imm(Alu::Mov, Reg::R2, room)]);
                // The context, or nothing.
                if self.below(2) == 0 {
                    self.push(&[asm::alu(Alu::Mov, Reg::R3, Reg::R9)]);
                } else {
                    self.push(&[asm::alu_imm(Alu::Mov, Reg::R3, 8)]);
                }
            }
            16 | 6 => {
                self.push(&place(Reg::R1));
                self.push(&[asm::alu_imm(Alu::Mov, Reg::R2, room)]);
            }
            183 => {
                let n = self.below(6).cast_signed();
                let args =
                    [asm::alu(Alu::Mov, Reg::R1, Reg::R9), asm::alu_imm(Alu::Mov, Reg::R2, n)];
                self.push(&args);
                self.push(&place(Reg::R3));
            }
            184 => {
                self.push(&[asm::alu(Alu::Mov, Reg::R1, Reg::R9)]);
                self.push(&place(Reg::R2));
            }
            _ => {
                let word = self.imm();
                let args =
                    [asm::alu(Alu::Mov, Reg::R1, Reg::R9), asm::alu_imm(Alu::Mov, Reg::R2, word)];
                self.push(&args);
            }
        }
        self.push(&[asm::call(number)]);
        if [5, 7, 14].contains(&number) {
            // Time, chance and the thread are nobody's business.
            self.push(&[asm::alu_imm(Alu::Mov, Reg::R0, number)]);
        }
        self.push(&[asm::load(8, Reg::R1, Reg::R10, VALUE), asm::alu(Alu::Xor, Reg::R0, Reg::R1)]);
        self.refill();
    }

    fn repeat(&mut self, depth: u32) {
        let counter = COUNTER - 8 * self.loops;
        self.loops += 1;
        let times = 1 + self.below(4).cast_signed();
        self.push(&[asm::store_imm(8, Reg::R10, counter, times)]);
        let head = self.slots.len();
        self.body(depth + 1);
        self.push(&[
            asm::alu_imm(Alu::Mov, Reg::R3, -1),
            asm::atomic(Atomic::FetchAdd, true, Reg::R10, counter, Reg::R3),
        ]);
        let off = -i16::try_from(self.slots.len() - head + 1).unwrap();
        self.push(&[asm::jump_imm(Cond::Sgt, Reg::R3, 1, off)]);
    }

    fn call(&mut self) {
        self.calls.push(self.slots.len());
        self.push(&[asm::call_local(0)]);
        self.refill();
    }

    fn body(&mut self, depth: u32) {
        for _ in 0..1 + self.below(6) {
            match self.below(19) {
                0..=4 => self.alu(),
                5 | 6 => self.unary(),
                7..=9 => self.memory(),
                10 | 11 => self.atomic(),
                12 => self.helper(),
                13 if depth < 3 => self.branch(depth),
                14 if depth < 3 => self.repeat(depth),
                15 => self.call(),
                16 => self.jump(depth),
                17 => self.record(),
                _ => self.alu(),
            }
        }
    }

    /// Numbers everywhere in the frame.
    fn fill_stack(&mut self) {
        for at in (-DATA..0).step_by(8) {
            let imm = self.imm();
            self.push(&[asm::store_imm(8, Reg::R10, at, imm)]);
        }
    }

    /// Everything the program has computed into R0.
    fn fold(&mut self) {
        for reg in NUMBERS.into_iter().skip(1) {
            self.push(&[asm::alu_imm(Alu::Mul, Reg::R0, 31), asm::alu(Alu::Add, Reg::R0, reg)]);
        }
        for at in (-DATA..0).step_by(8) {
            self.push(&[
                asm::load(8, Reg::R1, Reg::R10, at),
                asm::alu_imm(Alu::Mul, Reg::R0, 31),
                asm::alu(Alu::Add, Reg::R0, Reg::R1),
            ]);
        }
        self.push(&[asm::exit()]);
    }
}

fn program(words: &[u32]) -> Vec<Slot> {
    let mut b = Builder { words: words.iter(), slots: Vec::new(), calls: Vec::new(), loops: 0 };
    b.push(&[asm::alu(Alu::Mov, Reg::R9, Reg::R1)]);
    b.fill_stack();
    for (i, reg) in NUMBERS.into_iter().enumerate() {
        let slot = if i < 7 {
            asm::load(8, reg, Reg::R9, i16::try_from(8 * i).unwrap())
        } else {
            asm::alu_imm(Alu::Mov, reg, b.imm())
        };
        b.push(&[slot]);
    }
    while b.words.len() > 0 && b.slots.len() < 2000 && b.loops < 40 {
        b.body(0);
    }
    b.fold();
    // The function that is called: changes what it may, keeps what it must.
    let function = b.slots.len();
    for call in std::mem::take(&mut b.calls) {
        let off = i32::try_from(function - call - 1).unwrap();
        b.slots[call] = asm::call_local(off);
    }
    if b.slots.iter().any(|slot| slot.op == 0x85 && slot.src == 1) {
        b.fill_stack();
        b.push(&[
            asm::alu(Alu::Mov, Reg::R0, Reg::R1),
            asm::alu(Alu::Xor, Reg::R0, Reg::R5),
            asm::alu_imm(Alu::Mov, Reg::R6, 7),
            asm::alu_imm(Alu::Mov, Reg::R9, 9),
            asm::alu(Alu::Add, Reg::R0, Reg::R6),
            asm::store(8, Reg::R10, -8, Reg::R0),
            asm::load(4, Reg::R8, Reg::R10, -6),
            asm::alu(Alu::Add, Reg::R0, Reg::R8),
            asm::exit(),
        ]);
    }
    b.slots
}

fn maps() -> Vec<MapDef> {
    vec![
        MapDef::array("globals", DATA.cast_unsigned().into(), 1),
        MapDef::array("array", 16, 4),
        MapDef::hash("hash", 8, 16, 3),
        MapDef::array("odd", 16, 5),
        MapDef::ring("ring", 4096),
    ]
}

fn contents(maps: &[Map]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for map in maps {
        for key in map.keys() {
            let mut value = vec![0; map.read_size()];
            map.read(&key, &mut value).expect("a key that is there");
            all.push((key, value));
        }
        all.extend(std::iter::from_fn(|| map.pop()).map(|record| (Vec::new(), record)));
    }
    all.sort();
    all
}

fn same(words: &[u32]) -> Result<(), TestCaseError> {
    let image = image(maps(), &program(words));
    let (expected, one) = interpreted(&image);
    let (actual, other) = compiled(&image);
    for _ in 0..2 {
        match one.run_checked(&context()) {
            Ok(value) => prop_assert_eq!(other.run(&context()), value),
            Err(fault) => {
                // Nested loops may use up the fuel; nothing else may go wrong.
                prop_assert_eq!(fault, Fault::Fuel);
                prop_assert_eq!(other.run(&context()), 0);
                prop_assert_eq!(other.stats().exhausted, one.stats().exhausted);
            }
        }
        prop_assert_eq!(contents(actual.maps()), contents(expected.maps()));
    }
    Ok(())
}

/// The same programs in every run: 3,000 of them, seconds.
#[test]
fn both_engines_agree() {
    run(same);
}

fn run(check: impl Fn(&[u32]) -> Result<(), TestCaseError>) {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[23; 32]);
    let config = Config { cases: 3000, failure_persistence: None, ..Config::default() };
    let words = prop::collection::vec(any::<u32>(), 1..300);
    TestRunner::new_with_rng(config, rng).run(&words, |words| check(&words)).unwrap();
}

/// What an instruction is, without its operands: the operation, and what else tells it from others.
type Kind = (u8, &'static str, i32);

fn kind(slot: Slot) -> Kind {
    match slot.op {
        0x18 => (slot.op, "source", slot.src.into()),
        0x85 if slot.src == 1 => (slot.op, "function", 0),
        0x85 => (slot.op, "helper", slot.imm),
        0xd4 | 0xd7 | 0xdc => (slot.op, "bits", slot.imm),
        0xc3 | 0xdb => (slot.op, "atomic", slot.imm),
        op if matches!(op & 7, 4 | 7) => (op, "offset", slot.off.into()),
        op => (op, "", 0),
    }
}

/// All kinds of instruction that the decoder knows: it is asked about every operation with every number that
/// tells kinds apart.
fn known() -> std::collections::BTreeSet<Kind> {
    let helpers = (0..300).chain(10_000..10_010);
    let numbers: Vec<i32> = [16, 32, 64].into_iter().chain(helpers).collect();
    let mut known = std::collections::BTreeSet::new();
    for op in 0..=255 {
        for (src, off, imm) in [0, 1, 2].into_iter().flat_map(|src| {
            let offs = [0, 1, 8, 16, 32].into_iter().map(move |off| (src, off, 0));
            offs.chain(numbers.iter().map(move |imm| (src, 0, *imm)))
        }) {
            let slot = Slot { op, dst: 0, src, off, imm };
            let second = Slot { op: 0, dst: 0, src: 0, off: 0, imm: 0 };
            // Behind it, for jumps and functions to lead to.
            let exit = asm::exit();
            for slots in [&[slot, exit, exit][..], &[slot, second, exit], &[slot]] {
                if image(maps(), slots).check().is_ok() {
                    known.insert(kind(slot));
                }
            }
        }
    }
    known
}

/// Every operation that there is occurs in the programs of [`both_engines_agree`], and not just once.
#[test]
fn every_operation_is_generated() {
    let found = std::cell::RefCell::new(std::collections::BTreeMap::<Kind, u32>::new());
    run(|words| {
        let mut second = false;
        for slot in program(words) {
            if !second {
                *found.borrow_mut().entry(kind(slot)).or_default() += 1;
            }
            second = !second && slot.op == 0x18;
        }
        Ok(())
    });
    let (known, found) = (known(), found.into_inner());
    let text = |(op, what, n): &Kind| format!("{op:#04x} {what} {n}");
    for kind in &known {
        println!("{:>8} times {}", found.get(kind).unwrap_or(&0), text(kind));
    }
    // Six sizes of arithmetic operands, 28 jumps, 40 atomics, and so on: the decoder's tables are not empty.
    assert!(known.len() > 160, "only {} kinds are known", known.len());
    let rare: Vec<_> =
        known.iter().filter(|kind| found.get(kind).is_none_or(|n| *n < 20)).map(text).collect();
    assert!(rare.is_empty(), "{} of {} are rare: {rare:?}", rare.len(), known.len());
    let unknown: Vec<_> = found.keys().filter(|kind| !known.contains(kind)).map(text).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// The comparison compares: here the engines are different ones.
#[test]
fn the_compiler_is_at_work() {
    let (_, program) = compiled(&image(maps(), &program(&[1, 2, 3])));
    let expected = if cfg!(target_arch = "x86_64") { Engine::Jit } else { Engine::Interpreter };
    assert_eq!(program.engine(), expected, "{}", program.engine_why());
}
