//! Records what goes through the [`log`](https://docs.rs/log) crate.
//!
//! # One line
//! | the program has | add |
//! |---|---|
//! | no logger | `owlet::log::init()?;` |
//! | one | `owlet::log::init_with(Box::new(logger), level)?;` instead of setting it and its level |
//!
//! A program that turns its `log` records into `tracing` events hands on that logger:
//! `owlet::log::init_with(Box::new(tracing_log::LogTracer::new()), level)`. The records are recorded here,
//! under their own targets, and not a second time as events of `tracing`.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! owlet::log::init()?;
//! log::info!("ready");
//! # Ok(()) }
//! ```
//!
//! A call site of `log` becomes the tracepoint `TARGET:FILE.rs:LINE`, with its level, when its first
//! record comes by. Fields: `span`, the `tracing` span it happens in, if that is recorded (otherwise
//! 0), and `message`. Key-value pairs are not recorded. A program has 4,000 call sites of its own;
//! what comes from further ones (from targets made at run time, say) is recorded as `log:other`, with
//! the target as a field. A message is cut after 4 KiB and ends with an ellipsis then. One whose
//! `Display` or `Debug` panics is recorded as far as it got, with `<panicked>` at its end, and the program
//! goes on, unless its panics abort (`panic = "abort"`); an inner logger panics as it does without us.
//!
//! # What is on, and what it costs
//! `log` has one switch for all call sites, the maximum level. It is what the inner logger wants while
//! nobody records (without one: off), and `Trace` while a session is attached, since any call
//! site may be wanted. Then a record that is not wanted costs a look into a table, about 10 ns.
//!
//! So that call sites are known and can be listed before anybody records, the level is also `Trace` for
//! the first [`DISCOVERED`] records, and again after every session. That is a millisecond in the life of a
//! program.
//!
//! After [`init`] the maximum level is ours: [`set_max_level`] is for what
//! [`log::set_max_level`](::log::set_max_level) was for.

pub use super::start::{InitError, Seat};

use super::payload::{Building, Payload};
use super::point::{Place, Point, file_name, leading, leak};
use super::start::start;
use super::table::{Table, mix};
use crate::registry::Change;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use ::log::{LevelFilter, Log, Metadata, Record};
use owlet_wire::schema::{FieldRef, Kind, Level, TypeRef};
use std::fmt;
use std::sync::Mutex;

/// Records that are looked at, while nobody records, to get to know their call sites.
pub const DISCOVERED: u32 = 100_000;

static SITES: Table<Site> = Table::new(2);
/// What comes from call sites that `SITES` has no room for, by level.
static OTHERS: Table<Other> = Table::new(1);
/// Whether a call site is on, as of the last look.
static ANY: AtomicBool = AtomicBool::new(false);
/// Whether our logger is the program's.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// Records still to be looked at while nobody records.
static BUDGET: AtomicU32 = AtomicU32::new(DISCOVERED);
/// The inner logger's maximum level, as `LevelFilter as u32`.
static INNER: AtomicU32 = AtomicU32::new(0);
/// Deciding on the maximum level and setting it are one.
static DECIDING: Mutex<()> = Mutex::new(());

const MESSAGE: FieldRef<'static> = FieldRef { name: "message", ty: TypeRef::Str };
const TARGET: FieldRef<'static> = FieldRef { name: "target", ty: TypeRef::Str };

struct Site {
    target: String,
    level: ::log::Level,
    file: String,
    line: u32,
    point: Point,
}

struct Other {
    level: ::log::Level,
    point: Point,
}

/// A logger that records into Owlet sessions, and hands on to another one.
pub struct Logger {
    inner: Option<Box<dyn Log>>,
}

impl fmt::Debug for Logger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logger").field("tee", &self.inner.is_some()).finish()
    }
}

/// A logger that records and does nothing else.
#[must_use]
pub fn logger() -> Logger {
    Logger { inner: None }
}

/// `inner`, and recording beside it. `inner` gets the records up to `level`, as if it were alone and
/// that were the maximum level.
#[must_use]
pub fn tee(inner: Box<dyn Log>, level: LevelFilter) -> Logger {
    INNER.store(level as u32, Ordering::Relaxed);
    Logger { inner: Some(inner) }
}

/// [`owlet::init`](crate::init()), and [`logger`] as the program's logger, whether the agent started or
/// is switched off.
///
/// # Errors
/// [`InitError`]; the program can go on.
pub fn init() -> Result<(), InitError> {
    set(logger())
}

/// [`owlet::init`](crate::init()), and [`tee`] around `inner` as the program's logger, whether the agent
/// started or is switched off.
///
/// # Errors
/// [`InitError`]; the program can go on. When it is [`InitError::Taken`], `inner` is dropped.
pub fn init_with(inner: Box<dyn Log>, level: LevelFilter) -> Result<(), InitError> {
    set(tee(inner, level))
}

fn set(logger: Logger) -> Result<(), InitError> {
    start(Seat::Logger, || logger.install().is_ok())
}

/// Sets the inner logger's maximum level.
pub fn set_max_level(level: LevelFilter) {
    INNER.store(level as u32, Ordering::Relaxed);
    decide();
}

impl Logger {
    /// Makes it the program's logger, without starting the agent.
    ///
    /// # Errors
    /// [`InitError::Taken`].
    pub fn install(self) -> Result<(), InitError> {
        ::log::set_boxed_logger(Box::new(self)).map_err(|_| InitError::Taken(Seat::Logger))?;
        INSTALLED.store(true, Ordering::Relaxed);
        super::hub::install();
        decide();
        Ok(())
    }
}

/// Whether our logger is the program's.
#[cfg(feature = "tracing")]
pub(crate) fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

impl Log for Logger {
    /// Whether somebody may want it: `log` does not say which call site it asks for.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ANY.load(Ordering::Relaxed)
            || self.inside(metadata).is_some_and(|inner| inner.enabled(metadata))
    }

    fn log(&self, record: &Record<'_>) {
        bridge(record);
        if let Some(inner) = self.inside(record.metadata()) {
            inner.log(record);
        }
    }

    fn flush(&self) {
        if let Some(inner) = &self.inner {
            inner.flush();
        }
    }
}

impl Logger {
    /// The inner logger, if records of this level go there.
    fn inside(&self, metadata: &Metadata<'_>) -> Option<&dyn Log> {
        let inner = self.inner.as_deref()?;
        (metadata.level() as u32 <= INNER.load(Ordering::Relaxed)).then_some(inner)
    }
}

/// Records it if its call site is on.
fn bridge(record: &Record<'_>) {
    match site(record) {
        Some(site) if site.point.is_on() => emit(&site.point, 1, record, |_| 0),
        Some(_) => {}
        None => {
            if let Some(other) = other(record.level())
                && other.point.is_on()
            {
                emit(&other.point, 2, record, |payload| {
                    payload.str(0, record.target());
                    1
                });
            }
        }
    }
    if !ANY.load(Ordering::Relaxed) {
        spend();
    }
}

/// Builds the payload and emits it. `first` puts what comes before the message, and says how many
/// fields that were.
fn emit(
    point: &'static Point,
    fields: usize,
    record: &Record<'_>,
    first: impl FnOnce(&mut Payload) -> usize,
) {
    let Some(_building) = Building::enter() else { return point.lose_slow() };
    let mut payload = Payload::new(fields);
    payload.lead(super::current_span());
    let at = first(&mut payload);
    payload.format(at, *record.args());
    point.emit(payload.all());
}

/// One record less to get to know call sites by. Counting is not exact: two threads may count as one.
fn spend() {
    let left = BUDGET.load(Ordering::Relaxed);
    if left > 0 {
        BUDGET.store(left - 1, Ordering::Relaxed);
        if left == 1 {
            decide();
        }
    }
}

#[inline]
fn hash(record: &Record<'_>) -> u64 {
    let mut hash = mix(u64::from(record.line().unwrap_or(0)) << 3 | record.level() as u64);
    let mut chunks = record.target().as_bytes().chunks_exact(8);
    for chunk in &mut chunks {
        let word = chunk.first_chunk::<8>().map_or(0, |chunk| u64::from_le_bytes(*chunk));
        hash = mix((hash ^ word).rotate_left(29));
    }
    for byte in chunks.remainder() {
        hash = mix((hash ^ u64::from(*byte)).rotate_left(29));
    }
    hash
}

/// The record's call site; `None` when there are too many.
#[inline]
fn site(record: &Record<'_>) -> Option<&'static Site> {
    let hash = hash(record);
    match SITES.find(hash, |site| site.is_of(record)) {
        Some(site) => {
            // Whoever put it in may not have come further yet.
            site.point.ensure();
            Some(site)
        }
        None => site_slow(hash, record),
    }
}

#[cold]
fn site_slow(hash: u64, record: &Record<'_>) -> Option<&'static Site> {
    let site = SITES.find_or_insert_slow(hash, |site| site.is_of(record), || Site::new(record))?;
    site.point.ensure();
    note(&site.point);
    Some(site)
}

#[cold]
fn other(level: ::log::Level) -> Option<&'static Other> {
    let other = OTHERS.find_or_insert_slow(
        mix(level as u64),
        |other| other.level == level,
        || {
            let place = Place { name: "log:other", level: level_of(level), file: "", line: 0 };
            let fields: Vec<_> =
                leading(Kind::SpanEvent).iter().copied().chain([TARGET, MESSAGE]).collect();
            Other { level, point: Point::with_fields(&place, Kind::SpanEvent, fields.leak()) }
        },
    )?;
    other.point.ensure();
    note(&other.point);
    Some(other)
}

fn note(point: &Point) {
    if point.is_on() {
        ANY.store(true, Ordering::Relaxed);
    }
}

impl Site {
    fn new(record: &Record<'_>) -> Self {
        let target = record.target();
        let file = record.file().unwrap_or("");
        let line = record.line().unwrap_or(0);
        let name = if file.is_empty() {
            format!("{target}:log")
        } else {
            format!("{target}:{}:{line}", file_name(file))
        };
        let place = Place {
            name: leak(name),
            level: level_of(record.level()),
            file: leak(file.to_owned()),
            line,
        };
        let fields: Vec<_> = leading(Kind::SpanEvent).iter().copied().chain([MESSAGE]).collect();
        Self {
            target: target.to_owned(),
            level: record.level(),
            file: file.to_owned(),
            line,
            point: Point::with_fields(&place, Kind::SpanEvent, fields.leak()),
        }
    }

    #[inline]
    fn is_of(&self, record: &Record<'_>) -> bool {
        self.line == record.line().unwrap_or(0)
            && self.level == record.level()
            && self.target == record.target()
            && self.file == record.file().unwrap_or("")
    }
}

fn level_of(level: ::log::Level) -> Level {
    match level {
        ::log::Level::Error => Level::Error,
        ::log::Level::Warn => Level::Warn,
        ::log::Level::Info => Level::Info,
        ::log::Level::Debug => Level::Debug,
        ::log::Level::Trace => Level::Trace,
    }
}

/// Something was switched, or a session came or went.
pub(crate) fn changed(_: Change) {
    let mut any = false;
    SITES.for_each(|site| any |= site.point.is_on());
    OTHERS.for_each(|other| any |= other.point.is_on());
    ANY.store(any, Ordering::Relaxed);
    BUDGET.store(DISCOVERED, Ordering::Relaxed);
    decide();
}

/// Sets the maximum level to what is wanted now.
fn decide() {
    // Not taken: a forked child whose parent had it in another thread, or the logger of a user who
    // logs while a level is set. Whoever has it decides on what is there now.
    let _deciding = (0..1000).find_map(|_| {
        let guard = DECIDING.try_lock().ok();
        if guard.is_none() {
            std::thread::yield_now();
        }
        guard
    });
    let ours = ANY.load(Ordering::Relaxed)
        || BUDGET.load(Ordering::Relaxed) > 0
        || crate::session::count() > 0;
    let level = if ours {
        LevelFilter::Trace
    } else {
        LevelFilter::iter()
            .find(|level| *level as u32 == INNER.load(Ordering::Relaxed))
            .unwrap_or(LevelFilter::Off)
    };
    ::log::set_max_level(level);
}
