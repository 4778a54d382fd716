//! Call sites of `tracing`, each with its tracepoints, known for ever.

use super::shape::Shape;
use crate::bridge::payload::FIELDS;
use crate::bridge::point::{Place, Point, file_name, leak};
use crate::bridge::table::{Table, mix};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use owlet_wire::schema::{Kind, Level};
use tracing_core::callsite::Identifier;
use tracing_core::{Interest, Metadata};

static SITES: Table<Site> = Table::new(usize::MAX);
/// When a call site was last seen for the first time, by the monotonic clock.
static LAST_NEW: AtomicU64 = AtomicU64::new(0);
/// Whether some call site is on, as of the last look.
static ANY: AtomicBool = AtomicBool::new(false);

/// Subscribers whose interest a call site can remember.
pub(crate) const TEES: u32 = 32;

/// What a subscriber inside a tee said of a call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Nothing yet.
    Unknown,
    Never,
    Sometimes,
    Always,
}

impl Want {
    pub(crate) fn of(interest: &Interest) -> Self {
        if interest.is_never() {
            Self::Never
        } else if interest.is_always() {
            Self::Always
        } else {
            Self::Sometimes
        }
    }
}

/// The tracepoints of a span's call site.
#[derive(Debug)]
pub(crate) struct SpanPoints {
    pub(crate) new: Shape,
    pub(crate) record: Shape,
    pub(crate) enter: Point,
    pub(crate) exit: Point,
    pub(crate) close: Point,
    pub(crate) follows: Point,
}

#[expect(clippy::large_enum_variant, reason = "most call sites are events")]
#[derive(Debug)]
pub(crate) enum Points {
    Event(Shape),
    Span(Box<SpanPoints>),
    /// `enabled!(..)`: records nothing.
    Hint,
}

/// One call site.
#[derive(Debug)]
pub(crate) struct Site {
    key: usize,
    pub(crate) metadata: &'static Metadata<'static>,
    pub(crate) points: Points,
    /// One of those that `tracing-log` makes events of `log` records with.
    #[cfg_attr(not(feature = "log"), expect(dead_code, reason = "nobody else records them"))]
    relayed: bool,
    /// Two bits for each tee: what the subscriber inside said.
    wants: AtomicU64,
}

/// Address of a call site: what two `Identifier`s are compared by.
#[inline(always)]
fn key(identifier: &Identifier) -> usize {
    core::ptr::from_ref(identifier.0).cast::<()>().addr()
}

/// The call site of this metadata, for one who asks whether it is on.
///
/// While a thread registers a call site, others that reach it are told to ask: what the first one has
/// not done yet is done here, or they would be told that it is off.
pub(crate) fn asked(metadata: &Metadata<'_>) -> Option<&'static Site> {
    let Some(site) = find(metadata) else { return of_slow(metadata.callsite().0.metadata()) };
    site.ensure();
    Some(site)
}

/// The call site of this metadata if it is known.
#[inline]
fn find(metadata: &Metadata<'_>) -> Option<&'static Site> {
    let key = key(&metadata.callsite());
    SITES.find(mix(key as u64), |site| site.key == key)
}

/// The call site of this metadata.
#[inline]
pub(crate) fn of(metadata: &'static Metadata<'static>) -> Option<&'static Site> {
    find(metadata).or_else(|| of_slow(metadata))
}

#[cold]
fn of_slow(metadata: &'static Metadata<'static>) -> Option<&'static Site> {
    LAST_NEW.store(owlet_sys::clock::monotonic_ns(), Ordering::Relaxed);
    let key = key(&metadata.callsite());
    let site = SITES.find_or_insert_slow(
        mix(key as u64),
        |site| site.key == key,
        || Site {
            key,
            metadata,
            points: Points::new(metadata),
            relayed: metadata.name() == "log event" && metadata.target() == "log",
            wants: AtomicU64::new(0),
        },
    )?;
    site.ensure();
    Some(site)
}

/// Nanoseconds since a call site was last seen for the first time.
pub(crate) fn quiet_for() -> u64 {
    owlet_sys::clock::monotonic_ns().saturating_sub(LAST_NEW.load(Ordering::Relaxed))
}

/// Looks whether any call site is on.
pub(crate) fn look() -> bool {
    let mut any = false;
    SITES.for_each(|site| any |= !matches!(site.points, Points::Hint) && site.is_on());
    ANY.store(any, Ordering::Relaxed);
    any
}

/// Whether some call site is on.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Forgets what the tee of that number said.
pub(crate) fn forget(tee: u32) {
    SITES.for_each(|site| site.set_want(tee, Want::Unknown));
}

impl Site {
    /// Whether somebody records it.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        match &self.points {
            Points::Event(shape) => shape.base.is_on(),
            Points::Span(points) => points.is_on(),
            Points::Hint => any(),
        }
    }

    /// Whether its events are records that [`owlet::log`](crate::bridge::log) has seen already.
    pub(crate) fn is_relayed(&self) -> bool {
        #[cfg(feature = "log")]
        return self.relayed && crate::bridge::log::installed();
        #[cfg(not(feature = "log"))]
        return false;
    }

    /// Makes its tracepoints known; when this returns they are on if a session wants them.
    pub(crate) fn ensure(&'static self) {
        match &self.points {
            Points::Event(shape) => shape.base.ensure(),
            Points::Span(points) => {
                points.new.base.ensure();
                points.enter.ensure();
                points.exit.ensure();
                points.close.ensure();
            }
            Points::Hint => return,
        }
        if self.is_on() {
            ANY.store(true, Ordering::Relaxed);
        }
    }

    /// What the subscriber inside that tee said last.
    #[inline]
    pub(crate) fn want(&self, tee: u32) -> Want {
        if tee >= TEES {
            return Want::Unknown;
        }
        match self.wants.load(Ordering::Relaxed) >> (2 * tee) & 3 {
            1 => Want::Never,
            2 => Want::Sometimes,
            3 => Want::Always,
            _ => Want::Unknown,
        }
    }

    pub(crate) fn set_want(&self, tee: u32, want: Want) {
        if tee >= TEES {
            return;
        }
        let shift = 2 * tee;
        let bits = match want {
            Want::Unknown => 0u64,
            Want::Never => 1,
            Want::Sometimes => 2,
            Want::Always => 3,
        };
        let _ = self.wants.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            Some(old & !(3 << shift) | bits << shift)
        });
    }
}

impl SpanPoints {
    #[inline]
    fn is_on(&self) -> bool {
        self.new.base.is_on() || self.enter.is_on() || self.close.is_on() || self.exit.is_on()
    }
}

impl Points {
    fn new(metadata: &'static Metadata<'static>) -> Self {
        if is_hint(metadata) {
            return Self::Hint;
        }
        let place = place(metadata);
        let names: Vec<_> = metadata.fields().iter().take(FIELDS).map(|f| f.name()).collect();
        let names: &'static [_] = names.leak();
        if metadata.is_span() {
            Self::Span(Box::new(SpanPoints {
                new: Shape::new(place, Kind::SpanNew, names),
                record: Shape::new(place, Kind::SpanRecord, names),
                enter: Point::new(&place, Kind::SpanEnter),
                exit: Point::new(&place, Kind::SpanExit),
                close: Point::new(&place, Kind::SpanClose),
                follows: Point::new(&place, Kind::SpanFollows),
            }))
        } else {
            Self::Event(Shape::new(place, Kind::SpanEvent, names))
        }
    }
}

/// Whether the call site only asks (`enabled!`, `event_enabled!`, `span_enabled!`).
fn is_hint(metadata: &Metadata<'_>) -> bool {
    let place = || format!("{}:{}", metadata.file().unwrap_or(""), metadata.line().unwrap_or(0));
    !metadata.is_event() && !metadata.is_span()
        || metadata.name().strip_prefix("enabled ").is_some_and(|rest| rest == place())
}

/// `target:span_name`, `target:file.rs:line`, or `target:name` of an event that was given one.
fn place(metadata: &'static Metadata<'static>) -> Place {
    let target = metadata.target();
    let file = metadata.file().unwrap_or("");
    let line = metadata.line().unwrap_or(0);
    let named = metadata.is_span() || !metadata.name().starts_with("event ") || file.is_empty();
    let name = if named {
        format!("{target}:{}", metadata.name())
    } else {
        format!("{target}:{}:{line}", file_name(file))
    };
    Place { name: leak(name), level: level(*metadata.level()), file, line }
}

fn level(level: tracing_core::Level) -> Level {
    match level {
        tracing_core::Level::ERROR => Level::Error,
        tracing_core::Level::WARN => Level::Warn,
        tracing_core::Level::INFO => Level::Info,
        tracing_core::Level::DEBUG => Level::Debug,
        tracing_core::Level::TRACE => Level::Trace,
    }
}
