//! The interpreter: every access is checked against what the program may touch, so that it is safe for
//! any image and the measure of what compiled code does.
//!
//! | memory | read | write |
//! |---|---|---|
//! | context | 56 bytes | - |
//! | stack | the frames of all functions that are running | the same |
//! | values of maps | inside one value | the same |
//! | records that the run has reserved | inside one record | the same |
//!
//! Registers and stack are 0 where the program has not written. State lies on the stack of the thread;
//! nothing is allocated.

use crate::asm::{Alu, Atomic, Cond, Reg};
use crate::decode::{Code, FRAME_SIZE, FRAMES, Insn, Operand, Size};
use crate::helper::{Arg, Env, Helper};
use crate::memory;
use crate::program::{Context, Fault, Shared};

type Outcome<T> = Result<T, Fault>;

/// What a function that called another one goes on with.
#[derive(Clone, Copy, Default)]
struct Return {
    to: usize,
    kept: [u64; 4],
}

#[repr(align(16))]
struct Stack([u8; FRAME_SIZE * FRAMES]);

struct Machine<'a> {
    regs: [u64; 11],
    returns: [Return; FRAMES],
    /// Functions that have called and are waiting.
    level: usize,
    stack: *mut u8,
    context: &'a Context,
    shared: &'a Shared,
    env: &'a Env,
}

/// Runs a program.
pub(crate) fn run(
    code: &Code,
    shared: &Shared,
    context: &Context,
    env: &Env,
    mut fuel: u32,
) -> Outcome<u64> {
    let mut stack = Stack([0; FRAME_SIZE * FRAMES]);
    let mut machine = Machine {
        regs: [0; 11],
        returns: [Return::default(); FRAMES],
        level: 0,
        stack: stack.0.as_mut_ptr(),
        context,
        shared,
        env,
    };
    machine.set(Reg::R1, address(core::ptr::from_ref(context)));
    let top = machine.stack.wrapping_add(FRAME_SIZE * FRAMES);
    machine.set(Reg::R10, address(top));
    let mut at = 0;
    // Decoding has made sure that there is an instruction wherever this leads (invariant 1).
    while let Some(insn) = code.insns.get(at) {
        let target = match *insn {
            Insn::Jump { target } => target,
            Insn::Branch { wide, cond, dst, src, target } => {
                let (a, b) = (machine.get(dst), machine.operand(src));
                if holds(wide, cond, a, b) { target } else { at + 1 }
            }
            Insn::CallLocal { function } => {
                machine.enter(at + 1);
                match code.functions.get(function) {
                    // Calls cannot make a loop (invariant 2), so they cost no fuel.
                    Some(function) => {
                        at = function.start;
                        continue;
                    }
                    None => return Err(Fault::Fuel),
                }
            }
            Insn::Exit => match machine.leave() {
                Some(to) => {
                    at = to;
                    continue;
                }
                None => return Ok(machine.get(Reg::R0)),
            },
            other => {
                machine.step(at, other)?;
                at += 1;
                continue;
            }
        };
        if target <= at {
            fuel = fuel.checked_sub(1).ok_or(Fault::Fuel)?;
        }
        at = target;
    }
    Err(Fault::Fuel)
}

impl Machine<'_> {
    fn get(&self, reg: Reg) -> u64 {
        self.regs.get(usize::from(reg.number())).copied().unwrap_or(0)
    }

    fn set(&mut self, reg: Reg, value: u64) {
        if let Some(entry) = self.regs.get_mut(usize::from(reg.number())) {
            *entry = value;
        }
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Reg(reg) => self.get(reg),
            Operand::Imm(imm) => i64::from(imm).cast_unsigned(),
        }
    }

    fn enter(&mut self, to: usize) {
        let kept = [Reg::R6, Reg::R7, Reg::R8, Reg::R9].map(|reg| self.get(reg));
        if let Some(entry) = self.returns.get_mut(self.level) {
            *entry = Return { to, kept };
        }
        self.level += 1;
        self.set(Reg::R10, self.get(Reg::R10).wrapping_sub(FRAME_SIZE as u64));
    }

    fn leave(&mut self) -> Option<usize> {
        self.level = self.level.checked_sub(1)?;
        let Return { to, kept: [r6, r7, r8, r9] } = self.returns.get(self.level).copied()?;
        for (reg, value) in [(Reg::R6, r6), (Reg::R7, r7), (Reg::R8, r8), (Reg::R9, r9)] {
            self.set(reg, value);
        }
        self.set(Reg::R10, self.get(Reg::R10).wrapping_add(FRAME_SIZE as u64));
        Some(to)
    }

    /// Whether the program may write (and read) `len` bytes at `address`.
    fn writable(&self, address: u64, len: usize) -> bool {
        let frames = FRAME_SIZE * (self.level + 1);
        let base = self.stack.wrapping_add(FRAME_SIZE * FRAMES - frames);
        within(address, len, base.addr(), frames)
            || self.shared.maps.iter().filter_map(|map| map.values()).any(|v| v.holds(address, len))
            || self.env.reserved.holds(address, len)
    }

    fn readable(&self, address: u64, len: usize) -> bool {
        let context = core::ptr::from_ref(self.context).addr();
        within(address, len, context, size_of::<Context>()) || self.writable(address, len)
    }

    /// Everything but jumps and local calls.
    fn step(&mut self, at: usize, insn: Insn) -> Outcome<()> {
        match insn {
            Insn::Alu { wide, op, dst, src } => {
                self.set(dst, alu(wide, op, self.get(dst), self.operand(src)));
            }
            Insn::Neg { wide, dst } => {
                let value = self.get(dst).wrapping_neg();
                self.set(dst, if wide { value } else { low(value) });
            }
            Insn::MovSx { wide, bits, dst, src } => {
                let value = sign_extend(self.get(src), bits);
                self.set(dst, if wide { value } else { low(value) });
            }
            Insn::Swap { swap, bits, dst } => self.set(dst, swapped(swap, bits, self.get(dst))),
            Insn::Load64 { dst, value } => self.set(dst, value),
            Insn::Map { dst, map } => {
                let map = self.shared.maps.get(map).map_or(0, |map| address(map));
                self.set(dst, map);
            }
            Insn::MapValue { dst, map, offset } => {
                let values = self.shared.maps.get(map).and_then(|map| map.values());
                let value = values.map_or(0, |values| address(values.base().wrapping_add(offset)));
                self.set(dst, value);
            }
            Insn::Load { size, signed, dst, src, off } => {
                let from = self.get(src).wrapping_add_signed(off.into());
                if !self.readable(from, size.bytes()) {
                    return Err(Fault::Read { at });
                }
                // SAFETY: just checked.
                let value = unsafe { memory::load(pointer(from), size.bytes()) };
                self.set(dst, if signed { sign_extend(value, bits(size)) } else { value });
            }
            Insn::Store { size, dst, off, src } => {
                let to = self.get(dst).wrapping_add_signed(off.into());
                if !self.writable(to, size.bytes()) {
                    return Err(Fault::Write { at });
                }
                // SAFETY: just checked.
                unsafe { memory::store(pointer(to), size.bytes(), self.operand(src)) };
            }
            Insn::Atomic { wide, op, dst, off, src } => {
                self.atomic(at, (wide, op, dst, off, src))?
            }
            Insn::Call { helper, .. } => self.call(at, helper)?,
            Insn::Jump { .. }
            | Insn::Branch { .. }
            | Insn::CallLocal { .. }
            | Insn::Exit
            | Insn::Second => {}
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        at: usize,
        (wide, op, dst, off, src): (bool, Atomic, Reg, i16, Reg),
    ) -> Outcome<()> {
        let to = self.get(dst).wrapping_add_signed(off.into());
        let len = if wide { 8_u8 } else { 4 };
        if !self.writable(to, len.into()) || to % u64::from(len) != 0 {
            return Err(Fault::Write { at });
        }
        let (operand, compare) = (self.get(src), self.get(Reg::R0));
        // SAFETY: checked and aligned.
        let old = unsafe { atomic(wide, op, pointer(to), operand, compare) };
        match op {
            Atomic::CmpXchg => self.set(Reg::R0, old),
            Atomic::Xchg
            | Atomic::FetchAdd
            | Atomic::FetchOr
            | Atomic::FetchAnd
            | Atomic::FetchXor => self.set(src, old),
            Atomic::Add | Atomic::Or | Atomic::And | Atomic::Xor => {}
        }
        Ok(())
    }

    fn call(&mut self, at: usize, helper: Helper) -> Outcome<()> {
        let [_, r1, r2, r3, r4, r5, ..] = self.regs;
        let values = [r1, r2, r3, r4, r5];
        let mut map = None;
        for (i, arg) in helper.args().iter().enumerate() {
            let value = values.get(i).copied().unwrap_or(0);
            let next = values.get(i + 1).copied().unwrap_or(0);
            let fine = match arg {
                Arg::Any | Arg::LenOrZero => true,
                Arg::Len => value != 0,
                Arg::Ctx => value == address(core::ptr::from_ref(self.context)),
                Arg::Map | Arg::Ring => {
                    map = self.shared.maps.iter().find(|map| address(*map) == value);
                    map.is_some()
                }
                Arg::Key => map.is_some_and(|map| self.readable(value, map.key_size())),
                Arg::Value => map.is_some_and(|map| self.readable(value, map.value_size())),
                Arg::Long => self.writable(value, 8),
                Arg::Record => self.env.reserved.has(value),
                Arg::Readable | Arg::Writable => {
                    let len = usize::try_from(next).unwrap_or(usize::MAX);
                    let write = *arg == Arg::Writable;
                    len == 0
                        || if write { self.writable(value, len) } else { self.readable(value, len) }
                }
            };
            if !fine {
                return Err(Fault::Argument { at, argument: i + 1 });
            }
        }
        // SAFETY: the arguments are what the helper's table asks for.
        let value = unsafe { (helper.body())(r1, r2, r3, r4, r5, self.env) };
        self.set(Reg::R0, value);
        Ok(())
    }
}

fn address<T>(at: *const T) -> u64 {
    at.expose_provenance() as u64
}

fn pointer(address: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

fn within(address: u64, len: usize, base: usize, size: usize) -> bool {
    let offset = usize::try_from(address).ok().and_then(|address| address.checked_sub(base));
    let end = offset.and_then(|offset| offset.checked_add(len));
    end.is_some_and(|end| end <= size)
}

fn low(value: u64) -> u64 {
    value & 0xffff_ffff
}

const fn bits(size: Size) -> u8 {
    match size {
        Size::B => 8,
        Size::H => 16,
        Size::W => 32,
        Size::D => 64,
    }
}

/// The lower `bits`, sign-extended.
fn sign_extend(value: u64, bits: u8) -> u64 {
    let unused = 64 - u32::from(bits);
    ((value << unused).cast_signed() >> unused).cast_unsigned()
}

fn swapped(swap: bool, bits: u8, value: u64) -> u64 {
    let unused = 64 - u32::from(bits);
    if swap { value.swap_bytes() >> unused } else { value << unused >> unused }
}

/// Arithmetic as of the instruction set document.
fn alu(wide: bool, op: Alu, dst: u64, src: u64) -> u64 {
    if wide {
        return alu64(op, dst, src);
    }
    let (dst, src) = (low(dst), low(src));
    low(match op {
        Alu::Lsh => dst << (src & 31),
        Alu::Rsh => dst >> (src & 31),
        Alu::Arsh => (sign_extend(dst, 32).cast_signed() >> (src & 31)).cast_unsigned(),
        Alu::SDiv | Alu::SMod => alu64(op, sign_extend(dst, 32), sign_extend(src, 32)),
        _ => alu64(op, dst, src),
    })
}

fn alu64(op: Alu, dst: u64, src: u64) -> u64 {
    let (signed, divisor) = (dst.cast_signed(), src.cast_signed());
    match op {
        Alu::Add => dst.wrapping_add(src),
        Alu::Sub => dst.wrapping_sub(src),
        Alu::Mul => dst.wrapping_mul(src),
        Alu::Div => dst.checked_div(src).unwrap_or(0),
        Alu::Mod => dst.checked_rem(src).unwrap_or(dst),
        Alu::Or => dst | src,
        Alu::And => dst & src,
        Alu::Xor => dst ^ src,
        Alu::Mov => src,
        Alu::Lsh => dst << (src & 63),
        Alu::Rsh => dst >> (src & 63),
        Alu::Arsh => (signed >> (src & 63)).cast_unsigned(),
        Alu::SDiv if src == 0 => 0,
        Alu::SDiv => signed.wrapping_div(divisor).cast_unsigned(),
        Alu::SMod if src == 0 => dst,
        Alu::SMod => signed.wrapping_rem(divisor).cast_unsigned(),
    }
}

fn holds(wide: bool, cond: Cond, a: u64, b: u64) -> bool {
    let (a, b) = if wide { (a, b) } else { (sign_extend(a, 32), sign_extend(b, 32)) };
    // Sign extension keeps the order of unsigned numbers, too.
    let (signed_a, signed_b) = (a.cast_signed(), b.cast_signed());
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Set if wide => a & b != 0,
        Cond::Set => low(a & b) != 0,
        Cond::Sgt => signed_a > signed_b,
        Cond::Sge => signed_a >= signed_b,
        Cond::Slt => signed_a < signed_b,
        Cond::Sle => signed_a <= signed_b,
    }
}

/// Does an atomic operation and returns the old value. Sequentially consistent, as the machine's are.
///
/// # Safety
/// `at` is valid for reads and writes and aligned for the width.
unsafe fn atomic(wide: bool, op: Atomic, at: *mut u8, operand: u64, compare: u64) -> u64 {
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

    macro_rules! apply {
        ($type:ident, $number:ty) => {{
            // SAFETY: the caller's.
            let word = unsafe { $type::from_ptr(at.cast()) };
            let (operand, compare) = (operand as $number, compare as $number);
            match op {
                Atomic::Add | Atomic::FetchAdd => word.fetch_add(operand, SeqCst),
                Atomic::Or | Atomic::FetchOr => word.fetch_or(operand, SeqCst),
                Atomic::And | Atomic::FetchAnd => word.fetch_and(operand, SeqCst),
                Atomic::Xor | Atomic::FetchXor => word.fetch_xor(operand, SeqCst),
                Atomic::Xchg => word.swap(operand, SeqCst),
                Atomic::CmpXchg => {
                    let done = word.compare_exchange(compare, operand, SeqCst, SeqCst);
                    done.unwrap_or_else(|seen| seen)
                }
            }
        }};
    }
    if wide { apply!(AtomicU64, u64) } else { u64::from(apply!(AtomicU32, u32)) }
}
