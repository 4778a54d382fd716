//! Decoding of [`Type`] with a bound on its depth.
//!
//! The derived implementation would recurse as deep as the input says: a few hundred kilobytes of
//! `Option` tags from a hostile process would overflow the reader's stack.

use super::{MAX_DEPTH, Scalar, Type};
use serde::de::{DeserializeSeed, EnumAccess, Error, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// The variants, in the order of [`Type`]'s declaration: their positions are the wire's tags.
const VARIANTS: &[&str] = &["Scalar", "Str", "Bytes", "Array", "Seq", "Enum", "Option", "Dynamic"];

#[derive(Deserialize)]
#[serde(variant_identifier)]
enum Tag {
    Scalar,
    Str,
    Bytes,
    Array,
    Seq,
    Enum,
    Option,
    Dynamic,
}

impl<'de> Deserialize<'de> for Type {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        AtDepth(MAX_DEPTH).deserialize(deserializer)
    }
}

/// How many `Option`s may still be opened.
struct AtDepth(usize);

impl<'de> DeserializeSeed<'de> for AtDepth {
    type Value = Type;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Type, D::Error> {
        deserializer.deserialize_enum("Type", VARIANTS, self)
    }
}

impl<'de> Visitor<'de> for AtDepth {
    type Value = Type;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's type")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Type, A::Error> {
        let (tag, variant) = data.variant::<Tag>()?;
        // A tuple variant's content is written like a tuple in a newtype variant.
        Ok(match tag {
            Tag::Scalar => Type::Scalar(variant.newtype_variant()?),
            Tag::Str => variant.unit_variant().map(|()| Type::Str)?,
            Tag::Bytes => variant.unit_variant().map(|()| Type::Bytes)?,
            Tag::Array => {
                let (scalar, len) = variant.newtype_variant::<(Scalar, u32)>()?;
                Type::Array(scalar, len)
            }
            Tag::Seq => Type::Seq(variant.newtype_variant()?),
            Tag::Enum => {
                let (scalar, names) = variant.newtype_variant::<(Scalar, Vec<(i64, String)>)>()?;
                Type::Enum(scalar, names)
            }
            Tag::Option => {
                let depth =
                    self.0.checked_sub(1).ok_or_else(|| A::Error::custom("type too deep"))?;
                Type::Option(Box::new(variant.newtype_variant_seed(AtDepth(depth))?))
            }
            Tag::Dynamic => variant.unit_variant().map(|()| Type::Dynamic)?,
        })
    }
}
