//! What an ELF file offers: functions with their demangled names, and USDT probes, each with its offset in
//! the file, which is what the kernel takes.
//!
//! Only headers, symbol tables and notes are read, through a cache: programs with debug information are
//! large. What the file claims is checked by the reader (`object`) or here; an address that lies in no
//! segment of the file is left out.

use crate::demangle::demangle;
use crate::error::{Error, ErrorKind, Result};
use crate::usdt::{self, Argument};
use object::elf::{FileHeader64, PF_X, PT_LOAD, STT_FUNC};
use object::read::elf::{ElfFile, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _, ReadCache, SymbolFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name as its author wrote it.
    pub name: String,
    /// The same without parameters, where that differs.
    pub(crate) short: Option<String>,
    /// Where its first instruction lies in the file.
    pub offset: u64,
}

impl Function {
    /// All names that a pattern may match.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.short.as_deref())
    }
}

/// A USDT probe: one place where it stands; a name may have many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Whose it is.
    pub provider: String,
    /// What it is called.
    pub name: String,
    /// Where its instruction lies in the file.
    pub offset: u64,
    /// Where the counter lies that says whether somebody listens; 0 for none.
    pub semaphore: u64,
    /// What it tells.
    pub arguments: Vec<Argument>,
}

/// What is in a file.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Functions, by offset; of several names the first, global ones before local ones.
    pub functions: Vec<Function>,
    /// USDT probes, in the order of the file.
    pub probes: Vec<Probe>,
    /// It has no symbol table but that of what it exports.
    pub stripped: bool,
    /// Notes of probes that made no sense.
    pub broken: usize,
}

/// A piece of the file in memory.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
    executable: bool,
}

type Elf<'d> = ElfFile<'d, FileHeader64<Endianness>, &'d ReadCache<File>>;

impl Image {
    /// Reads the file at `path`; `shown` is what it is called in messages.
    ///
    /// # Errors
    /// When it cannot be opened, or is no whole 64-bit ELF file.
    pub fn read(path: &Path, shown: &str) -> Result<Self> {
        let bad = |what: String| Error::new(ErrorKind::BadFile, format!("{shown}: {what}"));
        let file =
            File::open(path).map_err(|error| Error::io(format!("cannot open {shown}"), &error))?;
        let length = file.metadata().map_or(0, |meta| if meta.is_file() { meta.len() } else { 0 });
        if length == 0 {
            return Err(bad("is no file with something in it".into()));
        }
        let cache = ReadCache::new(file);
        let elf = Elf::parse(&cache).map_err(|error| {
            bad(format!("no whole 64-bit ELF file: {}", error.to_string().to_lowercase()))
        })?;
        let segments = segments(&elf, &cache).map_err(|error| bad(error.to_string()))?;
        if segments.iter().any(|s| s.offset.checked_add(s.bytes).is_none_or(|end| end > length)) {
            return Err(bad("is cut short: a segment ends behind the file".into()));
        }
        let mut image = Self { stripped: elf.symbols().next().is_none(), ..Self::default() };
        image.read_functions(&elf, &segments);
        image.read_probes(&elf, &cache, &segments).map_err(bad)?;
        Ok(image)
    }

    fn read_functions(&mut self, elf: &Elf<'_>, segments: &[Segment]) {
        // By offset, the best name of each: a global one, then the first.
        let mut found: BTreeMap<u64, (bool, &str)> = BTreeMap::new();
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { continue };
            // An indirect function's code chooses another one, once.
            let kind = st_info.0 & 15;
            if kind != STT_FUNC.0 || symbol.is_undefined() {
                continue;
            }
            let at = offset_of(segments, symbol.address(), true);
            let (Some(offset), Ok(name)) = (at, symbol.name()) else { continue };
            if name.is_empty() {
                continue;
            }
            let global = symbol.is_global();
            let known = found.entry(offset).or_insert((global, name));
            if global && !known.0 {
                *known = (global, name);
            }
        }
        let function = |(offset, (_, name)): (u64, (bool, &str))| {
            let names = demangle(name);
            Function { name: names.full, short: names.short, offset }
        };
        self.functions = found.into_iter().map(function).collect();
    }

    fn read_probes(
        &mut self,
        elf: &Elf<'_>,
        cache: &ReadCache<File>,
        segments: &[Segment],
    ) -> std::result::Result<(), String> {
        let endian = elf.endian();
        let table = elf.elf_section_table();
        let section = |name: &[u8]| table.section_by_name(endian, name).map(|(_, section)| section);
        let Some(notes) = section(b".note.stapsdt") else { return Ok(()) };
        let bytes = notes
            .data(endian, cache)
            .map_err(|error| format!("its USDT notes: {}", error.to_string().to_lowercase()))?;
        let base = section(b".stapsdt.base").map(|section| section.sh_addr(endian));
        let (notes, broken) = usdt::notes(bytes);
        self.broken = broken;
        for note in notes {
            // A program may have been moved since its notes were made.
            let moved = base.map_or(0, |base| base.wrapping_sub(note.base));
            let at = offset_of(segments, note.location.wrapping_add(moved), true);
            let Some(offset) = at else {
                self.broken += 1;
                continue;
            };
            let semaphore = match note.semaphore {
                0 => Some(0),
                address => offset_of(segments, address.wrapping_add(moved), false),
            };
            let Some(semaphore) = semaphore else {
                self.broken += 1;
                continue;
            };
            let arguments = usdt::arguments(&note.arguments);
            let (provider, name) = (note.provider, note.name);
            self.probes.push(Probe { provider, name, offset, semaphore, arguments });
        }
        Ok(())
    }
}

/// What begins an unwinding of frames, or moves them.
const UNWINDERS: [(&str, &str); 4] = [
    ("_Unwind_RaiseException", "panics or exceptions"),
    ("__cxa_throw", "exceptions"),
    ("_Unwind_SjLj_RaiseException", "exceptions"),
    ("runtime.morestack", "Go, which moves its stacks"),
];
/// Files that only carry it out.
const PROVIDERS: [&str; 4] = ["libgcc_s", "libstdc++", "libc++abi", "libunwind"];

/// Whether code of the file may unwind frames, and by what: a symbol that begins it is there.
pub(crate) fn unwinds(path: &Path, name: &str) -> Option<&'static str> {
    if PROVIDERS.iter().any(|provider| name.starts_with(provider)) {
        return None;
    }
    let cache = ReadCache::new(File::open(path).ok()?);
    let elf = Elf::parse(&cache).ok()?;
    let mut symbols = elf.symbols().chain(elf.dynamic_symbols());
    symbols.find_map(|symbol| {
        let name = symbol.name().ok()?;
        UNWINDERS.iter().find(|(unwinder, _)| *unwinder == name).map(|(_, what)| *what)
    })
}

fn segments(elf: &Elf<'_>, cache: &ReadCache<File>) -> object::Result<Vec<Segment>> {
    let endian = elf.endian();
    let headers = elf.elf_header().program_headers(endian, cache)?;
    let loaded = headers.iter().filter(|header| header.p_type(endian) == PT_LOAD);
    let segment = |header: &object::elf::ProgramHeader64<Endianness>| Segment {
        address: header.p_vaddr(endian),
        offset: header.p_offset(endian),
        bytes: header.p_filesz(endian),
        executable: header.p_flags(endian).0 & PF_X.0 != 0,
    };
    Ok(loaded.map(segment).collect())
}

/// Where an address lies in the file; `code` for one that must be executable.
fn offset_of(segments: &[Segment], address: u64, code: bool) -> Option<u64> {
    let inside = |segment: &&Segment| {
        address.checked_sub(segment.address).is_some_and(|at| at < segment.bytes)
    };
    let segment = segments.iter().find(inside).filter(|segment| segment.executable || !code)?;
    segment.offset.checked_add(address - segment.address)
}

#[cfg(test)]
#[path = "elf_tests.rs"]
mod tests;
