//! The segment's append-only log: many writers, any number of readers.
//!
//! An entry is a word `{ len u32, state u32 }` and `len` bytes, padded to 8. A writer claims an
//! entry by one compare-exchange on the word, from 0 to length and [`CLAIMED`] together. So there
//! is never a claimed entry of unknown length: a writer killed before it finished leaves one that
//! everybody else steps over.
//!
//! # States of an entry's word
//! | word | meaning | next |
//! |---|---|---|
//! | 0 | free, and so is all behind it | claimed (compare-exchange) |
//! | len, claimed | being written, or its writer is dead | done (store, by its writer) |
//! | len, done | readable, for good | - |
//!
//! The header's hint spares writers the walk from the front; it always lies on an entry boundary
//! with no free word before it, and may lag.
//!
//! # Barriers
//! | letter | what | pairs with | without it |
//! |---|---|---|---|
//! | [A] | Release store of the done word | [B] | a reader copies bytes not written yet |
//! | [B] | Acquire load of the word by the reader | [A] | the same |

use crate::layout::RECORD_ALIGN;
use crate::shm;
use crate::sync::{AtomicU64, Ordering};
use core::fmt;
use std::collections::VecDeque;

const CLAIMED: u64 = 1 << 32;
const DONE: u64 = 2 << 32;
const WORD: usize = 8;
/// Entries a cursor keeps in mind because they were claimed and not done when it came by.
const UNFINISHED_MAX: usize = 4096;

/// The log has no room for the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFull;

impl fmt::Display for LogFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the segment's log is full")
    }
}

impl core::error::Error for LogFull {}

/// Where a reader of the log stands. Start with `LogCursor::default()`.
#[derive(Clone, Debug, Default)]
pub struct LogCursor {
    at: usize,
    unfinished: VecDeque<usize>,
}

impl LogCursor {
    /// Entries passed whose writers had not finished them: slow, or killed in the middle.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.unfinished.len()
    }
}

/// The log's memory.
pub(crate) struct Log<'a> {
    /// `len` bytes, mapped as long as `'a`, 8-aligned.
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
    pub(crate) hint: &'a AtomicU64,
}

/// Bytes of an entry of `len` bytes.
fn footprint(len: usize) -> usize {
    WORD + len.next_multiple_of(RECORD_ALIGN)
}

fn len_of(word: u64) -> usize {
    (word & 0xffff_ffff) as usize
}

impl<'a> Log<'a> {
    /// The word at `at`, if it lies in the log.
    fn word(&self, at: usize) -> Option<&'a AtomicU64> {
        if !at.is_multiple_of(RECORD_ALIGN) || at.checked_add(WORD)? > self.len {
            return None;
        }
        // SAFETY: aligned and inside the log, whose memory lives as long as 'a and is only ever
        // accessed as atomics (words) or by `shm::copy` (bytes).
        Some(unsafe { &*self.base.wrapping_add(at).cast::<AtomicU64>() })
    }

    pub(crate) fn append(&self, entry: &[u8]) -> Result<(), LogFull> {
        let len = u64::from(u32::try_from(entry.len()).map_err(|_| LogFull)?);
        let need = footprint(entry.len());
        let mut at = self.hint.load(Ordering::Relaxed) as usize;
        // Ends: every turn claims or moves on by at least a word, up to the end of the log.
        loop {
            if at.checked_add(need).is_none_or(|end| end > self.len) {
                return Err(LogFull);
            }
            let word = self.word(at).ok_or(LogFull)?;
            match word.compare_exchange(0, CLAIMED | len, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    self.hint.fetch_max((at + need) as u64, Ordering::Relaxed);
                    let to = self.base.wrapping_add(at + WORD);
                    // SAFETY: claimed above, so nobody else writes there; the bounds were checked.
                    unsafe { shm::copy(entry.as_ptr(), to, entry.len()) };
                    // [A] Release: pairs with [B]; the bytes come before.
                    word.store(DONE | len, Ordering::Release);
                    return Ok(());
                }
                Err(taken) => at = at.saturating_add(footprint(len_of(taken))),
            }
        }
    }

    pub(crate) fn read(&self, cursor: &mut LogCursor) -> Option<Vec<u8>> {
        for index in 0..cursor.unfinished.len() {
            let at = *cursor.unfinished.get(index)?;
            if let Entry::Done(bytes) = self.entry(at) {
                cursor.unfinished.remove(index);
                return Some(bytes);
            }
        }
        loop {
            let at = cursor.at;
            match self.entry(at) {
                Entry::None => return None,
                Entry::Claimed(len) => {
                    cursor.at = at + footprint(len);
                    if cursor.unfinished.len() < UNFINISHED_MAX {
                        cursor.unfinished.push_back(at);
                    }
                }
                Entry::Done(bytes) => {
                    cursor.at = at + footprint(bytes.len());
                    return Some(bytes);
                }
            }
        }
    }

    fn entry(&self, at: usize) -> Entry {
        let Some(word) = self.word(at) else { return Entry::None };
        // [B] Acquire: pairs with [A]; a done entry's bytes can be copied.
        let word = word.load(Ordering::Acquire);
        let len = len_of(word);
        if at.checked_add(footprint(len)).is_none_or(|end| end > self.len) {
            return Entry::None;
        }
        match word & !0xffff_ffff {
            CLAIMED => Entry::Claimed(len),
            DONE => {
                let mut bytes = Vec::new();
                // SAFETY: inside the log by the check above; `bytes` is private.
                unsafe { shm::append(self.base.wrapping_add(at + WORD), len, &mut bytes) };
                Entry::Done(bytes)
            }
            _ => Entry::None,
        }
    }
}

/// What stands at a place of the log. A word that makes no sense counts as the end.
enum Entry {
    None,
    Claimed(usize),
    Done(Vec<u8>),
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
