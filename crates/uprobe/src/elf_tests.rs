//! Files made here, byte by byte: whole, stripped, cut short, contradictory.

use super::Image;
use crate::error::ErrorKind;
use proptest::prelude::*;
use std::path::Path;

/// Where the only segment is loaded; the file's offsets are this much less.
const BASE: u64 = 0x40_0000;

/// A symbol: its name, address, whether it is global, its type.
type Symbol<'s> = (&'s str, u64, bool, u8);

fn note(location: u64, base: u64, semaphore: u64, texts: &[u8]) -> Vec<u8> {
    let mut description: Vec<u8> =
        [location, base, semaphore].iter().flat_map(|word| word.to_le_bytes()).collect();
    description.extend(texts);
    let mut bytes = Vec::new();
    for word in [8, description.len() as u32, 3] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(b"stapsdt\0");
    bytes.extend(description);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A program of one executable segment: `.symtab`, `.note.stapsdt` and `.stapsdt.base`.
fn program(symbols: &[Symbol<'_>], notes: &[u8]) -> Vec<u8> {
    let mut names = b"\0".to_vec();
    let mut table = vec![0; 24];
    for (name, address, global, kind) in symbols {
        table.extend((names.len() as u32).to_le_bytes());
        table.extend([u8::from(*global) << 4 | kind, 0, 1, 0]);
        table.extend(address.to_le_bytes());
        table.extend(4u64.to_le_bytes());
        names.extend(name.as_bytes());
        names.push(0);
    }
    let shown = b"\0.symtab\0.strtab\0.note.stapsdt\0.stapsdt.base\0".to_vec();
    let mut bytes = vec![0; 0x1000];
    let mut place = |part: &[u8]| {
        let at = bytes.len() as u64;
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        (at, part.len() as u64)
    };
    let parts = [place(&table), place(&names), place(notes), place(&shown)];
    let headers = bytes.len() as u64;
    let section = |name: u32, kind: u32, (at, len): (u64, u64), link: u32, address: u64| {
        let mut header = Vec::new();
        header.extend(name.to_le_bytes());
        header.extend(kind.to_le_bytes());
        for word in [0, address, at, len] {
            header.extend(word.to_le_bytes());
        }
        header.extend(link.to_le_bytes());
        header.extend(1u32.to_le_bytes());
        header.extend(8u64.to_le_bytes());
        header.extend((if kind == 2 { 24u64 } else { 0 }).to_le_bytes());
        header
    };
    bytes.extend([0; 64]);
    bytes.extend(section(1, 2, parts[0], 2, 0));
    bytes.extend(section(9, 3, parts[1], 0, 0));
    bytes.extend(section(17, 7, parts[2], 0, 0));
    bytes.extend(section(31, 1, (0x800, 1), 0, BASE + 0x800));
    bytes.extend(section(0, 3, parts[3], 0, 0));
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    header.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [BASE, 64, headers] {
        header.extend(word.to_le_bytes());
    }
    header.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 64, 6, 5] {
        header.extend(half.to_le_bytes());
    }
    // The segment: readable and executable, up to 0x1000.
    header.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, BASE, BASE, 0x1000, 0x1000, 0x1000] {
        header.extend(word.to_le_bytes());
    }
    bytes[..header.len()].copy_from_slice(&header);
    bytes
}

fn read(bytes: &[u8]) -> crate::error::Result<Image> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    Image::read(file.path(), "x")
}

#[test]
fn functions_have_the_offset_in_the_file_and_one_name_each() {
    let bytes = program(
        &[
            ("local", BASE + 0x10, false, 2),
            ("_ZN5space4nameEi", BASE + 0x20, true, 2),
            ("alias_first", BASE + 0x10, true, 2),
            ("alias_second", BASE + 0x10, true, 2),
            ("data", BASE + 0x30, true, 1),
            ("resolver", BASE + 0x40, true, 10),
            ("outside", BASE + 0x1000, true, 2),
            ("below", BASE - 1, true, 2),
        ],
        b"",
    );
    let image = read(&bytes).unwrap();
    let found: Vec<_> = image.functions.iter().map(|f| (f.name.as_str(), f.offset)).collect();
    assert_eq!(found, [("alias_first", 0x10), ("space::name(int)", 0x20)]);
    assert!(!image.stripped && image.probes.is_empty());
    // The same addresses in a segment of data.
    let mut data = bytes;
    data[64 + 4] = 4;
    assert!(read(&data).unwrap().functions.is_empty());
}

#[test]
fn probes_are_moved_with_their_program() {
    // Linked for 0x1000 less than where the base is now.
    let (moved, base) = (BASE - 0x1000, BASE + 0x800 - 0x1000);
    let mut notes = note(moved + 0x50, base, 0, b"lib\0plain\0\0");
    notes.extend(note(moved + 0x60, base, moved + 0x900, b"lib\0counted\0-4@%edi\0"));
    notes.extend(note(moved + 0x9000, base, 0, b"lib\0nowhere\0\0"));
    notes.extend(note(moved + 0x70, base, moved + 0x9000, b"lib\0no_counter\0\0"));
    let image = read(&program(&[], &notes)).unwrap();
    let found: Vec<_> = image
        .probes
        .iter()
        .map(|p| (p.name.as_str(), p.offset, p.semaphore, p.arguments.len()))
        .collect();
    assert_eq!(found, [("plain", 0x50, 0, 0), ("counted", 0x60, 0x900, 1)]);
    assert_eq!((image.broken, image.stripped), (2, true));
}

#[test]
fn what_is_no_whole_file_is_refused() {
    let whole = program(&[("f", BASE + 0x10, true, 2)], &note(BASE, BASE, 0, b"a\0b\0\0"));
    assert!(read(&whole).is_ok());
    for (bytes, why) in [
        (&b""[..], "is no file with something in it"),
        (b"#!/bin/sh\n", "no whole 64-bit ELF file"),
        (&whole[..63], "no whole 64-bit ELF file"),
        (&whole[..0x200], "no whole 64-bit ELF file"),
    ] {
        let error = read(bytes).unwrap_err();
        assert!(error.message.contains(why) && error.kind == ErrorKind::BadFile, "{error}");
    }
    // Without sections, but with a segment that is longer than the file.
    let mut bare = whole[..0x800].to_vec();
    bare[40..48].fill(0);
    bare[60..64].fill(0);
    assert!(read(&bare).unwrap_err().message.contains("is cut short"), "{:?}", read(&bare));
    let missing = Image::read(Path::new("/nonexistent/file"), "x").unwrap_err();
    assert!(missing.message.starts_with("cannot open x: no such file"), "{missing}");
    assert!(Image::read(Path::new("/"), "x").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn damage_is_survived(
        damage in prop::collection::vec((0usize..0x1500, any::<u8>()), 1..12),
        headers in prop::collection::vec((0usize..120, any::<u8>()), 0..4),
        cut in prop::option::of(0usize..0x1500),
    ) {
        let notes = note(BASE + 0x50, BASE + 0x800, BASE + 0x900, b"lib\0counted\0-4@%edi\0");
        let mut bytes = program(&[("_ZN5space4nameEi", BASE + 0x20, true, 2)], &notes);
        for (at, byte) in damage.into_iter().chain(headers) {
            if let Some(to) = bytes.get_mut(at) {
                *to = byte;
            }
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        let _ = read(&bytes);
    }
}
