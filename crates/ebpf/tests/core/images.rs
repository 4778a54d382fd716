//! The binary form: there and back, and bytes that nobody wrote.

use crate::common::image;
use owlet_ebpf::asm::{self, Alu, Reg};
use owlet_ebpf::image::{FORMAT, Image, MapDef, PLATFORM, ProgramDef, ProgramKind};
use owlet_ebpf::{Error, Limits, Module};
use proptest::prelude::*;

fn sample() -> Image {
    let [a, b] = asm::load_map(Reg::R1, 1);
    let [c, d] = asm::load_map_value(Reg::R2, 0, 4);
    let slots = [a, b, c, d, asm::alu_imm(Alu::Mov, Reg::R0, 0), asm::exit()];
    let mut image = image(
        vec![
            MapDef { data: vec![1, 2, 3], ..MapDef::array(".data", 8, 1) },
            MapDef::hash("counts", 6, 16, 100),
            MapDef::per_cpu_array("per_cpu", 8, 3),
            MapDef::ring("events", 4096),
        ],
        &slots,
    );
    image.programs.push(ProgramDef {
        name: "leave".to_owned(),
        kind: ProgramKind::Exit,
        pattern: "mini_redis::*".to_owned(),
        code: asm::bytes(&slots),
    });
    image
}

#[test]
fn an_image_survives_its_bytes() {
    let image = sample();
    let bytes = image.to_bytes().unwrap();
    assert_eq!(Image::from_bytes(&bytes).unwrap(), image);
    let module = Module::interpreted(&Image::from_bytes(&bytes).unwrap(), Limits::default());
    let module = module.unwrap();
    assert_eq!(module.programs().len(), 2);
    assert_eq!(module.program("leave").unwrap().pattern(), "mini_redis::*");
    assert_eq!(module.program("leave").unwrap().kind(), ProgramKind::Exit);
    let mut data = [0; 8];
    module.map(".data").unwrap().read(&[0; 4], &mut data).unwrap();
    assert_eq!(data, [1, 2, 3, 0, 0, 0, 0, 0]);
    assert_eq!(Image::from_bytes(&Image::default().to_bytes().unwrap()).unwrap(), Image::default());
}

#[test]
fn other_versions_are_named() {
    let bytes = sample().to_bytes().unwrap();
    for (at, expected) in [(8, FORMAT), (12, PLATFORM)] {
        let mut other = bytes.clone();
        other[at] = 99;
        match Image::from_bytes(&other) {
            Err(Error::Version { found: 99, expected: known }) => assert_eq!(known, expected),
            answer => panic!("{answer:?}"),
        }
    }
}

/// Every single bit: the checksum or the header says so.
#[test]
fn a_flipped_bit_is_found() {
    let bytes = sample().to_bytes().unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            assert!(Image::from_bytes(&other).is_err(), "byte {at}, bit {bit}");
        }
    }
    for len in 0..bytes.len() {
        assert!(Image::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
    }
}

/// With the checksum made right again, so that the bytes behind it are read.
fn forged(mut bytes: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    for (at, value) in changes {
        let at = 24 + at % (bytes.len() - 24);
        bytes[at] = *value;
    }
    let sum = crc(&bytes[24..]);
    bytes[20..24].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum: u32, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 != 0 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Hostile bytes give errors or images that can be run, never a panic.
    #[test]
    fn forged_images_are_harmless(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..6)) {
        let bytes = forged(sample().to_bytes().unwrap(), &changes);
        if let Ok(image) = Image::from_bytes(&bytes) {
            prop_assert_eq!(image.to_bytes().unwrap(), bytes);
            let limits = Limits { map_bytes: 1 << 20, fuel: 1000 };
            if let Ok(module) = Module::interpreted(&image, limits) {
                for program in module.programs() {
                    program.run(&crate::common::context());
                }
            }
        }
    }

    /// Programs of random slots: refused or interpreted, never a panic.
    #[test]
    fn random_programs_are_harmless(words in prop::collection::vec((0_usize..60, any::<u64>()), 1..40)) {
        // Operations that exist come up often, and so do small fields.
        const OPS: [u8; 20] = [
            0x07, 0x0f, 0xb7, 0xbf, 0x61, 0x79, 0x71, 0x7b, 0x62, 0x7a, 0xdb, 0xc3, 0x85, 0x95, 0x05,
            0x15, 0x2d, 0x18, 0x37, 0xdc,
        ];
        let code: Vec<u8> = words.iter().flat_map(|(op, word)| {
            let mut bytes = word.to_le_bytes();
            if let Some(op) = OPS.get(*op) {
                bytes[0] = *op;
                bytes[1] %= 11;
                bytes[2] %= 8;
                bytes[3] = 0;
                bytes[5..].fill(0);
            }
            bytes
        }).chain(asm::exit().to_bytes()).collect();
        let mut image = sample();
        image.programs.truncate(1);
        image.programs[0].code = code;
        let limits = Limits { fuel: 100, ..Limits::default() };
        if let Ok(module) = Module::interpreted(&image, limits) {
            module.programs()[0].run(&crate::common::context());
        }
    }
}
