//! The reading end.
//!
//! The writers are other people's processes: a stray pointer of theirs, or malice, can put
//! anything into a ring. So the reader copies first, gives the room back, and judges the private
//! copy. Every length is checked against what is left, every time against the ring's last and the
//! clock. What is no record is dropped and counted; the next drain starts at the head of then.
//!
//! | found | done | counted as |
//! |---|---|---|
//! | more between tail and head than the ring holds | on to head | `corrupt` (a ring's worth) |
//! | a length that is too short, too long or beyond the data | the rest of this drain dropped | `corrupt` |
//! | a time in the future | that record dropped | `corrupt` |
//! | a time before the previous record's | kept, with the previous record's time | - |
//!
//! Several readers may drain one ring: each record goes to exactly one of them.

use crate::layout::{self, RECORD_ALIGN, RECORD_HEADER, RECORD_LEN_AT};
use crate::liveness::{self, Suspect};
use crate::positions::Control;
use crate::sync::Ordering;
use crate::{LOSS_COUNT, Segment, shm};
use std::sync::Arc;

/// How far ahead of the reader's clock a record's time may lie: CPUs may differ by a little.
const AHEAD_MAX: u64 = 1 << 22;
/// How often a drain starts over because another reader took the data.
const TURNS_MAX: usize = 16;

/// What one [`RingReader::drain`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Bytes of whole records appended to the output, padding included.
    pub bytes: usize,
    /// Records appended.
    pub events: u64,
    /// Time of the first record appended; 0 without one.
    pub first_time: u64,
    /// Time of the last record appended; 0 without one.
    pub last_time: u64,
    /// Unpadded end of the last record within the appended bytes: `bytes` less its padding.
    pub content_bytes: usize,
    /// Events lost since the segment was created, by cause ([`LOSS_REASONS`](crate::LOSS_REASONS)), as of
    /// the last record's being taken: those for want of room are behind it.
    pub lost: [u64; LOSS_COUNT],
    /// Bytes thrown away since this reader was made because they were no records.
    pub corrupt: u64,
}

/// Reads a segment's rings.
#[derive(Debug)]
pub struct Reader {
    segment: Arc<Segment>,
}

impl Reader {
    /// A reader of all rings.
    #[must_use]
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { segment }
    }

    /// Number of rings: one per CPU, and the portable ones behind them (as many, but at least 4).
    #[must_use]
    pub fn rings(&self) -> usize {
        self.segment.geometry().rings()
    }

    /// The reader of one ring; `None` when there is no such ring.
    #[must_use]
    pub fn ring(&self, index: usize) -> Option<RingReader> {
        if index >= self.rings() {
            return None;
        }
        let cpus = self.segment.cpus();
        let name = match index.checked_sub(cpus) {
            None => format!("cpu_{index}"),
            Some(portable) => format!("portable_{portable}"),
        };
        let segment = Arc::clone(&self.segment);
        let (corrupt, lost, last_time, suspect) = (0, [0; LOSS_COUNT], 0, None);
        Some(RingReader { segment, index, name, corrupt, lost, last_time, suspect })
    }
}

/// Reads one ring.
#[derive(Debug)]
pub struct RingReader {
    segment: Arc<Segment>,
    index: usize,
    name: String,
    corrupt: u64,
    /// Losses as of the head last looked at.
    lost: [u64; LOSS_COUNT],
    last_time: u64,
    suspect: Option<Suspect>,
}

impl RingReader {
    /// `cpu_3` or `portable_0`; unique in the segment.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which ring this is.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The CPU whose writers use this ring; `None` for portable rings.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        (self.index < self.segment.cpus()).then_some(self.index)
    }

    /// Bytes waiting to be read.
    #[must_use]
    pub fn fill(&self) -> usize {
        self.segment.control(self.index).map_or(0, |control| {
            let fill = control.head_for_reader().wrapping_sub(control.tail_for_reader());
            usize::try_from(fill).map_or(0, |fill| fill.min(self.segment.ring_bytes()))
        })
    }

    /// Appends every whole record to `out`, in time order, and gives their room back to the
    /// writers. Takes bounded time whatever the ring holds; allocates at most a ring's size.
    pub fn drain(&mut self, out: &mut Vec<u8>) -> Drained {
        let segment = Arc::clone(&self.segment);
        let mut drained = Drained::default();
        let Some(control) = segment.control(self.index) else { return drained };
        if self.cpu().is_none() {
            liveness::break_dead_owner(&control, &mut self.suspect);
        }
        let start = out.len();
        for _ in 0..TURNS_MAX {
            if self.copy_out(&control, out) {
                self.judge(out, start, &mut drained);
                break;
            }
        }
        drained.lost = self.lost;
        drained.corrupt = self.corrupt;
        drained
    }

    /// The head, and in `lost` what was lost before it was passed: a ring that is full stays so until
    /// its room is given back, so those are behind the records below head.
    fn look(&mut self, control: &Control<'_>) -> u64 {
        let offset = layout::CONTROLS + self.index * layout::CONTROL_LEN;
        let mut head = control.head_for_reader();
        for _ in 0..TURNS_MAX {
            for (sum, counter) in self.lost.iter_mut().zip(self.segment.lost_at(offset)) {
                // Acquire: the head is looked at again after all of them. Without it, a loss may count
                // with records that were written before it.
                *sum = counter.load(Ordering::Acquire);
            }
            let again = control.head_for_reader();
            if again == head {
                break;
            }
            head = again;
        }
        head
    }

    /// Moves what lies between tail and head to `out`; false if it must be tried again.
    fn copy_out(&mut self, control: &Control<'_>, out: &mut Vec<u8>) -> bool {
        let size = self.segment.ring_bytes();
        // Tail first: head, read later, is never behind it unless somebody has spoilt one.
        let tail = control.tail_for_reader();
        let head = self.look(control);
        let waiting = usize::try_from(head.wrapping_sub(tail)).unwrap_or(usize::MAX);
        if waiting == 0 {
            return true;
        }
        if waiting > size {
            if control.release(tail, head) {
                self.corrupt += size as u64;
            }
            return false;
        }
        if self.cpu().is_none() && self.segment.ensure_portable().is_err() {
            return true;
        }
        let old = out.len();
        let from = self.segment.data(self.index).wrapping_add(tail as usize & (size - 1));
        // SAFETY: a masked position and at most `size` bytes lie in the ring's two mappings.
        unsafe { shm::append(from, waiting, out) };
        let ours = control.release(tail, head);
        if !ours {
            out.truncate(old);
        }
        ours
    }

    /// Keeps the records among the bytes from `start` on.
    fn judge(&mut self, out: &mut Vec<u8>, start: usize, drained: &mut Drained) {
        let limit = self.segment.now().saturating_add(AHEAD_MAX);
        let max = self.segment.max_record();
        let (mut from, mut to) = (start, start);
        while let Some(record) = out.get_mut(from..).filter(|rest| !rest.is_empty()) {
            let Some((len, time)) = read_header(record, max) else {
                self.corrupt += record.len() as u64;
                break;
            };
            let advance = len.next_multiple_of(RECORD_ALIGN);
            if time > limit {
                self.corrupt += advance as u64;
                from += advance;
                continue;
            }
            let time = time.max(self.last_time);
            if let Some(field) = record.first_chunk_mut::<8>() {
                *field = time.to_le_bytes();
            }
            if from != to {
                out.copy_within(from..from + advance, to);
            }
            if drained.events == 0 {
                drained.first_time = time;
            }
            (self.last_time, drained.last_time) = (time, time);
            drained.events += 1;
            drained.content_bytes = to + len - start;
            from += advance;
            to += advance;
        }
        out.truncate(to);
        drained.bytes = to - start;
    }
}

/// Length and time of the record at the front of `bytes`, if there can be one.
fn read_header(bytes: &[u8], max: usize) -> Option<(usize, u64)> {
    let time = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
    let len = u32::from_le_bytes(*bytes.get(RECORD_LEN_AT..)?.first_chunk::<4>()?) as usize;
    let fits = (RECORD_HEADER..=max).contains(&len);
    (fits && len.next_multiple_of(RECORD_ALIGN) <= bytes.len()).then_some((len, time))
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
