//! A ring buffer: records of any length from many programs to one consumer.
//!
//! Words of 8 bytes; positions count them from the start, and a position's word is its remainder by the size. A
//! record is a header word and the data, rounded up to words. A header of 0 means "not there yet", so the
//! consumer hands space back cleared.
//!
//! # Protocol
//! 1. *Producer*: reserve by moving `head` on with a compare-exchange, if that leaves it at most the
//!    buffer's size ahead of `tail`; write the data; write the header.
//! 2. *Consumer*: read the header at `tail`; 0: nothing (yet). Copy the data, clear every word of the
//!    record, move `tail` on.
//!
//! A producer that is interrupted between reservation and header holds up what comes behind it, but
//! nobody waits: the consumer finds nothing, producers find the buffer full and count it.
//!
//! | header | meaning |
//! |---|---|
//! | 0 | reserved or free |
//! | length + 1 | a record of that many bytes |
//!
//! | barrier | what it does |
//! |---|---|
//! | `[I]` | Release, header: pairs with [J]; the data is there before |
//! | `[J]` | Acquire, header. Without it: a record is read before its data is there |
//! | `[K]` | Release, tail: pairs with [L]; words are cleared, and have been read, before they are given back |
//! | `[L]` | Acquire, tail, before head is read. Without it: data is overwritten while it is read, or an old word passes for a header; the tail is ahead of the head |
//!
//! Proved: models `ring_record_is_whole` and `ring_space_is_given_back` (`tests/loom.rs`), with twins without [I] and
//! without [K]. Shown by `tests/core/maps.rs`: several producers and a consumer, every record whole, once and in order.

use owlet_percpu::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::{errno, order};
use crate::memory;

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
        let at = self.reserve(need).ok_or(errno::EAGAIN)?;
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(8);
            // SAFETY: `done + piece <= len`, the caller's range.
            let word = unsafe { memory::load(data.wrapping_add(done), piece) };
            self.word(at + 1 + u64::try_from(done / 8).unwrap_or(0)).store(word, Relaxed);
            done += piece;
        }
        // [I] Release: pairs with [J].
        self.word(at).store(u64::try_from(len).unwrap_or(0) + 1, order::HEADER);
        Ok(())
    }

    /// Takes `need` words and returns the position of the first.
    fn reserve(&self, need: u64) -> Option<u64> {
        loop {
            // [L] Acquire: pairs with [K]; and whoever sees a tail sees a head that is not behind it.
            let tail = self.tail.load(Acquire);
            let head = self.head.load(Relaxed);
            if head.wrapping_sub(tail) + need > self.size() {
                return None;
            }
            if self.head.compare_exchange_weak(head, head + need, Relaxed, Relaxed).is_ok() {
                return Some(head);
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
        let tail = self.tail.load(Relaxed);
        // [J] Acquire: pairs with [I].
        let header = self.word(tail).load(Acquire);
        let len = usize::try_from(header.checked_sub(1)?).unwrap_or(0);
        let words = u64::try_from(len.div_ceil(8)).unwrap_or(0);
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
