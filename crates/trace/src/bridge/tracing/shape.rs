//! One call site's tracepoints of one kind.
//!
//! What types a call site's fields have is known only when an event comes by. The first event with a
//! new combination of types makes a *variant*: a tracepoint of the same name whose fields have
//! exactly these types, so that a viewer shows `seq = 5` and a filter compares numbers. Fields
//! without a value are not in it. A call site has [`VARIANTS`] of them; further combinations go to
//! the *base*, whose fields are all `Dynamic`. The base is there from the beginning: it is what a
//! list shows and a pattern matches.
//!
//! Base and variants have one name, level and place, so the sessions' rules treat them alike.
//!
//! Variants are found and published as the entries of a bucket of `table` are, by its code.

use crate::bridge::payload::{CAPACITY, FIELDS, Payload, SIGNED, Signature, Tag};
use crate::bridge::point::{Place, Point, leading};
use crate::bridge::table::{Place as At, Ways, find_or_insert_slow};
use owlet_wire::schema::{DynTag, FieldRef, Kind, TypeRef};

/// Typed variants of one call site and kind.
pub(crate) const VARIANTS: usize = 4;

/// A variant: exactly these types.
#[derive(Debug)]
struct Variant {
    signature: Signature,
    point: Point,
}

/// The tracepoints of one call site and kind. See the module.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) base: Point,
    kind: Kind,
    place: Place,
    /// Names of the declared fields, at most [`FIELDS`].
    names: &'static [&'static str],
    variants: Ways<Variant, VARIANTS>,
}

impl Shape {
    pub(crate) fn new(place: Place, kind: Kind, names: &'static [&'static str]) -> Self {
        let names = names.get(..FIELDS).unwrap_or(names);
        let dynamic = names.iter().map(|name| FieldRef { name, ty: TypeRef::Dynamic });
        let fields: Vec<_> = leading(kind).iter().copied().chain(dynamic).collect();
        Self {
            base: Point::with_fields(&place, kind, fields.leak()),
            kind,
            place,
            names,
            variants: Ways::new(),
        }
    }

    /// Declared fields.
    pub(crate) fn declared(&self) -> usize {
        self.names.len()
    }

    /// Records one event.
    #[inline]
    pub(crate) fn emit(&'static self, payload: &mut Payload) {
        match payload.signature().and_then(|signature| self.variant(signature)) {
            Some(point) => {
                point.ensure();
                point.emit(payload.all());
            }
            None => self.emit_dynamic_slow(payload),
        }
    }

    #[inline]
    fn variant(&'static self, signature: Signature) -> Option<&'static Point> {
        match self.variants.search(&|variant| variant.signature == signature) {
            At::Found(variant) => Some(&variant.point),
            At::Gap(_) => self.variant_slow(signature),
            At::Full => None,
        }
    }

    /// Makes a variant, once for each combination of types.
    #[cold]
    fn variant_slow(&'static self, signature: Signature) -> Option<&'static Point> {
        let make = || {
            let typed = self.names.iter().take(SIGNED).enumerate().filter_map(|(index, name)| {
                Some(FieldRef { name, ty: signature.tag(index)?.ty() })
            });
            let fields: Vec<_> = leading(self.kind).iter().copied().chain(typed).collect();
            let point = Point::with_fields(&self.place, self.kind, fields.leak());
            Variant { signature, point }
        };
        let same = |variant: &Variant| variant.signature == signature;
        find_or_insert_slow(|| self.variants.search(&same), make).map(|variant| &variant.point)
    }

    /// Records one event with a tag before each value, in declared order.
    #[cold]
    fn emit_dynamic_slow(&'static self, payload: &mut Payload) {
        payload.spell_slow();
        let parts = payload.parts();
        let mut out = [0u8; CAPACITY + 2 * FIELDS];
        let mut len = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(slot) = out.get_mut(len..len + bytes.len()) {
                slot.copy_from_slice(bytes);
                len += bytes.len();
            }
        };
        put(payload.leading());
        for index in 0..self.names.len() {
            // A value that came twice counts as it was last.
            match parts.iter().rev().find(|part| usize::from(part.index) == index) {
                Some(part) => {
                    put(&[part.tag]);
                    put(payload.value(part));
                }
                None => put(&[DynTag::Absent as u8]),
            }
        }
        self.base.ensure();
        self.base.emit(out.get(..len).unwrap_or_default());
    }
}

/// The tags are those of the trace format.
const _: () = assert!(
    Tag::U64 as u8 == DynTag::U64 as u8
        && Tag::I64 as u8 == DynTag::I64 as u8
        && Tag::F64 as u8 == DynTag::F64 as u8
        && Tag::Bool as u8 == DynTag::Bool as u8
        && Tag::Str as u8 == DynTag::Str as u8
        && Tag::Bytes as u8 == DynTag::Bytes as u8
);
