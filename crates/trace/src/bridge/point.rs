//! Tracepoints made at run time: what they are called, and making them known once.
//!
//! # Barriers
//! | letter | where | pairs with | orders |
//! |---|---|---|---|
//! | [A] | `ready` set after `add` | [B] | the sessions' decision before "need not add" |
//! | [B] | `ready` looked at | [A] | the same |

use crate::registry::{self, DynTracepoint};
use crate::sync::atomic::{AtomicBool, Ordering};
use owlet_wire::schema::{FieldRef, Kind, Level, MAX_NAME, Scalar, SchemaRef, TypeRef};

const WORD: TypeRef<'static> = TypeRef::Scalar(Scalar::U64);
const SPAN: FieldRef<'static> = FieldRef { name: "span", ty: WORD };

/// The leading fields of a kind.
pub(crate) const fn leading(kind: Kind) -> &'static [FieldRef<'static>] {
    match kind {
        Kind::Event => &[],
        Kind::SpanNew => &[SPAN, FieldRef { name: "parent", ty: WORD }],
        Kind::SpanEnter | Kind::SpanExit | Kind::SpanRecord | Kind::SpanEvent => &[SPAN],
        Kind::SpanClose => &[SPAN, FieldRef { name: "duration_ns", ty: WORD }],
        Kind::SpanFollows => &[SPAN, FieldRef { name: "follows", ty: WORD }],
    }
}

/// Where a call site is and what it is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
}

impl Place {
    fn describe(&self, kind: Kind, fields: &'static [FieldRef<'static>]) -> DynTracepoint {
        DynTracepoint::new(SchemaRef {
            name: self.name,
            kind,
            level: self.level,
            file: self.file,
            line: self.line,
            doc: "",
            fields,
        })
    }
}

/// `text`, for ever, cut to what a name may be.
pub(crate) fn leak(mut text: String) -> &'static str {
    while text.len() > MAX_NAME {
        text.pop();
    }
    text.leak()
}

/// Last component of a path, as compilers write it.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// A tracepoint that was made known, or will be when it is needed.
#[derive(Debug)]
pub(crate) struct Point {
    point: DynTracepoint,
    ready: AtomicBool,
}

impl Point {
    #[cfg(feature = "tracing")]
    pub(crate) fn new(place: &Place, kind: Kind) -> Self {
        Self::with_fields(place, kind, leading(kind))
    }

    pub(crate) fn with_fields(
        place: &Place,
        kind: Kind,
        fields: &'static [FieldRef<'static>],
    ) -> Self {
        Self { point: place.describe(kind, fields), ready: AtomicBool::new(false) }
    }

    /// Whether somebody listens.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.point.is_on()
    }

    /// Makes it known unless it is. When this returns, [`is_on`](Self::is_on) is what the sessions say.
    ///
    /// Two threads may do it at once: the second waits in `add` for the first.
    #[inline]
    pub(crate) fn ensure(&'static self) {
        // [B] Acquire: pairs with [A]; without it: we skip `add` and still see the tracepoint off.
        if !self.ready.load(Ordering::Acquire) {
            self.ensure_slow();
        }
    }

    #[cold]
    fn ensure_slow(&'static self) {
        if registry::add(&self.point) {
            // [A] Release: pairs with [B].
            self.ready.store(true, Ordering::Release);
        }
    }

    /// Records an event with this payload.
    #[inline]
    pub(crate) fn emit(&'static self, payload: &[u8]) {
        self.point.emit_bytes(payload);
    }

    /// Records an event of words only.
    #[cfg(feature = "tracing")]
    #[inline]
    pub(crate) fn emit_words<const N: usize>(&'static self, words: [u64; N]) {
        let bytes = words.map(u64::to_le_bytes);
        self.point.emit_bytes(bytes.as_flattened());
    }

    /// Counts an event that was too deep inside others.
    #[cold]
    pub(crate) fn lose_slow(&'static self) {
        self.point.count_recursion();
    }
}
