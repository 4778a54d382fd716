//! Running a program on a record. No allocation, no recursion, no panic.

use super::Verdict;
use super::bind::holds;
use super::lexer::Op;
use crate::config::glob_bytes;
use crate::record::RecordHeader;
use crate::schema::{DynTag, Scalar, Type};

/// Target: the record matches.
pub(super) const ACCEPT: u16 = u16::MAX;
/// Target: the record does not match.
pub(super) const REJECT: u16 = u16::MAX - 1;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    pub(super) entry: u16,
    /// Types of the payload's fields.
    pub(super) types: Vec<Type>,
}

/// I1: both targets are ACCEPT, REJECT or an index below this step's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) probe: Probe,
    pub(super) on_true: u16,
    pub(super) on_false: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Probe {
    Pid(Want),
    Tid(Want),
    Comm(Want),
    Field(Place, Want),
}

/// Where a field is: `offset` bytes hold the fields before `from`; those up to `index` are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: usize,
    pub(super) from: usize,
    pub(super) index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
    /// A value of an `f32` field, widened; the other side is rounded to `f32` for the comparison.
    Single(f32),
}

/// What a value must be.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Want {
    Number(Op, Number),
    Text(Op, Vec<u8>),
    Bool(Op, bool),
    Glob(Vec<u8>),
    ContainsNumber(Number),
    ContainsText(Vec<u8>),
    Has,
}

impl Number {
    fn as_f64(self) -> f64 {
        match self {
            Self::Int(n) => n as f64,
            Self::Float(n) => n,
            Self::Single(n) => n.into(),
        }
    }

    /// Whether `self op wanted`. With NaN, only `!=` holds.
    fn compare(self, op: Op, wanted: Self) -> bool {
        let order = match (self, wanted) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(&b)),
            (Self::Single(a), b) => a.partial_cmp(&(b.as_f64() as f32)),
            (a, b) => a.as_f64().partial_cmp(&b.as_f64()),
        };
        order.map_or(op == Op::Ne, |order| holds(op, order))
    }
}

impl Want {
    fn number(&self, value: Number) -> bool {
        match self {
            Self::Number(op, wanted) => value.compare(*op, *wanted),
            Self::ContainsNumber(wanted) => value.compare(Op::Eq, *wanted),
            Self::Has => true,
            _ => false,
        }
    }

    pub(super) fn text(&self, value: &[u8]) -> bool {
        match self {
            Self::Text(op, wanted) => holds(*op, value.cmp(wanted)),
            Self::Glob(glob) => glob_bytes(glob, value),
            Self::ContainsText(part) if part.is_empty() => true,
            Self::ContainsText(part) => value.windows(part.len()).any(|window| window == part),
            Self::Has => true,
            _ => false,
        }
    }

    fn bool(&self, value: bool) -> bool {
        match self {
            Self::Bool(op, wanted) => holds(*op, value.cmp(wanted)),
            Self::Has => true,
            _ => false,
        }
    }
}

impl Program {
    pub(super) fn verdict(&self) -> Verdict {
        match self.entry {
            ACCEPT => Verdict::Always,
            REJECT => Verdict::Never,
            _ => Verdict::Depends,
        }
    }

    pub(super) fn run(
        &self,
        header: &RecordHeader,
        payload: &[&[u8]],
        comm: Option<&[u8]>,
    ) -> bool {
        let mut at = self.entry;
        // Ends: by I1 `at` falls with every turn.
        while let Some(step) = self.steps.get(usize::from(at)) {
            let holds = match &step.probe {
                Probe::Pid(want) => want.number(Number::Int(header.pid.into())),
                Probe::Tid(want) => want.number(Number::Int(header.tid.into())),
                Probe::Comm(want) => comm.is_some_and(|comm| want.text(comm)),
                Probe::Field(place, want) => self.field(*place, want, payload).unwrap_or(false),
            };
            at = if holds { step.on_true } else { step.on_false };
        }
        at == ACCEPT
    }

    /// `None` when the payload does not reach the field or does not fit the schema before it.
    fn field(&self, place: Place, want: &Want, payload: &[&[u8]]) -> Option<bool> {
        let mut cursor = Cursor { piece: &[], rest: payload };
        cursor.skip(place.offset)?;
        for ty in self.types.get(place.from..place.index)? {
            cursor.skip_value(ty)?;
        }
        cursor.test(self.types.get(place.index)?, want)
    }
}

/// A position in a payload in pieces.
struct Cursor<'p> {
    piece: &'p [u8],
    rest: &'p [&'p [u8]],
}

impl<'p> Cursor<'p> {
    /// Makes the current piece non-empty; `None` at the end.
    fn refill(&mut self) -> Option<()> {
        while self.piece.is_empty() {
            let (piece, rest) = self.rest.split_first()?;
            self.piece = piece;
            self.rest = rest;
        }
        Some(())
    }

    fn skip(&mut self, mut bytes: usize) -> Option<()> {
        while bytes > 0 {
            self.refill()?;
            let step = bytes.min(self.piece.len());
            self.piece = self.piece.get(step..)?;
            bytes -= step;
        }
        Some(())
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        if let Some((chunk, rest)) = self.piece.split_first_chunk::<N>() {
            self.piece = rest;
            return Some(*chunk);
        }
        let mut chunk = [0; N];
        for byte in &mut chunk {
            self.refill()?;
            let (first, rest) = self.piece.split_first()?;
            *byte = *first;
            self.piece = rest;
        }
        Some(chunk)
    }

    fn len(&mut self) -> Option<usize> {
        self.fixed().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    /// A counted run of bytes, if it lies in one piece.
    fn counted(&mut self) -> Option<&'p [u8]> {
        let len = self.len()?;
        if len == 0 {
            return Some(&[]);
        }
        self.refill()?;
        let (bytes, rest) = self.piece.split_at_checked(len)?;
        self.piece = rest;
        Some(bytes)
    }

    fn scalar(&mut self, scalar: Scalar) -> Option<Number> {
        Some(match scalar {
            Scalar::U8 | Scalar::Bool => Number::Int(u8::from_le_bytes(self.fixed()?).into()),
            Scalar::U16 => Number::Int(u16::from_le_bytes(self.fixed()?).into()),
            Scalar::U32 => Number::Int(u32::from_le_bytes(self.fixed()?).into()),
            Scalar::U64 => Number::Int(u64::from_le_bytes(self.fixed()?).into()),
            Scalar::I8 => Number::Int(i8::from_le_bytes(self.fixed()?).into()),
            Scalar::I16 => Number::Int(i16::from_le_bytes(self.fixed()?).into()),
            Scalar::I32 => Number::Int(i32::from_le_bytes(self.fixed()?).into()),
            Scalar::I64 => Number::Int(i64::from_le_bytes(self.fixed()?).into()),
            Scalar::F32 => Number::Single(f32::from_le_bytes(self.fixed()?)),
            Scalar::F64 => Number::Float(f64::from_le_bytes(self.fixed()?)),
        })
    }

    fn skip_list(&mut self, scalar: Scalar, len: usize) -> Option<()> {
        self.skip(scalar.size().checked_mul(len)?)
    }

    /// Opens the options around a value: its type, or `None` inside when it is absent.
    fn open<'t>(&mut self, mut ty: &'t Type) -> Option<Option<&'t Type>> {
        while let Type::Option(inner) = ty {
            match self.fixed::<1>()? {
                [0] => return Some(None),
                [1] => ty = inner,
                _ => return None,
            }
        }
        Some(Some(ty))
    }

    fn skip_value(&mut self, ty: &Type) -> Option<()> {
        let Some(ty) = self.open(ty)? else { return Some(()) };
        match ty {
            Type::Scalar(scalar) | Type::Enum(scalar, _) => self.skip(scalar.size()),
            Type::Str | Type::Bytes => {
                let len = self.len()?;
                self.skip(len)
            }
            Type::Array(scalar, len) => self.skip_list(*scalar, *len as usize),
            Type::Seq(scalar) => {
                let len = self.len()?;
                self.skip_list(*scalar, len)
            }
            Type::Dynamic => match dyn_type(self.fixed()?)? {
                Some(Type::Scalar(scalar)) => self.skip(scalar.size()),
                Some(_) => {
                    let len = self.len()?;
                    self.skip(len)
                }
                None => Some(()),
            },
            // open() left none.
            Type::Option(_) => None,
        }
    }

    fn test(&mut self, ty: &Type, want: &Want) -> Option<bool> {
        let Some(ty) = self.open(ty)? else { return Some(false) };
        match ty {
            Type::Dynamic => match dyn_type(self.fixed()?)? {
                Some(ty) => self.test_plain(&ty, want),
                None => Some(false),
            },
            ty => self.test_plain(ty, want),
        }
    }

    /// `ty` is neither `Option` nor `Dynamic`.
    fn test_plain(&mut self, ty: &Type, want: &Want) -> Option<bool> {
        match ty {
            Type::Scalar(Scalar::Bool) => match self.fixed::<1>()? {
                [0] => Some(want.bool(false)),
                [1] => Some(want.bool(true)),
                _ => None,
            },
            Type::Scalar(scalar) => match want {
                Want::ContainsNumber(_) => Some(false),
                want => self.scalar(*scalar).map(|number| want.number(number)),
            },
            Type::Str | Type::Bytes => self.counted().map(|text| want.text(text)),
            Type::Array(scalar, len) => self.test_list(*scalar, *len as usize, want),
            Type::Seq(scalar) => {
                let len = self.len()?;
                self.test_list(*scalar, len, want)
            }
            Type::Enum(scalar, names) => {
                let number = self.scalar(*scalar)?;
                if matches!(want, Want::Number(..) | Want::Has) {
                    return Some(want.number(number));
                }
                let Number::Int(n) = number else { return None };
                // As value::take: numbers over i64::MAX are named by their two's complement.
                let n = n as i64;
                let name = names.iter().find(|(number, _)| *number == n);
                Some(name.is_some_and(|(_, name)| want.text(name.as_bytes())))
            }
            Type::Option(_) | Type::Dynamic => None,
        }
    }

    fn test_list(&mut self, scalar: Scalar, len: usize, want: &Want) -> Option<bool> {
        if !matches!(want, Want::ContainsNumber(_)) {
            return Some(*want == Want::Has);
        }
        // Bounded by the payload: the first element that is not there ends it.
        for _ in 0..len {
            if want.number(self.scalar(scalar)?) {
                return Some(true);
            }
        }
        Some(false)
    }
}

/// The type a [`DynTag`] byte stands for: `None` inside for an absent value.
fn dyn_type(tag: [u8; 1]) -> Option<Option<Type>> {
    const ABSENT: u8 = DynTag::Absent as u8;
    const U64: u8 = DynTag::U64 as u8;
    const I64: u8 = DynTag::I64 as u8;
    const F64: u8 = DynTag::F64 as u8;
    const BOOL: u8 = DynTag::Bool as u8;
    const STR: u8 = DynTag::Str as u8;
    const BYTES: u8 = DynTag::Bytes as u8;
    let [tag] = tag;
    Some(match tag {
        ABSENT => None,
        U64 => Some(Type::Scalar(Scalar::U64)),
        I64 => Some(Type::Scalar(Scalar::I64)),
        F64 => Some(Type::Scalar(Scalar::F64)),
        BOOL => Some(Type::Scalar(Scalar::Bool)),
        STR => Some(Type::Str),
        BYTES => Some(Type::Bytes),
        _ => return None,
    })
}
