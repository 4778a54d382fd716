//! What the verifier must refuse, instruction by instruction, and near neighbours that it must not.

use owlet_ebpf::Error;
use owlet_ebpf::asm::{self, Alu, Atomic, Cond, Reg, Slot};
use owlet_ebpf::image::{Image, MapDef, ProgramDef, ProgramKind};
use owlet_ebpf::load;

fn image(kind: ProgramKind, slots: &[Slot]) -> Image {
    let maps = vec![
        MapDef::array("array", 16, 4),
        MapDef::hash("hash", 8, 16, 4),
        MapDef::ring("ring", 4096),
        MapDef::per_cpu_array("cpus", 8, 4),
    ];
    let code = asm::bytes(slots);
    let program = ProgramDef { name: "main".to_owned(), kind, pattern: String::new(), code };
    Image { maps, programs: vec![program] }
}

#[track_caller]
pub(crate) fn accepted(slots: &[Slot]) {
    if let Err(error) = load::verify(image(ProgramKind::Exit, slots)) {
        panic!("{error}");
    }
}

/// The program is refused, at instruction `at`, for a reason that has `word` in it.
#[track_caller]
pub(crate) fn refused(slots: &[Slot], at: usize, word: &str) {
    match load::verify(image(ProgramKind::Exit, slots)) {
        Err(Error::Refused(refusal)) => {
            assert!(refusal.why.contains(word), "{refusal}");
            assert_eq!(refusal.at, Some(at), "{refusal}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted: {slots:?}"),
    }
}

/// `r0 = lookup(map, key 0 on the stack)`: slots 0 to 5.
fn lookup(map: i32) -> Vec<Slot> {
    let [a, b] = asm::load_map(Reg::R1, map);
    let mut slots = vec![asm::store_imm(8, Reg::R10, -8, 0), a, b];
    slots.extend([
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -8),
        asm::call(1),
    ]);
    slots
}

/// A lookup that is checked, `then`, and the end: `then` begins with slot 9.
fn found(map: i32, then: &[Slot]) -> Vec<Slot> {
    let mut slots = lookup(map);
    slots.extend([asm::jump_imm(Cond::Ne, Reg::R0, 0, 2), ZERO, asm::exit()]);
    slots.extend(then);
    slots.extend([asm::alu_imm(Alu::Mov, Reg::R0, 0), asm::exit()]);
    slots
}

pub(crate) const ZERO: Slot = asm::alu_imm(Alu::Mov, Reg::R0, 0);

#[test]
fn the_context_and_its_bounds() {
    accepted(&[asm::load(8, Reg::R0, Reg::R1, 48), asm::exit()]);
    accepted(&[asm::load(4, Reg::R0, Reg::R1, 52), asm::exit()]);
    refused(&[asm::load(8, Reg::R0, Reg::R1, 56), asm::exit()], 0, "at most 56");
    refused(&[asm::load(8, Reg::R0, Reg::R1, 52), asm::exit()], 0, "at most 56");
    refused(&[asm::load(1, Reg::R0, Reg::R1, -1), asm::exit()], 0, "at least 0");
    let index = [
        asm::load(8, Reg::R2, Reg::R1, 0),
        asm::alu(Alu::Add, Reg::R1, Reg::R2),
        asm::load(8, Reg::R0, Reg::R1, 0),
        asm::exit(),
    ];
    refused(&index, 2, "bound");
}

#[test]
fn the_context_is_read_only() {
    let why = "not the context";
    refused(&[asm::store_imm(8, Reg::R1, 0, 0), ZERO, asm::exit()], 0, why);
    refused(&[asm::store(1, Reg::R1, 32, Reg::R1), ZERO, asm::exit()], 0, "");
    let atomic = [
        asm::alu_imm(Alu::Mov, Reg::R2, 1),
        asm::atomic(Atomic::Add, true, Reg::R1, 0, Reg::R2),
        ZERO,
        asm::exit(),
    ];
    refused(&atomic, 1, why);
    let copy = [
        asm::alu(Alu::Mov, Reg::R6, Reg::R1),
        asm::alu_imm(Alu::Mov, Reg::R2, 1),
        asm::store(8, Reg::R6, 40, Reg::R2),
        ZERO,
        asm::exit(),
    ];
    refused(&copy, 2, why);
    // Either the context or the stack.
    let either = [
        asm::load(8, Reg::R2, Reg::R1, 0),
        asm::alu_imm(Alu::Add, Reg::R1, 8),
        asm::jump_imm(Cond::Eq, Reg::R2, 0, 2),
        asm::alu(Alu::Mov, Reg::R1, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R1, -8),
        asm::store_imm(8, Reg::R1, 0, 0),
        ZERO,
        asm::exit(),
    ];
    refused(&either, 5, why);
    // A helper that writes.
    let helper = [asm::alu_imm(Alu::Mov, Reg::R2, 16), asm::call(16), ZERO, asm::exit()];
    refused(&helper, 1, "");
    let long = [asm::alu(Alu::Mov, Reg::R2, Reg::R1), asm::call(184), ZERO, asm::exit()];
    refused(&long, 1, "");
}

#[test]
fn the_stack_and_its_bounds() {
    accepted(&[asm::store_imm(8, Reg::R10, -512, 0), ZERO, asm::exit()]);
    refused(&[asm::store_imm(8, Reg::R10, -520, 0), ZERO, asm::exit()], 0, "stack");
    refused(&[asm::store_imm(8, Reg::R10, -513, 0), ZERO, asm::exit()], 0, "stack");
    refused(&[asm::store_imm(1, Reg::R10, 0, 0), ZERO, asm::exit()], 0, "stack");
    refused(&[asm::store_imm(8, Reg::R10, -4, 0), ZERO, asm::exit()], 0, "stack");
    let moved = [
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -516),
        asm::store_imm(8, Reg::R2, 0, 0),
        ZERO,
        asm::exit(),
    ];
    refused(&moved, 2, "stack");
}

#[test]
fn what_is_not_initialised() {
    refused(&[asm::exit()], 0, "r0");
    refused(&[asm::alu(Alu::Mov, Reg::R0, Reg::R5), asm::exit()], 1, "");
    refused(&[asm::load(8, Reg::R0, Reg::R10, -8), asm::exit()], 1, "");
    let half =
        [asm::store_imm(4, Reg::R10, -8, 0), asm::load(8, Reg::R0, Reg::R10, -8), asm::exit()];
    refused(&half, 2, "");
    let by_a_way = [
        asm::load(8, Reg::R2, Reg::R1, 0),
        asm::jump_imm(Cond::Eq, Reg::R2, 0, 1),
        ZERO,
        asm::exit(),
    ];
    refused(&by_a_way, 3, "r0");
    // A call leaves R1 to R5 undefined.
    refused(&[asm::call(5), asm::alu(Alu::Mov, Reg::R0, Reg::R1), asm::exit()], 2, "");
    // A key that is not there, a record that is not all there.
    let [a, b] = asm::load_map(Reg::R1, 1);
    let key = [
        a,
        b,
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -8),
        asm::call(3),
        asm::exit(),
    ];
    refused(&key, 4, "");
    let [a, b] = asm::load_map(Reg::R1, 2);
    let record = [
        asm::store_imm(8, Reg::R10, -8, 0),
        a,
        b,
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -16),
        asm::alu_imm(Alu::Mov, Reg::R3, 16),
        asm::alu_imm(Alu::Mov, Reg::R4, 0),
        asm::call(130),
        asm::exit(),
    ];
    refused(&record, 7, "");
}

#[test]
fn values_of_maps_and_their_bounds() {
    for map in [0, 1] {
        accepted(&found(map, &[asm::store_imm(8, Reg::R0, 8, 1)]));
        refused(&found(map, &[asm::store_imm(8, Reg::R0, 9, 1)]), 9, "");
        refused(&found(map, &[asm::load(1, Reg::R3, Reg::R0, 16)]), 9, "");
        refused(&found(map, &[asm::load(1, Reg::R3, Reg::R0, -1)]), 9, "");
    }
    // A hash's value may be missing; an array's 9th entry, too.
    let mut unchecked = lookup(1);
    unchecked.extend([asm::load(8, Reg::R0, Reg::R0, 0), asm::exit()]);
    refused(&unchecked, 6, "null");
    // An index of unknown size.
    let index = [
        asm::load(8, Reg::R3, Reg::R0, 0),
        asm::alu(Alu::Add, Reg::R0, Reg::R3),
        asm::load(1, Reg::R4, Reg::R0, 0),
    ];
    refused(&found(0, &index), 11, "");
    let bounded = [
        asm::load(8, Reg::R3, Reg::R0, 0),
        asm::alu_imm(Alu::And, Reg::R3, 15),
        asm::alu(Alu::Add, Reg::R0, Reg::R3),
        asm::load(1, Reg::R4, Reg::R0, 0),
    ];
    accepted(&found(0, &bounded));
    let [a, b] = asm::load_map_value(Reg::R1, 0, 8);
    accepted(&[a, b, asm::store_imm(8, Reg::R1, 0, 0), ZERO, asm::exit()]);
    refused(&[a, b, asm::store_imm(8, Reg::R1, 4, 0), ZERO, asm::exit()], 2, "");
    // Behind the first value of the array lies another one, but this address is of the first.
    refused(&[a, b, asm::store_imm(8, Reg::R1, 8, 0), ZERO, asm::exit()], 2, "");
    // A map itself is no memory.
    let [a, b] = asm::load_map(Reg::R1, 0);
    refused(&[a, b, asm::load(8, Reg::R0, Reg::R1, 0), asm::exit()], 2, "");
}

#[test]
fn addresses_stay_inside() {
    refused(&[asm::alu(Alu::Mov, Reg::R0, Reg::R1), asm::exit()], 1, "r0");
    refused(&[asm::alu(Alu::Mov, Reg::R0, Reg::R10), asm::exit()], 1, "r0");
    refused(&found(0, &[asm::store(8, Reg::R0, 0, Reg::R10)]), 9, "");
    refused(&found(0, &[asm::store(8, Reg::R0, 0, Reg::R0)]), 9, "");
    refused(&found(0, &[asm::store(4, Reg::R0, 0, Reg::R10)]), 9, "");
    refused(&found(0, &[asm::atomic(Atomic::Xchg, true, Reg::R0, 0, Reg::R10)]), 9, "");
    refused(&found(0, &[asm::atomic(Atomic::Add, true, Reg::R0, 0, Reg::R10)]), 9, "");
    // By way of the stack, into a map and into a record.
    let [a, b] = asm::load_map(Reg::R1, 1);
    let update = [
        asm::store_imm(8, Reg::R10, -8, 0),
        asm::store_imm(8, Reg::R10, -24, 0),
        asm::store(8, Reg::R10, -16, Reg::R10),
        a,
        b,
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -8),
        asm::alu(Alu::Mov, Reg::R3, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R3, -24),
        asm::alu_imm(Alu::Mov, Reg::R4, 0),
        asm::call(2),
        asm::exit(),
    ];
    refused(&update, 10, "");
    let [a, b] = asm::load_map(Reg::R1, 2);
    let record = [
        asm::store(8, Reg::R10, -8, Reg::R1),
        a,
        b,
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -8),
        asm::alu_imm(Alu::Mov, Reg::R3, 8),
        asm::alu_imm(Alu::Mov, Reg::R4, 0),
        asm::call(130),
        asm::exit(),
    ];
    refused(&record, 7, "");
    // By comparison.
    let compare = [
        ZERO,
        asm::load(8, Reg::R2, Reg::R1, 0),
        asm::jump(Cond::Gt, Reg::R1, Reg::R2, 1),
        asm::alu_imm(Alu::Mov, Reg::R0, 1),
        asm::exit(),
    ];
    refused(&compare, 2, "an address may only be compared");
    let one = asm::alu_imm(Alu::Mov, Reg::R0, 1);
    let guess = [ZERO, asm::jump_imm(Cond::Eq, Reg::R1, 4096, 1), one, asm::exit()];
    refused(&guess, 1, "");
    let own = [
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -8),
        ZERO,
        asm::jump(Cond::Gt, Reg::R10, Reg::R2, 1),
        one,
        asm::exit(),
    ];
    accepted(&own);
}

/// Numbers never become addresses.
#[test]
fn numbers_stay_numbers() {
    let argument =
        [asm::load(8, Reg::R2, Reg::R1, 0), asm::load(8, Reg::R0, Reg::R2, 0), asm::exit()];
    refused(&argument, 1, "");
    let [a, b] = asm::load64(Reg::R1, 0x1234_5678_9abc_def0);
    refused(&[a, b, asm::load(8, Reg::R0, Reg::R1, 0), asm::exit()], 2, "");
    refused(&[a, b, asm::call(1), asm::exit()], 2, "");
    let partly = [
        asm::store(8, Reg::R10, -8, Reg::R1),
        asm::store_imm(1, Reg::R10, -8, 0),
        asm::load(8, Reg::R2, Reg::R10, -8),
        asm::load(8, Reg::R0, Reg::R2, 0),
        asm::exit(),
    ];
    refused(&partly, 3, "");
    refused(
        &found(0, &[asm::alu32(Alu::Mov, Reg::R3, Reg::R0), asm::load(8, Reg::R4, Reg::R3, 0)]),
        9,
        "",
    );
    // A compare-exchange writes R0, even if it held an address.
    let exchange = [
        asm::alu_imm(Alu::Mov, Reg::R3, 1),
        asm::atomic(Atomic::CmpXchg, true, Reg::R0, 0, Reg::R3),
        asm::load(8, Reg::R4, Reg::R0, 0),
    ];
    refused(&found(0, &exchange), 10, "R0 of a compare-exchange must be a number");
    let good = [
        asm::alu(Alu::Mov, Reg::R6, Reg::R0),
        asm::alu_imm(Alu::Mov, Reg::R0, 0),
        asm::alu_imm(Alu::Mov, Reg::R3, 1),
        asm::atomic(Atomic::CmpXchg, true, Reg::R6, 0, Reg::R3),
    ];
    accepted(&found(0, &good));
}

#[test]
fn loops_must_end() {
    refused(&[ZERO, asm::ja(-2), asm::exit()], 0, "");
    let argument = [
        asm::load(8, Reg::R1, Reg::R1, 0),
        asm::alu_imm(Alu::Sub, Reg::R1, 1),
        asm::jump_imm(Cond::Ne, Reg::R1, 0, -2),
        ZERO,
        asm::exit(),
    ];
    let error = load::verify(image(ProgramKind::Exit, &argument)).expect_err("endless").to_string();
    assert!(error.contains("the loop is not proved to end"), "{error}");
    let bounded = [
        asm::alu_imm(Alu::Mov, Reg::R1, 0),
        asm::alu_imm(Alu::Add, Reg::R1, 1),
        asm::jump_imm(Cond::Lt, Reg::R1, 100, -2),
        ZERO,
        asm::exit(),
    ];
    accepted(&bounded);
}

#[test]
fn helpers_and_their_arguments() {
    refused(&[asm::call(12), ZERO, asm::exit()], 0, "helper 12 does not exist here");
    refused(&[asm::call(135), ZERO, asm::exit()], 0, "helper 135 does not exist here");
    refused(&[asm::call(173 + 1000), ZERO, asm::exit()], 0, "does not exist here");
    // Something else than the context.
    refused(&[asm::alu(Alu::Mov, Reg::R1, Reg::R10), asm::call(173), asm::exit()], 1, "");
    refused(&[asm::alu_imm(Alu::Add, Reg::R1, 8), asm::call(173), asm::exit()], 1, "");
    accepted(&[asm::call(173), asm::exit()]);
    // A lookup in a ring buffer, a record into an array.
    let mut slots = lookup(2);
    slots.extend([ZERO, asm::exit()]);
    refused(&slots, 5, "");
    let output = |map, len| {
        let [a, b] = asm::load_map(Reg::R1, map);
        [
            asm::store_imm(8, Reg::R10, -8, 0),
            a,
            b,
            asm::alu(Alu::Mov, Reg::R2, Reg::R10),
            asm::alu_imm(Alu::Add, Reg::R2, -8),
            asm::alu_imm(Alu::Mov, Reg::R3, len),
            asm::alu_imm(Alu::Mov, Reg::R4, 0),
            asm::call(130),
            asm::exit(),
        ]
    };
    accepted(&output(2, 8));
    refused(&output(0, 8), 7, "");
    refused(&output(2, 16), 7, "");
    refused(&output(2, -1), 7, "");
    // A name longer than the place for it.
    let comm = |len| {
        [
            asm::alu(Alu::Mov, Reg::R1, Reg::R10),
            asm::alu_imm(Alu::Add, Reg::R1, -16),
            asm::alu_imm(Alu::Mov, Reg::R2, len),
            asm::call(16),
            asm::load(8, Reg::R0, Reg::R10, -16),
            asm::exit(),
        ]
    };
    accepted(&comm(16));
    refused(&comm(17), 3, "");
    refused(&comm(0), 3, "");
}

/// Where the place is known, an atomic operation on it must be aligned; where it is not, the engines look.
#[test]
fn atomics_are_aligned() {
    let at = |wide, off| {
        let op = asm::atomic(Atomic::Add, wide, Reg::R10, off, Reg::R2);
        let mut slots = vec![asm::alu_imm(Alu::Mov, Reg::R2, 1)];
        slots.extend([-8, -16].map(|off| asm::store_imm(8, Reg::R10, off, 0)));
        slots.extend([op, ZERO, asm::exit()]);
        slots
    };
    let why = "must be aligned to its width";
    for (wide, off) in [(true, -8), (true, -16), (false, -4), (false, -12)] {
        accepted(&at(wide, off));
    }
    for (wide, off) in [(true, -12), (true, -9), (false, -6), (false, -9)] {
        refused(&at(wide, off), 3, why);
    }
    for map in [0, 1] {
        let add = |wide, off| {
            let one = asm::alu_imm(Alu::Mov, Reg::R3, 1);
            found(map, &[one, asm::atomic(Atomic::FetchAdd, wide, Reg::R0, off, Reg::R3)])
        };
        accepted(&add(true, 8));
        accepted(&add(false, 4));
        refused(&add(true, 4), 10, why);
        refused(&add(false, 2), 10, why);
    }
    let by_index = [
        asm::load(8, Reg::R3, Reg::R0, 0),
        asm::alu_imm(Alu::And, Reg::R3, 8),
        asm::alu(Alu::Add, Reg::R0, Reg::R3),
        asm::atomic(Atomic::Add, true, Reg::R0, 0, Reg::R3),
    ];
    accepted(&found(0, &by_index));
}

/// Helpers about the two ends of a call are for sessions, which have them.
#[test]
fn session_helpers_are_for_sessions() {
    let word = asm::alu_imm(Alu::Mov, Reg::R2, 1);
    for (slots, at) in
        [(&[asm::call(10_001), asm::exit()][..], 0), (&[word, asm::call(10_003), asm::exit()], 1)]
    {
        assert!(load::verify(image(ProgramKind::Session, slots)).is_ok());
        refused(slots, at, "only a session has two ends");
    }
    let address = [asm::alu(Alu::Mov, Reg::R2, Reg::R10), asm::call(10_003), asm::exit()];
    assert!(load::verify(image(ProgramKind::Session, &address)).is_err(), "an address gets out");
}

/// Memory is read at addresses that are numbers, into places that are the program's.
#[test]
fn probes_and_their_places() {
    let probe = |to: i32, len: i32| {
        [
            asm::load(8, Reg::R3, Reg::R1, 0),
            asm::alu(Alu::Mov, Reg::R1, Reg::R10),
            asm::alu_imm(Alu::Add, Reg::R1, to),
            asm::alu_imm(Alu::Mov, Reg::R2, len),
            asm::call(112),
            asm::load(8, Reg::R0, Reg::R10, -16),
            asm::exit(),
        ]
    };
    accepted(&probe(-16, 16));
    accepted(&probe(-16, 8));
    refused(&probe(-16, 17), 4, "");
    refused(&probe(-16, 4), 6, "");
    let [value_a, value_b] = asm::load_map_value(Reg::R1, 0, 0);
    let rest = |len| {
        [
            asm::load(8, Reg::R3, Reg::R1, 0),
            value_a,
            value_b,
            asm::alu_imm(Alu::Mov, Reg::R2, len),
            asm::call(114),
            asm::exit(),
        ]
    };
    accepted(&rest(16));
    refused(&rest(17), 4, "");
}

/// There is no return value before the function has run.
#[test]
fn the_return_value_at_entry() {
    let slots = [
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -8),
        asm::call(184),
        asm::load(8, Reg::R0, Reg::R10, -8),
        asm::exit(),
    ];
    accepted(&slots);
    let error = load::verify(image(ProgramKind::Entry, &slots)).expect_err("a refusal").to_string();
    assert!(error.contains("at instruction 2"), "{error}");
}

/// Functions see their caller's frame where it is handed to them, and nothing beyond.
#[test]
fn frames_of_functions() {
    let with = |slots: &[Slot]| {
        let mut all = vec![
            asm::store_imm(8, Reg::R10, -8, 1),
            asm::alu(Alu::Mov, Reg::R1, Reg::R10),
            asm::alu_imm(Alu::Add, Reg::R1, -8),
            asm::call_local(1),
            asm::exit(),
        ];
        all.extend(slots);
        all
    };
    accepted(&with(&[asm::load(8, Reg::R0, Reg::R1, 0), asm::exit()]));
    accepted(&with(&[asm::store_imm(8, Reg::R1, 0, 7), ZERO, asm::exit()]));
    refused(&with(&[asm::store_imm(8, Reg::R1, 8, 7), ZERO, asm::exit()]), 5, "stack");
    refused(&with(&[asm::store_imm(8, Reg::R10, -520, 7), ZERO, asm::exit()]), 5, "stack");
    // The frame of a function that has returned is nobody's.
    let kept = [
        asm::call_local(2),
        asm::load(8, Reg::R0, Reg::R0, 0),
        asm::exit(),
        asm::store_imm(8, Reg::R10, -8, 7),
        asm::alu(Alu::Mov, Reg::R0, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R0, -8),
        asm::exit(),
    ];
    assert!(load::verify(image(ProgramKind::Exit, &kept)).is_err());
}
