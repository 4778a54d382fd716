//! As much of ELF as has to be known before the loader proper sees an object.
//!
//! That loader knows the kernel's section names and refuses others. Ours are therefore renamed in a copy:
//! the table of section names moves to the end of the file and gains a name that the loader knows. It also
//! trusts symbols; those that lie outside of their section are found here.

use crate::error::Error;

/// What program sections are called in the copy.
const KNOWN: &[u8] = b"uprobe\0";

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHF_EXECINSTR: u64 = 4;

/// A section.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: String,
    /// Where its header is in the file.
    header: usize,
    kind: u32,
    flags: u64,
    offset: usize,
    size: usize,
    link: usize,
}

impl Section {
    /// Holds programs, as opposed to functions that programs call.
    pub(super) fn has_programs(&self) -> bool {
        self.is_code() && !self.name.starts_with(".text")
    }

    fn is_code(&self) -> bool {
        self.kind == SHT_PROGBITS && self.flags & SHF_EXECINSTR != 0 && self.size != 0
    }
}

/// An object for the eBPF machine.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    bytes: &'a [u8],
    pub(super) sections: Vec<Section>,
    /// Index of the table of section names.
    names: usize,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16(bytes: &[u8], at: usize) -> Option<usize> {
    array(bytes, at).map(u16::from_le_bytes).map(usize::from)
}

fn u32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn size(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(array(bytes, at).map(u64::from_le_bytes)?).ok()
}

/// The text that ends with 0.
fn text(table: &[u8], at: usize) -> Option<String> {
    let text = table.get(at..)?.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

impl<'a> Elf<'a> {
    /// Reads the headers and checks what the loader trusts.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        if !bytes.starts_with(b"\x7fELF") {
            return Err(Error::Object("not an ELF file".to_owned()));
        }
        // 64 bits, little-endian; relocatable; EM_BPF.
        if bytes.get(4..6) != Some(&[2, 1])
            || (u16(bytes, 16), u16(bytes, 18)) != (Some(1), Some(247))
        {
            let what = "not an object for little-endian eBPF (clang -target bpf -c)";
            return Err(Error::Object(what.to_owned()));
        }
        let elf = Self::headers(bytes);
        let elf = elf.ok_or_else(|| Error::Object("its section headers are damaged".to_owned()))?;
        match elf.symbols_are_inside() {
            Some(true) => Ok(elf),
            _ => Err(Error::Object("its symbols are damaged".to_owned())),
        }
    }

    fn headers(bytes: &'a [u8]) -> Option<Self> {
        let (table, entry) = (size(bytes, 0x28)?, u16(bytes, 0x3a)?);
        let (count, names) = (u16(bytes, 0x3c)?, u16(bytes, 0x3e)?);
        if entry != 64 {
            return None;
        }
        let mut sections = Vec::with_capacity(count);
        for index in 0..count {
            let header = table.checked_add(index * entry)?;
            bytes.get(header..header.checked_add(entry)?)?;
            let kind = u32(bytes, header + 4)?;
            let (offset, len) = (size(bytes, header + 24)?, size(bytes, header + 32)?);
            // SHT_NOBITS and the empty first header have no bytes.
            if kind != 8 && kind != 0 {
                bytes.get(offset..offset.checked_add(len)?)?;
            } else if len > 1 << 24 {
                return None;
            }
            sections.push(Section {
                name: String::new(),
                header,
                kind,
                flags: array(bytes, header + 8).map(u64::from_le_bytes)?,
                offset,
                size: len,
                link: usize::try_from(u32(bytes, header + 40)?).ok()?,
            });
        }
        let mut elf = Self { bytes, sections, names };
        let strings = elf.content(names)?;
        for section in &mut elf.sections {
            let at = usize::try_from(u32(bytes, section.header)?).ok()?;
            section.name = text(strings, at)?;
        }
        Some(elf)
    }

    fn content(&self, index: usize) -> Option<&'a [u8]> {
        let section = self.sections.get(index)?;
        self.bytes.get(section.offset..section.offset.checked_add(section.size)?)
    }

    /// The content of a section by name.
    pub(super) fn named(&self, name: &str) -> Option<&'a [u8]> {
        let index = self.sections.iter().position(|section| section.name == name)?;
        self.content(index)
    }

    /// Whether every symbol of code and data lies inside its section.
    fn symbols_are_inside(&self) -> Option<bool> {
        let table = self.sections.iter().position(|section| section.kind == SHT_SYMTAB);
        let Some(table) = table else { return Some(true) };
        let strings = self.sections.get(self.sections.get(table)?.link)?.size;
        let symbols = self.content(table)?;
        if !symbols.len().is_multiple_of(24) {
            return None;
        }
        for symbol in symbols.chunks_exact(24) {
            let (index, value, len) = (u16(symbol, 6)?, size(symbol, 8)?, size(symbol, 16)?);
            if usize::try_from(u32(symbol, 0)?).ok()? >= strings {
                return Some(false);
            }
            // Undefined, and the reserved numbers of absolute and common symbols.
            if index == 0 || index >= 0xff00 {
                continue;
            }
            let section = self.sections.get(index)?;
            let end = value.checked_add(len)?;
            let whole = value.is_multiple_of(8) && len.is_multiple_of(8) || !section.is_code();
            if end > section.size || !whole {
                return Some(false);
            }
        }
        Some(true)
    }

    /// A copy in which program sections have a name that the loader knows.
    pub(super) fn renamed(&self) -> Option<Vec<u8>> {
        let mut copy = self.bytes.to_vec();
        let strings = self.content(self.names)?;
        let (offset, new_name) = (copy.len(), u32::try_from(strings.len()).ok()?);
        copy.extend(strings);
        copy.extend(KNOWN);
        let len = copy.len() - offset;
        let names = self.sections.get(self.names)?.header;
        let mut put = |at: usize, bytes: &[u8]| {
            copy.get_mut(at..at + bytes.len()).map(|place| place.copy_from_slice(bytes))
        };
        put(names + 24, &u64::try_from(offset).ok()?.to_le_bytes())?;
        put(names + 32, &u64::try_from(len).ok()?.to_le_bytes())?;
        for section in self.sections.iter().filter(|section| section.has_programs()) {
            put(section.header, &new_name.to_le_bytes())?;
        }
        Some(copy)
    }
}
