//! Instructions as values: what built-in programs and tests are written in.
//!
//! A program is a sequence of 8-byte *slots*; a 64-bit immediate takes two. The encoding is the one of
//! the instruction set document of the kernel (`Documentation/bpf/standardization/instruction-set.rst`),
//! little-endian, up to version 4 of the instruction set.
//!
//! ```
//! use owlet_ebpf::asm::{self, Alu, Reg};
//!
//! // return ctx->arg[0] + 1
//! let slots = [
//!     asm::load(8, Reg::R0, Reg::R1, 0),
//!     asm::alu_imm(Alu::Add, Reg::R0, 1),
//!     asm::exit(),
//! ];
//! assert_eq!(asm::bytes(&slots).len(), 24);
//! ```

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reg {
    /// Return value.
    R0,
    /// First argument: the context at the start of a program.
    R1,
    /// Second argument.
    R2,
    /// Third argument.
    R3,
    /// Fourth argument.
    R4,
    /// Fifth argument.
    R5,
    /// Kept over calls.
    R6,
    /// Kept over calls.
    R7,
    /// Kept over calls.
    R8,
    /// Kept over calls.
    R9,
    /// End of the stack frame; read-only.
    R10,
}

impl Reg {
    /// All registers, by number.
    pub const ALL: [Self; 11] = [
        Self::R0,
        Self::R1,
        Self::R2,
        Self::R3,
        Self::R4,
        Self::R5,
        Self::R6,
        Self::R7,
        Self::R8,
        Self::R9,
        Self::R10,
    ];

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Arithmetic and logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alu {
    /// Addition.
    Add,
    /// Subtraction.
    Sub,
    /// Multiplication, lower half.
    Mul,
    /// Unsigned division; by zero gives 0.
    Div,
    /// Bitwise or.
    Or,
    /// Bitwise and.
    And,
    /// Shift left; the count modulo the width.
    Lsh,
    /// Logical shift right.
    Rsh,
    /// Unsigned remainder; by zero gives the dividend.
    Mod,
    /// Bitwise exclusive or.
    Xor,
    /// Copy.
    Mov,
    /// Arithmetic shift right.
    Arsh,
    /// Signed division; by zero gives 0, the smallest number by -1 itself.
    SDiv,
    /// Signed remainder; by zero gives the dividend, by -1 gives 0.
    SMod,
}

impl Alu {
    /// Operation code and offset.
    pub(crate) const fn code(self) -> (u8, i16) {
        match self {
            Self::Add => (0x00, 0),
            Self::Sub => (0x10, 0),
            Self::Mul => (0x20, 0),
            Self::Div => (0x30, 0),
            Self::Or => (0x40, 0),
            Self::And => (0x50, 0),
            Self::Lsh => (0x60, 0),
            Self::Rsh => (0x70, 0),
            Self::Mod => (0x90, 0),
            Self::Xor => (0xa0, 0),
            Self::Mov => (0xb0, 0),
            Self::Arsh => (0xc0, 0),
            Self::SDiv => (0x30, 1),
            Self::SMod => (0x90, 1),
        }
    }
}

/// Condition of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cond {
    /// Equal.
    Eq = 0x10,
    /// Greater, unsigned.
    Gt = 0x20,
    /// Greater or equal, unsigned.
    Ge = 0x30,
    /// A common bit.
    Set = 0x40,
    /// Not equal.
    Ne = 0x50,
    /// Greater, signed.
    Sgt = 0x60,
    /// Greater or equal, signed.
    Sge = 0x70,
    /// Less, unsigned.
    Lt = 0xa0,
    /// Less or equal, unsigned.
    Le = 0xb0,
    /// Less, signed.
    Slt = 0xc0,
    /// Less or equal, signed.
    Sle = 0xd0,
}

/// Atomic operation on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Addition.
    Add,
    /// Bitwise or.
    Or,
    /// Bitwise and.
    And,
    /// Bitwise exclusive or.
    Xor,
    /// Addition; the source register gets the old value.
    FetchAdd,
    /// Bitwise or; the source register gets the old value.
    FetchOr,
    /// Bitwise and; the source register gets the old value.
    FetchAnd,
    /// Bitwise exclusive or; the source register gets the old value.
    FetchXor,
    /// Exchange with the source register.
    Xchg,
    /// Store the source register if memory holds R0; R0 gets the old value.
    CmpXchg,
}

impl Atomic {
    pub(crate) const ALL: [Self; 10] = [
        Self::Add,
        Self::Or,
        Self::And,
        Self::Xor,
        Self::FetchAdd,
        Self::FetchOr,
        Self::FetchAnd,
        Self::FetchXor,
        Self::Xchg,
        Self::CmpXchg,
    ];

    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::Add => 0x00,
            Self::Or => 0x40,
            Self::And => 0x50,
            Self::Xor => 0xa0,
            Self::FetchAdd => 0x01,
            Self::FetchOr => 0x41,
            Self::FetchAnd => 0x51,
            Self::FetchXor => 0xa1,
            Self::Xchg => 0xe1,
            Self::CmpXchg => 0xf1,
        }
    }
}

/// One slot, as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Operation.
    pub op: u8,
    /// Number of the destination register, 4 bits.
    pub dst: u8,
    /// Number of the source register, 4 bits.
    pub src: u8,
    /// Offset: of memory in bytes, of a jump in slots.
    pub off: i16,
    /// Immediate.
    pub imm: i32,
}

impl Slot {
    /// Its eight bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        let [o0, o1] = self.off.to_le_bytes();
        let [i0, i1, i2, i3] = self.imm.to_le_bytes();
        [self.op, self.dst & 15 | self.src << 4, o0, o1, i0, i1, i2, i3]
    }

    /// The slot of eight bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        let [op, regs, o0, o1, i0, i1, i2, i3] = bytes;
        let off = i16::from_le_bytes([o0, o1]);
        Self { op, dst: regs & 15, src: regs >> 4, off, imm: i32::from_le_bytes([i0, i1, i2, i3]) }
    }
}

/// The bytes of a program.
#[must_use]
pub fn bytes(slots: &[Slot]) -> Vec<u8> {
    slots.iter().flat_map(|slot| slot.to_bytes()).collect()
}

const fn slot(op: u8, dst: Reg, src: Reg, off: i16, imm: i32) -> Slot {
    Slot { op, dst: dst.number(), src: src.number(), off, imm }
}

/// `dst = dst OP imm`, 64 bits.
#[must_use]
pub const fn alu_imm(op: Alu, dst: Reg, imm: i32) -> Slot {
    let (code, off) = op.code();
    slot(code | 0x07, dst, Reg::R0, off, imm)
}

/// `dst = dst OP src`, 64 bits.
#[must_use]
pub const fn alu(op: Alu, dst: Reg, src: Reg) -> Slot {
    let (code, off) = op.code();
    slot(code | 0x0f, dst, src, off, 0)
}

/// `dst = dst OP imm`, 32 bits; the upper half becomes 0.
#[must_use]
pub const fn alu32_imm(op: Alu, dst: Reg, imm: i32) -> Slot {
    let (code, off) = op.code();
    slot(code | 0x04, dst, Reg::R0, off, imm)
}

/// `dst = dst OP src`, 32 bits; the upper half becomes 0.
#[must_use]
pub const fn alu32(op: Alu, dst: Reg, src: Reg) -> Slot {
    let (code, off) = op.code();
    slot(code | 0x0c, dst, src, off, 0)
}

/// `dst = -dst`, 64 (`wide`) or 32 bits.
#[must_use]
pub const fn neg(wide: bool, dst: Reg) -> Slot {
    slot(if wide { 0x87 } else { 0x84 }, dst, Reg::R0, 0, 0)
}

/// `dst = src`, sign-extended from `bits` (8, 16, 32) to 64 (`wide`) or 32 bits.
#[must_use]
pub const fn mov_sx(wide: bool, bits: i16, dst: Reg, src: Reg) -> Slot {
    slot(if wide { 0xbf } else { 0xbc }, dst, src, bits, 0)
}

/// The lower `bits` (16, 32, 64) of `dst` in big-endian order.
#[must_use]
pub const fn to_be(dst: Reg, bits: i32) -> Slot {
    slot(0xdc, dst, Reg::R0, 0, bits)
}

/// The lower `bits` (16, 32, 64) of `dst` in little-endian order.
#[must_use]
pub const fn to_le(dst: Reg, bits: i32) -> Slot {
    slot(0xd4, dst, Reg::R0, 0, bits)
}

/// The lower `bits` (16, 32, 64) of `dst` with their bytes swapped.
#[must_use]
pub const fn bswap(dst: Reg, bits: i32) -> Slot {
    slot(0xd7, dst, Reg::R0, 0, bits)
}

const fn size_code(bytes: u8) -> u8 {
    match bytes {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    }
}

/// `dst = *(src + off)`, `bytes` (1, 2, 4, 8) wide, zero-extended.
#[must_use]
pub const fn load(bytes: u8, dst: Reg, src: Reg, off: i16) -> Slot {
    slot(0x61 | size_code(bytes), dst, src, off, 0)
}

/// `dst = *(src + off)`, `bytes` (1, 2, 4) wide, sign-extended.
#[must_use]
pub const fn load_sx(bytes: u8, dst: Reg, src: Reg, off: i16) -> Slot {
    slot(0x81 | size_code(bytes), dst, src, off, 0)
}

/// `*(dst + off) = src`, `bytes` (1, 2, 4, 8) wide.
#[must_use]
pub const fn store(bytes: u8, dst: Reg, off: i16, src: Reg) -> Slot {
    slot(0x63 | size_code(bytes), dst, src, off, 0)
}

/// `*(dst + off) = imm`, `bytes` (1, 2, 4, 8) wide.
#[must_use]
pub const fn store_imm(bytes: u8, dst: Reg, off: i16, imm: i32) -> Slot {
    slot(0x62 | size_code(bytes), dst, Reg::R0, off, imm)
}

/// Atomic operation on `*(dst + off)`, 64 (`wide`) or 32 bits.
#[must_use]
pub const fn atomic(op: Atomic, wide: bool, dst: Reg, off: i16, src: Reg) -> Slot {
    slot(if wide { 0xdb } else { 0xc3 }, dst, src, off, op.code())
}

/// Jump over `off` slots.
#[must_use]
pub const fn ja(off: i16) -> Slot {
    slot(0x05, Reg::R0, Reg::R0, off, 0)
}

/// Jump over `off` slots, with the offset in the immediate.
#[must_use]
pub const fn ja32(off: i32) -> Slot {
    slot(0x06, Reg::R0, Reg::R0, 0, off)
}

/// Jump over `off` slots if `dst COND imm`, 64 bits.
#[must_use]
pub const fn jump_imm(cond: Cond, dst: Reg, imm: i32, off: i16) -> Slot {
    slot(cond as u8 | 0x05, dst, Reg::R0, off, imm)
}

/// Jump over `off` slots if `dst COND src`, 64 bits.
#[must_use]
pub const fn jump(cond: Cond, dst: Reg, src: Reg, off: i16) -> Slot {
    slot(cond as u8 | 0x0d, dst, src, off, 0)
}

/// Jump over `off` slots if `dst COND imm`, lower 32 bits.
#[must_use]
pub const fn jump32_imm(cond: Cond, dst: Reg, imm: i32, off: i16) -> Slot {
    slot(cond as u8 | 0x06, dst, Reg::R0, off, imm)
}

/// Jump over `off` slots if `dst COND src`, lower 32 bits.
#[must_use]
pub const fn jump32(cond: Cond, dst: Reg, src: Reg, off: i16) -> Slot {
    slot(cond as u8 | 0x0e, dst, src, off, 0)
}

/// `dst = value`, 64 bits: two slots.
#[must_use]
pub const fn load64(dst: Reg, value: u64) -> [Slot; 2] {
    [slot(0x18, dst, Reg::R0, 0, value as i32), slot(0, Reg::R0, Reg::R0, 0, (value >> 32) as i32)]
}

/// `dst` = map number `map` of the image: two slots.
#[must_use]
pub const fn load_map(dst: Reg, map: i32) -> [Slot; 2] {
    [slot(0x18, dst, Reg::R1, 0, map), slot(0, Reg::R0, Reg::R0, 0, 0)]
}

/// `dst` = address of byte `offset` of the first value of array `map`: two slots.
#[must_use]
pub const fn load_map_value(dst: Reg, map: i32, offset: i32) -> [Slot; 2] {
    [slot(0x18, dst, Reg::R2, 0, map), slot(0, Reg::R0, Reg::R0, 0, offset)]
}

/// Call of a helper by its number.
#[must_use]
pub const fn call(helper: i32) -> Slot {
    slot(0x85, Reg::R0, Reg::R0, 0, helper)
}

/// Call of the function that starts `off` slots behind the next slot.
#[must_use]
pub const fn call_local(off: i32) -> Slot {
    slot(0x85, Reg::R0, Reg::R1, 0, off)
}

/// End of the function; R0 is its value.
#[must_use]
pub const fn exit() -> Slot {
    slot(0x95, Reg::R0, Reg::R0, 0, 0)
}
