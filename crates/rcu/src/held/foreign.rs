//! Guards that were given back by another thread than took them.
//!
//! The taker's count stays too high for ever; here is by how much, in a table of threads, domains and
//! ranks. It is filled by whoever moves guards between threads as a habit: by few keys then, many
//! times. Those for which it has no room are not noted: the taker's count is too high then.
//!
//! A guard on its way counts as given back *before* its exit is counted: at a fork in between it
//! belongs to the thread that stays behind.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

struct Entry {
    /// The taker's serial, the domain's number and the rank, mixed; 0 = free.
    key: AtomicU64,
    count: AtomicU32,
}

const ENTRIES: usize = 512;
const PROBES: usize = 16;

static TABLE: [Entry; ENTRIES] =
    [const { Entry { key: AtomicU64::new(0), count: AtomicU32::new(0) } }; ENTRIES];
static NOTED: AtomicU32 = AtomicU32::new(0);

/// Exact as long as serials are below 2^40 and domains below 2^23.
fn key(serial: u64, id: u32, rank: u32) -> u64 {
    serial << 24 | u64::from(id & 0x7f_ffff) << 1 | u64::from(rank != 0)
}

fn entries(key: u64) -> impl Iterator<Item = &'static Entry> {
    let at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize;
    TABLE.iter().cycle().skip(at % ENTRIES).take(PROBES)
}

/// Notes that a guard taken by the thread `serial` is about to be given back by another.
pub(crate) fn note(serial: u64, id: u32, rank: u32) {
    let key = key(serial, id, rank);
    NOTED.store(1, Ordering::Relaxed);
    for entry in entries(key) {
        let taken = entry.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed);
        if taken.is_ok() || taken == Err(key) {
            entry.count.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

/// Guards of this thread, domain and rank given back by others.
pub(super) fn count(serial: u64, id: u32, rank: u32) -> u32 {
    if NOTED.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let key = key(serial, id, rank);
    let found = entries(key).find(|entry| entry.key.load(Ordering::Relaxed) == key);
    found.map_or(0, |entry| entry.count.load(Ordering::Relaxed))
}
