//! Messages about traced functions: what is attached to them, and how it stands.
//!
//! [`Attach`] belongs to the connection it came over. What records belongs to the connection's session
//! and ends with it; what only counts ends with the connection. So whatever a command attached is gone
//! when the command is, however it went.
//!
//! # Events of a function `f`
//! | moments | event | kind | fields |
//! |---|---|---|---|
//! | entry, both | `f` | event | its parameters |
//! | exit, both | `f%return` | event | its parameters, [`RET`], [`PHASE`], [`DURATION`] |
//! | latency | `f` | span | new: its parameters; close: [`RET`], [`PHASE`] |
//!
//! Parameters and return value are `Dynamic`: each value tells its type. A value that is not there (of a type
//! nothing is known of, skipped, moved away by the body) is absent. One name is one field: see
//! [`field_names`].

use serde::{Deserialize, Serialize};

/// Patterns of one request at most: the agent matches each with each function.
pub const MAX_PATTERNS: usize = 256;
/// Buckets of a histogram: of 0, and of 2^(n-1) up to 2^n for n from 1 to 64.
pub const BUCKETS: usize = 65;
/// Keys of a histogram at most; what has another key is counted under none.
pub const MAX_KEYS: usize = 256;
/// Values of one map that a reply shows at most.
pub const MAX_MAP_ENTRIES: usize = 4096;
/// Records of one ring buffer that a reply hands over at most.
pub const MAX_RECORDS: usize = 4096;
/// Behind a function's name, the name of its return.
pub const RETURN: &str = "%return";
/// The field that holds the return value.
pub const RET: &str = "ret";
/// The field that says how a call ended.
pub const PHASE: &str = "phase";
/// The field that says how long it took, in nanoseconds.
pub const DURATION: &str = "duration_ns";
/// What [`PHASE`] may be.
pub const PHASES: &[(i64, &str)] = &[(0, "return"), (1, "unwind"), (2, "drop")];

/// A function of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the meaning")]
pub struct FunctionInfo {
    pub name: String,
    pub file: String,
    pub line: u32,
    /// Parameters, `self` included; "_" for patterns.
    pub params: Vec<String>,
    /// Programs attached to it, whoever attached them.
    pub programs: u32,
}

/// What is attached, and to what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Globs over functions' names; each must match one. A function that several match counts once.
    pub patterns: Vec<String>,
    /// What is done with a call.
    pub work: Work,
    /// Only calls for which this holds, or empty. See [`filter`](crate::filter).
    pub filter: String,
}

/// What is done with a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// It is recorded into the session of the connection.
    Record(Moments),
    /// It is counted in histograms: one for each function, or for each value of a field.
    Histogram {
        /// The field that is counted; the latency when there is none.
        field: Option<String>,
        /// The field whose values have a histogram each.
        by: Option<String>,
    },
    /// It is handed to an eBPF program.
    Program {
        /// What the loader has made and verified, as bytes.
        image: Vec<u8>,
        /// Which of the image's programs.
        program: String,
    },
}

/// Which moments of a call are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the meaning")]
pub enum Moments {
    Entry,
    Exit,
    Both,
    /// Calls as spans.
    Latency,
}

/// How what a connection attached stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The functions that were attached to, by name.
    pub functions: Vec<FunctionCount>,
    /// Calls that the program was not run for, because it was running on that thread.
    pub missed: u64,
    /// Runs of an eBPF program that were ended.
    pub faults: u64,
    /// What runs: `native`, `jit`, `interpreter`.
    pub engine: String,
    /// Histograms, those of functions in the order of `functions`; empty ones are left out.
    pub histograms: Vec<Histogram>,
    /// Maps of an eBPF program, if they were asked for.
    pub maps: Vec<Map>,
}

/// One function of a [`Standing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the meaning")]
pub struct FunctionCount {
    pub name: String,
    /// Calls so far for which the filter held.
    pub calls: u64,
    /// It is attached still: nobody has detached it meanwhile.
    pub attached: bool,
}

/// Numbers by their magnitude.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// What was counted: a function's name, or a field's value as text.
    pub key: String,
    /// How many numbers were in each bucket: see [`BUCKETS`]. Trailing zeros are left out.
    pub buckets: Vec<u64>,
    /// Sum of the numbers, modulo 2^64.
    pub sum: u64,
    /// Numbers below zero, which are in no bucket.
    pub negative: u64,
    /// Calls without a number: the field was absent.
    pub without: u64,
}

/// A map of an eBPF program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// Its name in the object.
    pub name: String,
    /// `hash`, `array`, `percpu_array` or `ringbuf`.
    pub kind: String,
    /// Keys and values, as many as [`MAX_MAP_ENTRIES`]; values of a per-CPU array one behind the other.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of one value.
    pub value_size: u32,
    /// Records of a ring buffer, the oldest first, as many as [`MAX_RECORDS`]. They are taken out: each is
    /// handed over once.
    pub records: Vec<Vec<u8>>,
    /// What was lost so far: records and updates that found no room, or the place busy, and records that a
    /// run which was cut short has left.
    pub lost: u64,
    /// There are more entries, or there may be more records.
    pub cut: bool,
}

/// The bucket of a number.
#[must_use]
pub const fn bucket(number: u64) -> usize {
    (u64::BITS - number.leading_zeros()) as usize
}

/// The smallest and the largest number of a bucket; `None` behind the last.
#[must_use]
pub const fn bounds(bucket: usize) -> Option<(u64, u64)> {
    match bucket {
        0 => Some((0, 0)),
        1..BUCKETS => Some((1 << (bucket - 1), u64::MAX >> (BUCKETS - 1 - bucket))),
        _ => None,
    }
}

/// The fields that a function's parameters become, in their order: a pattern, a second one of a name, and
/// one with the name of a field of ours get a name with their number.
#[must_use]
pub fn field_names(params: &[impl AsRef<str>]) -> Vec<String> {
    let ours = [RET, PHASE, DURATION, "span", "parent"];
    let mut names: Vec<String> = Vec::with_capacity(params.len());
    for (number, param) in params.iter().enumerate() {
        let param = param.as_ref();
        let taken = ours.contains(&param) || names.iter().any(|name| name == param);
        names.push(match param {
            "_" => format!("arg{number}"),
            param if taken => format!("{param}_arg{number}"),
            param => param.to_owned(),
        });
    }
    names
}
