//! USDT probes: the notes of section `.note.stapsdt`, and where a probe's arguments are.
//!
//! A note is three addresses (of the probe, of `.stapsdt.base` when the program was linked, of the
//! probe's semaphore or 0) and three texts: provider, name, arguments. An argument is `N@OPERAND`: `N`
//! bytes, signed if negative, at an operand in the assembler's words (AT&T):
//!
//! | operand | read |
//! |---|---|
//! | `$5` | by us: it is the value |
//! | `%edi` | from the registers of the hit |
//! | `-8(%rbp)`, `(%rax,%rcx,4)`, `8(,%rdx,8)` | from memory, in the kernel, at the hit |
//! | anything else: `%xmm0`, `sym(%rip)`, `8f@..` | not at all; the argument is left out |

use crate::program::{OPERANDS, Operand, ZERO};

/// Bytes of a note's header.
const HEADER: usize = 12;
/// What the description's type is.
const NT_STAPSDT: u32 = 3;
/// Arguments of one probe at most; the twelve of `sys/sdt.h`.
const ARGUMENTS: usize = 12;

/// One note, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) location: u64,
    pub(crate) base: u64,
    pub(crate) semaphore: u64,
    pub(crate) provider: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// The notes of a section. Those of other kinds are passed over; a note that does not fit ends it, and
/// is counted.
pub(crate) fn notes(mut bytes: &[u8]) -> (Vec<Note>, usize) {
    let mut notes = Vec::new();
    let mut broken = 0;
    while bytes.len() >= HEADER {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4).and_then(|word| word.first_chunk::<4>());
            word.map_or(0, |word| u32::from_le_bytes(*word))
        };
        let (owner, size, kind) = (word(0) as usize, word(4) as usize, word(8));
        let padded = |len: usize| len.checked_next_multiple_of(4);
        let begin = padded(owner).and_then(|len| len.checked_add(HEADER));
        let end = begin.and_then(|begin| begin.checked_add(size));
        let (Some(begin), Some(end)) = (begin, end) else { return (notes, broken + 1) };
        let Some(description) = bytes.get(begin..end) else { return (notes, broken + 1) };
        let ours = kind == NT_STAPSDT && bytes.get(HEADER..HEADER + owner) == Some(b"stapsdt\0");
        if ours {
            match note(description) {
                Some(note) => notes.push(note),
                None => broken += 1,
            }
        }
        // The last note's padding may be missing.
        bytes = padded(end).and_then(|next| bytes.get(next..)).unwrap_or_default();
    }
    (notes, broken)
}

fn note(description: &[u8]) -> Option<Note> {
    let (addresses, texts) = description.split_first_chunk::<24>()?;
    let address = |at: usize| {
        let word = addresses.get(at * 8..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*word))
    };
    let mut texts = texts.split(|&byte| byte == 0);
    let mut text = || Some(String::from_utf8_lossy(texts.next()?).into_owned());
    let (provider, name, arguments) = (text()?, text()?, text()?);
    // Each text is ended by a NUL, so that there is a rest.
    texts.next()?;
    if provider.is_empty() || name.is_empty() {
        return None;
    }
    let (location, base, semaphore) = (address(0)?, address(1)?, address(2)?);
    Some(Note { location, base, semaphore, provider, name, arguments })
}

/// Where an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is this number.
    Constant(i64),
    /// In a register: its slot, and by how many bits to shift it (`%ah`).
    Register(u8, u8),
    /// In memory.
    Memory(Operand),
    /// In a place that is not understood.
    Unknown,
}

/// One argument of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// 1, 2, 4 or 8 bytes.
    pub(crate) size: u8,
    pub(crate) signed: bool,
    pub(crate) place: Place,
}

impl Argument {
    /// Whether its value can be recorded.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.place != Place::Unknown
    }
}

/// What a note says of the arguments.
pub(crate) fn arguments(text: &str) -> Vec<Argument> {
    // Compilers put no space into an operand.
    let words = text.split_ascii_whitespace().take(ARGUMENTS);
    let mut operands = 0;
    words
        .map(|word| {
            let mut argument = argument(word);
            if let Place::Memory(_) = argument.place {
                operands += 1;
                if operands > OPERANDS {
                    argument.place = Place::Unknown;
                }
            }
            argument
        })
        .collect()
}

fn argument(word: &str) -> Argument {
    // GCC before 5 left the size out.
    let (size, operand) = word.split_once('@').unwrap_or(("8", word));
    let size: i64 = size.parse().unwrap_or(0);
    let (signed, bytes) = (size < 0, size.unsigned_abs());
    if ![1, 2, 4, 8].contains(&bytes) {
        return Argument { size: 8, signed: false, place: Place::Unknown };
    }
    let place = place(operand, bytes as u8).unwrap_or(Place::Unknown);
    Argument { size: bytes as u8, signed, place }
}

fn place(operand: &str, size: u8) -> Option<Place> {
    if let Some(number) = operand.strip_prefix('$') {
        return Some(Place::Constant(constant(number)?));
    }
    if operand.starts_with('%') {
        let (slot, shift) = register(operand)?;
        return Some(Place::Register(slot, shift));
    }
    let (displacement, rest) = operand.split_once('(')?;
    let inside = rest.strip_suffix(')')?;
    let displacement = match displacement {
        "" => 0,
        number => i32::try_from(constant(number)?).ok()?,
    };
    let mut parts = inside.split(',').map(str::trim);
    let slot = |name: &str| match name {
        "" => Some(ZERO),
        name => register(name).map(|(slot, _)| slot),
    };
    let (base, index) = (slot(parts.next()?)?, slot(parts.next().unwrap_or(""))?);
    let shift = match parts.next().unwrap_or("1") {
        "1" | "" => 0,
        "2" => 1,
        "4" => 2,
        "8" => 3,
        _ => return None,
    };
    Some(Place::Memory(Operand { base, index, shift, size, displacement }))
}

fn constant(text: &str) -> Option<i64> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    let value = value.cast_signed();
    Some(if negative { value.wrapping_neg() } else { value })
}

/// The registers that have names of their own for their parts, in the order of their slots.
const NAMED: [&str; 8] = ["ax", "bx", "cx", "dx", "si", "di", "bp", "sp"];

/// A register's slot, and by how many bits its value is to be shifted right.
fn register(name: &str) -> Option<(u8, u8)> {
    let name = name.strip_prefix('%')?;
    if name == "rip" {
        // The operand is an address of the program, not of the machine.
        return None;
    }
    if let Some(numbered) = name.strip_prefix('r')
        && let Ok(number) = numbered.trim_end_matches(['d', 'w', 'b']).parse::<u8>()
    {
        return (8..16).contains(&number).then_some((number, 0));
    }
    let letter = |high: bool| {
        let first = name.strip_suffix(if high { 'h' } else { 'l' })?;
        NAMED.iter().take(4).position(|named| named.strip_suffix('x') == Some(first))
    };
    let whole = name.strip_prefix(['r', 'e']).unwrap_or(name);
    let low = name.strip_suffix('l').unwrap_or(name);
    let of = |name: &str| NAMED.iter().position(|named| *named == name);
    let (slot, shift) = match (of(whole), letter(true), letter(false)) {
        (Some(slot), _, _) => (slot, 0),
        (_, Some(slot), _) => (slot, 8),
        (_, _, Some(slot)) => (slot, 0),
        // sil, dil, bpl, spl.
        _ => (of(low)?, 0),
    };
    Some((u8::try_from(slot).ok()?, shift))
}

#[cfg(test)]
#[path = "usdt_tests.rs"]
mod tests;
