//! Reservations of ring buffers, on every way through a program: what is refused, and near neighbours.

use crate::refused::{ZERO, accepted, refused};
use owlet_ebpf::asm::{self, Alu, Cond, Reg, Slot};

/// `r0 = reserve(ring, size)`: five slots, the call is the last one.
fn reserve(size: i32) -> Vec<Slot> {
    let [a, b] = asm::load_map(Reg::R1, 2);
    let [size, flags] = [(Reg::R2, size), (Reg::R3, 0)].map(|(r, n)| asm::alu_imm(Alu::Mov, r, n));
    vec![a, b, size, flags, asm::call(131)]
}

/// `helper(reg, 0)`: three slots.
fn end(helper: i32, reg: Reg) -> [Slot; 3] {
    let flags = asm::alu_imm(Alu::Mov, Reg::R2, 0);
    [asm::alu(Alu::Mov, Reg::R1, reg), flags, asm::call(helper)]
}

fn submit(reg: Reg) -> [Slot; 3] {
    end(132, reg)
}

const DONE: [Slot; 2] = [ZERO, asm::exit()];

fn joined(pieces: &[&[Slot]]) -> Vec<Slot> {
    pieces.concat()
}

/// A record of 16 bytes in R6, not 0, and the context in R9; `then` begins with slot 10.
fn held(then: &[&[Slot]]) -> Vec<Slot> {
    let mut slots = vec![asm::alu(Alu::Mov, Reg::R9, Reg::R1)];
    slots.extend(reserve(16));
    slots.extend([asm::jump_imm(Cond::Ne, Reg::R0, 0, 2), ZERO, asm::exit()]);
    slots.push(asm::alu(Alu::Mov, Reg::R6, Reg::R0));
    slots.extend(joined(then));
    slots
}

fn write(reg: Reg, off: i16) -> [Slot; 1] {
    [asm::store_imm(8, reg, off, 7)]
}

#[test]
fn records_are_ended_on_every_way() {
    accepted(&held(&[&submit(Reg::R6), &DONE]));
    accepted(&held(&[&end(133, Reg::R6), &DONE]));
    let why = "reserved at instruction 5 is neither submitted nor discarded";
    refused(&held(&[&DONE]), 11, why);
    // One way of two; the other one is fine.
    let asks = [asm::load(8, Reg::R7, Reg::R9, 0), asm::jump_imm(Cond::Gt, Reg::R7, 9, 5)];
    refused(&held(&[&asks, &submit(Reg::R6), &DONE, &DONE]), 18, why);
    accepted(&held(&[&asks, &submit(Reg::R6), &DONE, &end(133, Reg::R6), &DONE]));
    // Not asked whether it is there.
    refused(&joined(&[&reserve(8), &DONE]), 6, "neither submitted nor discarded");
    // Lost by the only register that held it, and by a second one from the same place.
    refused(&held(&[&[asm::alu_imm(Alu::Mov, Reg::R6, 0)], &DONE]), 12, why);
    let again = [asm::load(8, Reg::R7, Reg::R9, 0), asm::jump_imm(Cond::Eq, Reg::R7, 3, -11)];
    refused(&held(&[&again, &submit(Reg::R6), &DONE]), 5, "before is still open");
}

/// In loops whose end is proved, one record in each round.
#[test]
fn records_in_loops() {
    let rounds = |last: &[Slot]| {
        let mut slots = vec![asm::alu_imm(Alu::Mov, Reg::R8, 0)];
        slots.extend(reserve(8));
        slots.push(asm::jump_imm(Cond::Eq, Reg::R0, 0, 3));
        slots.extend(last);
        slots.push(asm::alu_imm(Alu::Add, Reg::R8, 1));
        let back = i16::try_from(slots.len()).unwrap();
        slots.push(asm::jump_imm(Cond::Lt, Reg::R8, 10, -back));
        slots.extend(DONE);
        slots
    };
    accepted(&rounds(&submit(Reg::R0)));
    refused(&rounds(&[ZERO, ZERO, ZERO]), 13, "neither submitted nor discarded");
}

#[test]
fn nothing_is_done_to_a_record_after_its_end() {
    let used = "is used again";
    refused(&held(&[&submit(Reg::R6), &write(Reg::R6, 0), &DONE]), 13, used);
    let read = [asm::load(1, Reg::R1, Reg::R6, 0)];
    refused(&held(&[&submit(Reg::R6), &read, &DONE]), 13, used);
    refused(&held(&[&submit(Reg::R6), &submit(Reg::R6), &DONE]), 15, "discarded before");
    refused(&held(&[&submit(Reg::R6), &end(133, Reg::R6), &DONE]), 15, "discarded before");
    // By a copy, by an address inside it, by a word of the stack, and by a helper.
    let copy = [asm::alu(Alu::Mov, Reg::R7, Reg::R6)];
    refused(&held(&[&copy, &submit(Reg::R6), &write(Reg::R7, 0), &DONE]), 14, used);
    let inside = [copy[0], asm::alu_imm(Alu::Add, Reg::R7, 8)];
    accepted(&held(&[&inside, &write(Reg::R7, 0), &submit(Reg::R6), &DONE]));
    refused(&held(&[&inside, &submit(Reg::R6), &write(Reg::R7, 0), &DONE]), 15, used);
    let put = [asm::store(8, Reg::R10, -8, Reg::R6)];
    let get = [asm::load(8, Reg::R7, Reg::R10, -8)];
    accepted(&held(&[&put, &get, &submit(Reg::R7), &DONE]));
    refused(&held(&[&put, &submit(Reg::R6), &get, &write(Reg::R7, 0), &DONE]), 15, used);
    let comm =
        [asm::alu(Alu::Mov, Reg::R1, Reg::R6), asm::alu_imm(Alu::Mov, Reg::R2, 16), asm::call(16)];
    accepted(&held(&[&comm, &submit(Reg::R6), &DONE]));
    refused(&held(&[&submit(Reg::R6), &comm, &DONE]), 15, used);
    // By a function that was handed it: it is followed there, and back.
    let calls = |body: &[Slot]| {
        let pass = [asm::alu(Alu::Mov, Reg::R1, Reg::R6), asm::call_local(3)];
        held(&[&pass, &write(Reg::R6, 0), &DONE, body])
    };
    let through = [asm::alu_imm(Alu::Mov, Reg::R2, 0), asm::call(132), ZERO, asm::exit()];
    refused(&calls(&through), 12, used);
    refused(&calls(&DONE), 14, "neither submitted nor discarded");
}

#[test]
fn what_is_submitted_is_a_record() {
    refused(&joined(&[&reserve(8), &submit(Reg::R0), &DONE]), 7, "may be 0");
    let inside = [asm::alu_imm(Alu::Add, Reg::R6, 8)];
    refused(&held(&[&inside, &submit(Reg::R6), &DONE]), 13, "inside a record");
    refused(&held(&[&submit(Reg::R10), &DONE]), 12, "no record that is reserved");
    refused(&joined(&[&submit(Reg::R1), &DONE]), 2, "no record that is reserved");
    refused(&joined(&[&[ZERO], &submit(Reg::R0), &DONE]), 3, "no record that is reserved");
}

/// Records have bounds, and are 0 until they are compared; no address gets into them.
#[test]
fn records_and_their_bounds() {
    accepted(&held(&[&write(Reg::R6, 0), &write(Reg::R6, 8), &submit(Reg::R6), &DONE]));
    for off in [9, 16, -8] {
        refused(&held(&[&write(Reg::R6, off), &submit(Reg::R6), &DONE]), 10, "");
    }
    let late = [asm::jump_imm(Cond::Eq, Reg::R0, 0, 3)];
    let unchecked = joined(&[&reserve(8), &write(Reg::R0, 0), &late, &submit(Reg::R0), &DONE]);
    refused(&unchecked, 5, "null");
    let early = [asm::alu_imm(Alu::Add, Reg::R0, 8)];
    refused(&joined(&[&reserve(16), &early, &DONE]), 5, "may be 0");
    let address = [asm::store(8, Reg::R6, 0, Reg::R10)];
    refused(&held(&[&address, &submit(Reg::R6), &DONE]), 10, "can only be kept");
    let own = [asm::store(8, Reg::R6, 0, Reg::R6)];
    refused(&held(&[&own, &submit(Reg::R6), &DONE]), 10, "can only be kept");
    let context = [asm::store(8, Reg::R6, 0, Reg::R9)];
    refused(&held(&[&context, &submit(Reg::R6), &DONE]), 10, "numbers");
    // Two sizes of one ring buffer do not mix.
    let second = |off| {
        let mut slots = reserve(64);
        slots.push(asm::jump_imm(Cond::Eq, Reg::R0, 0, 4));
        slots.push(asm::store_imm(8, Reg::R0, off, 1));
        slots.extend(submit(Reg::R0));
        slots
    };
    accepted(&held(&[&second(56), &submit(Reg::R6), &DONE]));
    refused(&held(&[&second(64), &submit(Reg::R6), &DONE]), 16, "");
    refused(&held(&[&second(56), &write(Reg::R6, 16), &submit(Reg::R6), &DONE]), 20, "");
}

#[test]
fn what_cannot_be_followed() {
    let [a, b] = asm::load_map(Reg::R1, 2);
    let unknown = [
        asm::load(8, Reg::R2, Reg::R1, 0),
        a,
        b,
        asm::alu_imm(Alu::Mov, Reg::R3, 0),
        asm::call(131),
    ];
    refused(&joined(&[&unknown, &DONE]), 4, "must be a constant");
    let negative = reserve(-1);
    refused(&joined(&[&negative, &DONE]), 4, "must be a constant");
    let [a, b] = asm::load_map(Reg::R1, 0);
    let array = [a, b, reserve(8)[2], reserve(8)[3], asm::call(131)];
    refused(
        &joined(&[&array, &[asm::jump_imm(Cond::Eq, Reg::R0, 0, 3)], &submit(Reg::R0), &DONE]),
        4,
        "",
    );
    // Somewhere in the stack.
    let somewhere = [
        asm::load(8, Reg::R7, Reg::R9, 0),
        asm::alu_imm(Alu::And, Reg::R7, 8),
        asm::alu(Alu::Mov, Reg::R8, Reg::R10),
        asm::alu(Alu::Sub, Reg::R8, Reg::R7),
        asm::store(8, Reg::R8, -8, Reg::R6),
    ];
    refused(&held(&[&somewhere, &submit(Reg::R6), &DONE]), 14, "can only be kept");
    let mut five = Vec::new();
    for reg in [Reg::R6, Reg::R7, Reg::R8, Reg::R9] {
        five.extend(reserve(8));
        five.push(asm::jump_imm(Cond::Eq, Reg::R0, 0, 1));
        five.push(asm::alu(Alu::Mov, reg, Reg::R0));
    }
    five.extend(reserve(8));
    five.extend(DONE);
    refused(&five, 32, "more than 4 records");
}
