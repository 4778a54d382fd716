//! The segment's layout: every offset, in one place.
//!
//! Two builds of Owlet may meet in one segment. They agree on this file or not at all: whoever
//! changes the meaning of a byte changes [`VERSION`], and a segment of another version is refused.
//! All words are little endian and aligned to their size.
//!
//! ```text
//!            0  +---------------------------------------------------------------+
//!               | header: constants, written once before the file is shared     |
//!               |   0 magic "OWLETSEG"          8 version u32   12 header len u32|
//!               |  16 total u64   24 cpus u32  28 clock u32     32 ring bytes u64|
//!               |  40 config off u64           48 config len u64                |
//!               |  56 log off u64              64 log len u64                   |
//!               |  72 data off u64  80 deferral us u32  84 record header u32    |
//!               |  88 check u64: FNV-1a of bytes 0..88                          |
//!          256  | state u32: 0 open, 1 stopped                                  |
//!          384  | next event id u32                                             |
//!          512  | log hint u64: an entry boundary, all entries before it claimed|
//!          640  | wake: seq u32, waiters u32, pending u32, writer fences u32,   |
//!          656  |   notifier u64, wakes u64, direct wakes u64                   |
//!         4096  +---------------------------------------------------------------+
//!               | control block of ring 0 (512 bytes)                           |
//!               |   0 head u64   8 wake_at u64   16 last time u64 (portable)    |
//!               | 128 tail u64                                                  |
//!               | 256 lost [u64; 16], by cause                                  |
//!               | 384 owner u64 (portable)                                      |
//!               | control block of ring 1, 2, ..                                |
//!   config off  +---------------------------------------------------------------+
//!               | config bytes, padded to a page                                |
//!      log off  +---------------------------------------------------------------+
//!               | log entries: { len u32, state u32, bytes, padding to 8 }      |
//!     data off  +---------------------------------------------------------------+
//!               | data of ring 0, 1, ..: ring bytes each                        |
//!        total  +---------------------------------------------------------------+
//! ```
//!
//! Rings 0 to cpus - 1 belong to processes with restartable sequences, one per CPU. Those behind
//! are the portable ones: one per CPU and at least [`PORTABLE_MIN`], since a writer preempted in
//! the middle keeps its ring. The two kinds of writers never share a word but `lost`, which both
//! change by locked adds, and the header's.
//!
//! Who may change what:
//!
//! | word | writers | readers |
//! |---|---|---|
//! | constants, config | never | creator, before the file is handed out |
//! | state | never | 0 -> 1, once |
//! | next id, log hint, log entries | compare-exchange | never |
//! | seq, wakes | add | add |
//! | pending | store 1 | swap 0 |
//! | waiters, notifier | never | yes |
//! | direct wakes, writer fences, lost | add | never |
//! | head, data | the section (rseq) or the owner (portable) | never |
//! | wake_at | exchange to nobody | fetch-min |
//! | last time | the owner (portable) | never |
//! | tail | never | compare-exchange |
//! | owner | 0 <-> itself | a dead owner -> 0 |
//!
//! Nothing in shared memory is trusted after it was checked: a process keeps its own copy of the
//! geometry, a writer masks every position, a reader checks every length.

use crate::Clock;

/// First eight bytes of a segment.
pub(crate) const MAGIC: [u8; 8] = *b"OWLETSEG";
/// Version of this file.
pub(crate) const VERSION: u32 = 1;
/// Bytes of the header; the first control block follows.
pub(crate) const HEADER_LEN: usize = 4096;
/// Bytes of the constants at the front of the header.
pub(crate) const CONSTANTS_LEN: usize = 96;

/// State word: [`STATE_OPEN`] or [`STATE_STOPPED`].
pub(crate) const STATE: usize = 256;
/// The next event id nobody has claimed, less one.
pub(crate) const NEXT_ID: usize = 384;
/// Hint where the log's free part begins.
pub(crate) const LOG_HINT: usize = 512;
/// Futex all waiters sleep on; changes with every wakeup.
pub(crate) const WAKE_SEQ: usize = 640;
/// Number of waiters; futex of the notifier while it is 0.
pub(crate) const WAITERS: usize = 644;
/// Set by writers for the notifier.
pub(crate) const PENDING: usize = 648;
/// Processes that run their own fence after a commit.
pub(crate) const WRITER_FENCES: usize = 652;
/// When the notifier last looked (monotonic ns); 0 = there is none.
pub(crate) const NOTIFIER: usize = 656;
/// Wakeups by the notifier.
pub(crate) const WAKES: usize = 664;
/// Wakeups by writers.
pub(crate) const DIRECT_WAKES: usize = 672;

/// [`STATE`]: in use.
pub(crate) const STATE_OPEN: u32 = 0;
/// [`STATE`]: over, for good.
pub(crate) const STATE_STOPPED: u32 = 1;

/// Offset of the first control block.
pub(crate) const CONTROLS: usize = HEADER_LEN;
/// Distance of control blocks, as a shift.
pub(crate) const CONTROL_SHIFT: usize = 9;
/// Distance of control blocks.
pub(crate) const CONTROL_LEN: usize = 1 << CONTROL_SHIFT;
/// In a control block: position of the next record.
pub(crate) const HEAD: usize = 0;
/// In a control block: a writer whose head reaches this wakes readers.
pub(crate) const WAKE_AT: usize = 8;
/// In a control block of a portable ring: time of the last record.
pub(crate) const LAST_TIME: usize = 16;
/// In a control block: position of the oldest unread record.
pub(crate) const TAIL: usize = 128;
/// In a control block: counters of lost events.
pub(crate) const LOST: usize = 256;
/// Counters in [`LOST`].
pub(crate) const LOST_SLOTS: usize = 16;
/// In a control block of a portable ring: who writes, or 0.
pub(crate) const OWNER: usize = 384;

/// Bytes of a record before its payload: time u64, id u32, len u32, pid u32, tid u32.
pub(crate) const RECORD_HEADER: usize = 24;
/// In a record: bytes from its start to the end of its payload.
pub(crate) const RECORD_LEN_AT: usize = 12;
/// Records start at multiples of this.
pub(crate) const RECORD_ALIGN: usize = 8;
/// No record is longer: it bounds the time a section must go undisturbed (about 6 us of copying).
pub(crate) const MAX_RECORD: usize = 64 << 10;

/// Pages, as far as the layout is concerned.
pub(crate) const PAGE: usize = 4096;
/// Most CPUs a segment may have.
pub(crate) const MAX_CPUS: usize = 8192;
/// Least number of portable rings.
pub(crate) const PORTABLE_MIN: usize = 4;
/// Largest ring.
pub(crate) const MAX_RING: usize = 1 << 30;
/// Largest log and largest config.
pub(crate) const MAX_SIDE: usize = 1 << 30;

const _: () = {
    assert!(CONSTANTS_LEN <= STATE);
    assert!(DIRECT_WAKES + 8 <= HEADER_LEN);
    assert!(WAITERS == WAKE_SEQ + 4);
    assert!(NOTIFIER.is_multiple_of(8) && LOG_HINT.is_multiple_of(8));
    // Head and tail have different owners and so different cache lines (pairs of 64 bytes).
    assert!(TAIL / 128 != HEAD / 128 && LOST / 128 != TAIL / 128 && OWNER / 128 != TAIL / 128);
    assert!(LOST + 8 * LOST_SLOTS <= OWNER && OWNER + 8 <= CONTROL_LEN);
    assert!(crate::LOSS_COUNT <= LOST_SLOTS);
    assert!(HEADER_LEN.is_multiple_of(PAGE) && MAX_RECORD.is_multiple_of(RECORD_ALIGN));
    assert!(cfg!(target_endian = "little") && cfg!(target_pointer_width = "64"));
};

/// The numbers that decide all offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) cpus: usize,
    pub(crate) ring_bytes: usize,
    pub(crate) config_len: usize,
    pub(crate) log_len: usize,
    pub(crate) clock: Clock,
    pub(crate) deferral_us: u32,
}

impl Geometry {
    /// Whether all numbers are in range. Everything below relies on it.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.cpus == 0 || self.cpus > MAX_CPUS {
            return Err("number of CPUs out of range");
        }
        if !self.ring_bytes.is_power_of_two() || !(PAGE..=MAX_RING).contains(&self.ring_bytes) {
            return Err("ring size is no power of two in range");
        }
        if self.config_len > MAX_SIDE || self.log_len > MAX_SIDE {
            return Err("log or configuration too large");
        }
        if self.log_len == 0 || !self.log_len.is_multiple_of(PAGE) {
            return Err("log size is no multiple of the page size");
        }
        Ok(())
    }

    /// Number of portable rings.
    pub(crate) fn portable(&self) -> usize {
        self.cpus.max(PORTABLE_MIN)
    }

    /// Number of rings of both kinds.
    pub(crate) fn rings(&self) -> usize {
        self.cpus + self.portable()
    }

    pub(crate) fn config_off(&self) -> usize {
        (CONTROLS + self.rings() * CONTROL_LEN).next_multiple_of(PAGE)
    }

    pub(crate) fn log_off(&self) -> usize {
        (self.config_off() + self.config_len).next_multiple_of(PAGE)
    }

    pub(crate) fn data_off(&self) -> usize {
        self.log_off() + self.log_len
    }

    /// Where the data of ring `index` lies in the file.
    pub(crate) fn ring_off(&self, index: usize) -> usize {
        self.data_off() + index * self.ring_bytes
    }

    /// Where the portable rings' data begin in the file: what lies before is allocated at birth.
    pub(crate) fn portable_off(&self) -> usize {
        self.ring_off(self.cpus)
    }

    /// Bytes of the file.
    pub(crate) fn total(&self) -> usize {
        self.ring_off(self.rings())
    }

    /// Bytes of address space: the data of each ring appear twice in a row.
    pub(crate) fn mapped(&self) -> usize {
        self.data_off() + self.rings() * 2 * self.ring_bytes
    }

    /// Longest record.
    pub(crate) fn max_record(&self) -> usize {
        self.ring_bytes.min(MAX_RECORD)
    }

    /// The header's constants.
    pub(crate) fn encode(&self) -> [u8; CONSTANTS_LEN] {
        let mut out = [0; CONSTANTS_LEN];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(field) = out.get_mut(at..at + bytes.len()) {
                field.copy_from_slice(bytes);
            }
        };
        let long = |value: usize| (value as u64).to_le_bytes();
        let clock: u32 = match self.clock {
            Clock::Tsc => 0,
            Clock::Monotonic => 1,
        };
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &(HEADER_LEN as u32).to_le_bytes());
        put(16, &long(self.total()));
        put(24, &(self.cpus as u32).to_le_bytes());
        put(28, &clock.to_le_bytes());
        put(32, &long(self.ring_bytes));
        put(40, &long(self.config_off()));
        put(48, &long(self.config_len));
        put(56, &long(self.log_off()));
        put(64, &long(self.log_len));
        put(72, &long(self.data_off()));
        put(80, &self.deferral_us.to_le_bytes());
        put(84, &(RECORD_HEADER as u32).to_le_bytes());
        let check = fnv1a(out.get(..88).unwrap_or_default());
        if let Some(field) = out.get_mut(88..) {
            field.copy_from_slice(&check.to_le_bytes());
        }
        out
    }

    /// Reads the constants back and checks each of them, against the file's size too.
    pub(crate) fn decode(bytes: &[u8; CONSTANTS_LEN], file_len: u64) -> Result<Self, Refused> {
        let short = |at: usize| {
            let field = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
            u32::from_le_bytes(field.unwrap_or_default())
        };
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err(Refused::Invalid("the magic number is wrong"));
        }
        if short(8) != VERSION {
            return Err(Refused::Version(short(8)));
        }
        let clock = match short(28) {
            0 => Clock::Tsc,
            1 => Clock::Monotonic,
            _ => return Err(Refused::Invalid("unknown clock")),
        };
        let geometry = Self {
            cpus: short(24) as usize,
            ring_bytes: long(32) as usize,
            config_len: long(48) as usize,
            log_len: long(64) as usize,
            clock,
            deferral_us: short(80),
        };
        geometry.check().map_err(Refused::Invalid)?;
        if geometry.encode() != *bytes {
            return Err(Refused::Invalid("the header contradicts itself"));
        }
        if geometry.total() as u64 != file_len {
            return Err(Refused::Invalid("the file is not as long as its header says"));
        }
        Ok(geometry)
    }
}

/// Why a header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Invalid(&'static str),
    Version(u32),
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
