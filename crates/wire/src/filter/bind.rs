//! An expression and a schema to a program.
//!
//! Whatever the schema decides (level, name, fields that are not there, types that cannot be
//! compared) becomes a constant here, and constants vanish: a comparison that is always true is
//! replaced by its true target.

use super::Bound;
use super::eval::{ACCEPT, Number, Place, Probe, Program, REJECT, Step, Want};
use super::lexer::Op;
use super::parser::{Check, Expr, Operand, Subject, Test};
use crate::schema::{Kind, Level, Scalar, Schema, Type};

/// What a test became.
enum Made {
    Constant(bool),
    Probe(Probe),
}

struct Binder<'s> {
    schema: &'s Schema,
    steps: Vec<Step>,
    warnings: Vec<String>,
    missing: Vec<String>,
}

pub(super) fn bind(expr: Option<&Expr>, schema: &Schema) -> Bound {
    let mut binder =
        Binder { schema, steps: Vec::new(), warnings: Vec::new(), missing: Vec::new() };
    let entry = expr.map_or(ACCEPT, |expr| binder.expr(expr, ACCEPT, REJECT));
    Bound {
        program: Program {
            steps: binder.steps,
            entry,
            types: schema.fields.iter().map(|field| field.ty.clone()).collect(),
        },
        warnings: binder.warnings,
        missing: binder.missing,
    }
}

impl Binder<'_> {
    /// Emits `expr` so that it continues at one of the two targets, and returns where it starts.
    /// The last operand is emitted first: targets exist before what names them (I1).
    fn expr(&mut self, expr: &Expr, on_true: u16, on_false: u16) -> u16 {
        match expr {
            Expr::And(all) => {
                all.iter().rev().fold(on_true, |next, one| self.expr(one, next, on_false))
            }
            Expr::Or(all) => {
                all.iter().rev().fold(on_false, |next, one| self.expr(one, on_true, next))
            }
            Expr::Not(inner) => self.expr(inner, on_false, on_true),
            Expr::Test(test) => {
                let made = self.test(test);
                match made {
                    Made::Constant(true) => on_true,
                    Made::Constant(false) => on_false,
                    Made::Probe(_) if on_true == on_false => on_true,
                    Made::Probe(probe) => {
                        // At most MAX_TESTS steps, so the index is below REJECT.
                        let index = self.steps.len() as u16;
                        self.steps.push(Step { probe, on_true, on_false });
                        index
                    }
                }
            }
        }
    }

    fn test(&mut self, test: &Test) -> Made {
        match &test.subject {
            Subject::Level => Made::Constant(match test.check {
                Check::Compare(op, Operand::Level(level)) => {
                    holds(op, severity(self.schema.level).cmp(&severity(level)))
                }
                _ => matches!(test.check, Check::Has),
            }),
            Subject::Name => {
                let name = self.schema.name.as_bytes();
                Made::Constant(want(&test.check).is_some_and(|want| want.text(name)))
            }
            Subject::Comm => want(&test.check)
                .map_or(Made::Constant(false), |want| Made::Probe(Probe::Comm(want))),
            Subject::Pid | Subject::Tid if test.check == Check::Has => Made::Constant(true),
            Subject::Pid => {
                want(&test.check).map_or(Made::Constant(false), |w| Made::Probe(Probe::Pid(w)))
            }
            Subject::Tid => {
                want(&test.check).map_or(Made::Constant(false), |w| Made::Probe(Probe::Tid(w)))
            }
            Subject::Duration if self.schema.kind == Kind::SpanClose => {
                self.field(test, "duration_ns", false)
            }
            Subject::Duration => Made::Constant(false),
            Subject::Field(name) => self.field(test, name, true),
        }
    }

    fn field(&mut self, test: &Test, name: &str, note: bool) -> Made {
        let found = self.schema.fields.iter().position(|field| field.name == name);
        let Some((index, field)) = found.and_then(|i| Some((i, self.schema.fields.get(i)?))) else {
            if note && !self.missing.iter().any(|known| known == name) {
                self.missing.push(name.to_owned());
            }
            return Made::Constant(false);
        };
        let Some(want) = want(&test.check) else { return Made::Constant(false) };
        if let Some(Mismatch { is, how }) = mismatch(&field.ty, &want) {
            self.warnings.push(format!(
                "column {}: field `{name}` of {} is {is}: {how}",
                test.column, self.schema.name
            ));
            return Made::Constant(false);
        }
        if want == Want::Has && !matches!(field.ty, Type::Option(_) | Type::Dynamic) {
            return Made::Constant(true);
        }
        Made::Probe(Probe::Field(self.place(index), want))
    }

    /// Where field `index` starts: a fixed offset as far as types are of fixed size, then a walk.
    fn place(&self, index: usize) -> Place {
        let before = self.schema.fields.get(..index).unwrap_or_default();
        let mut offset = 0_usize;
        let mut from = 0;
        for field in before {
            let Some(size) = fixed_size(&field.ty).and_then(|size| offset.checked_add(size)) else {
                break;
            };
            offset = size;
            from += 1;
        }
        Place { offset, from, index }
    }
}

fn fixed_size(ty: &Type) -> Option<usize> {
    match ty {
        Type::Scalar(scalar) | Type::Enum(scalar, _) => Some(scalar.size()),
        Type::Array(scalar, len) => scalar.size().checked_mul(*len as usize),
        _ => None,
    }
}

/// Higher is worse.
fn severity(level: Level) -> u8 {
    match level {
        Level::Error => 5,
        Level::Warn => 4,
        Level::Info => 3,
        Level::Debug => 2,
        Level::Trace => 1,
    }
}

pub(super) fn holds(op: Op, order: std::cmp::Ordering) -> bool {
    match op {
        Op::Eq => order.is_eq(),
        Op::Ne => order.is_ne(),
        Op::Lt => order.is_lt(),
        Op::Le => order.is_le(),
        Op::Gt => order.is_gt(),
        Op::Ge => order.is_ge(),
    }
}

/// The check without its subject; `None` for what the parser refuses anyway.
fn want(check: &Check) -> Option<Want> {
    Some(match check {
        Check::Compare(op, Operand::Int(n)) => Want::Number(*op, Number::Int(*n)),
        Check::Compare(op, Operand::Float(n)) => Want::Number(*op, Number::Float(*n)),
        Check::Compare(op, Operand::Text(text)) => Want::Text(*op, text.clone()),
        Check::Compare(op, Operand::Bool(b)) => Want::Bool(*op, *b),
        Check::Compare(_, Operand::Level(_)) => return None,
        Check::Glob(glob) => Want::Glob(glob.clone()),
        Check::Contains(Operand::Int(n)) => Want::ContainsNumber(Number::Int(*n)),
        Check::Contains(Operand::Float(n)) => Want::ContainsNumber(Number::Float(*n)),
        Check::Contains(Operand::Text(text)) => Want::ContainsText(text.clone()),
        Check::Contains(Operand::Bool(_) | Operand::Level(_)) => return None,
        Check::True => Want::Bool(Op::Eq, true),
        Check::Has => Want::Has,
    })
}

/// Why a value can never be what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// What it is: `a number`.
    pub(super) is: &'static str,
    /// What such a value is for.
    pub(super) how: &'static str,
}

/// Why a value of type `ty` can never pass the check, or `None` when it may.
pub(super) fn never(ty: &Type, check: &Check) -> Option<Mismatch> {
    mismatch(ty, &want(check)?)
}

fn mismatch(ty: &Type, want: &Want) -> Option<Mismatch> {
    let is_text = matches!(want, Want::Text(..) | Want::Glob(_) | Want::ContainsText(_));
    let is_number = matches!(want, Want::Number(..));
    let (fits, is, how) = match ty {
        _ if *want == Want::Has => return None,
        Type::Option(inner) => return mismatch(inner, want),
        Type::Dynamic => return None,
        Type::Scalar(Scalar::Bool) => {
            (matches!(want, Want::Bool(..)), "a bool", "it is compared with true or false")
        }
        Type::Scalar(_) => (is_number, "a number", "it is compared with a number"),
        Type::Str | Type::Bytes => (is_text, "text", "it is compared with text"),
        Type::Array(..) | Type::Seq(_) => {
            (matches!(want, Want::ContainsNumber(_)), "a list", "only `contains NUMBER` applies")
        }
        Type::Enum(..) => (is_text || is_number, "an enum", "it is compared with text or a number"),
    };
    (!fits).then_some(Mismatch { is, how })
}
