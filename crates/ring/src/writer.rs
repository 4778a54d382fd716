//! The writing end.
//!
//! [`Writer::push`] encodes the header, then takes one of three ways:
//!
//! | way | when | cost over the clock read |
//! |---|---|---|
//! | `push_words` | restartable sequences, one part of at most 512 bytes | some 20 instructions |
//! | `push_parts` | restartable sequences, anything else | and a string copy per part |
//! | `push_portable` | no sequences, or the session clock is not the TSC, or a thread without a registered area | and one locked compare-exchange |
//!
//! All are async-signal-safe, survive fork (a child goes on with its own thread ids), and can be
//! killed at any instruction: the record is there or it is not.
//!
//! # Invariants
//! 1. `rings` describes the mapping of `segment`, which this writer keeps alive, and `rings.area`
//!    came from the C library; the sections run only if `sequences` says so.
//! 2. A record is at least 24 and at most `max_record` bytes, a multiple of 8.

use crate::arch::{self, Outcome, Part, Rings};
use crate::layout::{self, RECORD_ALIGN, RECORD_HEADER};
use crate::positions::Control;
use crate::sync::{AtomicU64, Ordering};
use crate::{Clock, Loss, Segment, shm, wake};
use owlet_percpu::Backend;
use owlet_sys::process;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Most parts of one payload.
pub const PARTS_MAX: usize = 32;
/// Longest single part copied word by word.
const WORDS_MAX: usize = 512;
/// How far the last record's time may lie ahead of the clock and still be believed.
const AHEAD_MAX: u64 = 1 << 32;

/// Writes records into a segment's rings. One per process and segment is enough; all threads and
/// signal handlers share it.
#[derive(Debug)]
pub struct Writer {
    rings: Rings,
    /// The sections may be used.
    sequences: bool,
    /// This process pays for its own fence after each commit.
    fenced: bool,
    /// High half: a process id. Low half: its PID namespace's number, or 0 when unknown.
    namespace: AtomicU64,
    segment: Arc<Segment>,
}

// SAFETY: the raw pointers in `rings` are addresses of shared memory that lives as long as
// `segment`; what is done with them is ordered by the sections and the owner word.
unsafe impl Send for Writer {}
// SAFETY: as for Send; `push` is made for being called by all threads at once.
unsafe impl Sync for Writer {}

impl Writer {
    /// A writer for this process. Registers the process with the waiters' memory barrier and
    /// populates its page tables for the rings.
    ///
    /// # Errors
    /// When the portable rings are needed and the kernel refuses their memory.
    pub fn new(segment: Arc<Segment>) -> io::Result<Self> {
        let area = owlet_percpu::rseq::area_offset();
        let sequences = arch::SEQUENCES
            && segment.clock() == Clock::Tsc
            && owlet_percpu::backend() == Backend::Rseq
            && area != 0;
        let cpus = segment.cpus();
        if sequences {
            segment.populate(0, cpus);
        } else {
            segment.reserve_portable()?;
            segment.populate(cpus, segment.geometry().portable());
        }
        let fenced = !owlet_percpu::fence::register_global();
        if fenced {
            segment.writer_fences().fetch_add(1, Ordering::Relaxed);
        }
        let size = segment.ring_bytes();
        let controls = segment.at(layout::CONTROLS);
        let rings = Rings { area, controls, data: segment.data(0), cpus, stride: 2 * size, size };
        let writer = Self { rings, sequences, fenced, namespace: AtomicU64::new(0), segment };
        // Looked up now, so that the first event makes no system call.
        writer.namespace(process::getpid());
        Ok(writer)
    }

    /// The segment written to.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// `rseq` or `portable`.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        if self.sequences { "rseq" } else { "portable" }
    }

    /// Records one event: header, then the parts one after the other. At most [`PARTS_MAX`] parts.
    ///
    /// `tid` must be the calling thread's own: it names the owner of a portable ring.
    ///
    /// Async-signal-safe. Allocates nothing and takes no lock; in the rseq backend it executes no
    /// atomic read-modify-write, and it calls nothing in the kernel, unless a reader sleeps: then
    /// the first event that reaches the reader's threshold makes one exchange, and one futex call
    /// if the session has no notifier.
    ///
    /// # Errors
    /// The cause, which has been counted already.
    #[inline]
    pub fn push(&self, id: u32, pid: u32, tid: u32, parts: &[&[u8]]) -> Result<(), Loss> {
        if let [part] = parts
            && self.sequences
            && part.len() <= WORDS_MAX
        {
            let len = RECORD_HEADER + part.len();
            let padded = len.next_multiple_of(RECORD_ALIGN);
            let words = (padded - RECORD_HEADER).saturating_sub(RECORD_ALIGN);
            let header = header(id, len, pid, tid);
            let last = last_word(part);
            // SAFETY: invariants 1 and 2 (512 + 24 bytes fit the smallest ring); `words` is the
            // part's length less its last, perhaps partial, word.
            let outcome = unsafe {
                arch::push_words(&self.rings, padded, header, part.as_ptr(), words, last)
            };
            if let Outcome::Committed { control, head } = outcome
                && !wake::reached(self.wake_at(control), head, self.fenced)
            {
                return Ok(());
            }
            return self.after_slow(outcome, (id, pid, tid), parts);
        }
        self.push_general(id, pid, tid, parts)
    }

    /// Counts an event that got lost before it came to [`push`](Self::push). Async-signal-safe.
    pub fn count_loss(&self, loss: Loss) {
        let cpus = self.rings.cpus;
        let cpu = owlet_percpu::current_cpu() % cpus;
        let index = if self.sequences { cpu } else { cpus + cpu };
        self.segment.count_at(layout::CONTROLS + index * layout::CONTROL_LEN, loss);
    }

    /// The word of a control block that the writer looks at after each commit.
    #[inline(always)]
    fn wake_at(&self, control: usize) -> &AtomicU64 {
        let offset = control - self.rings.controls.addr();
        let word = self.rings.controls.wrapping_add(offset + layout::WAKE_AT);
        // SAFETY: `control` is an address the section computed from `rings`, so one of a control
        // block of the mapping (invariant 1); the word is only accessed as an atomic.
        unsafe { &*word.cast::<AtomicU64>() }
    }

    #[inline(never)]
    fn push_general(&self, id: u32, pid: u32, tid: u32, parts: &[&[u8]]) -> Result<(), Loss> {
        let payload = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
        let len = payload.and_then(|payload| payload.checked_add(RECORD_HEADER));
        let max = self.segment.max_record();
        let Some(len) = len.filter(|&len| len <= max && parts.len() <= PARTS_MAX) else {
            self.count_loss(Loss::TooLarge);
            return Err(Loss::TooLarge);
        };
        let padded = len.next_multiple_of(RECORD_ALIGN);
        let header = header(id, len, pid, tid);
        if self.sequences {
            // Left uninitialised: clearing it would cost more than the section.
            let mut list = [const { MaybeUninit::<Part>::uninit() }; PARTS_MAX];
            for (slot, part) in list.iter_mut().zip(parts) {
                slot.write(Part::new(part));
            }
            let list = list.get(..parts.len()).unwrap_or_default();
            // SAFETY: the loop has written as many slots as there are parts, at most PARTS_MAX.
            let list = unsafe { list.assume_init_ref() };
            // SAFETY: invariants 1 and 2 (checked above); the parts are borrowed for the call.
            let outcome = unsafe { arch::push_parts(&self.rings, padded, header, list) };
            return match outcome {
                Outcome::Committed { control, head }
                    if !wake::reached(self.wake_at(control), head, self.fenced) =>
                {
                    Ok(())
                }
                other => self.after_slow(other, (id, pid, tid), parts),
            };
        }
        self.push_portable(padded, header, (pid, tid), parts)
    }

    /// What follows a section in the rare cases: a waiter to wake, no room, no CPU.
    #[cold]
    #[inline(never)]
    fn after_slow(
        &self,
        outcome: Outcome,
        (id, pid, tid): (u32, u32, u32),
        parts: &[&[u8]],
    ) -> Result<(), Loss> {
        match outcome {
            Outcome::Committed { control, .. } => {
                wake::fire_slow(&self.segment.wake_words(), self.wake_at(control));
                Ok(())
            }
            Outcome::Full { control } => Err(self.full_slow(control - self.segment.base())),
            Outcome::NoCpu => {
                // The general way has checked nothing yet for a single short part; it fits.
                let len = parts.iter().fold(RECORD_HEADER, |sum, part| sum + part.len());
                let padded = len.next_multiple_of(RECORD_ALIGN);
                self.push_portable(padded, header(id, len, pid, tid), (pid, tid), parts)
            }
        }
    }

    /// Counts an event that found no room, and wakes whoever waits for the ring to be full.
    #[cold]
    fn full_slow(&self, offset: usize) -> Loss {
        self.segment.count_at(offset, Loss::Full);
        let control = self.segment.control_at(offset);
        if control.wake_at.load(Ordering::Relaxed) != wake::NOBODY {
            wake::fire_slow(&self.segment.wake_words(), control.wake_at);
        }
        Loss::Full
    }

    /// Finds a portable ring nobody writes just now, this CPU's first, and writes there.
    #[inline(never)]
    fn push_portable(
        &self,
        padded: usize,
        header: [u64; 2],
        (pid, tid): (u32, u32),
        parts: &[&[u8]],
    ) -> Result<(), Loss> {
        if self.segment.ensure_portable().is_err() {
            self.count_loss(Loss::Full);
            return Err(Loss::Full);
        }
        let tag = u64::from(self.namespace(pid)) << 32 | u64::from(tid.max(1));
        let (cpus, portable) = (self.rings.cpus, self.segment.geometry().portable());
        let first = owlet_percpu::current_cpu();
        let mut loss = Loss::Busy;
        for turn in 0..portable {
            let index = cpus + (first + turn) % portable;
            let offset = layout::CONTROLS + index * layout::CONTROL_LEN;
            let control = self.segment.control_at(offset);
            match control.lock(tag) {
                Ok(()) => return self.write_owned(&control, index, padded, header, parts),
                Err(owner) if owner == tag => loss = Loss::Recursion,
                Err(_) => {}
            }
        }
        self.count_loss(loss);
        Err(loss)
    }

    /// Writes a record into the portable ring `index`, which this thread owns, and steps down.
    fn write_owned(
        &self,
        control: &Control<'_>,
        index: usize,
        padded: usize,
        header: [u64; 2],
        parts: &[&[u8]],
    ) -> Result<(), Loss> {
        let size = self.rings.size as u64;
        let Some(head) = control.room(padded as u64, size) else {
            control.unlock();
            return Err(self.full_slow(layout::CONTROLS + index * layout::CONTROL_LEN));
        };
        let last = control.last_time.load(Ordering::Relaxed);
        let now = self.segment.now();
        let time = if last.wrapping_sub(now) < AHEAD_MAX { last } else { now };
        control.last_time.store(time, Ordering::Relaxed);
        let mut to = self.segment.data(index).wrapping_add((head & (size - 1)) as usize);
        let end = to.wrapping_add(padded - RECORD_ALIGN);
        // The last word first, as in the section: padding is zero.
        for (at, word) in [(end, 0), (to, time)] {
            // SAFETY: the record lies in the ring's two mappings (masked position, invariant 2)
            // and, by `room`, in no unread record; the owner word keeps other writers out.
            unsafe { at.cast::<u64>().write_unaligned(word) };
        }
        for word in header {
            to = to.wrapping_add(RECORD_ALIGN);
            // SAFETY: as above.
            unsafe { to.cast::<u64>().write_unaligned(word) };
        }
        to = to.wrapping_add(RECORD_ALIGN);
        for part in parts {
            // SAFETY: as above; the parts' lengths sum up to at most `padded` less the header.
            unsafe { shm::copy(part.as_ptr(), to, part.len()) };
            to = to.wrapping_add(part.len());
        }
        let head = head.wrapping_add(padded as u64);
        control.commit(head);
        control.unlock();
        if wake::reached(control.wake_at, head, self.fenced) {
            wake::fire_slow(&self.segment.wake_words(), control.wake_at);
        }
        Ok(())
    }

    /// The low half of the PID namespace's inode number, looked up once per process.
    fn namespace(&self, pid: u32) -> u32 {
        let known = self.namespace.load(Ordering::Relaxed);
        if (known >> 32) as u32 == pid {
            return known as u32;
        }
        let inode = process::pid_namespace_inode().unwrap_or(0) as u32;
        self.namespace.store(u64::from(pid) << 32 | u64::from(inode), Ordering::Relaxed);
        inode
    }
}

/// The header's second and third word.
#[inline(always)]
fn header(id: u32, len: usize, pid: u32, tid: u32) -> [u64; 2] {
    [u64::from(id) | (len as u64) << 32, u64::from(pid) | u64::from(tid) << 32]
}

/// The bytes of the last word of `bytes` padded to words, with zeros in the padding.
#[inline(always)]
fn last_word(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    if let Some(last) = bytes.last_chunk::<8>() {
        // The last eight bytes, of which all but len % 8 belong to the word before; all, if 0.
        return u64::from_le_bytes(*last).wrapping_shr(64 - 8 * (len as u32 % 8));
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return u64::from(first) | u64::from(last) << (8 * (len - 4));
    }
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
