//! Bytes of x86-64 instructions: the encodings that the compiler needs, as of Intel's manual, volume 2.

/// A register of the machine.
pub(super) type Native = u8;

pub(super) const RAX: Native = 0;
pub(super) const RCX: Native = 1;
pub(super) const RDX: Native = 2;
pub(super) const RBX: Native = 3;
pub(super) const RSP: Native = 4;
pub(super) const RBP: Native = 5;
pub(super) const RSI: Native = 6;
pub(super) const RDI: Native = 7;
pub(super) const R8: Native = 8;
pub(super) const R9: Native = 9;
pub(super) const R10: Native = 10;
pub(super) const R11: Native = 11;
pub(super) const R12: Native = 12;
pub(super) const R13: Native = 13;
pub(super) const R14: Native = 14;
pub(super) const R15: Native = 15;

/// Condition codes.
pub(super) mod cc {
    pub(in crate::jit) const B: u8 = 0x2;
    pub(in crate::jit) const AE: u8 = 0x3;
    pub(in crate::jit) const E: u8 = 0x4;
    pub(in crate::jit) const NE: u8 = 0x5;
    pub(in crate::jit) const BE: u8 = 0x6;
    pub(in crate::jit) const A: u8 = 0x7;
    pub(in crate::jit) const S: u8 = 0x8;
    pub(in crate::jit) const L: u8 = 0xc;
    pub(in crate::jit) const GE: u8 = 0xd;
    pub(in crate::jit) const LE: u8 = 0xe;
    pub(in crate::jit) const G: u8 = 0xf;
}

/// Two-operand arithmetic: the opcode of `op r/m, r` and the number in `op r/m, imm`.
#[derive(Clone, Copy)]
pub(super) struct Arith {
    pub(super) rr: u8,
    pub(super) digit: u8,
}

pub(super) const ADD: Arith = Arith { rr: 0x01, digit: 0 };
pub(super) const OR: Arith = Arith { rr: 0x09, digit: 1 };
pub(super) const AND: Arith = Arith { rr: 0x21, digit: 4 };
pub(super) const SUB: Arith = Arith { rr: 0x29, digit: 5 };
pub(super) const XOR: Arith = Arith { rr: 0x31, digit: 6 };
pub(super) const CMP: Arith = Arith { rr: 0x39, digit: 7 };

/// A short jump whose target is not known yet.
#[must_use]
pub(super) struct Short(usize);

/// Code as it grows.
#[derive(Default)]
pub(super) struct Emit {
    pub(super) bytes: Vec<u8>,
}

impl Emit {
    pub(super) fn here(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn imm32(&mut self, imm: i32) {
        self.raw(&imm.to_le_bytes());
    }

    fn rex(&mut self, wide: bool, reg: Native, rm: Native, always: bool) {
        let byte = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | rm >> 3;
        if byte != 0x40 || always {
            self.bytes.push(byte);
        }
    }

    /// `op` with two registers; `reg` may be a digit of the opcode.
    pub(super) fn rr(&mut self, wide: bool, op: &[u8], reg: Native, rm: Native) {
        self.rex(wide, reg, rm, false);
        self.raw(op);
        self.bytes.push(0xc0 | (reg & 7) << 3 | rm & 7);
    }

    /// As [`Emit::rr`] where `rm` is a byte: without a prefix, 4 to 7 would be others.
    pub(super) fn rr_byte(&mut self, wide: bool, op: &[u8], reg: Native, rm: Native) {
        self.rex(wide, reg, rm, true);
        self.raw(op);
        self.bytes.push(0xc0 | (reg & 7) << 3 | rm & 7);
    }

    /// `op` with a register (or digit) and memory at `base + disp`.
    pub(super) fn mem(&mut self, form: Form, op: &[u8], reg: Native, base: Native, disp: i32) {
        if let Some(prefix) = form.prefix {
            self.bytes.push(prefix);
        }
        self.rex(form.wide, reg, base, form.byte);
        self.raw(op);
        let (reg, rm) = ((reg & 7) << 3, base & 7);
        let sib = |emit: &mut Self| {
            if rm == 4 {
                emit.bytes.push(0x24);
            }
        };
        match i8::try_from(disp) {
            Ok(0) if rm != 5 => {
                self.bytes.push(reg | rm);
                sib(self);
            }
            Ok(disp) => {
                self.bytes.push(0x40 | reg | rm);
                sib(self);
                self.raw(&disp.to_le_bytes());
            }
            Err(_) => {
                self.bytes.push(0x80 | reg | rm);
                sib(self);
                self.imm32(disp);
            }
        }
    }

    pub(super) fn mov(&mut self, wide: bool, to: Native, from: Native) {
        self.rr(wide, &[0x89], from, to);
    }

    pub(super) fn arith(&mut self, wide: bool, op: Arith, dst: Native, src: Native) {
        self.rr(wide, &[op.rr], src, dst);
    }

    pub(super) fn arith_imm(&mut self, wide: bool, op: Arith, dst: Native, imm: i32) {
        match i8::try_from(imm) {
            Ok(imm) => {
                self.rr(wide, &[0x83], op.digit, dst);
                self.raw(&imm.to_le_bytes());
            }
            Err(_) => {
                self.rr(wide, &[0x81], op.digit, dst);
                self.imm32(imm);
            }
        }
    }

    /// `dst` = a number, in the shortest form.
    pub(super) fn constant(&mut self, dst: Native, value: u64) {
        if value == 0 {
            self.arith(false, XOR, dst, dst);
        } else if let Ok(value) = u32::try_from(value) {
            self.rex(false, 0, dst, false);
            self.bytes.push(0xb8 | dst & 7);
            self.raw(&value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value.cast_signed()) {
            self.rr(true, &[0xc7], 0, dst);
            self.imm32(value);
        } else {
            self.rex(true, 0, dst, false);
            self.bytes.push(0xb8 | dst & 7);
            self.raw(&value.to_le_bytes());
        }
    }

    pub(super) fn load(&mut self, dst: Native, base: Native, disp: i32) {
        self.mem(Form::D, &[0x8b], dst, base, disp);
    }

    pub(super) fn store(&mut self, base: Native, disp: i32, src: Native) {
        self.mem(Form::D, &[0x89], src, base, disp);
    }

    pub(super) fn push(&mut self, reg: Native) {
        self.rex(false, 0, reg, false);
        self.bytes.push(0x50 | reg & 7);
    }

    pub(super) fn pop(&mut self, reg: Native) {
        self.rex(false, 0, reg, false);
        self.bytes.push(0x58 | reg & 7);
    }

    /// `mov rax, target; call rax`.
    pub(super) fn call_absolute(&mut self, target: u64) {
        self.constant(RAX, target);
        self.raw(&[0xff, 0xd0]);
    }

    /// A conditional jump over less than 128 bytes.
    pub(super) fn jump_short(&mut self, cc: u8) -> Short {
        self.raw(&[0x70 | cc, 0]);
        Short(self.here())
    }

    /// An unconditional one.
    pub(super) fn jump_short_always(&mut self) -> Short {
        self.raw(&[0xeb, 0]);
        Short(self.here())
    }

    /// The target of a short jump is here.
    pub(super) fn land(&mut self, jump: Short) {
        let distance = self.here() - jump.0;
        if let Some(at) = self.bytes.get_mut(jump.0 - 1) {
            *at = u8::try_from(distance).unwrap_or(0) & 0x7f;
        }
    }
}

/// How a memory operand is encoded.
#[derive(Clone, Copy)]
pub(super) struct Form {
    prefix: Option<u8>,
    wide: bool,
    byte: bool,
}

impl Form {
    /// A byte register.
    pub(super) const B: Self = Self { prefix: None, wide: false, byte: true };
    /// 16 bits.
    pub(super) const H: Self = Self { prefix: Some(0x66), wide: false, byte: false };
    /// 32 bits.
    pub(super) const W: Self = Self { prefix: None, wide: false, byte: false };
    /// 64 bits.
    pub(super) const D: Self = Self { prefix: None, wide: true, byte: false };

    /// Locked, 64 or 32 bits.
    pub(super) const fn locked(wide: bool) -> Self {
        Self { prefix: Some(0xf0), wide, byte: false }
    }

    pub(super) const fn of(wide: bool) -> Self {
        if wide { Self::D } else { Self::W }
    }
}
