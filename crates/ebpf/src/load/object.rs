//! From an object file to an image: `aya-obj` parses it, relocates maps and links functions; this module
//! renames what it does not know ([`super::elf`]), translates maps, and keeps the source line of every
//! instruction.

use std::collections::{BTreeMap, HashSet};

use aya_obj::generated::{bpf_insn, bpf_line_info};
use aya_obj::{Function, Object};

use super::SourceLine;
use super::elf::Elf;
use crate::asm::Slot;
use crate::error::{Error, Result};
use crate::image::{Image, MapDef, MapKind, ProgramDef, ProgramKind};

/// Source lines of a program, by slot.
pub(super) type Lines = BTreeMap<usize, SourceLine>;

/// An image that nobody has verified.
pub(super) struct Loaded {
    pub(super) image: Image,
    /// For each program.
    pub(super) lines: Vec<Lines>,
}

fn object(what: impl Into<String>) -> Error {
    Error::Object(what.into())
}

/// All causes of an error in one line.
fn told(error: &dyn std::error::Error) -> Error {
    let mut what = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        what = format!("{what}: {error}");
        cause = error.source();
    }
    Error::Object(what)
}

/// Loads an object.
pub(super) fn load(bytes: &[u8]) -> Result<Loaded> {
    let elf = Elf::parse(bytes)?;
    for section in elf.sections.iter().filter(|section| section.has_programs()) {
        purpose(&section.name)?;
    }
    let copy = elf.renamed().ok_or_else(|| object("its section names are damaged"))?;
    let mut parsed = Object::parse(&copy).map_err(|error| told(&error))?;
    let (maps, numbers) = maps(&parsed)?;
    let code: HashSet<usize> = parsed.functions.keys().map(|(section, _)| *section).collect();
    let kept: Vec<_> = parsed.maps.iter().map(|(name, map)| (name.clone(), map.clone())).collect();
    let numbered = kept.iter().map(|(name, map)| {
        let number = numbers.get(name.as_str()).copied().unwrap_or(i32::MAX);
        (name.as_str(), number, map)
    });
    parsed.relocate_maps(numbered, &code).map_err(|error| told(&error))?;
    for function in parsed.functions.values_mut() {
        mark_origins(function);
    }
    parsed.relocate_calls(&code).map_err(|error| told(&error))?;
    let known = known_lines(&elf);
    let mut found: Vec<_> = parsed.programs.iter().collect();
    found.sort_by_key(|(_, program)| program.function_key());
    let (mut programs, mut lines) = (Vec::new(), Vec::new());
    for (name, program) in found {
        let section = elf.sections.get(program.section_index).map_or("", |section| &section.name);
        let (kind, pattern) = purpose(section)?;
        let function = parsed.functions.get(&program.function_key());
        let function = function.ok_or_else(|| object(format!("{name} has no code")))?;
        let code = function.instructions.iter().flat_map(|insn| slot(insn).to_bytes()).collect();
        programs.push(ProgramDef { name: name.clone(), kind, pattern: pattern.to_owned(), code });
        lines.push(lines_of(function, &elf, &known));
    }
    if programs.is_empty() {
        return Err(object(
            "no program: put functions into SEC(\"entry\"), \"exit\" or \"session\"",
        ));
    }
    Ok(Loaded { image: Image { maps, programs }, lines })
}

/// What a section name says.
fn purpose(section: &str) -> Result<(ProgramKind, &str)> {
    let (kind, pattern) = section.split_once('/').unwrap_or((section, ""));
    let kind = match kind {
        "entry" => ProgramKind::Entry,
        "exit" => ProgramKind::Exit,
        "session" => ProgramKind::Session,
        _ => {
            return Err(object(format!(
                "section {section}: programs are in \"entry\", \"exit\" or \"session\", each with /PATTERN or without"
            )));
        }
    };
    Ok((kind, pattern))
}

/// The maps in the order of their names, and their numbers.
fn maps(object: &Object) -> Result<(Vec<MapDef>, BTreeMap<String, i32>)> {
    /// BPF_F_NO_PREALLOC, BPF_F_RDONLY_PROG, BPF_F_MMAPABLE: wishes that change nothing here.
    const IDLE_FLAGS: u32 = 1 | 1 << 7 | 1 << 10;
    let mut sorted: Vec<_> = object.maps.iter().collect();
    sorted.sort_by_key(|(name, _)| *name);
    let (mut defs, mut numbers) = (Vec::new(), BTreeMap::new());
    for (name, map) in sorted {
        let kind = MapKind::from_number(map.map_type()).ok_or_else(|| {
            let known = "hash, array, per-CPU array, ring buffer";
            Error::map(name, format!("type {} is not one of {known}", map.map_type()))
        })?;
        if map.map_flags() & !IDLE_FLAGS != 0 {
            return Err(Error::map(name, format!("flags {:#x} are unknown", map.map_flags())));
        }
        let mut data = map.data().to_vec();
        // Zeros are there without being said.
        data.truncate(data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        let def = MapDef {
            name: name.clone(),
            kind,
            key_size: map.key_size(),
            value_size: map.value_size(),
            max_entries: map.max_entries(),
            data,
        };
        def.check()?;
        numbers.insert(name.clone(), i32::try_from(defs.len()).unwrap_or(i32::MAX));
        defs.push(def);
    }
    Ok((defs, numbers))
}

fn slot(insn: &bpf_insn) -> Slot {
    Slot { op: insn.code, dst: insn.dst_reg(), src: insn.src_reg(), off: insn.off, imm: insn.imm }
}

/// Gives every instruction a line record that says where in the object it is from. The linker moves
/// records along with instructions.
fn mark_origins(function: &mut Function) {
    let number = |n: usize| u32::try_from(n).unwrap_or(0);
    let section = number(function.section_index.0);
    let origin = |at: usize| bpf_line_info {
        insn_off: number(at),
        file_name_off: section,
        line_off: number(function.section_offset + 8 * at),
        line_col: 0,
    };
    let records: Vec<_> = (0..function.instructions.len()).map(origin).collect();
    function.line_info.num_info = number(records.len());
    function.line_info.line_info = records;
}

/// Source lines by section and byte offset.
type Known = BTreeMap<(String, usize), SourceLine>;

fn known_lines(elf: &Elf<'_>) -> Known {
    let sections = elf.named(".BTF").zip(elf.named(".BTF.ext"));
    // Without debug information, or with damaged one, there are no lines; that is no error.
    let records = sections
        .and_then(|(btf, ext)| prevail::btf::parse::parse_line_information(btf, ext).ok())
        .unwrap_or_default();
    let line = |record: prevail::btf::parse::LineInfoRecord| {
        let at = usize::try_from(record.instruction_offset).unwrap_or(usize::MAX);
        let line = SourceLine {
            file: record.file_name,
            line: record.line_number,
            text: record.source.trim().to_owned(),
        };
        ((record.section, at), line)
    };
    records.into_iter().map(line).filter(|(_, line)| line.line != 0).collect()
}

fn lines_of(function: &Function, elf: &Elf<'_>, known: &Known) -> Lines {
    let mut lines = Lines::new();
    for record in &function.line_info.line_info {
        let index = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let section = elf.sections.get(index(record.file_name_off));
        let Some(section) = section.map(|section| section.name.clone()) else { continue };
        let place = (section.clone(), index(record.line_off));
        // The last record at or before it.
        if let Some(((of, _), line)) = known.range(..=place).next_back()
            && *of == section
        {
            lines.insert(index(record.insn_off), line.clone());
        }
    }
    lines
}
