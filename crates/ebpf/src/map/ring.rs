//! A ring buffer: records of any length from many programs to one consumer.
//!
//! Words of 8 bytes; positions count them from the start, and a position's word is its remainder by the size. A
//! record is a header word and the data, rounded up to words. A header of 0 means "not there yet", so the
//! consumer hands space back cleared.
//!
//! # Protocol
//! 1. *Producer*: reserve by moving `head` on with a compare-exchange, if that leaves it at most the
//!    buffer's size ahead of `tail`; write the data; write the header.
//! 2. *Producer of a reservation* ([`Ring::reserve`]): the same in two halves; a program writes the data in
//!    between, by its address. Such a record lies in one piece: if it would go over the buffer's end, what
//!    is left there is taken along and given a header that says to skip it.
//! 3. *Consumer*: read the header at `tail`; 0: nothing (yet). Copy the data unless it is to be skipped,
//!    clear every word of the record, move `tail` on.
//!
//! A producer that is interrupted between reservation and header holds up what comes behind it, but
//! nobody waits: the consumer finds nothing, producers find the buffer full and count it.
//!
//! | header | meaning |
//! |---|---|
//! | 0 | reserved or free |
//! | length + 1 | a record of that many bytes |
//! | length + 1, and the top bit | that many bytes to be skipped: discarded, or the rest before the end |
//!
//! | barrier | what it does |
//! |---|---|
//! | `[I]` | Release, header: pairs with [J]; the data is there before |
//! | `[J]` | Acquire, header. Without it: a record is read before its data is there |
//! | `[K]` | Release, tail: pairs with [L]; words are cleared, and have been read, before they are given back |
//! | `[L]` | Acquire, tail, before head is read. Without it: data is overwritten while it is read, or an old word passes for a header; the tail is ahead of the head |
//!
//! Proved: models `ring_record_is_whole`, `ring_reservation_is_whole` and `ring_space_is_given_back` (`tests/loom.rs`),
//! with twins without [I] and without [K]. Shown by `tests/core/maps.rs`: several producers and a consumer, every record whole, once and in order.

use owlet_percpu::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::{errno, order};
use crate::memory;

/// In a header: skip this.
const SKIP: u64 = 1 << 63;

/// A record that is being written: its header's position and the address of its data, which is 0 until then
/// and lies in one piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) at: u64,
    pub(crate) data: *mut u8,
}

/// The ring buffer.
#[derive(Debug)]
pub(crate) struct Ring {
    words: Box<[AtomicU64]>,
    /// Words reserved since the start.
    head: AtomicU64,
    /// Words consumed since the start.
    tail: AtomicU64,
    /// A consumer is at work.
    consuming: AtomicBool,
}

impl Ring {
    /// A ring of `bytes`, a power of two.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            words: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            consuming: AtomicBool::new(false),
        }
    }

    /// Appends a record.
    ///
    /// # Errors
    /// `-E2BIG`: more than the buffer; `-EAGAIN`: no room now.
    ///
    /// # Safety
    /// `data` is valid for reads of `len` bytes.
    pub(crate) unsafe fn push(&self, data: *const u8, len: usize) -> Result<(), i64> {
        let need = u64::try_from(len.div_ceil(8)).unwrap_or(u64::MAX).saturating_add(1);
        if need > self.size() {
            return Err(errno::E2BIG);
        }
        let at = self.take(need, false).ok_or(errno::EAGAIN)?;
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(8);
            // SAFETY: `done + piece <= len`, the caller's range.
            let word = unsafe { memory::load(data.wrapping_add(done), piece) };
            self.word(at + 1 + u64::try_from(done / 8).unwrap_or(0)).store(word, Relaxed);
            done += piece;
        }
        self.commit(at, len, true);
        Ok(())
    }

    /// Takes room for a record of `len` bytes, to be filled in and then committed.
    ///
    /// # Errors
    /// `-E2BIG`: more than half the buffer, header included; `-EAGAIN`: no room now.
    pub(crate) fn reserve(&self, len: usize) -> Result<Reservation, i64> {
        let need = u64::try_from(len.div_ceil(8)).unwrap_or(u64::MAX).saturating_add(1);
        // More would find room at some positions only, however empty the buffer is.
        if need > self.size() / 2 {
            return Err(errno::E2BIG);
        }
        let at = self.take(need, true).ok_or(errno::EAGAIN)?;
        let first = usize::try_from((at + 1) % self.size()).unwrap_or(0);
        let data = self.words.as_ptr().wrapping_add(first).cast_mut().cast();
        Ok(Reservation { at, data })
    }

    /// The record of `len` bytes at `at` is there; or is to be skipped.
    pub(crate) fn commit(&self, at: u64, len: usize, keep: bool) {
        let header = u64::try_from(len).unwrap_or(0) + 1;
        // [I] Release: pairs with [J].
        self.word(at).store(if keep { header } else { header | SKIP }, order::HEADER);
    }

    /// Takes `need` words and returns the position of the first; in one piece if asked.
    fn take(&self, need: u64, whole: bool) -> Option<u64> {
        loop {
            // [L] Acquire: pairs with [K]; and whoever sees a tail sees a head that is not behind it.
            let tail = self.tail.load(Acquire);
            let head = self.head.load(Relaxed);
            let rest = self.size() - head % self.size();
            let skipped = if whole && rest < need { rest } else { 0 };
            if head.wrapping_sub(tail) + skipped + need > self.size() {
                return None;
            }
            let end = head + skipped + need;
            if self.head.compare_exchange_weak(head, end, Relaxed, Relaxed).is_ok() {
                if let Some(words) = skipped.checked_sub(1) {
                    self.commit(head, usize::try_from(words * 8).unwrap_or(0), false);
                }
                return Some(head + skipped);
            }
        }
    }

    /// Takes the oldest record.
    pub(crate) fn pop(&self) -> Option<Vec<u8>> {
        if self.consuming.swap(true, Acquire) {
            return None;
        }
        let record = self.pop_alone();
        self.consuming.store(false, Release);
        record
    }

    fn pop_alone(&self) -> Option<Vec<u8>> {
        let (tail, len, words) = loop {
            let tail = self.tail.load(Relaxed);
            // [J] Acquire: pairs with [I].
            let header = self.word(tail).load(Acquire);
            let len = usize::try_from((header & !SKIP).checked_sub(1)?).unwrap_or(0);
            let words = u64::try_from(len.div_ceil(8)).unwrap_or(0);
            if header & SKIP == 0 {
                break (tail, len, words);
            }
            self.give_back(tail, words + 1);
        };
        let mut data = Vec::with_capacity(len + 8);
        for at in tail + 1..=tail + words {
            data.extend(self.word(at).load(Relaxed).to_le_bytes());
        }
        data.truncate(len);
        self.give_back(tail, words + 1);
        Some(data)
    }

    /// Clears `words` from `tail` and lets producers have them.
    fn give_back(&self, tail: u64, words: u64) {
        for at in tail..tail + words {
            self.word(at).store(0, Relaxed);
        }
        // [K] Release: pairs with [L].
        self.tail.store(tail + words, order::TAIL);
    }

    /// What `bpf_ringbuf_query` answers: bytes in use, size, consumer's and producer's positions.
    pub(crate) fn query(&self, what: u64) -> u64 {
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        let words = match what {
            0 => head.wrapping_sub(tail),
            1 => self.size(),
            2 => tail,
            3 => head,
            _ => 0,
        };
        words * 8
    }

    fn size(&self) -> u64 {
        u64::try_from(self.words.len()).unwrap_or(1)
    }

    /// The word at a position.
    fn word(&self, at: u64) -> &AtomicU64 {
        let index = usize::try_from(at % self.size()).unwrap_or(0);
        // SAFETY: the remainder by the length, which is at least 512.
        unsafe { self.words.get_unchecked(index) }
    }
}
