//! The reading end of a BPF ring buffer; the other end is the kernel's (`kernel/bpf/ringbuf.c`, Linux 6.6).
//!
//! The memory is a page that is ours to write, a page of the kernel's, and the data, mapped twice in a row
//! so that no record has a seam. A record is a length (32 bits; the top one while it is being written, the
//! next when it was given up), 32 bits of the kernel's, and the bytes; the next one begins 8-aligned.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | consumer position | us, [A] | the kernel, for the room that is left |
//! | producer position | the kernel, under its lock, when a record is reserved | us, [B] |
//! | a record's length | the kernel: busy when reserved, plain when submitted | us, [C] |
//!
//! | barrier | pairs with | orders; without it |
//! |---|---|---|
//! | [A] Release store of the consumer position | `smp_load_acquire(&rb->consumer_pos)` in `__bpf_ringbuf_reserve` | our reads of records before their reuse; without it: a torn record |
//! | [B] Acquire load of the producer position | `smp_store_release(&rb->producer_pos)` there | the busy bit before we look at the length; without it: an old length |
//! | [C] Acquire load of a record's length | `xchg(&hdr->len)` in `bpf_ringbuf_commit` | the record's bytes before we read them; without it: a record half written |
//!
//! # Invariants
//! 1. `data` is `2 * size` bytes behind the producer's page, and a position modulo `size` plus a record's
//!    length stays inside: the kernel hands out records of `size` at most, and `read` checks it.
//! 2. Between consumer and producer position the kernel writes only to records that are busy.

use crate::bpf::Mapping;
use owlet_percpu::atomic::{AtomicU32, AtomicU64, Ordering};
use std::io;
use std::os::fd::BorrowedFd;

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// Bytes of a record's header.
const HEADER: usize = 8;

/// One BPF ring buffer.
#[derive(Debug)]
pub(crate) struct Ring {
    consumer: Mapping,
    producer: Mapping,
    size: usize,
    /// Ours, up to where we have read.
    position: u64,
}

impl Ring {
    /// Maps the ring behind `map`, of `size` bytes.
    pub(crate) fn new(map: BorrowedFd<'_>, size: usize) -> io::Result<Self> {
        let page = owlet_sys::memory::page_size();
        let consumer = Mapping::new(map, 0, page, true)?;
        let producer = Mapping::new(map, page, page + 2 * size, false)?;
        Ok(Self { consumer, producer, size, position: 0 })
    }

    /// Up to where records have been reserved.
    pub(crate) fn reserved(&self) -> u64 {
        // SAFETY: the first word of the mapped page, which lives as long as `self`; only ever
        // accessed atomically.
        let word = unsafe { AtomicU64::from_ptr(self.producer.base().as_ptr().cast()) };
        // [B] Acquire: pairs with the kernel's release in reserve.
        word.load(Ordering::Acquire)
    }

    /// Up to where records have been read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Gives every record that has been submitted to `take`, in order, up to the first that is still being
    /// written.
    pub(crate) fn read(&mut self, mut take: impl FnMut(&[u8])) {
        let end = self.reserved();
        let page = self.producer.len() - 2 * self.size;
        while self.position < end {
            let at = page + (self.position as usize & (self.size - 1));
            // SAFETY: inside the mapping by invariant 1.
            let record = unsafe { self.producer.base().as_ptr().add(at) };
            // SAFETY: 8-aligned, as positions are; alive as long as `self`; atomic on both sides.
            let length = unsafe { AtomicU32::from_ptr(record.cast()) };
            // [C] Acquire: pairs with the kernel's xchg in commit.
            let length = length.load(Ordering::Acquire);
            if length & BUSY != 0 {
                break;
            }
            let bytes = (length & !DISCARDED) as usize;
            if bytes > self.size - HEADER {
                // No kernel does that; whatever it is, nothing behind it can be found.
                self.position = end;
                break;
            }
            if length & DISCARDED == 0 {
                // SAFETY: inside the mapping by invariant 1.
                let data = unsafe { record.add(HEADER) };
                // SAFETY: `bytes` bytes there by invariant 1, not written to by invariant 2 until the
                // position is given back below.
                take(unsafe { std::slice::from_raw_parts(data, bytes) });
            }
            self.position += (bytes + HEADER).next_multiple_of(8) as u64;
        }
        // SAFETY: the first word of the page that is ours, which lives as long as `self`.
        let word = unsafe { AtomicU64::from_ptr(self.consumer.base().as_ptr().cast()) };
        // [A] Release: pairs with the kernel's acquire in reserve.
        word.store(self.position, Ordering::Release);
    }
}
