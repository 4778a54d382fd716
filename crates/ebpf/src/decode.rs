//! From slots to typed instructions, with every check that needs no knowledge of values.
//!
//! What passes here can be interpreted and compiled without looking at its shape again:
//!
//! # Invariants
//! 1. Every jump leads to an instruction of the same function, never into the second slot of a 64-bit
//!    immediate, and no function runs over its end: execution stays inside the program.
//! 2. Functions are the ranges between the targets of local calls. The graph of calls has no cycle and
//!    at most [`FRAMES`] functions on a path, so that the stack of a run has a size known beforehand.
//! 3. R10 is never written, so that stack frames are where the caller put them.
//! 4. Every helper exists, and every map that is named exists; a named address inside a map lies inside
//!    the value.
//!
//! Types of values, initialisation, bounds of memory and ends of loops are the verifier's business
//! (feature `load`), and once more the interpreter's.

use crate::asm::{Alu, Atomic, Cond, Reg, Slot};
use crate::error::{Error, Result};
use crate::helper::Helper;
use crate::image::{MapDef, MapKind};

/// Functions on one path of calls, the program itself included.
pub(crate) const FRAMES: usize = 8;
/// Bytes of one function's stack frame.
pub(crate) const FRAME_SIZE: usize = 512;
/// Most slots of a program.
pub(crate) const MAX_SLOTS: usize = 65_536;

/// Second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Reg(Reg),
    Imm(i32),
}

/// Width of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    B,
    H,
    W,
    D,
}

impl Size {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::B => 1,
            Self::H => 2,
            Self::W => 4,
            Self::D => 8,
        }
    }

    fn of(op: u8) -> Self {
        match op & 0x18 {
            0x10 => Self::B,
            0x08 => Self::H,
            0x00 => Self::W,
            _ => Self::D,
        }
    }
}

/// One instruction. Positions are slot numbers in the whole program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insn {
    Alu {
        wide: bool,
        op: Alu,
        dst: Reg,
        src: Operand,
    },
    Neg {
        wide: bool,
        dst: Reg,
    },
    MovSx {
        wide: bool,
        bits: u8,
        dst: Reg,
        src: Reg,
    },
    /// Keep the lower `bits`, with bytes swapped if `swap`.
    Swap {
        swap: bool,
        bits: u8,
        dst: Reg,
    },
    Load64 {
        dst: Reg,
        value: u64,
    },
    Map {
        dst: Reg,
        map: usize,
    },
    MapValue {
        dst: Reg,
        map: usize,
        offset: usize,
    },
    Load {
        size: Size,
        signed: bool,
        dst: Reg,
        src: Reg,
        off: i16,
    },
    Store {
        size: Size,
        dst: Reg,
        off: i16,
        src: Operand,
    },
    Atomic {
        wide: bool,
        op: Atomic,
        dst: Reg,
        off: i16,
        src: Reg,
    },
    Jump {
        target: usize,
    },
    Branch {
        wide: bool,
        cond: Cond,
        dst: Reg,
        src: Operand,
        target: usize,
    },
    /// `map`: the map in R1, where that is plain to see.
    Call {
        helper: Helper,
        map: Option<usize>,
    },
    /// Function number.
    CallLocal {
        function: usize,
    },
    Exit,
    /// Second slot of a 64-bit immediate.
    Second,
}

/// A function: a range of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A program of the right shape.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    pub(crate) insns: Vec<Insn>,
    /// By start; the first is the program itself.
    pub(crate) functions: Vec<Function>,
    /// Functions on the longest path of calls.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the compiler"))]
    pub(crate) depth: usize,
}

/// Decodes the slots of a program that may use `maps`.
pub(crate) fn decode(bytes: &[u8], maps: &[MapDef]) -> Result<Code> {
    let (slots, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || slots.is_empty() || slots.len() > MAX_SLOTS {
        let what = format!("{} bytes are not 1 to {MAX_SLOTS} slots of 8", bytes.len());
        return Err(Error::program(0, what));
    }
    let slots: Vec<Slot> = slots.iter().map(|bytes| Slot::from_bytes(*bytes)).collect();
    let starts = function_starts(&slots)?;
    let mut insns = Vec::with_capacity(slots.len());
    while insns.len() < slots.len() {
        let at = insns.len();
        let insn = one(&slots, at, &starts, maps).map_err(|what| Error::program(at, what))?;
        insns.push(insn);
        if matches!(insn, Insn::Load64 { .. } | Insn::Map { .. } | Insn::MapValue { .. }) {
            insns.push(Insn::Second);
        }
    }
    let ends = starts.iter().skip(1).copied().chain([insns.len()]);
    let functions: Vec<_> =
        starts.iter().zip(ends).map(|(start, end)| Function { start: *start, end }).collect();
    for function in &functions {
        check_flow(&insns, function)?;
    }
    let depth = depth_of(&insns, &functions)?;
    name_maps_of_calls(&mut insns, &functions);
    Ok(Code { insns, functions, depth })
}

/// Slot 0 and the targets of local calls, in order.
fn function_starts(slots: &[Slot]) -> Result<Vec<usize>> {
    let mut starts = vec![0];
    let mut second = false;
    for (at, slot) in slots.iter().enumerate() {
        if second {
            second = false;
            continue;
        }
        second = slot.op == 0x18;
        if slot.op == 0x85 && slot.src == 1 {
            let target = relative(at, i64::from(slot.imm), slots.len());
            starts.push(target.ok_or_else(|| Error::program(at, "call leaves the program"))?);
        }
    }
    starts.sort_unstable();
    starts.dedup();
    Ok(starts)
}

fn relative(at: usize, off: i64, len: usize) -> Option<usize> {
    let target = i64::try_from(at).ok()?.checked_add(1)?.checked_add(off)?;
    usize::try_from(target).ok().filter(|target| *target < len)
}

type Shape<T> = core::result::Result<T, String>;

fn one(slots: &[Slot], at: usize, starts: &[usize], maps: &[MapDef]) -> Shape<Insn> {
    let slot = slots.get(at).ok_or("ends early")?;
    match slot.op & 0x07 {
        0x00 => wide_immediate(slot, slots.get(at + 1), maps),
        0x01..=0x03 => memory(slot),
        0x04 | 0x07 => arithmetic(slot),
        _ => flow(slot, at, slots.len(), starts),
    }
}

fn unknown(slot: &Slot) -> String {
    format!("operation {:#04x} (src {}, off {}) is unknown", slot.op, slot.src, slot.off)
}

/// A register that is read.
fn read(number: u8) -> Shape<Reg> {
    Reg::from_number(number).ok_or_else(|| format!("there is no register {number}"))
}

/// A register that is written.
fn written(number: u8) -> Shape<Reg> {
    match read(number)? {
        Reg::R10 => Err("R10 is read-only".to_owned()),
        reg => Ok(reg),
    }
}

fn unused(slot: &Slot, fields: &[(&str, i64)]) -> Shape<()> {
    match fields.iter().find(|(_, value)| *value != 0) {
        None => Ok(()),
        Some((name, value)) => Err(format!("{name} of {:#04x} is {value}, must be 0", slot.op)),
    }
}

/// Second operand by bit 3 of the operation; the other field must be 0.
fn operand(slot: &Slot) -> Shape<Operand> {
    if slot.op & 0x08 == 0 {
        unused(slot, &[("src", slot.src.into())])?;
        return Ok(Operand::Imm(slot.imm));
    }
    unused(slot, &[("imm", slot.imm.into())])?;
    read(slot.src).map(Operand::Reg)
}

fn wide_immediate(slot: &Slot, second: Option<&Slot>, maps: &[MapDef]) -> Shape<Insn> {
    if slot.op != 0x18 {
        return Err(unknown(slot));
    }
    let second = second.ok_or("a 64-bit immediate without its second slot")?;
    let dst = written(slot.dst)?;
    let others = [second.op, second.dst, second.src].into_iter().any(|field| field != 0);
    if others || slot.off != 0 || second.off != 0 {
        return Err("unused fields of a 64-bit immediate must be 0".to_owned());
    }
    let map = || {
        let index = usize::try_from(slot.imm).ok().filter(|index| *index < maps.len());
        let index = index.ok_or_else(|| format!("there is no map {}", slot.imm))?;
        maps.get(index).map(|def| (index, def)).ok_or_else(|| "no map".to_owned())
    };
    match slot.src {
        0 => {
            let halves = (slot.imm.cast_unsigned(), second.imm.cast_unsigned());
            let value = u64::from(halves.1) << 32 | u64::from(halves.0);
            Ok(Insn::Load64 { dst, value })
        }
        1 => {
            unused(slot, &[("second immediate", second.imm.into())])?;
            Ok(Insn::Map { dst, map: map()?.0 })
        }
        2 => {
            let (index, def) = map()?;
            let offset = usize::try_from(second.imm).unwrap_or(usize::MAX);
            let size = usize::try_from(def.value_size).unwrap_or(0);
            if def.kind != MapKind::Array || offset >= size {
                return Err(format!("offset {} is outside the value of map {index}", second.imm));
            }
            Ok(Insn::MapValue { dst, map: index, offset })
        }
        other => Err(format!("a 64-bit immediate of kind {other} is unknown")),
    }
}

fn memory(slot: &Slot) -> Shape<Insn> {
    let (class, mode, size) = (slot.op & 0x07, slot.op & 0xe0, Size::of(slot.op));
    let off = slot.off;
    match (class, mode) {
        (0x01, 0x60) => {
            unused(slot, &[("imm", slot.imm.into())])?;
            let (dst, src) = (written(slot.dst)?, read(slot.src)?);
            Ok(Insn::Load { size, signed: false, dst, src, off })
        }
        (0x01, 0x80) if size != Size::D => {
            unused(slot, &[("imm", slot.imm.into())])?;
            let (dst, src) = (written(slot.dst)?, read(slot.src)?);
            Ok(Insn::Load { size, signed: true, dst, src, off })
        }
        (0x02, 0x60) => {
            unused(slot, &[("src", slot.src.into())])?;
            Ok(Insn::Store { size, dst: read(slot.dst)?, off, src: Operand::Imm(slot.imm) })
        }
        (0x03, 0x60) => {
            unused(slot, &[("imm", slot.imm.into())])?;
            let src = Operand::Reg(read(slot.src)?);
            Ok(Insn::Store { size, dst: read(slot.dst)?, off, src })
        }
        (0x03, 0xc0) if matches!(size, Size::W | Size::D) => {
            let op = Atomic::ALL.into_iter().find(|op| op.code() == slot.imm);
            let op = op.ok_or_else(|| format!("atomic operation {:#x} is unknown", slot.imm))?;
            let dst = read(slot.dst)?;
            let writes = op.code() & 1 != 0 && op != Atomic::CmpXchg;
            let src = if writes { written(slot.src)? } else { read(slot.src)? };
            Ok(Insn::Atomic { wide: size == Size::D, op, dst, off, src })
        }
        _ => Err(unknown(slot)),
    }
}

fn arithmetic(slot: &Slot) -> Shape<Insn> {
    let wide = slot.op & 0x07 == 0x07;
    let dst = written(slot.dst)?;
    match slot.op & 0xf0 {
        0x80 if slot.op & 0x08 == 0 => {
            let fields =
                [("src", slot.src.into()), ("off", slot.off.into()), ("imm", slot.imm.into())];
            unused(slot, &fields)?;
            return Ok(Insn::Neg { wide, dst });
        }
        0xd0 => {
            unused(slot, &[("src", slot.src.into()), ("off", slot.off.into())])?;
            let bits = u8::try_from(slot.imm).ok().filter(|bits| [16, 32, 64].contains(bits));
            let bits = bits.ok_or_else(|| format!("{} bits cannot be swapped", slot.imm))?;
            let swap = match (wide, slot.op & 0x08 != 0) {
                (false, big) => big,
                (true, false) => true,
                (true, true) => return Err(unknown(slot)),
            };
            return Ok(Insn::Swap { swap, bits, dst });
        }
        0xb0 if slot.off != 0 => {
            unused(slot, &[("imm", slot.imm.into())])?;
            let fits = matches!((slot.off, wide), (8 | 16, _) | (32, true));
            let bits = u8::try_from(slot.off).ok().filter(|_| fits && slot.op & 0x08 != 0);
            let bits = bits.ok_or_else(|| unknown(slot))?;
            return Ok(Insn::MovSx { wide, bits, dst, src: read(slot.src)? });
        }
        _ => {}
    }
    const OPS: [Alu; 14] = [
        Alu::Add,
        Alu::Sub,
        Alu::Mul,
        Alu::Div,
        Alu::Or,
        Alu::And,
        Alu::Lsh,
        Alu::Rsh,
        Alu::Mod,
        Alu::Xor,
        Alu::Mov,
        Alu::Arsh,
        Alu::SDiv,
        Alu::SMod,
    ];
    let code = (slot.op & 0xf0, slot.off);
    let op = OPS.into_iter().find(|op| op.code() == code).ok_or_else(|| unknown(slot))?;
    Ok(Insn::Alu { wide, op, dst, src: operand(slot)? })
}

fn flow(slot: &Slot, at: usize, len: usize, starts: &[usize]) -> Shape<Insn> {
    let to = |off: i64| relative(at, off, len).ok_or("jump leaves the program");
    let no_regs = [("dst", slot.dst.into()), ("src", slot.src.into())];
    match slot.op {
        0x05 => {
            unused(slot, &no_regs)?;
            unused(slot, &[("imm", slot.imm.into())])?;
            return Ok(Insn::Jump { target: to(slot.off.into())? });
        }
        0x06 => {
            unused(slot, &no_regs)?;
            unused(slot, &[("off", slot.off.into())])?;
            return Ok(Insn::Jump { target: to(slot.imm.into())? });
        }
        0x85 => {
            unused(slot, &[("dst", slot.dst.into()), ("off", slot.off.into())])?;
            return call(slot, at, len, starts);
        }
        0x95 => {
            unused(slot, &no_regs)?;
            unused(slot, &[("off", slot.off.into()), ("imm", slot.imm.into())])?;
            return Ok(Insn::Exit);
        }
        _ => {}
    }
    const CONDS: [Cond; 11] = [
        Cond::Eq,
        Cond::Gt,
        Cond::Ge,
        Cond::Set,
        Cond::Ne,
        Cond::Sgt,
        Cond::Sge,
        Cond::Lt,
        Cond::Le,
        Cond::Slt,
        Cond::Sle,
    ];
    let cond = CONDS.into_iter().find(|cond| *cond as u8 == slot.op & 0xf0);
    let cond = cond.ok_or_else(|| unknown(slot))?;
    let wide = slot.op & 0x07 == 0x05;
    let target = to(slot.off.into())?;
    Ok(Insn::Branch { wide, cond, dst: read(slot.dst)?, src: operand(slot)?, target })
}

fn call(slot: &Slot, at: usize, len: usize, starts: &[usize]) -> Shape<Insn> {
    match slot.src {
        0 => match Helper::from_number(slot.imm) {
            Some(helper) => Ok(Insn::Call { helper, map: None }),
            None => Err(format!("helper {} does not exist here", slot.imm)),
        },
        1 => {
            let target = relative(at, slot.imm.into(), len).ok_or("call leaves the program")?;
            let function = starts.binary_search(&target).map_err(|_| "call into nowhere")?;
            Ok(Insn::CallLocal { function })
        }
        _ => Err("only helpers and functions of the program can be called".to_owned()),
    }
}

/// Invariant 1, for one function.
fn check_flow(insns: &[Insn], function: &Function) -> Result<()> {
    let range = function.start..function.end;
    for at in range.clone() {
        let target = match insns.get(at) {
            Some(Insn::Jump { target } | Insn::Branch { target, .. }) => *target,
            _ => continue,
        };
        if !range.contains(&target) {
            return Err(Error::program(at, "jump leaves its function"));
        }
        if matches!(insns.get(target), None | Some(Insn::Second)) {
            return Err(Error::program(at, "jump into the middle of a 64-bit immediate"));
        }
    }
    let last = range.end.saturating_sub(1);
    match insns.get(last) {
        Some(Insn::Exit | Insn::Jump { .. }) => Ok(()),
        _ => Err(Error::program(last, "the function runs over its end")),
    }
}

/// Functions on the longest path of calls.
fn depth_of(insns: &[Insn], functions: &[Function]) -> Result<usize> {
    /// Depth of each function that is done; `Some(0)`: being looked at.
    fn visit(
        at: usize,
        level: usize,
        insns: &[Insn],
        functions: &[Function],
        done: &mut [Option<usize>],
    ) -> Result<usize> {
        let Some(function) = functions.get(at) else { return Ok(0) };
        match done.get(at).copied().flatten() {
            Some(0) => return Err(Error::program(function.start, "the function calls itself")),
            Some(depth) if level + depth - 1 <= FRAMES => return Ok(depth),
            None if level <= FRAMES => {}
            _ => {
                let what = format!("more than {FRAMES} functions call each other");
                return Err(Error::program(function.start, what));
            }
        }
        let set = |done: &mut [Option<usize>], depth| {
            if let Some(entry) = done.get_mut(at) {
                *entry = Some(depth);
            }
        };
        set(done, 0);
        let mut depth = 1;
        for insn in insns.get(function.start..function.end).unwrap_or(&[]) {
            if let Insn::CallLocal { function } = insn {
                depth = depth.max(1 + visit(*function, level + 1, insns, functions, done)?);
            }
        }
        set(done, depth);
        Ok(depth)
    }
    let mut done = vec![None; functions.len()];
    let mut deepest = 0;
    // Functions that nobody calls are looked at, too: they are compiled like the others.
    for at in 0..functions.len() {
        let depth = visit(at, 1, insns, functions, &mut done)?;
        if at == 0 {
            deepest = depth;
        }
    }
    Ok(deepest)
}

/// Writes into each call of a helper which map R1 holds, if its last write before the call, with no
/// other way to the call, is a map.
fn name_maps_of_calls(insns: &mut [Insn], functions: &[Function]) {
    let mut reached = vec![false; insns.len()];
    for function in functions {
        if let Some(reached) = reached.get_mut(function.start) {
            *reached = true;
        }
    }
    for insn in insns.iter() {
        if let Insn::Jump { target } | Insn::Branch { target, .. } = insn
            && let Some(reached) = reached.get_mut(*target)
        {
            *reached = true;
        }
    }
    let mut known = None;
    for (insn, reached) in insns.iter_mut().zip(reached) {
        if reached {
            known = None;
        }
        match insn {
            Insn::Map { dst: Reg::R1, map } => known = Some(*map),
            Insn::Call { map, .. } => {
                *map = known;
                known = None;
            }
            Insn::CallLocal { .. } | Insn::Exit | Insn::Jump { .. } => known = None,
            other if writes(other) == Some(Reg::R1) => known = None,
            _ => {}
        }
    }
}

/// The register that an instruction without a call writes.
fn writes(insn: &Insn) -> Option<Reg> {
    match *insn {
        Insn::Alu { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::Load64 { dst, .. }
        | Insn::Map { dst, .. }
        | Insn::MapValue { dst, .. }
        | Insn::Load { dst, .. } => Some(dst),
        Insn::Atomic { op: Atomic::CmpXchg, .. } => Some(Reg::R0),
        Insn::Atomic { op, src, .. } if op.code() & 1 != 0 => Some(src),
        _ => None,
    }
}
