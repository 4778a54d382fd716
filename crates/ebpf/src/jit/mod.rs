//! The compiler for x86-64: one pass, one instruction at a time.
//!
//! Registers have fixed places, so that arguments of helpers are where the C calling convention wants
//! them:
//!
//! | eBPF | R0 | R1 | R2 | R3 | R4 | R5 | R6 | R7 | R8 | R9 | R10 |
//! |---|---|---|---|---|---|---|---|---|---|---|---|
//! | x86-64 | rax | rdi | rsi | rdx | rcx | r8 | rbx | r13 | r14 | r15 | rbp |
//!
//! r9 to r11 are scratch within one instruction; r9 carries the [`Env`](crate::helper::Env) into calls. r12 holds
//! the fuel, if the program jumps backwards at all.
//!
//! An atomic operation on something not aligned to its width ends the run, as in the interpreter: the machine
//! would do it, but at a cost to all CPUs, and some systems kill who asks for it. Where the address is R10 and
//! a number, it is known to be aligned; otherwise it is looked at, which takes four instructions.
//!
//! # Frames
//! The outermost function sets up, from high to low addresses: return address, rbp (which rbp then points
//! to), one frame of 512 bytes for each function that can be active at once, saved registers, the address
//! of the run's environment. What is not needed is left out; a program without stack, calls and loops is
//! bare. A local call moves rbp down by a frame, so that frames lie one below the other as the verifier
//! thinks they do; native frames hold saved registers and the environment only.
//!
//! Running out of fuel, or such a fault, at any depth, goes back to the stack pointer that the outermost function noted in
//! the environment; that function has therefore saved whatever any function of the program uses.
//!
//! # Memory of code
//! Never writable and executable at once: a memory file is mapped writable, filled, unmapped, sealed
//! against writing and only then mapped executable ([`owlet_sys::executable`]). Where the system refuses
//! that, the program is interpreted.
//!
//! Compiled code checks nothing: it is as safe as the verifier's word.
//!
//! Shown by `tests/core`: `differential` runs thousands of generated programs in both engines, `engines` every
//! operation at its edges.

mod emit;

use owlet_sys::executable::Executable;

use crate::asm::{Alu, Atomic, Cond, Reg};
use crate::decode::{Code, FRAME_SIZE, Function, Insn, Operand, Size};
use crate::helper::{Env, Helper, NO_FUEL, UNALIGNED};
use crate::map::Map;
use crate::program::{Context, Shared};
use emit::*;

/// A compiled program.
#[derive(Debug)]
pub(crate) struct Compiled {
    code: Executable,
}

impl Compiled {
    /// Runs it.
    ///
    /// # Safety
    /// The program was verified; what it was compiled for (maps, what is shared) is alive.
    #[inline(always)]
    pub(crate) unsafe fn call(&self, context: &Context, env: &Env) -> u64 {
        type Entry = unsafe extern "C" fn(&Context, &Env) -> u64;
        // SAFETY: the code starts with a function of this type.
        let entry = unsafe { core::mem::transmute::<*const u8, Entry>(self.code.as_ptr()) };
        // SAFETY: the caller's.
        unsafe { entry(context, env) }
    }
}

/// Compiles a program.
pub(crate) fn compile(code: &Code, shared: &Shared, fuel: u32) -> Result<Compiled, &'static str> {
    let mut compiler = Compiler::new(code, shared, fuel);
    for (index, function) in code.functions.iter().enumerate() {
        compiler.function(index, function);
    }
    if compiler.fueled {
        compiler.end(NO_FUEL);
    }
    if compiler.checked {
        compiler.end(UNALIGNED);
    }
    let bytes = compiler.finish().ok_or("the code is too large")?;
    match Executable::new(&bytes) {
        Ok(code) => Ok(Compiled { code }),
        Err(error) if error.is_unavailable() => Err("executable memory is forbidden here"),
        Err(_) => Err("no memory for code"),
    }
}

const fn native(reg: Reg) -> Native {
    match reg {
        Reg::R0 => RAX,
        Reg::R1 => RDI,
        Reg::R2 => RSI,
        Reg::R3 => RDX,
        Reg::R4 => RCX,
        Reg::R5 => R8,
        Reg::R6 => RBX,
        Reg::R7 => R13,
        Reg::R8 => R14,
        Reg::R9 => R15,
        Reg::R10 => RBP,
    }
}

/// Where a 32-bit displacement leads.
#[derive(Clone, Copy)]
enum Target {
    Slot(usize),
    Function(usize),
    /// The end of a run for one of these reasons.
    End(u64),
}

/// Native frame of a function.
#[derive(Clone, Default)]
struct Frame {
    saved: Vec<Native>,
    /// Bytes below the saved registers: environment and alignment.
    below: i32,
    env: bool,
}

struct Compiler<'a> {
    code: &'a Code,
    shared: &'a Shared,
    fuel: u32,
    emit: Emit,
    /// Where each slot's code starts.
    slots: Vec<usize>,
    functions: Vec<usize>,
    fixups: Vec<(usize, Target)>,
    frames: Vec<Frame>,
    /// Bytes of eBPF stack that the outermost function makes room for.
    stack: i32,
    /// The program jumps backwards.
    fueled: bool,
    /// The program does atomic operations that must be looked at.
    checked: bool,
    /// Where runs are ended, by reason.
    ends: [usize; 3],
    current: usize,
}

impl<'a> Compiler<'a> {
    fn new(code: &'a Code, shared: &'a Shared, fuel: u32) -> Self {
        let (mut fueled, mut checked) = (false, false);
        let mut stack = code.functions.len() > 1;
        for (at, insn) in code.insns.iter().enumerate() {
            fueled |= is_backward(at, insn);
            checked |= is_checked(insn);
            stack |= mentions(insn, Reg::R10);
        }
        let depth = i32::try_from(code.depth * FRAME_SIZE).unwrap_or(0);
        let mut compiler = Self {
            code,
            shared,
            fuel,
            emit: Emit::default(),
            slots: vec![0; code.insns.len()],
            functions: vec![0; code.functions.len()],
            fixups: Vec::new(),
            frames: Vec::new(),
            stack: if stack { depth } else { 0 },
            fueled,
            checked,
            ends: [0; 3],
            current: 0,
        };
        compiler.frames = (0..code.functions.len()).map(|index| compiler.frame(index)).collect();
        compiler
    }

    fn frame(&self, index: usize) -> Frame {
        let outermost = index == 0;
        let body = |function: &Function| {
            self.code.insns.get(function.start..function.end).unwrap_or(&[]).iter()
        };
        let own = self.code.functions.get(index).into_iter();
        let all = self.code.functions.iter();
        let uses = |reg: Reg| {
            let used = |function: &Function| body(function).any(|insn| mentions(insn, reg));
            if outermost { all.clone().any(used) } else { own.clone().any(used) }
        };
        let mut saved: Vec<_> =
            [Reg::R6, Reg::R7, Reg::R8, Reg::R9].into_iter().filter(|reg| uses(*reg)).collect();
        let mut saved: Vec<_> = saved.drain(..).map(native).collect();
        if outermost && self.fueled {
            saved.push(R12);
        }
        let calls = own.clone().any(|function| {
            body(function).any(|insn| matches!(insn, Insn::Call { .. } | Insn::CallLocal { .. }))
        });
        let backward = own.clone().any(|function| {
            let range = function.start..function.end;
            range
                .clone()
                .zip(body(function))
                .any(|(at, insn)| is_backward(at, insn) || is_checked(insn))
        });
        let env = calls || backward;
        // At the start rsp is 8 beside a multiple of 16; a pushed rbp makes that good.
        let pushed = saved.len() + usize::from(outermost && self.stack != 0);
        let odd = (1 + pushed + usize::from(env)) % 2 != 0;
        let below = 8 * (i32::from(env) + i32::from(env && odd));
        Frame { saved, below, env }
    }

    fn function(&mut self, index: usize, function: &Function) {
        self.current = index;
        if let Some(start) = self.functions.get_mut(index) {
            *start = self.emit.here();
        }
        self.prologue();
        for at in function.start..function.end {
            if let Some(slot) = self.slots.get_mut(at) {
                *slot = self.emit.here();
            }
            if let Some(insn) = self.code.insns.get(at).copied() {
                self.insn(at, insn);
            }
        }
    }

    fn current_frame(&self) -> Frame {
        self.frames.get(self.current).cloned().unwrap_or_default()
    }

    fn prologue(&mut self) {
        let frame = self.current_frame();
        let outermost = self.current == 0;
        if outermost && self.stack != 0 {
            self.emit.push(RBP);
            self.emit.mov(true, RBP, RSP);
            self.emit.arith_imm(true, SUB, RSP, self.stack);
        }
        for reg in &frame.saved {
            self.emit.push(*reg);
        }
        if frame.below != 0 {
            self.emit.arith_imm(true, SUB, RSP, frame.below);
        }
        if frame.env {
            // The outermost function is handed the environment as second argument.
            self.emit.store(RSP, 0, if outermost { RSI } else { R9 });
        }
        if outermost && (self.fueled || self.checked) {
            self.emit.store(RSI, offset(core::mem::offset_of!(Env, frame)), RSP);
        }
        if outermost && self.fueled {
            self.emit.constant(R12, self.fuel.into());
        }
    }

    fn epilogue(&mut self, of: usize) {
        let frame = self.frames.get(of).cloned().unwrap_or_default();
        if frame.below != 0 {
            self.emit.arith_imm(true, ADD, RSP, frame.below);
        }
        for reg in frame.saved.iter().rev() {
            self.emit.pop(*reg);
        }
        if of == 0 && self.stack != 0 {
            // leave
            self.emit.raw(&[0xc9]);
        }
        // ret
        self.emit.raw(&[0xc3]);
    }

    /// Where a run is ended for a reason: by backward jumps when there is no fuel left, say.
    fn end(&mut self, reason: u64) {
        if let Some(end) = usize::try_from(reason).ok().and_then(|n| self.ends.get_mut(n)) {
            *end = self.emit.here();
        }
        self.emit.load(R11, RSP, 0);
        self.emit.load(RSP, R11, offset(core::mem::offset_of!(Env, frame)));
        self.emit.mem(Form::D, &[0xc7], 0, R11, offset(core::mem::offset_of!(Env, ended)));
        self.emit.imm32(i32::try_from(reason).unwrap_or(0));
        self.emit.constant(RAX, 0);
        if self.stack != 0 {
            let frame = self.frames.first().cloned().unwrap_or_default();
            let saved = 8 * i32::try_from(frame.saved.len()).unwrap_or(0);
            // lea rbp, [rsp + all that is below it]
            self.emit.mem(Form::D, &[0x8d], RBP, RSP, frame.below + saved + self.stack);
        }
        self.epilogue(0);
    }

    /// The bytes, with all displacements in place; `None` if one does not fit.
    fn finish(mut self) -> Option<Vec<u8>> {
        for (at, target) in core::mem::take(&mut self.fixups) {
            let to = match target {
                Target::Slot(slot) => *self.slots.get(slot)?,
                Target::Function(function) => *self.functions.get(function)?,
                Target::End(reason) => *self.ends.get(usize::try_from(reason).ok()?)?,
            };
            let distance = i64::try_from(to).ok()? - i64::try_from(at + 4).ok()?;
            let bytes = i32::try_from(distance).ok()?.to_le_bytes();
            self.emit.bytes.get_mut(at..at + 4)?.copy_from_slice(&bytes);
        }
        Some(self.emit.bytes)
    }

    fn displacement(&mut self, target: Target) {
        self.fixups.push((self.emit.here(), target));
        self.emit.imm32(0);
    }

    fn jump(&mut self, target: Target) {
        self.emit.raw(&[0xe9]);
        self.displacement(target);
    }

    fn jump_if(&mut self, cc: u8, target: Target) {
        self.emit.raw(&[0x0f, 0x80 | cc]);
        self.displacement(target);
    }

    /// Pays for a backward jump.
    fn pay(&mut self) {
        self.emit.arith_imm(false, SUB, R12, 1);
        self.jump_if(cc::S, Target::End(NO_FUEL));
    }

    fn insn(&mut self, at: usize, insn: Insn) {
        let emit = &mut self.emit;
        match insn {
            Insn::Alu { wide, op, dst, src } => self.alu(wide, op, native(dst), src),
            Insn::Neg { wide, dst } => emit.rr(wide, &[0xf7], 3, native(dst)),
            Insn::MovSx { wide, bits, dst, src } => {
                let (dst, src) = (native(dst), native(src));
                match bits {
                    8 => emit.rr_byte(wide, &[0x0f, 0xbe], dst, src),
                    16 => emit.rr(wide, &[0x0f, 0xbf], dst, src),
                    _ => emit.rr(true, &[0x63], dst, src),
                }
            }
            Insn::Swap { swap, bits, dst } => self.swap(swap, bits, native(dst)),
            Insn::Load64 { dst, value } => emit.constant(native(dst), value),
            Insn::Map { dst, map } => {
                let map = self.shared.maps.get(map).map_or(0, |map| address(map));
                self.emit.constant(native(dst), map);
            }
            Insn::MapValue { dst, map, offset } => {
                let values = self.shared.maps.get(map).and_then(Map::values);
                let value = values.map_or(0, |values| address(values.base().wrapping_add(offset)));
                self.emit.constant(native(dst), value);
            }
            Insn::Load { size, signed, dst, src, off } => {
                let (dst, src) = (native(dst), native(src));
                let (form, op): (_, &[u8]) = match (size, signed) {
                    (Size::B, false) => (Form::W, &[0x0f, 0xb6]),
                    (Size::H, false) => (Form::W, &[0x0f, 0xb7]),
                    (Size::W, false) => (Form::W, &[0x8b]),
                    (Size::D, _) => (Form::D, &[0x8b]),
                    (Size::B, true) => (Form::D, &[0x0f, 0xbe]),
                    (Size::H, true) => (Form::D, &[0x0f, 0xbf]),
                    (Size::W, true) => (Form::D, &[0x63]),
                };
                emit.mem(form, op, dst, src, off.into());
            }
            Insn::Store { size, dst, off, src } => self.store(size, native(dst), off.into(), src),
            Insn::Atomic { wide, op, dst, off, src } => {
                if is_checked(&insn) {
                    self.aligned(wide, native(dst), off.into());
                }
                self.atomic(wide, op, (native(dst), off.into()), native(src));
            }
            Insn::Jump { target } => {
                if target <= at {
                    self.pay();
                }
                self.jump(Target::Slot(target));
            }
            Insn::Branch { wide, cond, dst, src, target } => {
                self.compare(wide, cond, native(dst), src);
                let cc = condition(cond);
                if target <= at {
                    let not_taken = self.emit.jump_short(cc ^ 1);
                    self.pay();
                    self.jump(Target::Slot(target));
                    self.emit.land(not_taken);
                } else {
                    self.jump_if(cc, Target::Slot(target));
                }
            }
            Insn::Call { helper, map } => self.call(helper, map),
            Insn::CallLocal { function } => {
                let frame = i32::try_from(FRAME_SIZE).unwrap_or(0);
                emit.arith_imm(true, SUB, RBP, frame);
                emit.load(R9, RSP, 0);
                emit.raw(&[0xe8]);
                self.displacement(Target::Function(function));
                self.emit.arith_imm(true, ADD, RBP, frame);
            }
            Insn::Exit => self.epilogue(self.current),
            Insn::Second => {}
        }
    }

    fn alu(&mut self, wide: bool, op: Alu, dst: Native, src: Operand) {
        let simple = match op {
            Alu::Add => Some(ADD),
            Alu::Sub => Some(SUB),
            Alu::Or => Some(OR),
            Alu::And => Some(AND),
            Alu::Xor => Some(XOR),
            _ => None,
        };
        let emit = &mut self.emit;
        match (simple, op, src) {
            (Some(op), _, Operand::Reg(src)) => emit.arith(wide, op, dst, native(src)),
            (Some(op), _, Operand::Imm(imm)) => emit.arith_imm(wide, op, dst, imm),
            (_, Alu::Mov, Operand::Reg(src)) => emit.mov(wide, dst, native(src)),
            (_, Alu::Mov, Operand::Imm(imm)) => {
                let value = i64::from(imm).cast_unsigned();
                emit.constant(dst, if wide { value } else { value & 0xffff_ffff });
            }
            (_, Alu::Mul, Operand::Reg(src)) => emit.rr(wide, &[0x0f, 0xaf], dst, native(src)),
            (_, Alu::Mul, Operand::Imm(imm)) => {
                emit.rr(wide, &[0x69], dst, dst);
                emit.imm32(imm);
            }
            (_, Alu::Lsh, _) => self.shift(wide, 4, dst, src),
            (_, Alu::Rsh, _) => self.shift(wide, 5, dst, src),
            (_, Alu::Arsh, _) => self.shift(wide, 7, dst, src),
            _ => self.divide(wide, op, dst, src),
        }
    }

    fn shift(&mut self, wide: bool, digit: u8, dst: Native, src: Operand) {
        let emit = &mut self.emit;
        let src = match src {
            Operand::Imm(imm) => {
                emit.rr(wide, &[0xc1], digit, dst);
                let mask = if wide { 63 } else { 31 };
                emit.raw(&[u8::try_from(imm & mask).unwrap_or(0)]);
                return;
            }
            Operand::Reg(src) => native(src),
        };
        // The count has to be in cl; the machine takes it modulo the width, as we do.
        if src == RCX {
            emit.rr(wide, &[0xd3], digit, dst);
        } else if dst == RCX {
            emit.mov(true, R11, RCX);
            emit.mov(true, RCX, src);
            emit.rr(wide, &[0xd3], digit, R11);
            emit.mov(true, RCX, R11);
        } else {
            emit.mov(true, R11, RCX);
            emit.mov(true, RCX, src);
            emit.rr(wide, &[0xd3], digit, dst);
            emit.mov(true, RCX, R11);
        }
    }

    /// Division and remainder, signed and unsigned. The machine wants rax and rdx for it.
    fn divide(&mut self, wide: bool, op: Alu, dst: Native, src: Operand) {
        let signed = matches!(op, Alu::SDiv | Alu::SMod);
        let remainder = matches!(op, Alu::Mod | Alu::SMod);
        let emit = &mut self.emit;
        match src {
            Operand::Reg(src) => emit.mov(wide, R11, native(src)),
            Operand::Imm(imm) => {
                let value = i64::from(imm).cast_unsigned();
                emit.constant(R11, if wide { value } else { value & 0xffff_ffff });
            }
        }
        // test r11, r11
        emit.rr(wide, &[0x85], R11, R11);
        let fine = emit.jump_short(cc::NE);
        if !remainder {
            emit.constant(dst, 0);
        } else if !wide {
            emit.mov(false, dst, dst);
        }
        let by_zero = emit.jump_short_always();
        emit.land(fine);
        let mut by_minus_one = None;
        if signed {
            // The smallest number by -1 traps.
            emit.arith_imm(wide, CMP, R11, -1);
            let fine = emit.jump_short(cc::NE);
            if remainder {
                emit.constant(dst, 0);
            } else {
                emit.rr(wide, &[0xf7], 3, dst);
            }
            by_minus_one = Some(emit.jump_short_always());
            emit.land(fine);
        }
        emit.mov(true, R10, RAX);
        emit.mov(true, R9, RDX);
        if dst != RAX {
            emit.mov(wide, RAX, dst);
        }
        if signed {
            // cqo or cdq; idiv r11
            emit.raw(if wide { &[0x48, 0x99] } else { &[0x99] });
            emit.rr(wide, &[0xf7], 7, R11);
        } else {
            emit.constant(RDX, 0);
            emit.rr(wide, &[0xf7], 6, R11);
        }
        emit.mov(wide, R11, if remainder { RDX } else { RAX });
        emit.mov(true, RAX, R10);
        emit.mov(true, RDX, R9);
        emit.mov(true, dst, R11);
        emit.land(by_zero);
        if let Some(jump) = by_minus_one {
            emit.land(jump);
        }
    }

    fn swap(&mut self, swap: bool, bits: u8, dst: Native) {
        let emit = &mut self.emit;
        if swap && bits == 16 {
            // ror dst16, 8
            emit.raw(&[0x66]);
            emit.rr(false, &[0xc1], 1, dst);
            emit.raw(&[8]);
        } else if swap {
            // bswap: the register is part of the opcode
            let wide = bits == 64;
            let prefix = 0x40 | u8::from(wide) << 3 | dst >> 3;
            if prefix != 0x40 {
                emit.raw(&[prefix]);
            }
            emit.raw(&[0x0f, 0xc8 | dst & 7]);
        }
        match bits {
            16 => emit.rr(false, &[0x0f, 0xb7], dst, dst),
            32 => emit.mov(false, dst, dst),
            _ => {}
        }
    }

    fn store(&mut self, size: Size, base: Native, disp: i32, src: Operand) {
        let emit = &mut self.emit;
        let (form, op, op_imm) = match size {
            Size::B => (Form::B, 0x88, 0xc6),
            Size::H => (Form::H, 0x89, 0xc7),
            Size::W => (Form::W, 0x89, 0xc7),
            Size::D => (Form::D, 0x89, 0xc7),
        };
        match src {
            Operand::Reg(src) => emit.mem(form, &[op], native(src), base, disp),
            Operand::Imm(imm) => {
                emit.mem(form, &[op_imm], 0, base, disp);
                let len = size.bytes().min(4);
                emit.raw(imm.to_le_bytes().get(..len).unwrap_or(&[]));
            }
        }
    }

    /// Ends the run if an address is not aligned to the width.
    fn aligned(&mut self, wide: bool, base: Native, disp: i32) {
        let emit = &mut self.emit;
        // lea r11, [base + disp]; test r11b, mask
        emit.mem(Form::D, &[0x8d], R11, base, disp);
        emit.rr_byte(false, &[0xf6], 0, R11);
        emit.raw(&[if wide { 7 } else { 3 }]);
        self.jump_if(cc::NE, Target::End(UNALIGNED));
    }

    fn atomic(&mut self, wide: bool, op: Atomic, (base, disp): (Native, i32), src: Native) {
        let emit = &mut self.emit;
        let locked = Form::locked(wide);
        match op {
            Atomic::Add => emit.mem(locked, &[ADD.rr], src, base, disp),
            Atomic::Or => emit.mem(locked, &[OR.rr], src, base, disp),
            Atomic::And => emit.mem(locked, &[AND.rr], src, base, disp),
            Atomic::Xor => emit.mem(locked, &[XOR.rr], src, base, disp),
            // xadd
            Atomic::FetchAdd => emit.mem(locked, &[0x0f, 0xc1], src, base, disp),
            // xchg locks by itself
            Atomic::Xchg => emit.mem(Form::of(wide), &[0x87], src, base, disp),
            Atomic::CmpXchg => {
                emit.mem(locked, &[0x0f, 0xb1], src, base, disp);
                if !wide {
                    // Where the comparison holds, the machine leaves the upper half.
                    emit.mov(false, RAX, RAX);
                }
            }
            Atomic::FetchOr => self.fetch(wide, OR, (base, disp), src),
            Atomic::FetchAnd => self.fetch(wide, AND, (base, disp), src),
            Atomic::FetchXor => self.fetch(wide, XOR, (base, disp), src),
        }
    }

    /// Operations that the machine only has without the old value: a loop around compare-exchange.
    fn fetch(&mut self, wide: bool, op: Arith, (base, disp): (Native, i32), src: Native) {
        let emit = &mut self.emit;
        // rax is needed; r11 stands in for it.
        emit.mov(true, R11, RAX);
        let stand_in = |reg| if reg == RAX { R11 } else { reg };
        let (base, operand) = (stand_in(base), stand_in(src));
        emit.mem(Form::of(wide), &[0x8b], RAX, base, disp);
        let again = emit.here();
        emit.mov(wide, R10, RAX);
        emit.arith(wide, op, R10, operand);
        emit.mem(Form::locked(wide), &[0x0f, 0xb1], R10, base, disp);
        let back = i8::try_from(emit.here() + 2 - again).unwrap_or(0);
        emit.raw(&[0x70 | cc::NE, back.wrapping_neg().cast_unsigned()]);
        if src != RAX {
            emit.mov(wide, src, RAX);
            emit.mov(true, RAX, R11);
        }
    }

    fn compare(&mut self, wide: bool, cond: Cond, dst: Native, src: Operand) {
        let emit = &mut self.emit;
        match (cond, src) {
            // test
            (Cond::Set, Operand::Reg(src)) => emit.rr(wide, &[0x85], native(src), dst),
            (Cond::Set, Operand::Imm(imm)) => {
                emit.rr(wide, &[0xf7], 0, dst);
                emit.imm32(imm);
            }
            (_, Operand::Reg(src)) => emit.arith(wide, CMP, dst, native(src)),
            (_, Operand::Imm(imm)) => emit.arith_imm(wide, CMP, dst, imm),
        }
    }

    fn call(&mut self, helper: Helper, map: Option<usize>) {
        let context = |field: usize| offset(field);
        match helper {
            // The first argument is the context.
            Helper::FuncIp => {
                let field = context(core::mem::offset_of!(Context, ip));
                return self.emit.load(RAX, RDI, field);
            }
            Helper::AttachCookie => {
                let field = context(core::mem::offset_of!(Context, cookie));
                return self.emit.load(RAX, RDI, field);
            }
            Helper::MapLookup => {
                let map = map.and_then(|map| self.shared.maps.get(map));
                if let Some(values) = map.and_then(Map::plain_array) {
                    let (base, count) = (address(values.base()), values.count);
                    return self.lookup(base, count, values.stride);
                }
            }
            _ => {}
        }
        self.emit.load(R9, RSP, 0);
        self.emit.call_absolute(address(helper.body() as *const u8));
    }

    /// Lookup in an array that is known: R2 points to the number.
    fn lookup(&mut self, base: u64, count: usize, stride: usize) {
        let emit = &mut self.emit;
        let (count, stride) = (i32::try_from(count), i32::try_from(stride));
        // Entries are at most 2^24 and values 2^20 bytes.
        let (count, stride) = (count.unwrap_or(0), stride.unwrap_or(0));
        emit.mem(Form::W, &[0x8b], RAX, RSI, 0);
        emit.arith_imm(false, CMP, RAX, count);
        let inside = emit.jump_short(cc::B);
        emit.constant(RAX, 0);
        let outside = emit.jump_short_always();
        emit.land(inside);
        if stride.count_ones() == 1 {
            emit.rr(true, &[0xc1], 4, RAX);
            emit.raw(&[u8::try_from(stride.trailing_zeros()).unwrap_or(0)]);
        } else {
            emit.rr(true, &[0x69], RAX, RAX);
            emit.imm32(stride);
        }
        emit.constant(R11, base);
        emit.arith(true, ADD, RAX, R11);
        emit.land(outside);
    }
}

fn address<T>(at: *const T) -> u64 {
    at.expose_provenance() as u64
}

/// A field of a small structure.
fn offset(field: usize) -> i32 {
    i32::try_from(field).unwrap_or(0)
}

fn condition(cond: Cond) -> u8 {
    match cond {
        Cond::Eq => cc::E,
        Cond::Ne | Cond::Set => cc::NE,
        Cond::Gt => cc::A,
        Cond::Ge => cc::AE,
        Cond::Lt => cc::B,
        Cond::Le => cc::BE,
        Cond::Sgt => cc::G,
        Cond::Sge => cc::GE,
        Cond::Slt => cc::L,
        Cond::Sle => cc::LE,
    }
}

fn is_backward(at: usize, insn: &Insn) -> bool {
    matches!(insn, Insn::Jump { target } | Insn::Branch { target, .. } if *target <= at)
}

/// Whether an instruction is an atomic operation whose alignment shows in the address only. (R10 is a
/// multiple of 16.)
fn is_checked(insn: &Insn) -> bool {
    match *insn {
        Insn::Atomic { wide, dst, off, .. } => {
            dst != Reg::R10 || off & (if wide { 7 } else { 3 }) != 0
        }
        _ => false,
    }
}

/// Whether an instruction reads or writes a register by name.
fn mentions(insn: &Insn, reg: Reg) -> bool {
    let operand = |operand: Operand| operand == Operand::Reg(reg);
    match *insn {
        Insn::Alu { dst, src, .. }
        | Insn::Branch { dst, src, .. }
        | Insn::Store { dst, src, .. } => dst == reg || operand(src),
        Insn::Neg { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::Load64 { dst, .. }
        | Insn::Map { dst, .. }
        | Insn::MapValue { dst, .. } => dst == reg,
        Insn::MovSx { dst, src, .. } | Insn::Load { dst, src, .. } => dst == reg || src == reg,
        Insn::Atomic { dst, src, .. } => dst == reg || src == reg,
        Insn::Jump { .. }
        | Insn::Call { .. }
        | Insn::CallLocal { .. }
        | Insn::Exit
        | Insn::Second => false,
    }
}
