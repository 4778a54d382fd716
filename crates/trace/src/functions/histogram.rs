//! Calls into histograms: of the latency or of a field, one for each function or for each value of another
//! field.
//!
//! A histogram is 65 buckets by magnitude and three sums, each an atomic word that every thread adds to.
//! What is counted is exact: nothing is sampled and nothing lost but what a limit says.
//!
//! # Keys
//! | word | written by | when |
//! |---|---|---|
//! | `hash` | the call that has the key first | once, 0 to the key's hash: the slot is that key's from then on |
//! | `text` | the same call | after that |
//! | `bins` | every call with the key | any time |
//!
//! Nobody waits for anybody: who finds the hash adds. A reader may see a key whose text is not all there yet,
//! or ends early because its first call was interrupted. Keys are told apart by 64 bits of hash; text beyond
//! 46 bytes counts for the hash and is not shown. What has no room among [`MAX_KEYS`] goes to one more
//! histogram for all others.
//!
//! Orders: relaxed throughout. Every word stands for itself.

use super::gate::Gate;
use super::record::nothing_passes;
use super::{Counts, Refusal, fields};
use crate::context;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use owlet_attach::{AtExit, Call, Function, Program, Value};
use owlet_sys::clock::monotonic_ns;
use owlet_wire::filter::Filter;
use owlet_wire::functions::{BUCKETS, DURATION, Histogram, MAX_KEYS, RET, bucket};
use std::sync::Arc;

/// Bytes of a key that are kept: what it is, how long, and how it begins.
const TEXT: usize = 48;
/// Slots are looked for at most here, from where the hash says.
const PROBES: usize = 16;

/// What is to be counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Of which numbers; none for the latency.
    pub(super) field: Option<&'a str>,
    /// Each of whose values has a histogram; none for the functions.
    pub(super) by: Option<&'a str>,
}

/// The native program that counts.
pub(super) struct Histograms {
    points: Box<[Point]>,
    counts: Counts,
    /// By function; without anything when there are keys.
    bins: Box<[Bins]>,
    keys: Box<[Key]>,
    others: Bins,
}

struct Point {
    gate: Gate,
    of: Source,
    by: Option<Source>,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Latency,
    Ret,
    Arg(usize),
    /// This function has no such field.
    Nowhere,
}

impl Source {
    fn new(function: &Function, field: &str) -> Self {
        match field {
            DURATION => Self::Latency,
            RET => Self::Ret,
            field => {
                let names = fields::names(function);
                names.iter().position(|name| name == field).map_or(Self::Nowhere, Self::Arg)
            }
        }
    }

    /// Whether it is known at the entry, or never.
    fn is_early(self) -> bool {
        matches!(self, Self::Arg(_) | Self::Nowhere)
    }

    #[inline]
    fn value<'a>(self, call: &'a Call<'_>, duration: u64) -> Value<'a> {
        match self {
            Self::Latency => Value::Unsigned(duration),
            Self::Ret => call.ret().unwrap_or(Value::Gone),
            Self::Arg(number) => call.arg(number).unwrap_or(Value::Gone),
            Self::Nowhere => Value::Gone,
        }
    }
}

/// One histogram.
struct Bins {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    negative: AtomicU64,
    without: AtomicU64,
}

/// One key; see the module.
struct Key {
    hash: AtomicU64,
    text: [AtomicU64; TEXT / 8],
    bins: Bins,
}

/// A program that counts calls of `functions`, which find themselves by their number as cookie.
pub(super) fn program(
    functions: &[&'static Function],
    wanted: Wanted<'_>,
    filter: Option<&Filter>,
) -> Result<(Program, Arc<Histograms>), Refusal> {
    let point = |function: &&'static Function| Point {
        gate: Gate::new(function, filter),
        of: wanted.field.map_or(Source::Latency, |field| Source::new(function, field)),
        by: wanted.by.map(|field| Source::new(function, field)),
    };
    let points: Box<[Point]> = functions.iter().map(point).collect();
    let has_field = |field: Option<&str>, of: fn(&Point) -> Option<Source>| match field {
        Some(field) if points.iter().all(|point| of(point) == Some(Source::Nowhere)) => {
            Err(no_field(field, functions))
        }
        _ => Ok(()),
    };
    has_field(wanted.field, |point| Some(point.of))?;
    has_field(wanted.by, |point| point.by)?;
    if points.iter().all(|point| matches!(point.gate, Gate::Shut)) {
        return Err(nothing_passes(functions));
    }
    // Text is there at the entry only, so everything is done there that can be.
    let early = points
        .iter()
        .all(|p| p.of.is_early() && p.by.is_none_or(Source::is_early) && !p.gate.is_late());
    let own = if wanted.by.is_some() { 0 } else { functions.len() };
    let keys = if wanted.by.is_some() { MAX_KEYS } else { 0 };
    let histograms = Arc::new(Histograms {
        points,
        counts: Counts::new(functions.len())?,
        bins: (0..own).map(|_| Bins::new()).collect(),
        keys: (0..keys).map(|_| Key::new()).collect(),
        others: Bins::new(),
    });
    let (at_entry, at_exit) = (Arc::clone(&histograms), Arc::clone(&histograms));
    let builder = if early {
        Program::entry(move |call| {
            if at_entry.lets_in(call) {
                at_entry.count(call, 0);
            }
        })
    } else {
        Program::session(
            move |call| {
                call.set_session(monotonic_ns());
                if at_entry.lets_in(call) { AtExit::Run } else { AtExit::Skip }
            },
            move |call| at_exit.exit(call),
        )
    };
    Ok((builder.reentrant().named("histogram").build(), histograms))
}

fn no_field(field: &str, functions: &[&'static Function]) -> Refusal {
    let mut names: Vec<_> = functions.iter().flat_map(|f| fields::names(f)).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(12);
    names.extend([RET.to_owned(), DURATION.to_owned()]);
    let message = format!("no function that matches has a field `{field}`");
    Refusal::new(message, format!("their fields are: {}", names.join(", ")))
}

impl Histograms {
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    #[inline]
    fn point(&self, call: &Call<'_>) -> Option<&Point> {
        self.points.get(call.cookie() as usize)
    }

    fn lets_in(&self, call: &Call<'_>) -> bool {
        self.point(call)
            .is_some_and(|point| context::with(|context| point.gate.enter(context, call)))
    }

    fn exit(&self, call: &Call<'_>) {
        let duration = monotonic_ns().saturating_sub(call.session());
        let Some(point) = self.point(call) else { return };
        if context::with(|context| point.gate.exit(context, call, duration)) {
            self.count(call, duration);
        }
    }

    fn count(&self, call: &Call<'_>, duration: u64) {
        let number = call.cookie() as usize;
        let Some(point) = self.points.get(number) else { return };
        self.counts.add(number);
        let bins = match point.by {
            Some(by) => Some(self.bins_of(&by.value(call, duration))),
            None => self.bins.get(number),
        };
        if let Some(bins) = bins {
            bins.add(&point.of.value(call, duration));
        }
    }

    /// The histogram of a key.
    fn bins_of(&self, value: &Value<'_>) -> &Bins {
        let mut text = [0; TEXT];
        let hash = describe(value, &mut text);
        let start = hash as usize % self.keys.len().max(1);
        for key in self.keys.iter().cycle().skip(start).take(PROBES.min(self.keys.len())) {
            match key.hash.compare_exchange(0, hash, Relaxed, Relaxed) {
                Ok(_) => {
                    for (word, bytes) in key.text.iter().zip(text.as_chunks::<8>().0) {
                        word.store(u64::from_le_bytes(*bytes), Relaxed);
                    }
                    return &key.bins;
                }
                Err(found) if found == hash => return &key.bins,
                Err(_) => {}
            }
        }
        &self.others
    }

    /// What was counted so far; `functions` are those it was made for.
    pub(super) fn snapshot(&self, functions: &[&'static Function]) -> Vec<Histogram> {
        let own = functions.iter().zip(&self.bins);
        let own = own.map(|(function, bins)| bins.snapshot(function.name().to_owned()));
        let mut keyed: Vec<_> = self.keys.iter().filter_map(Key::snapshot).collect();
        keyed.sort_by(|a, b| a.key.cmp(&b.key));
        let others = self.others.snapshot("(others)".to_owned());
        own.chain(keyed).chain([others]).filter(|histogram| !is_empty(histogram)).collect()
    }
}

fn is_empty(histogram: &Histogram) -> bool {
    histogram.buckets.is_empty() && histogram.negative == 0 && histogram.without == 0
}

impl Bins {
    fn new() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum: AtomicU64::new(0),
            negative: AtomicU64::new(0),
            without: AtomicU64::new(0),
        }
    }

    /// Counts a value: a number by its magnitude, text and bytes by their length.
    #[inline]
    fn add(&self, value: &Value<'_>) {
        let number = match *value {
            Value::Unsigned(n) => n,
            Value::Signed(n) if n < 0 => return one(&self.negative),
            Value::Signed(n) => n.cast_unsigned(),
            Value::Float(x) if x < 0.0 => return one(&self.negative),
            // Towards zero; what is no number is 0.
            Value::Float(x) => x as u64,
            Value::Bool(b) => b.into(),
            Value::Char(c) => u64::from(c),
            Value::Pointer(at) => at as u64,
            Value::Text(text) => text.len() as u64,
            Value::Bytes(bytes) => bytes.len() as u64,
            _ => return one(&self.without),
        };
        if let Some(word) = self.buckets.get(bucket(number)) {
            one(word);
        }
        self.sum.fetch_add(number, Relaxed);
    }

    fn snapshot(&self, key: String) -> Histogram {
        let mut buckets: Vec<_> = self.buckets.iter().map(|word| word.load(Relaxed)).collect();
        let used = buckets.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        buckets.truncate(used);
        let [sum, negative, without] =
            [&self.sum, &self.negative, &self.without].map(|word| word.load(Relaxed));
        Histogram { key, buckets, sum, negative, without }
    }
}

#[inline]
fn one(word: &AtomicU64) {
    word.fetch_add(1, Relaxed);
}

const NOTHING: u8 = 0;
const TEXTUAL: u8 = 1;
const UNSIGNED: u8 = 2;
const SIGNED: u8 = 3;
const FLOAT: u8 = 4;
const BOOL: u8 = 5;
const WORDY: u8 = 6;

/// Fills in what is kept of a key. Its hash, which is never 0.
fn describe(value: &Value<'_>, text: &mut [u8; TEXT]) -> u64 {
    let mut utf8 = [0; 4];
    let mut word = [0; 8];
    let mut number = |n: u64| {
        word = n.to_le_bytes();
    };
    let tag = match *value {
        Value::Unsigned(n) => (number(n), UNSIGNED).1,
        Value::Signed(n) => (number(n.cast_unsigned()), SIGNED).1,
        Value::Float(x) => (number(x.to_bits()), FLOAT).1,
        Value::Pointer(at) => (number(at as u64), UNSIGNED).1,
        Value::Bool(b) => (number(b.into()), BOOL).1,
        Value::Text(_) | Value::Bytes(_) | Value::Char(_) => TEXTUAL,
        Value::Some | Value::Ok | Value::Err => WORDY,
        _ => NOTHING,
    };
    let bytes: &[u8] = match *value {
        Value::Text(text) => text.as_bytes(),
        Value::Bytes(bytes) => bytes,
        Value::Char(c) => c.encode_utf8(&mut utf8).as_bytes(),
        Value::Some => b"Some",
        Value::Ok => b"Ok",
        Value::Err => b"Err",
        _ if tag == NOTHING => &[],
        _ => &word,
    };
    let [first, second, tail @ ..] = text;
    (*first, *second) = (tag, bytes.len().min(tail.len()) as u8);
    for (to, from) in tail.iter_mut().zip(bytes) {
        *to = *from;
    }
    // FNV-1a, over all of it.
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ u64::from(tag);
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    (hash ^ hash >> 29).max(1)
}

impl Key {
    fn new() -> Self {
        Self {
            hash: AtomicU64::new(0),
            text: [const { AtomicU64::new(0) }; TEXT / 8],
            bins: Bins::new(),
        }
    }

    fn snapshot(&self) -> Option<Histogram> {
        (self.hash.load(Relaxed) != 0).then(|| {
            let bytes: Vec<u8> =
                self.text.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
            self.bins.snapshot(shown(&bytes))
        })
    }
}

/// A kept key as text.
fn shown(kept: &[u8]) -> String {
    let [tag, len, text @ ..] = kept else { return String::new() };
    let text = text.get(..usize::from(*len)).unwrap_or_default();
    let word = text.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
    match *tag {
        UNSIGNED => word.to_string(),
        SIGNED => word.cast_signed().to_string(),
        FLOAT => f64::from_bits(word).to_string(),
        BOOL => (word != 0).to_string(),
        TEXTUAL | WORDY => String::from_utf8_lossy(text).into_owned(),
        _ => "(absent)".to_owned(),
    }
}
