//! Follows records that are reserved in ring buffers through a program, on every way through it: what
//! `prevail` 0.2.6, which knows their bounds, has no notion of.
//!
//! Refused is a program that on some way
//! - ends, or reserves at the same place again, before a record is submitted or discarded;
//! - touches or ends a record that it has ended;
//! - ends what is no record, may be 0, or is an address inside a record;
//! - reserves a record of a size that is not plainly a constant, or more records at once than a run may have;
//! - puts the address of a record, or of the stack, where it cannot be followed.
//!
//! The program is run in the abstract: a [`State`] says of registers and stack slots what is known about
//! addresses, and nothing about numbers but whether they are 0. States are never joined; there are finitely
//! many, each is looked at once, and a program with too many of them is refused.
//!
//! What the records' sizes are is told to `prevail`, which then takes a record for the value of a map, with
//! its bounds, and for 0 until it is compared. So whatever it lets a program follow here is a live record or
//! something that no reservation gave: an address of a record that was ended is refused wherever it is used,
//! and there is no place from which it could come back unseen.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::asm::{Alu, Atomic, Cond, Reg};
use crate::decode::{Code, Insn, Operand, Size};
use crate::helper::{Arg, Helper};
use crate::reserved::MOST;

/// States that are looked at before the verifier gives up.
const STATES: usize = 100_000;
/// Offsets into a frame beyond which an address is just somewhere.
const NEAR: i32 = 4096;

/// A reason and its place.
type Outcome<T> = Result<T, (usize, String)>;

/// What is known of a value. Records are told apart by the slot of the call that reserved them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Tag {
    Other,
    /// A number just loaded; other than 0 in R2 only, where sizes are.
    Number(i32),
    /// A map, and the slot that loaded it.
    Map(usize),
    /// A place in a frame: level and offset.
    Stack(usize, i32),
    /// Somewhere in the stack.
    Somewhere,
    /// A record, or 0.
    Maybe(usize),
    Record(usize),
    /// Inside a record.
    Inside(usize),
    /// In a record that was ended.
    Ended,
}

impl Tag {
    fn is_address(self) -> bool {
        matches!(
            self,
            Self::Stack(..)
                | Self::Somewhere
                | Self::Maybe(_)
                | Self::Record(_)
                | Self::Inside(_)
                | Self::Ended
        )
    }

    fn is_of(self, record: usize) -> bool {
        matches!(self, Self::Maybe(r) | Self::Record(r) | Self::Inside(r) if r == record)
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Frame {
    /// Where the caller goes on, and its R6 to R9.
    back: usize,
    kept: [Tag; 4],
    /// What lies in aligned words, if it is an address.
    slots: BTreeMap<i32, Tag>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    at: usize,
    regs: [Tag; 11],
    frames: Vec<Frame>,
    open: BTreeSet<usize>,
}

/// Sizes of the records that are reserved with the map that a slot loads.
pub(super) type Sizes = BTreeMap<usize, u32>;

/// Follows all reservations.
pub(super) fn follow(code: &Code) -> Outcome<Sizes> {
    let ends = |helper| matches!(helper, Helper::RingSubmit | Helper::RingDiscard);
    let concerned = |insn: &Insn| matches!(insn, Insn::Call { helper, .. } if ends(*helper) || *helper == Helper::RingReserve);
    let mut sizes = Sizes::new();
    if !code.insns.iter().any(concerned) {
        return Ok(sizes);
    }
    let mut regs = [Tag::Other; 11];
    regs[10] = Tag::Stack(0, 0);
    let frame = Frame { back: 0, kept: [Tag::Other; 4], slots: BTreeMap::new() };
    let mut waiting = vec![State { at: 0, regs, frames: vec![frame], open: BTreeSet::new() }];
    let mut seen = HashSet::new();
    while let Some(mut state) = waiting.pop() {
        while let Some(insn) = code.insns.get(state.at).copied() {
            let at = state.at;
            let next = state.step(insn, code, &mut sizes).map_err(|why| (at, why))?;
            let Some(other) = next else { break };
            if let Some(other) = other
                && seen.insert(other.clone())
            {
                waiting.push(other);
            }
            // Every loop jumps.
            if matches!(insn, Insn::Jump { .. } | Insn::Branch { .. })
                && !seen.insert(state.clone())
            {
                break;
            }
            if seen.len() > STATES {
                return Err((at, "there are too many ways to follow its reservations".to_owned()));
            }
        }
    }
    Ok(sizes)
}

impl State {
    fn get(&self, reg: Reg) -> Tag {
        self.regs.get(usize::from(reg.number())).copied().unwrap_or(Tag::Other)
    }

    fn set(&mut self, reg: Reg, tag: Tag) {
        let tag = match tag {
            Tag::Number(n) if n != 0 && reg != Reg::R2 => Tag::Other,
            tag => tag,
        };
        if let Some(entry) = self.regs.get_mut(usize::from(reg.number())) {
            *entry = tag;
        }
    }

    /// All places that hold something.
    fn places(&mut self) -> impl Iterator<Item = &mut Tag> {
        let frames = self.frames.iter_mut();
        let in_frames = frames.flat_map(|f| f.kept.iter_mut().chain(f.slots.values_mut()));
        self.regs.iter_mut().chain(in_frames)
    }

    fn replace(&mut self, of: impl Fn(Tag) -> bool, with: Tag) {
        self.places().filter(|tag| of(**tag)).for_each(|tag| *tag = with);
    }

    /// Moves on by one instruction: `None` at the end, and a second state where there are two ways.
    fn step(
        &mut self,
        insn: Insn,
        code: &Code,
        sizes: &mut Sizes,
    ) -> Result<Option<Option<Self>>, String> {
        let at = self.at;
        self.at += 1;
        match insn {
            Insn::Alu { wide, op, dst, src } => self.alu(wide, op, dst, src)?,
            Insn::Neg { dst, .. }
            | Insn::MovSx { dst, .. }
            | Insn::Swap { dst, .. }
            | Insn::MapValue { dst, .. } => self.set(dst, Tag::Other),
            Insn::Load64 { dst, value } => {
                self.set(dst, if value == 0 { Tag::Number(0) } else { Tag::Other });
            }
            Insn::Map { dst, .. } => self.set(dst, Tag::Map(at)),
            Insn::Load { size, signed, dst, src, off } => {
                let tag = self.load(src, off.into(), size == Size::D && !signed)?;
                self.set(dst, tag);
            }
            Insn::Store { size, dst, off, src } => {
                let tag = match src {
                    Operand::Reg(src) => self.get(src),
                    Operand::Imm(_) => Tag::Other,
                };
                self.store(size.bytes(), dst, off.into(), tag)?;
            }
            Insn::Atomic { wide, op, dst, off, src } => {
                self.store(if wide { 8 } else { 4 }, dst, off.into(), Tag::Other)?;
                match op {
                    Atomic::CmpXchg => self.set(Reg::R0, Tag::Other),
                    op if op.code() & 1 != 0 => self.set(src, Tag::Other),
                    _ => {}
                }
            }
            Insn::Jump { target } => self.at = target,
            Insn::Branch { wide, cond, dst, src, target } => {
                return Ok(Some(self.branch(wide, cond, dst, src, target)));
            }
            Insn::Call { helper, .. } => self.call(at, helper, sizes)?,
            Insn::CallLocal { function } => {
                let kept = [Reg::R6, Reg::R7, Reg::R8, Reg::R9].map(|reg| self.get(reg));
                self.set(Reg::R10, Tag::Stack(self.frames.len(), 0));
                self.frames.push(Frame { back: self.at, kept, slots: BTreeMap::new() });
                self.at = code.functions.get(function).map_or(usize::MAX, |f| f.start);
            }
            Insn::Exit => return self.exit(),
            Insn::Second => {}
        }
        Ok(Some(None))
    }

    fn alu(&mut self, wide: bool, op: Alu, dst: Reg, src: Operand) -> Result<(), String> {
        let (old, by) = match src {
            Operand::Reg(src) => (self.get(dst), self.get(src)),
            Operand::Imm(imm) => (self.get(dst), Tag::Number(imm)),
        };
        let tag = match (op, src) {
            (Alu::Mov, Operand::Imm(imm)) if wide || imm >= 0 => Tag::Number(imm),
            (Alu::Mov, Operand::Reg(_)) if wide => by,
            (Alu::Add | Alu::Sub, _) if wide => sum(op, old, by)?,
            _ => Tag::Other,
        };
        self.set(dst, tag);
        Ok(())
    }

    fn load(&self, base: Reg, off: i32, word: bool) -> Result<Tag, String> {
        match self.get(base) {
            Tag::Ended => Err(TOUCHED.to_owned()),
            Tag::Stack(level, at) if word => {
                let frame = self.frames.get(level);
                let found = frame.and_then(|frame| frame.slots.get(&(at + off)));
                Ok(found.copied().unwrap_or(Tag::Other))
            }
            Tag::Somewhere if self.frames.iter().any(|frame| !frame.slots.is_empty()) => {
                Err(LOST.to_owned())
            }
            _ => Ok(Tag::Other),
        }
    }

    fn store(&mut self, bytes: usize, base: Reg, off: i32, tag: Tag) -> Result<(), String> {
        let base = self.get(base);
        if base == Tag::Ended {
            return Err(TOUCHED.to_owned());
        }
        if let Tag::Stack(level, at) = base
            && let Some(frame) = self.frames.get_mut(level)
        {
            let (at, bytes) = (at + off, i32::try_from(bytes).unwrap_or(8));
            frame.slots.retain(|slot, _| *slot + 8 <= at || at + bytes <= *slot);
            if tag.is_address() && bytes == 8 && at % 8 == 0 {
                frame.slots.insert(at, tag);
                return Ok(());
            }
        }
        if tag.is_address() { Err(LOST.to_owned()) } else { Ok(()) }
    }

    /// Takes one way, and returns the other one if there is one.
    fn branch(
        &mut self,
        wide: bool,
        cond: Cond,
        dst: Reg,
        src: Operand,
        target: usize,
    ) -> Option<Self> {
        let with_null = wide && src == Operand::Imm(0) && matches!(cond, Cond::Eq | Cond::Ne);
        let mut jumps = self.clone();
        jumps.at = target;
        if !with_null {
            return Some(jumps);
        }
        let null = if cond == Cond::Eq { &mut jumps } else { &mut *self };
        let is_null = match null.get(dst) {
            Tag::Number(0) => Some(true),
            tag if tag.is_address() && !matches!(tag, Tag::Maybe(_)) => Some(false),
            Tag::Maybe(record) => {
                null.open.remove(&record);
                null.replace(|tag| tag.is_of(record), Tag::Number(0));
                let other = if cond == Cond::Eq { &mut *self } else { &mut jumps };
                other.replace(|tag| tag == Tag::Maybe(record), Tag::Record(record));
                None
            }
            _ => None,
        };
        match is_null {
            None => Some(jumps),
            Some(is_null) => {
                if is_null == (cond == Cond::Eq) {
                    *self = jumps;
                }
                None
            }
        }
    }

    fn call(&mut self, at: usize, helper: Helper, sizes: &mut Sizes) -> Result<(), String> {
        let args = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];
        for (reg, arg) in args.into_iter().zip(helper.args()) {
            if *arg != Arg::Record && self.get(reg) == Tag::Ended {
                return Err(TOUCHED.to_owned());
            }
        }
        let mut result = Tag::Other;
        match helper {
            Helper::RingReserve => {
                self.reserve(at, sizes)?;
                result = Tag::Maybe(at);
            }
            Helper::RingSubmit | Helper::RingDiscard => {
                let record = match self.get(Reg::R1) {
                    Tag::Record(record) => record,
                    Tag::Maybe(_) => return Err("the record may be 0".to_owned()),
                    Tag::Inside(_) => {
                        return Err("an address inside a record does not end it".to_owned());
                    }
                    Tag::Ended => {
                        return Err("the record was submitted or discarded before".to_owned());
                    }
                    _ => return Err("R1 is no record that is reserved".to_owned()),
                };
                self.open.remove(&record);
                self.replace(|tag| tag.is_of(record), Tag::Ended);
            }
            _ => {}
        }
        self.set(Reg::R0, result);
        args.into_iter().for_each(|reg| self.set(reg, Tag::Other));
        Ok(())
    }

    fn reserve(&mut self, at: usize, sizes: &mut Sizes) -> Result<(), String> {
        let Tag::Map(load) = self.get(Reg::R1) else {
            return Err("R1 is not plainly one ring buffer".to_owned());
        };
        let size = match self.get(Reg::R2) {
            Tag::Number(size) => u32::try_from(size).ok(),
            _ => None,
        };
        let size = size.ok_or("the size of a record must be a constant")?;
        if !self.open.insert(at) {
            return Err("the record that was reserved here before is still open".to_owned());
        }
        if self.open.len() > MOST {
            return Err(format!("more than {MOST} records are reserved at once"));
        }
        // Where one load is for several sizes, what holds for the smallest holds for all.
        let known = sizes.entry(load).or_insert(size);
        *known = size.min(*known);
        Ok(())
    }

    fn exit(&mut self) -> Result<Option<Option<Self>>, String> {
        let Some(Frame { back, kept: [r6, r7, r8, r9], .. }) = self.frames.pop() else {
            return Ok(None);
        };
        if self.frames.is_empty() {
            return match self.open.first() {
                None => Ok(None),
                Some(record) => Err(format!(
                    "the record reserved at instruction {record} is neither submitted nor discarded on a way to here"
                )),
            };
        }
        for (reg, tag) in [(Reg::R6, r6), (Reg::R7, r7), (Reg::R8, r8), (Reg::R9, r9)] {
            self.set(reg, tag);
        }
        self.set(Reg::R10, Tag::Stack(self.frames.len() - 1, 0));
        for reg in [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5] {
            self.set(reg, Tag::Other);
        }
        self.at = back;
        Ok(Some(None))
    }
}

const TOUCHED: &str = "the record was submitted or discarded, and is used again";
const LOST: &str = "the address of a record, or of the stack, can only be kept in registers and in words of the stack whose place is plain to see";

/// What comes of an addition or subtraction.
fn sum(op: Alu, old: Tag, by: Tag) -> Result<Tag, String> {
    let moved = |at: i32, imm: i32| {
        let imm = if op == Alu::Add { Some(imm) } else { imm.checked_neg() };
        imm.and_then(|imm| at.checked_add(imm)).filter(|at| at.abs() <= NEAR)
    };
    Ok(match (old, by) {
        (Tag::Ended, _) | (_, Tag::Ended) => Tag::Ended,
        (Tag::Maybe(_), _) | (_, Tag::Maybe(_)) => {
            return Err("the record may be 0: compare it with 0 first".to_owned());
        }
        (tag @ (Tag::Record(_) | Tag::Inside(_)), Tag::Number(0)) => tag,
        (Tag::Record(record) | Tag::Inside(record), _)
        | (_, Tag::Record(record) | Tag::Inside(record)) => Tag::Inside(record),
        (Tag::Stack(level, at), Tag::Number(imm)) => {
            moved(at, imm).map_or(Tag::Somewhere, |at| Tag::Stack(level, at))
        }
        (Tag::Stack(..) | Tag::Somewhere, _) | (_, Tag::Stack(..) | Tag::Somewhere) => {
            Tag::Somewhere
        }
        _ => Tag::Other,
    })
}
