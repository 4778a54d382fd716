//! What the decoder refuses, and why it says so.

use crate::common::image;
use owlet_ebpf::asm::{self, Alu, Atomic, Cond, Reg, Slot};
use owlet_ebpf::image::MapDef;

fn refusal(slots: &[Slot]) -> String {
    let maps = vec![MapDef::array("a", 8, 2), MapDef::hash("h", 8, 8, 2)];
    image(maps, slots).check().expect_err("a refusal").to_string()
}

fn raw(op: u8, dst: u8, src: u8, off: i16, imm: i32) -> Slot {
    Slot { op, dst, src, off, imm }
}

#[test]
fn programs_of_the_wrong_shape_are_refused() {
    let exit = asm::exit();
    let [wide, second] = asm::load64(Reg::R0, 1);
    let [map, _] = asm::load_map(Reg::R1, 0);
    let cases: &[(&[Slot], &str)] = &[
        (&[], "0 bytes are not 1 to 65536 slots of 8"),
        (&[asm::alu_imm(Alu::Mov, Reg::R0, 0)], "instruction 0: the function runs over its end"),
        (&[exit, asm::jump_imm(Cond::Eq, Reg::R0, 0, -2)], "runs over its end"),
        (&[asm::ja(1), exit], "jump leaves the program"),
        (&[asm::ja(-2), exit], "jump leaves the program"),
        (&[asm::ja32(i32::MAX), exit], "jump leaves the program"),
        (&[asm::ja(1), wide, second, exit], "into the middle of a 64-bit immediate"),
        (&[wide], "without its second slot"),
        (&[wide, raw(0, 1, 0, 0, 0), exit], "unused fields"),
        (&[wide, raw(0, 0, 0, 1, 0), exit], "unused fields"),
        (&[raw(0x18, 0, 3, 0, 0), second, exit], "kind 3 is unknown"),
        (&[raw(0x18, 0, 1, 0, 2), raw(0, 0, 0, 0, 0), exit], "there is no map 2"),
        (&[raw(0x18, 0, 1, 0, -1), raw(0, 0, 0, 0, 0), exit], "there is no map -1"),
        (&[map, raw(0, 0, 0, 0, 1), exit], "second immediate of 0x18 is 1, must be 0"),
        (&[raw(0x18, 0, 2, 0, 0), raw(0, 0, 0, 0, 8), exit], "outside the value of map 0"),
        (&[raw(0x18, 0, 2, 0, 0), raw(0, 0, 0, 0, -1), exit], "outside the value of map 0"),
        (&[raw(0x18, 0, 2, 0, 1), raw(0, 0, 0, 0, 0), exit], "outside the value of map 1"),
        (&[raw(0x18, 10, 0, 0, 0), second, exit], "R10 is read-only"),
        (&[asm::alu_imm(Alu::Add, Reg::R10, 8), exit], "R10 is read-only"),
        (&[asm::load(8, Reg::R10, Reg::R1, 0), exit], "R10 is read-only"),
        (&[asm::atomic(Atomic::Xchg, true, Reg::R1, 0, Reg::R10), exit], "R10 is read-only"),
        (&[raw(0xb7, 11, 0, 0, 0), exit], "there is no register 11"),
        (&[raw(0xbf, 0, 15, 0, 0), exit], "there is no register 15"),
        (&[raw(0xb7, 0, 1, 0, 0), exit], "src of 0xb7 is 1, must be 0"),
        (&[raw(0xbf, 0, 1, 0, 7), exit], "imm of 0xbf is 7, must be 0"),
        (&[raw(0x07, 0, 0, 2, 0), exit], "operation 0x07"),
        (&[raw(0xbf, 0, 1, 9, 0), exit], "operation 0xbf"),
        (&[raw(0xbc, 0, 1, 32, 0), exit], "operation 0xbc"),
        (&[raw(0xd4, 0, 0, 0, 8), exit], "8 bits cannot be swapped"),
        (&[raw(0xdf, 0, 0, 0, 16), exit], "operation 0xdf"),
        (&[raw(0xe7, 0, 0, 0, 0), exit], "operation 0xe7"),
        (&[raw(0x20, 0, 0, 0, 0), exit], "operation 0x20"),
        (&[raw(0x99, 0, 1, 0, 0), exit], "operation 0x99"),
        (&[raw(0xcb, 1, 0, 0, 0), exit], "operation 0xcb"),
        (&[raw(0xdb, 1, 0, 0, 0x77), exit], "atomic operation 0x77 is unknown"),
        (&[raw(0xe5, 1, 0, 0, 0), exit], "operation 0xe5"),
        (&[raw(0x0d, 0, 0, 0, 0), exit], "operation 0x0d"),
        (&[raw(0x85, 1, 0, 0, 5), exit], "dst of 0x85 is 1, must be 0"),
        (&[raw(0x85, 0, 2, 0, 5), exit], "only helpers and functions"),
        (&[raw(0x8d, 0, 0, 0, 1), exit], "operation 0x8d"),
        (&[raw(0x95, 0, 0, 0, 1)], "imm of 0x95 is 1, must be 0"),
        (&[asm::call(0), exit], "helper 0 does not exist here"),
        (&[asm::call(12), exit], "helper 12 does not exist here"),
        (&[asm::call(-1), exit], "helper -1 does not exist here"),
        (&[asm::call_local(5), exit], "call leaves the program"),
        (&[asm::call_local(i32::MIN), exit], "call leaves the program"),
        (
            &[asm::call_local(2), exit, wide, second, exit],
            "instruction 2: the function runs over its end",
        ),
        (&[asm::call_local(-1), exit], "the function calls itself"),
        (
            &[asm::call_local(1), exit, asm::call_local(1), exit, asm::call_local(-3), exit],
            "calls itself",
        ),
        (&[asm::call_local(2), asm::ja(1), exit, exit], "jump leaves its function"),
    ];
    for (slots, expected) in cases {
        let got = refusal(slots);
        assert!(got.contains(expected), "{slots:?}\n     got: {got}\nexpected: {expected}");
    }
}

#[test]
fn nine_functions_deep_is_too_deep() {
    let chain = |n: usize| {
        let mut slots = Vec::new();
        for _ in 1..n {
            slots.extend([asm::call_local(1), asm::exit()]);
        }
        slots.push(asm::exit());
        slots
    };
    assert!(image(Vec::new(), &chain(8)).check().is_ok());
    assert!(refusal(&chain(9)).contains("more than 8 functions call each other"));
    // Also where a function is reached by the short way first, and then by the long one.
    let two_ways = |n: usize| {
        let mut slots = vec![asm::call_local(4), asm::call_local(1), asm::exit()];
        slots.extend([asm::call_local(1), asm::exit()]);
        slots.extend(chain(n));
        slots
    };
    assert!(image(Vec::new(), &two_ways(6)).check().is_ok());
    assert!(refusal(&two_ways(7)).contains("more than 8 functions"));
}

#[test]
fn maps_of_the_wrong_shape_are_refused() {
    let check = |def: MapDef| image(vec![def], &[asm::exit()]).check();
    let refused = |def: MapDef| check(def).expect_err("a refusal").to_string();
    assert_eq!(refused(MapDef::array("m", 8, 0)), "map m: the number of entries is 0 or too large");
    assert!(refused(MapDef::array("m", 0, 1)).contains("the value size"));
    assert!(refused(MapDef::array("m", u32::MAX, 1)).contains("the value size"));
    assert!(refused(MapDef::hash("m", 0, 8, 1)).contains("the key size"));
    assert!(refused(MapDef::hash("m", 257, 8, 1)).contains("the key size"));
    assert!(refused(MapDef::ring("m", 5000)).contains("a power of two"));
    assert!(refused(MapDef::ring("m", 2048)).contains("at least 4096"));
    assert!(refused(MapDef { key_size: 8, ..MapDef::array("m", 8, 1) }).contains("4 bytes"));
    assert!(refused(MapDef { value_size: 8, ..MapDef::ring("m", 4096) }).contains("neither"));
    assert!(refused(MapDef { data: vec![1; 9], ..MapDef::array("m", 8, 2) }).contains("data"));
    assert!(refused(MapDef { data: vec![1], ..MapDef::hash("m", 8, 8, 2) }).contains("data"));
    assert!(check(MapDef { data: vec![1; 8], ..MapDef::array("m", 8, 2) }).is_ok());
}
