//! What a trace says of itself.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read;

/// Which clock the records carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ClockKind {
    /// The processor's time stamp counter.
    Tsc,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    Monotonic,
}

/// How ticks become time: `base_unix_ns + (ticks - base_ticks) / freq_hz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockInfo {
    /// Which clock.
    pub kind: ClockKind,
    /// Ticks a second; never 0.
    pub freq_hz: u64,
    /// A tick value ..
    pub base_ticks: u64,
    /// .. and the Unix time, in nanoseconds, at that tick.
    pub base_unix_ns: i64,
}

impl ClockInfo {
    /// A nanosecond clock whose tick 0 is at `offset_ns` of Unix time.
    #[must_use]
    pub const fn nanoseconds(kind: ClockKind, offset_ns: i64) -> Self {
        Self { kind, freq_hz: 1_000_000_000, base_ticks: 0, base_unix_ns: offset_ns }
    }

    /// Unix time in nanoseconds at `ticks`; saturates. It is what babeltrace2 shows to the last digit
    /// (`bt_util_ns_from_value` of 2.0), as long as that is right to a nanosecond: the offset and the
    /// ticks are rounded down each for itself, and the ticks computed in `f64` up to 2^53 ns, that
    /// is for 104 days of a machine's being up. Behind that it is exact.
    #[must_use]
    pub fn unix_ns(&self, ticks: u64) -> i64 {
        clamp_i64(self.origin_unix_ns() + i128::from(self.ns_of(ticks)))
    }

    /// Unix time in nanoseconds at tick 0, as [`unix_ns`](Self::unix_ns) rounds it.
    #[must_use]
    pub fn origin_unix_ns(&self) -> i128 {
        let (seconds, ticks) = self.origin();
        seconds * NS_PER_S as i128 + i128::from(self.ns_of(ticks))
    }

    /// Unix time at tick 0: seconds, and ticks less than a second.
    pub(crate) fn origin(&self) -> (i128, u64) {
        let freq = i128::from(self.freq_hz.max(1));
        let unix = i128::from(self.base_unix_ns) * freq / NS_PER_S as i128;
        let origin = unix - i128::from(self.base_ticks);
        // A frequency is below 2^64, and so is what is left of a division by it.
        (origin.div_euclid(freq), origin.rem_euclid(freq) as u64)
    }

    /// Nanoseconds from tick 0 to `ticks`, as [`unix_ns`](Self::unix_ns) rounds them.
    #[must_use]
    pub fn ns_of(&self, ticks: u64) -> u64 {
        if self.freq_hz == NS_PER_S {
            return ticks;
        }
        let ns = 1e9 * ticks as f64 / self.freq_hz.max(1) as f64;
        if ns < EXACT_F64 { ns as u64 } else { self.ticks_to_ns(ticks) }
    }

    /// Length of `ticks` in nanoseconds, rounded down; saturates.
    #[must_use]
    pub fn ticks_to_ns(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.freq_hz.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

const NS_PER_S: u64 = 1_000_000_000;
/// 2^53: from here on an `f64` is no longer right to a nanosecond.
const EXACT_F64: f64 = 9_007_199_254_740_992.0;

fn clamp_i64(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// What is known when a recording begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceMeta {
    /// Unique for each trace.
    pub uuid: [u8; 16],
    /// The machine's name.
    pub hostname: String,
    /// The clock of all records.
    pub clock: ClockInfo,
    /// Version of the recorder, `MAJOR.MINOR.PATCH`.
    pub tracer_version: String,
    /// The recorder's command line or another description; shown by `report`, may be empty.
    pub description: String,
}

impl TraceMeta {
    /// This machine's name, a fresh uuid and this build's version.
    #[must_use]
    pub fn new(clock: ClockInfo) -> Self {
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            uuid: random_uuid(),
            hostname: hostname.trim().to_owned(),
            clock,
            tracer_version: env!("CARGO_PKG_VERSION").to_owned(),
            description: String::new(),
        }
    }
}

/// A version 4 uuid; from the clock when /dev/urandom cannot be read.
fn random_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut uuid));
    if read.is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanos = now.map_or(0, |now| now.as_nanos());
        uuid = (nanos ^ u128::from(std::process::id()) << 96).to_le_bytes();
    }
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// Who records a trace, and from how large rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorder {
    /// Its process id, as it sees itself.
    pub pid: u32,
    /// Number of rings.
    pub rings: u32,
    /// Bytes of each.
    pub ring_bytes: u64,
}

/// Which kind of ring a stream comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StreamKind {
    /// A per-CPU ring.
    Cpu,
    /// A ring of the portable backend.
    Portable,
}

/// The name of one stream, which is also its file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamName {
    /// Which kind of ring.
    pub kind: StreamKind,
    /// CPU, or number of the portable ring.
    pub index: u32,
}

impl StreamName {
    /// The stream of a per-CPU ring.
    #[must_use]
    pub const fn cpu(index: u32) -> Self {
        Self { kind: StreamKind::Cpu, index }
    }

    /// The stream of a portable ring.
    #[must_use]
    pub const fn portable(index: u32) -> Self {
        Self { kind: StreamKind::Portable, index }
    }

    /// CTF's `stream_instance_id`.
    pub(crate) fn instance(self) -> u64 {
        match self.kind {
            StreamKind::Cpu => u64::from(self.index),
            StreamKind::Portable => 1 << 32 | u64::from(self.index),
        }
    }

    /// Reads `cpu_3` or `portable_0`; nothing else is a stream.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (kind, digits) = match name.strip_prefix("cpu_") {
            Some(digits) => (StreamKind::Cpu, digits),
            None => (StreamKind::Portable, name.strip_prefix("portable_")?),
        };
        let index = digits.parse().ok()?;
        let parsed = Self { kind, index };
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            StreamKind::Cpu => write!(f, "cpu_{}", self.index),
            StreamKind::Portable => write!(f, "portable_{}", self.index),
        }
    }
}

/// How many events one stream lost for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The stream, or `None` for what was lost outside any ring.
    pub stream: Option<StreamName>,
    /// Name of the cause, such as `full`.
    pub cause: String,
    /// How many events, in all.
    pub events: u64,
}
