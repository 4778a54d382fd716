//! From the borrowed form to the owned one, and the limits of both.

use super::{
    Field, FieldRef, Kind, MAX_DEPTH, MAX_FIELDS, MAX_NAME, Scalar, Schema, SchemaRef, Type,
    TypeRef,
};

impl TypeRef<'_> {
    /// The owned form.
    #[must_use]
    pub fn to_type(&self) -> Type {
        match *self {
            Self::Scalar(scalar) => Type::Scalar(scalar),
            Self::Str => Type::Str,
            Self::Bytes => Type::Bytes,
            Self::Array(scalar, len) => Type::Array(scalar, len),
            Self::Seq(scalar) => Type::Seq(scalar),
            Self::Enum(scalar, names) => Type::Enum(
                scalar,
                names.iter().map(|(number, name)| (*number, (*name).to_owned())).collect(),
            ),
            Self::Option(inner) => Type::Option(Box::new(inner.to_type())),
            Self::Dynamic => Type::Dynamic,
        }
    }
}

impl FieldRef<'_> {
    /// The owned form.
    #[must_use]
    pub fn to_field(&self) -> Field {
        Field { name: self.name.to_owned(), ty: self.ty.to_type() }
    }
}

impl SchemaRef<'_> {
    /// The owned form.
    #[must_use]
    pub fn to_schema(&self) -> Schema {
        Schema {
            name: self.name.to_owned(),
            kind: self.kind,
            level: self.level,
            file: self.file.to_owned(),
            line: self.line,
            doc: self.doc.to_owned(),
            fields: self.fields.iter().map(FieldRef::to_field).collect(),
        }
    }
}

impl Kind {
    /// Names of the `u64` fields that every payload of this kind begins with.
    #[must_use]
    pub const fn leading(self) -> &'static [&'static str] {
        match self {
            Self::Event => &[],
            Self::SpanNew => &["span", "parent"],
            Self::SpanEnter | Self::SpanExit | Self::SpanRecord | Self::SpanEvent => &["span"],
            Self::SpanClose => &["span", "duration_ns"],
            Self::SpanFollows => &["span", "follows"],
        }
    }
}

impl Schema {
    /// Checks the limits that every tool relies on.
    ///
    /// # Errors
    /// What is wrong, as a lower-case fragment.
    pub fn check(&self) -> Result<(), String> {
        if self.fields.len() > MAX_FIELDS {
            return Err(format!("{} fields are over the limit of {MAX_FIELDS}", self.fields.len()));
        }
        if self.name.len() > MAX_NAME {
            return Err(format!("name is over the limit of {MAX_NAME} bytes"));
        }
        for (at, name) in self.kind.leading().iter().enumerate() {
            let expected = Type::Scalar(Scalar::U64);
            if self.fields.get(at).is_none_or(|f| f.name != *name || f.ty != expected) {
                return Err(format!("field {at} of a {:?} must be `{name}: u64`", self.kind));
            }
        }
        for field in &self.fields {
            if field.name.len() > MAX_NAME {
                return Err(format!("a field's name is over the limit of {MAX_NAME} bytes"));
            }
            check_type(&field.ty).map_err(|what| format!("field `{}`: {what}", field.name))?;
        }
        Ok(())
    }
}

fn check_type(ty: &Type) -> Result<(), &'static str> {
    let mut ty = ty;
    for _ in 0..=MAX_DEPTH {
        match ty {
            Type::Option(inner) => ty = inner,
            Type::Enum(Scalar::F32 | Scalar::F64, _) => {
                return Err("an enum's numbers must be integers");
            }
            _ => return Ok(()),
        }
    }
    Err("options nested too deep")
}
