//! Notes whole and damaged; operands as compilers write them.

use super::{Argument, Place, arguments, notes};
use crate::program::{Operand, ZERO};
use proptest::prelude::*;

fn note(owner: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [owner.len() as u32, description.len() as u32, kind] {
        bytes.extend(word.to_le_bytes());
    }
    for part in [owner, description] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

fn description(semaphore: u64, texts: &[u8]) -> Vec<u8> {
    let words = [0x1000u64, 0x2000, semaphore];
    words.iter().flat_map(|word| word.to_le_bytes()).chain(texts.iter().copied()).collect()
}

#[test]
fn notes_of_a_section_are_read_in_order() {
    let mut bytes = note(b"stapsdt\0", 3, &description(0, b"lib\0one\0\0"));
    bytes.extend(note(b"GNU\0", 1, b"other"));
    bytes.extend(note(b"stapsdt\0", 3, &description(0x3000, b"lib\0two\x008@%rax -4@$7\0")));
    let (notes, broken) = notes(&bytes);
    let read: Vec<_> = notes
        .iter()
        .map(|n| (n.provider.as_str(), n.name.as_str(), n.arguments.as_str(), n.semaphore))
        .collect();
    assert_eq!(read, [("lib", "one", "", 0), ("lib", "two", "8@%rax -4@$7", 0x3000)]);
    assert_eq!((broken, notes[0].location, notes[0].base), (0, 0x1000, 0x2000));
}

#[test]
fn notes_that_make_no_sense_are_counted() {
    let check = |bytes: &[u8], broken: usize| {
        assert_eq!(notes(bytes), (Vec::new(), broken), "{bytes:?}");
    };
    check(b"", 0);
    check(&[0; 11], 0);
    // Without length, without text, with text that does not end.
    check(&note(b"", 0, b""), 0);
    check(&note(b"stapsdt\0", 3, b""), 1);
    check(&note(b"stapsdt\0", 3, &description(0, b"")), 1);
    check(&note(b"stapsdt\0", 3, &description(0, b"a\0b\0c")), 1);
    check(&note(b"stapsdt\0", 3, &description(0, b"\0b\0c\0")), 1);
    // Longer than the section, up to what overflows.
    let mut long = note(b"stapsdt\0", 3, &description(0, b"a\0b\0\0"));
    long[4..8].copy_from_slice(&100u32.to_le_bytes());
    check(&long, 1);
    long[..8].fill(0xff);
    check(&long, 1);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = notes(&bytes);
    }

    #[test]
    fn any_text_of_arguments_is_survived(text in "[-0-9@%$(),a-z .]{0,60}") {
        prop_assert!(arguments(&text).len() <= 12);
    }
}

#[test]
fn operands_as_compilers_write_them() {
    let place = |text: &str| {
        let all = arguments(text);
        assert_eq!(all.len(), 1, "{text}");
        (i32::from(all[0].size) * if all[0].signed { -1 } else { 1 }, all[0].place)
    };
    let memory = |base, index, shift, size, displacement| {
        Place::Memory(Operand { base, index, shift, size, displacement })
    };
    assert_eq!(place("-4@$5"), (-4, Place::Constant(5)));
    assert_eq!(place("8@$-0x10"), (8, Place::Constant(-16)));
    for (name, slot) in [("%rax", 0), ("%ebx", 1), ("%cx", 2), ("%dl", 3), ("%sil", 4)] {
        assert_eq!(place(&format!("8@{name}")).1, Place::Register(slot, 0), "{name}");
    }
    for (name, slot) in [("%dil", 5), ("%ebp", 6), ("%rsp", 7), ("%r8", 8), ("%r15d", 15)] {
        assert_eq!(place(&format!("8@{name}")).1, Place::Register(slot, 0), "{name}");
    }
    assert_eq!(place("1@%ah").1, Place::Register(0, 8));
    assert_eq!(place("1@%bl").1, Place::Register(1, 0));
    assert_eq!(place("-2@-8(%rbp)"), (-2, memory(6, ZERO, 0, 2, -8)));
    assert_eq!(place("8@(%rax,%rcx,4)").1, memory(0, 2, 2, 8, 0));
    assert_eq!(place("4@16(,%r9,8)").1, memory(ZERO, 9, 3, 4, 16));
    for odd in ["8f@%xmm0", "8@foo(%rip)", "3@%rax", "8@%r16", "8@(%rax", "8@4(%rax,%rcx,3)", "@"] {
        assert_eq!(place(odd).1, Place::Unknown, "{odd}");
    }
    assert!(!Argument { size: 8, signed: false, place: Place::Unknown }.is_known());
}
