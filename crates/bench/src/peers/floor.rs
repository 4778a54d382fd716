//! The empty loop, and the least a recorded event can cost: read the clock, copy the record.
//!
//! The floor writes the product's record (24 bytes of header and the payload) into a ring of its
//! own for each thread, without any check for room, any other thread, or any reader.

use super::cases::{DISABLED, NOTE, ONE, THREE};
use crate::harness::serve::{Case, keep};
use anyhow::Result;
use std::arch::asm;
use std::arch::x86_64::_rdtsc;
use std::cell::RefCell;
use std::hint::black_box;

const RING: usize = 1 << 20;

thread_local! {
    static RING_OF_THREAD: RefCell<Ring> = RefCell::new(Ring { data: vec![0; RING], head: 0 });
}

struct Ring {
    data: Vec<u8>,
    head: usize,
}

impl Ring {
    #[inline(always)]
    fn push<const N: usize>(&mut self, id: u32, fill: impl FnOnce(&mut [u8; N])) {
        let at = self.head & (RING - 128);
        let Some(record) = self.data.get_mut(at..at + 128).and_then(<[u8]>::first_chunk_mut) else {
            return;
        };
        // SAFETY: every x86-64 has a time stamp counter.
        let time = unsafe { _rdtsc() };
        record[..8].copy_from_slice(&time.to_le_bytes());
        record[8..12].copy_from_slice(&id.to_le_bytes());
        record[12..16].copy_from_slice(&(N as u32).to_le_bytes());
        record[16..24].copy_from_slice(&[1; 8]);
        fill(record);
        self.head += N.next_multiple_of(8);
    }
}

/// The loop that every other figure has subtracted.
pub(crate) fn empty() -> Result<Vec<Case>> {
    Ok(vec![Case::new(DISABLED, |n| {
        for i in 0..n {
            // SAFETY: no instruction at all; it only keeps the loop.
            unsafe { asm!("/* {0} */", in(reg) i, options(nomem, nostack, preserves_flags)) };
        }
    })])
}

/// The floor's cases.
pub(crate) fn start() -> Result<Vec<Case>> {
    Ok(vec![
        Case::new(ONE, |n| {
            RING_OF_THREAD.with_borrow_mut(|ring| {
                for i in 0..n {
                    let i = keep(i);
                    ring.push::<32>(1, |record| record[24..].copy_from_slice(&i.to_le_bytes()));
                    black_box(&mut *ring);
                }
            });
        }),
        Case::new(THREE, |n| {
            RING_OF_THREAD.with_borrow_mut(|ring| {
                for i in 0..n {
                    let (i, note) = (keep(i), black_box(NOTE));
                    ring.push::<50>(2, |record| {
                        record[24..32].copy_from_slice(&i.to_le_bytes());
                        record[32..40].copy_from_slice(&(i ^ 1).to_le_bytes());
                        let note = note.as_bytes().first_chunk::<9>().unwrap_or(&[0; 9]);
                        record[40..49].copy_from_slice(note);
                    });
                    black_box(&mut *ring);
                }
            });
        }),
    ])
}
