//! What `defer-free` runs: the table of the module's header, and the knobs that replace its entries.

use crate::Options;
use crate::peers::defer_free::SIZES;
use anyhow::{Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;

/// How to run it.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeferFree {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Only this setting (again for more) [default: all, or rcuscale with any knob below]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(names()))]
    setting: Vec<String>,
    /// Only this way of freeing (again for more)
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(ALL))]
    variant: Vec<String>,
    /// Producer threads, spread over the CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=40))]
    producers: Option<u64>,
    /// Loops of 8,000 objects, of each producer (the source's: 10,000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    loops: Option<u64>,
    /// Bytes of an object in multiples of 24: 1, 2, 4 or 8
    #[arg(long, value_name = "N")]
    mult: Option<u64>,
    /// Reader threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=20))]
    readers: Option<u64>,
    /// Length of a section: about that of a grace period
    #[arg(long, value_name = "US")]
    reader_hold_us: Option<u64>,
    /// Objects a second of all producers together; 0 for as many as they can
    #[arg(long, value_name = "N")]
    rate: Option<u64>,
    /// How much may wait, in bytes; 0 for the default. Kept by waiting
    #[arg(long, value_name = "BYTES")]
    cap: Option<u64>,
    /// Of `domain`, how many objects in a hundred have a head
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(..=100))]
    heads: Option<u64>,
    /// `call-offloaded` runs like others: no nice value, no CPU of its own, no pause of 10 ms
    #[arg(long)]
    no_offload: bool,
}

/// A row of the table in the module's header.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    pub(super) producers: u64,
    /// Objects in all: large, small.
    objects: [u64; 2],
    readers: u64,
    hold_ns: u64,
    /// Large, small.
    stuck_ns: [u64; 2],
    cap: u64,
    rate: u64,
    heads: u64,
    pace_ns: u64,
    pub(super) variants: Vec<&'static str>,
}

pub(super) const BEFORE: &str = "call-offloaded";
pub(super) const AFTER: [&str; 3] = ["domain", "pool", "recycled"];
const ALL: [&str; 11] = [
    BEFORE,
    "two-batches",
    "call",
    "domain",
    "pool",
    "recycled",
    "crossbeam-epoch",
    "seize",
    "call-rcu",
    "malloc",
    "floor",
];
const NO_PEERS: [&str; 5] = [BEFORE, "two-batches", "domain", "pool", "recycled"];
const STUCK: [&str; 6] = ["domain", "pool", "recycled", "crossbeam-epoch", "seize", "call-rcu"];
/// The cap of `stuck`.
pub(super) const CAP: u64 = 64_000_000;
/// What may be in blocks that are being filled: on two CPUs, of one kind.
pub(super) const OPEN: u64 = 2 * (256 << 10);
const LOOP: u64 = 8000;
const PACE_NS: u64 = 10_000_000;

fn names() -> Vec<&'static str> {
    table().iter().map(|setting| setting.name).collect()
}

fn table() -> [Setting; 6] {
    let plain = Setting {
        name: "rcuscale",
        bytes: 24,
        producers: 2,
        objects: [2 * 1000 * LOOP, 100 * LOOP],
        readers: 1,
        hold_ns: 5_000_000,
        stuck_ns: [0; 2],
        cap: 0,
        rate: 0,
        heads: 0,
        pace_ns: PACE_NS,
        variants: ALL.to_vec(),
    };
    let flood = Setting {
        name: "flood",
        bytes: 64,
        objects: [10_000_000, 1_000_000],
        readers: 0,
        hold_ns: 0,
        ..plain.clone()
    };
    [
        plain.clone(),
        Setting {
            name: "rcuscale-16",
            producers: 16,
            variants: NO_PEERS.to_vec(),
            ..plain.clone()
        },
        Setting {
            name: "steady",
            producers: 16,
            objects: [4_000_000, 1_000_000],
            readers: 2,
            rate: 2_000_000,
            variants: AFTER.to_vec(),
            ..plain
        },
        Setting {
            name: "flood-readers",
            readers: 3,
            hold_ns: 10_000_000,
            cap: 44_000_000,
            ..flood.clone()
        },
        Setting {
            name: "stuck",
            objects: [2_000_000, 2_000_000],
            stuck_ns: [1_000_000_000, 300_000_000],
            cap: CAP,
            variants: STUCK.to_vec(),
            ..flood.clone()
        },
        flood,
    ]
}

impl Setting {
    /// Objects of each producer.
    pub(super) fn each(&self, options: &Options) -> u64 {
        let [large, small] = self.objects;
        (options.size(large, small) / self.producers).max(1)
    }

    fn stuck_ns(&self, options: &Options) -> u64 {
        let [large, small] = self.stuck_ns;
        if options.small { small } else { large }
    }

    /// For people.
    pub(super) fn text(&self, options: &Options) -> String {
        let each = self.each(options);
        let rate = match self.rate {
            0 => String::new(),
            rate => format!(", {rate} a second in all"),
        };
        let heads = match self.heads {
            0 => String::new(),
            heads => format!(", {heads} % with a head"),
        };
        let readers = match (self.readers, self.stuck_ns(options)) {
            (0, 0) => "nobody reads".to_owned(),
            (0, stuck) => format!("a reader inside for {} ms", stuck / 1_000_000),
            (n, _) => format!("{n} readers of {} us", self.hold_ns / 1000),
        };
        let cap = match self.cap {
            0 => String::new(),
            cap => format!(", cap {cap}"),
        };
        format!(
            "{} x {each} objects of {} bytes{rate}{heads}; {readers}{cap}",
            self.producers, self.bytes
        )
    }

    /// The numbers of a run.
    pub(super) fn numbers(&self, options: &Options) -> [u64; 9] {
        [
            self.producers,
            self.each(options),
            self.readers,
            self.hold_ns,
            self.stuck_ns(options),
            self.cap,
            self.pace_ns,
            self.rate,
            self.heads,
        ]
    }
}

impl DeferFree {
    fn has_knobs(&self) -> bool {
        let knobs = [
            self.producers,
            self.loops,
            self.mult,
            self.readers,
            self.reader_hold_us,
            self.rate,
            self.cap,
            self.heads,
        ];
        self.no_offload || knobs.iter().any(Option::is_some)
    }

    /// True if the settings are the table's, so that they can be judged.
    pub(super) fn is_plain(&self) -> bool {
        !self.has_knobs()
    }

    /// For people.
    pub(super) fn offload(&self) -> &'static str {
        if self.no_offload { "none" } else { "one thread, nice +10, CPU 0, 10 ms between batches" }
    }

    /// What is to be run.
    pub(super) fn settings(&self) -> Result<Vec<Setting>> {
        let chosen = |name: &str| match self.setting.as_slice() {
            [] => !self.has_knobs() || name == "rcuscale",
            names => names.iter().any(|n| n == name),
        };
        table().into_iter().filter(|s| chosen(s.name)).map(|s| self.tuned(s)).collect()
    }

    fn tuned(&self, setting: Setting) -> Result<Setting> {
        let mut s = setting;
        s.producers = self.producers.unwrap_or(s.producers);
        if let Some(loops) = self.loops {
            s.objects = [loops * LOOP * s.producers; 2];
        }
        if let Some(mult) = self.mult {
            s.bytes = 24 * mult;
            if !SIZES.contains(&s.bytes) {
                bail!("--mult {mult}: not 1, 2, 4 or 8");
            }
        }
        s.readers = self.readers.unwrap_or(s.readers);
        s.hold_ns = self.reader_hold_us.map_or(s.hold_ns, |us| us * 1000);
        s.rate = self.rate.unwrap_or(s.rate);
        s.cap = self.cap.unwrap_or(s.cap);
        s.heads = self.heads.unwrap_or(s.heads);
        if self.no_offload {
            s.pace_ns = 0;
        }
        if !self.variant.is_empty() {
            s.variants = ALL.into_iter().filter(|v| self.variant.iter().any(|n| n == v)).collect();
        }
        // liburcu's program knows neither.
        if s.rate != 0 || s.heads != 0 {
            s.variants.retain(|&variant| variant != "call-rcu");
        }
        Ok(s)
    }
}
