//! The BPF programs, assembled by hand: one for each kind of site.
//!
//! Each reserves a record in the ring, fills it and submits it; when the ring is full it counts that for
//! this CPU instead. Nobody is woken before the ring is filled to a quarter.
//!
//! The record, in 8-byte words, native byte order:
//!
//! | word | entry | return | USDT |
//! |---|---|---|---|
//! | 0 | `CLOCK_MONOTONIC`, ns, read *after* the record was reserved ([`crate::order`]) | same | same |
//! | 1 | cookie | same | same |
//! | 2 | thread id (low half), process id | same | same |
//! | 3 | CPU (low half), operands that could not be read (bits) | same | same |
//! | 4 | stack pointer | same | same |
//! | 5, 6 | the thread's name | same | same |
//! | 7.. | 6 argument registers | return value | 17 registers, a zero, 12 operands in memory |
//!
//! Ids are those of the PID namespace of the target where that is known: the process' own names for itself.

use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Words before what differs.
pub(crate) const HEAD: usize = 7;
/// Where the thread's name is, and its bytes.
pub(crate) const NAME: usize = 5;
pub(crate) const NAME_BYTES: usize = 16;
/// Registers that a function's first arguments are in.
pub(crate) const ARGS: usize = 6;
/// Slots of registers in a USDT record; the last is always zero: an absent index.
pub(crate) const SLOTS: usize = 18;
/// The slot that is always zero.
pub(crate) const ZERO: u8 = 17;
/// Operands in memory that are read.
pub(crate) const OPERANDS: usize = 12;
/// Words of the longest record.
pub(crate) const WORDS_MAX: usize = HEAD + SLOTS + OPERANDS;

/// What kind of site a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Entry,
    Return,
    Usdt,
}

impl Kind {
    /// Words of its record.
    pub(crate) const fn words(self) -> usize {
        match self {
            Self::Entry => HEAD + ARGS,
            Self::Return => HEAD + 1,
            Self::Usdt => WORDS_MAX,
        }
    }
}

/// Where an operand in memory is: `[slot base + (slot index << shift) + displacement]`. Eight bytes, as
/// the program reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operand {
    pub(crate) base: u8,
    pub(crate) index: u8,
    pub(crate) shift: u8,
    /// 1 to 8 bytes; 0 says that there are no more.
    pub(crate) size: u8,
    pub(crate) displacement: i32,
}

impl Operand {
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        let [a, b, c, d] = self.displacement.to_ne_bytes();
        [self.base, self.index, self.shift, self.size, a, b, c, d]
    }
}

/// `struct pt_regs` of x86-64, by USDT slot: offsets of ax bx cx dx si di bp sp r8 .. r15 ip.
const PT_REGS: [i16; 17] = [80, 40, 88, 96, 104, 112, 32, 152, 72, 64, 56, 48, 24, 16, 8, 0, 128];
/// Offsets of the registers of the first arguments: di si dx cx r8 r9.
const PT_ARGS: [i16; ARGS] = [112, 104, 96, 88, 72, 64];
const PT_SP: i16 = 152;
const PT_AX: i16 = 80;

/// A PID namespace, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Namespace {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// What programs refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maps<'m> {
    pub(crate) ring: BorrowedFd<'m>,
    /// One counter a CPU.
    pub(crate) lost: BorrowedFd<'m>,
    /// [`OPERANDS`] times [`Operand`] a site.
    pub(crate) operands: BorrowedFd<'m>,
    /// Bytes in the ring at which the reader is woken.
    pub(crate) wake_at: u32,
}

// Helpers, by their numbers in include/uapi/linux/bpf.h.
const MAP_LOOKUP_ELEM: i32 = 1;
const KTIME_GET_NS: i32 = 5;
const GET_SMP_PROCESSOR_ID: i32 = 8;
const GET_CURRENT_PID_TGID: i32 = 14;
const GET_CURRENT_COMM: i32 = 16;
const PROBE_READ_USER: i32 = 112;
const GET_NS_CURRENT_PID_TGID: i32 = 120;
const RINGBUF_RESERVE: i32 = 131;
const RINGBUF_SUBMIT: i32 = 132;
const RINGBUF_QUERY: i32 = 134;
const GET_ATTACH_COOKIE: i32 = 174;

// Opcodes: class | size or operation | mode or source.
const LDX: u8 = 0x61;
const LDXB: u8 = 0x71;
const LDXDW: u8 = 0x79;
const STDW: u8 = 0x7a;
const STXW: u8 = 0x63;
const STXDW: u8 = 0x7b;
const LOCK_ADD: u8 = 0xdb;
const MOV: u8 = 0xb7;
const MOV_REG: u8 = 0xbf;
const ADD: u8 = 0x07;
const ADD_REG: u8 = 0x0f;
const OR: u8 = 0x47;
const SHL: u8 = 0x67;
const SHL_REG: u8 = 0x6f;
const SAR: u8 = 0xc7;
const JA: u8 = 0x05;
const JEQ: u8 = 0x15;
const JGT: u8 = 0x25;
const JLT: u8 = 0xa5;
const JSGE: u8 = 0x75;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LD_IMM64: u8 = 0x18;
/// As the source of `LD_IMM64`: the immediate is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;

/// Records in the making: r6 is the context, r7 the record, r8 the operands.
struct Assembler {
    code: Vec<u64>,
    /// Jumps whose target is not known yet, by label.
    open: Vec<(usize, Label)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Full,
    Submit,
    End,
    Local(usize),
}

impl Assembler {
    fn op(&mut self, code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> &mut Self {
        let word = u64::from(code)
            | u64::from(dst & 15) << 8
            | u64::from(src & 15) << 12
            | u64::from(offset.cast_unsigned()) << 16
            | u64::from(immediate.cast_unsigned()) << 32;
        self.code.push(word);
        self
    }

    fn call(&mut self, helper: i32) -> &mut Self {
        self.op(CALL, 0, 0, 0, helper)
    }

    /// `dst = map`.
    fn map(&mut self, dst: u8, map: BorrowedFd<'_>) -> &mut Self {
        self.op(LD_IMM64, dst, PSEUDO_MAP_FD, 0, map.as_raw_fd()).op(0, 0, 0, 0, 0)
    }

    /// `dst = value`.
    fn wide(&mut self, dst: u8, value: u64) -> &mut Self {
        let (low, high) = (value as u32, (value >> 32) as u32);
        self.op(LD_IMM64, dst, 0, 0, low.cast_signed()).op(0, 0, 0, 0, high.cast_signed())
    }

    fn jump(&mut self, code: u8, dst: u8, immediate: i32, label: Label) -> &mut Self {
        self.open.push((self.code.len(), label));
        self.op(code, dst, 0, 0, immediate)
    }

    fn label(&mut self, label: Label) -> &mut Self {
        let here = self.code.len();
        for (at, _) in self.open.extract_if(.., |(_, wanted)| *wanted == label) {
            // Programs are some hundred instructions long.
            let distance = (here - at - 1) as u64 & 0xffff;
            if let Some(word) = self.code.get_mut(at) {
                *word |= distance << 16;
            }
        }
        self
    }

    /// `record[word] = r0`.
    fn keep(&mut self, word: usize) -> &mut Self {
        self.op(STXDW, 7, 0, at(word), 0)
    }

    /// `record[word] = context[offset]`.
    fn register(&mut self, word: usize, offset: i16) -> &mut Self {
        self.op(LDXDW, 1, 6, offset, 0).op(STXDW, 7, 1, at(word), 0)
    }
}

/// Byte offset of a word in the record.
const fn at(word: usize) -> i16 {
    (word * 8) as i16
}

/// The program for one kind of site.
pub(crate) fn assemble(kind: Kind, maps: &Maps<'_>, namespace: Option<Namespace>) -> Vec<u64> {
    let mut a = Assembler { code: Vec::new(), open: Vec::new() };
    let size = i32::try_from(kind.words() * 8).unwrap_or(0);
    a.op(MOV_REG, 6, 1, 0, 0);
    a.map(1, maps.ring).op(MOV, 2, 0, 0, size).op(MOV, 3, 0, 0, 0).call(RINGBUF_RESERVE);
    a.jump(JEQ, 0, 0, Label::Full).op(MOV_REG, 7, 0, 0, 0);
    a.call(KTIME_GET_NS).keep(0);
    a.op(MOV_REG, 1, 6, 0, 0).call(GET_ATTACH_COOKIE).keep(1);
    ids(&mut a, namespace);
    a.call(GET_SMP_PROCESSOR_ID).keep(3);
    a.register(4, PT_SP);
    a.op(MOV_REG, 1, 7, 0, 0).op(ADD, 1, 0, 0, at(NAME).into());
    a.op(MOV, 2, 0, 0, NAME_BYTES as i32).call(GET_CURRENT_COMM);
    match kind {
        Kind::Entry => {
            for (n, offset) in PT_ARGS.iter().enumerate() {
                a.register(HEAD + n, *offset);
            }
        }
        Kind::Return => {
            a.register(HEAD, PT_AX);
        }
        Kind::Usdt => operands(&mut a, maps),
    }
    a.label(Label::Submit);
    // Woken at a quarter, by force: by default every record would wake a reader that keeps up.
    let wake_at = i32::try_from(maps.wake_at).unwrap_or(i32::MAX);
    a.map(1, maps.ring).op(MOV, 2, 0, 0, 0).call(RINGBUF_QUERY);
    a.op(MOV, 2, 0, 0, 1).op(JLT, 0, 0, 1, wake_at).op(MOV, 2, 0, 0, 2);
    a.op(MOV_REG, 1, 7, 0, 0).call(RINGBUF_SUBMIT);
    a.jump(JA, 0, 0, Label::End);
    a.label(Label::Full);
    a.call(GET_SMP_PROCESSOR_ID).op(STXW, 10, 0, -4, 0);
    a.map(1, maps.lost).op(MOV_REG, 2, 10, 0, 0).op(ADD, 2, 0, 0, -4).call(MAP_LOOKUP_ELEM);
    a.jump(JEQ, 0, 0, Label::End).op(MOV, 1, 0, 0, 1).op(LOCK_ADD, 0, 1, 0, 0);
    a.label(Label::End);
    a.op(MOV, 0, 0, 0, 0).op(EXIT, 0, 0, 0, 0);
    a.code
}

/// Word 2: process and thread, as that namespace calls them, else as the first one does.
fn ids(a: &mut Assembler, namespace: Option<Namespace>) {
    let found = Label::Local(usize::MAX);
    if let Some(Namespace { device, inode }) = namespace {
        a.op(STDW, 10, 0, -16, 0);
        a.wide(1, device).wide(2, inode).op(MOV_REG, 3, 10, 0, 0).op(ADD, 3, 0, 0, -16);
        a.op(MOV, 4, 0, 0, 8).call(GET_NS_CURRENT_PID_TGID);
        a.op(MOV_REG, 1, 0, 0, 0).op(LDXDW, 0, 10, -16, 0).jump(JEQ, 1, 0, found);
    }
    a.call(GET_CURRENT_PID_TGID);
    a.label(found).keep(2);
}

/// Registers, and what operands in memory hold.
fn operands(a: &mut Assembler, maps: &Maps<'_>) {
    for (n, offset) in PT_REGS.iter().enumerate() {
        a.register(HEAD + n, *offset);
    }
    for word in HEAD + PT_REGS.len()..WORDS_MAX {
        a.op(STDW, 7, 0, at(word), 0);
    }
    // The site's number is the low half of the cookie.
    a.op(LDX, 1, 7, at(1), 0).op(STXW, 10, 1, -4, 0);
    a.map(1, maps.operands).op(MOV_REG, 2, 10, 0, 0).op(ADD, 2, 0, 0, -4).call(MAP_LOOKUP_ELEM);
    a.jump(JEQ, 0, 0, Label::Submit).op(MOV_REG, 8, 0, 0, 0);
    for n in 0..OPERANDS {
        let spec = (n * 8) as i16;
        let slot = |a: &mut Assembler, offset: i16, into: u8| {
            a.op(LDXB, 1, 8, spec + offset, 0).jump(JGT, 1, ZERO.into(), Label::Submit);
            a.op(SHL, 1, 0, 0, 3).op(MOV_REG, 2, 7, 0, 0).op(ADD_REG, 2, 1, 0, 0);
            a.op(LDXDW, into, 2, at(HEAD), 0);
        };
        slot(a, 0, 3);
        slot(a, 1, 4);
        a.op(LDXB, 1, 8, spec + 2, 0).op(SHL_REG, 4, 1, 0, 0).op(ADD_REG, 3, 4, 0, 0);
        a.op(LDX, 1, 8, spec + 4, 0).op(SHL, 1, 0, 0, 32).op(SAR, 1, 0, 0, 32);
        a.op(ADD_REG, 3, 1, 0, 0);
        a.op(LDXB, 2, 8, spec + 3, 0).jump(JEQ, 2, 0, Label::Submit);
        a.jump(JGT, 2, 8, Label::Submit);
        a.op(MOV_REG, 1, 7, 0, 0).op(ADD, 1, 0, 0, at(HEAD + SLOTS + n).into());
        a.call(PROBE_READ_USER);
        let read = Label::Local(n);
        a.jump(JSGE, 0, 0, read);
        a.op(LDX, 1, 7, at(3) + 4, 0).op(OR, 1, 0, 0, 1 << n).op(STXW, 7, 1, at(3) + 4, 0);
        a.label(read);
    }
}
