//! One hit, as a program has recorded it. See [`crate::program`] for the words.

use crate::attach::RETURN;
use crate::order::Timed;
use crate::program::{ARGS, HEAD, NAME, NAME_BYTES, OPERANDS, SLOTS, WORDS_MAX};
use crate::usdt::{Argument, Place};

/// A site was hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub time: u64,
    /// Which site.
    pub site: usize,
    /// A function's return, not its entry.
    pub on_return: bool,
    /// Process, in its own PID namespace.
    pub pid: u32,
    /// Thread, in its own PID namespace.
    pub tid: u32,
    /// What the thread is called, up to the first NUL.
    pub(crate) name: [u8; NAME_BYTES],
    /// On which CPU.
    pub cpu: u32,
    /// The stack pointer.
    pub(crate) stack: u64,
    /// Operands that could not be read.
    pub(crate) unread: u32,
    /// Argument registers; on return the value is the first.
    pub(crate) words: [u64; ARGS],
    /// Registers and operands of a USDT probe.
    pub(crate) probe: Option<Box<[u64; SLOTS + OPERANDS]>>,
}

impl Timed for Hit {
    fn time(&self) -> u64 {
        self.time
    }
}

impl Hit {
    /// Takes a record apart. Words that are not there are 0; the programs are ours.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word));
        let (cookie, ids, place) = (word(1), word(2), word(3));
        let probe =
            (words.len() >= WORDS_MAX).then(|| Box::new(std::array::from_fn(|n| word(HEAD + n))));
        Self {
            time: word(0),
            site: (cookie & (RETURN - 1)) as usize,
            on_return: cookie & RETURN != 0,
            pid: (ids >> 32) as u32,
            tid: ids as u32,
            name: bytes
                .get(NAME * 8..)
                .and_then(|rest| rest.first_chunk())
                .copied()
                .unwrap_or_default(),
            cpu: place as u32,
            unread: (place >> 32) as u32,
            stack: word(4),
            words: std::array::from_fn(|n| word(HEAD + n)),
            probe,
        }
    }

    /// What the thread was called at the hit; at most 15 bytes.
    #[must_use]
    pub fn thread_name(&self) -> &[u8] {
        self.name.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    /// The values of a probe's arguments, in order; `None` for what could not be read.
    pub(crate) fn values<'a>(
        &'a self,
        arguments: &'a [Argument],
    ) -> impl Iterator<Item = (Argument, Option<u64>)> + 'a {
        let mut operand = 0;
        arguments.iter().map(move |argument| {
            let slot = |at: usize| self.probe.as_ref().and_then(|probe| probe.get(at)).copied();
            let value = match argument.place {
                Place::Constant(value) => Some(value.cast_unsigned()),
                Place::Register(register, shift) => {
                    slot(register.into()).map(|value| value >> shift)
                }
                Place::Memory(_) => {
                    operand += 1;
                    let read = self.unread >> (operand - 1) & 1 == 0;
                    slot(SLOTS + operand - 1).filter(|_| read)
                }
                Place::Unknown => None,
            };
            (*argument, value)
        })
    }
}
