//! The choice of backend, once per process.
//!
//! The whole outcome is one 64-bit word, so it is published by one compare-and-swap and there is
//! no moment at which a signal handler finds half of it. Threads that come first together may
//! decide twice; the first to publish wins and the inputs are the same.
//!
//! | bits | field |
//! |---|---|
//! | 0..32 | rseq offset from the thread pointer (signed), 0 in the portable backend |
//! | 32..48 | number of CPU slots |
//! | 48..56 | reason, index of `REASONS` |
//! | 56 | decided |
//! | 57 | rseq backend |
//! | 58 | `membarrier` private expedited works: light fences are compiler barriers |
//! | 59 | `OWLET_BACKEND` names a backend that does not exist |
//!
//! | letter | where | what |
//! |---|---|---|
//! | `[C]` | `decide_slow` | Release of the offset after the number of slots |
//! | `[D]` | `arch/x86_64.rs` | the offset is loaded before the number |

use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicU64, Ordering};

use owlet_sys::rseq::{Absent, Area};
use owlet_sys::{Result, SysError, membarrier, rseq, topology};

/// How per-CPU words are written in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Restartable sequences: plain instructions.
    Rseq,
    /// Atomic instructions.
    Portable,
}

const DECIDED: u64 = 1 << 56;
const RSEQ: u64 = 1 << 57;
const MEMBARRIER: u64 = 1 << 58;
const UNKNOWN: u64 = 1 << 59;
/// Less than 2^15: the numbers of threads without rseq, -1 and -2, are beyond it as 16 bits too.
const MAX_CPUS: usize = 0x7fff;

static STATE: AtomicU64 = AtomicU64::new(0);

/// Copies of fields of `STATE` for the restartable sequences, written after it. All zero while
/// undecided, and for ever in the portable backend, but for the generation. On a line of its own, which
/// nobody writes once the backend is decided. `arch/x86_64.rs` knows the layout.
#[repr(C, align(64))]
pub(crate) struct HotLine {
    offset: AtomicIsize,
    cpus: AtomicU32,
    /// [`Hot`].
    packed: AtomicU64,
}

/// Where the sequences find the number of slots.
#[cfg(all(target_arch = "x86_64", not(owlet_portable), not(loom)))]
pub(crate) const HOT_CPUS_AT: usize = core::mem::offset_of!(HotLine, cpus);

pub(crate) static HOT: HotLine =
    HotLine { offset: AtomicIsize::new(0), cpus: AtomicU32::new(0), packed: AtomicU64::new(0) };

/// What sequences need in one word, and with it the *generation* of the process: one more in each
/// forked child that was found to be one ([`next_generation`]).
///
/// | bits | field |
/// |---|---|
/// | 0..16 | number of CPU slots, 0 where there are no sequences |
/// | 16..32 | generation, modulo 2^16 |
/// | 32..64 | rseq offset from the thread pointer (signed), 0 where there are no sequences |
///
/// For who counts in and out again: he keeps it in between, and by one load and comparison finds out that
/// nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hot(u64);

const GENERATION: u32 = 16;

impl Hot {
    /// The generation, modulo 2^16.
    #[inline(always)]
    #[must_use]
    pub fn generation(self) -> u16 {
        (self.0 >> GENERATION) as u16
    }

    /// Bytes from the thread pointer to the rseq area; 0 if there are no sequences.
    #[cfg(all(target_arch = "x86_64", not(owlet_portable), not(loom)))]
    #[inline(always)]
    pub(crate) fn offset(self) -> i64 {
        self.0.cast_signed() >> 32
    }

    /// The word, whose lower 16 bits are the number of slots.
    #[cfg(all(target_arch = "x86_64", not(owlet_portable), not(loom)))]
    #[inline(always)]
    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

/// What sequences need at the moment: changes when the backend is decided, and with the generation.
#[inline(always)]
#[must_use]
pub fn hot() -> Hot {
    Hot(HOT.packed.load(Ordering::Relaxed))
}

/// The process was found to be a forked child: what was counted before is of another generation from here
/// on. Async-signal-safe.
pub fn next_generation() {
    let (relaxed, mask) = (Ordering::Relaxed, u64::from(u16::MAX) << GENERATION);
    let next = |now: u64| Some(now & !mask | now.wrapping_add(1 << GENERATION) & mask);
    let _ = HOT.packed.fetch_update(relaxed, relaxed, next);
}

/// Why a backend was chosen; the discriminant indexes `REASONS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Works,
    Forced,
    CompiledOut,
    NoSymbols,
    NotRegistered,
    BadSize,
    ThreadNotRegistered,
    NoMembarrier,
    NoCpuList,
    TooManyCpus,
}

/// Two tables of the same texts: as they are, and for a process that asked for a backend that does
/// not exist.
macro_rules! reasons {
    ($($text:literal,)*) => {
        const REASONS: [&str; 10] = [$($text,)*];
        const REASONS_UNKNOWN: [&str; 10] = [$(
            concat!("OWLET_BACKEND names no backend and is ignored (there is `portable`); ", $text),
        )*];
    };
}

reasons! {
    "rseq registered by the C library, membarrier works",
    "OWLET_BACKEND=portable",
    "built with cfg(owlet_portable) or for another architecture",
    "the C library does not register rseq (musl, or glibc before 2.35)",
    "rseq is off (GLIBC_TUNABLES glibc.pthread.rseq=0) or refused by the kernel or a seccomp filter",
    "the C library publishes an rseq area of unknown size",
    "the first thread to ask is not registered for rseq",
    "membarrier (private expedited rseq) is missing or refused by a seccomp filter",
    "the list of possible CPUs cannot be read (no sysfs)",
    "more than 32767 possible CPUs",
}

/// What `OWLET_BACKEND` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Not set, empty, or `rseq`, which is tried first anyway.
    Best,
    Portable,
    /// Anything else.
    Unknown,
}

/// What the decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(crate) wanted: Wanted,
    pub(crate) area: core::result::Result<Area, Absent>,
    pub(crate) cpus: Result<usize>,
    pub(crate) membarrier: Result<()>,
    pub(crate) membarrier_rseq: Result<()>,
}

/// A decision before it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) backend: Backend,
    pub(crate) reason: Reason,
    pub(crate) offset: i32,
    pub(crate) cpus: usize,
    pub(crate) membarrier: bool,
    pub(crate) unknown: bool,
}

/// The backend of this process.
#[must_use]
pub fn backend() -> Backend {
    if state() & RSEQ != 0 { Backend::Rseq } else { Backend::Portable }
}

/// One line that says why [`backend`] is what it is, and that `OWLET_BACKEND` was not understood if
/// that is so.
#[must_use]
pub fn backend_why() -> &'static str {
    why(state())
}

/// Whether `OWLET_BACKEND` names a backend that does not exist.
#[must_use]
pub fn backend_unknown() -> bool {
    state() & UNKNOWN != 0
}

fn why(state: u64) -> &'static str {
    let index = (state >> 48) & 0xff;
    let texts = if state & UNKNOWN != 0 { &REASONS_UNKNOWN } else { &REASONS };
    usize::try_from(index).ok().and_then(|i| texts.get(i)).copied().unwrap_or("unknown")
}

/// Number of CPU slots, at least 1: one more than the highest possible CPU number.
#[inline]
#[must_use]
pub fn cpus() -> usize {
    unpack_cpus(state())
}

/// The slot of the CPU this thread runs on; always below [`cpus`]. A hint: the thread may be
/// elsewhere by the time the caller looks at the answer.
#[inline]
#[must_use]
pub fn current_cpu() -> usize {
    let state = state();
    let slots = unpack_cpus(state);
    if state & RSEQ != 0 {
        // SAFETY: invariant 2 of the crate: with RSEQ set the offset came from `rseq::area`.
        let id = unsafe { rseq::cpu_id(unpack_offset(state)) };
        if let Ok(cpu) = usize::try_from(id)
            && cpu < slots
        {
            return cpu;
        }
    }
    current_cpu_slow(slots)
}

#[cold]
#[inline(never)]
pub(crate) fn current_cpu_slow(slots: usize) -> usize {
    topology::current_cpu().unwrap_or(0).checked_rem(slots).unwrap_or(0)
}

/// Offset of the rseq area if the backend is rseq.
#[inline]
pub(crate) fn rseq_offset() -> Option<isize> {
    let state = state();
    (state & RSEQ != 0).then(|| unpack_offset(state))
}

/// True if light fences are compiler barriers in this process.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn has_membarrier() -> bool {
    state() & MEMBARRIER != 0
}

/// The outcome, decided on first use.
#[inline(always)]
pub(crate) fn state() -> u64 {
    let state = STATE.load(Ordering::Relaxed);
    if state == 0 { decide_slow() } else { state }
}

#[inline(always)]
pub(crate) fn unpack_cpus(state: u64) -> usize {
    ((state >> 32) & 0xffff) as usize
}

#[inline(always)]
fn unpack_offset(state: u64) -> isize {
    (state as u32).cast_signed() as isize
}

#[cold]
#[inline(never)]
fn decide_slow() -> u64 {
    let mine = pack(decide(&probe()));
    let state = match STATE.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => mine,
        Err(theirs) => theirs,
    };
    if state & RSEQ != 0 {
        HOT.cpus.store(unpack_cpus(state) as u32, Ordering::Relaxed);
        // [C] Release: pairs with [D] in arch/x86_64.rs, a load that x86-64 keeps ahead of the later
        // one; orders the number of slots before the offset that permits its use. Without it: a
        // sequence finds no slots and takes the atomic bank (nothing worse).
        HOT.offset.store(unpack_offset(state), Ordering::Release);
        // Whoever else decides has the same bits.
        let offset = u64::from(state as u32) << 32;
        HOT.packed.fetch_or(offset | unpack_cpus(state) as u64, Ordering::Relaxed);
    }
    state
}

fn probe() -> Probe {
    let membarrier =
        membarrier::register_private_expedited().and_then(|()| membarrier::private_expedited());
    let membarrier_rseq = membarrier::register_private_expedited_rseq()
        .and_then(|()| membarrier::private_expedited_rseq());
    Probe {
        wanted: wanted(),
        area: rseq::area(),
        cpus: topology::possible_cpus(),
        membarrier,
        membarrier_rseq,
    }
}

/// `OWLET_BACKEND`, read without the standard library's lock and allocation.
fn wanted() -> Wanted {
    // SAFETY: a valid C string; `getenv` neither locks nor allocates.
    let value = unsafe { libc::getenv(c"OWLET_BACKEND".as_ptr()) };
    if value.is_null() {
        return Wanted::Best;
    }
    // SAFETY: `getenv` gave a C string of the environment, which stays while we compare it.
    match unsafe { core::ffi::CStr::from_ptr(value) }.to_bytes() {
        b"" | b"rseq" => Wanted::Best,
        b"portable" => Wanted::Portable,
        _ => Wanted::Unknown,
    }
}

/// The decision as a function of what was found.
pub(crate) fn decide(probe: &Probe) -> Decision {
    let compiled = cfg!(all(target_arch = "x86_64", not(owlet_portable), not(loom)));
    let verdict = match (probe.area, probe.cpus) {
        _ if !compiled => Err(Reason::CompiledOut),
        _ if probe.wanted == Wanted::Portable => Err(Reason::Forced),
        (Err(absent), _) => Err(why_absent(absent)),
        _ if probe.membarrier.is_err() || probe.membarrier_rseq.is_err() => {
            Err(Reason::NoMembarrier)
        }
        (_, Err(SysError { .. })) => Err(Reason::NoCpuList),
        (_, Ok(cpus)) if cpus > MAX_CPUS => Err(Reason::TooManyCpus),
        (Ok(area), Ok(_)) => i32::try_from(area.offset).map_err(|_| Reason::BadSize),
    };
    let cpus = probe.cpus.unwrap_or_else(|_| topology::configured_cpus()).clamp(1, MAX_CPUS);
    let membarrier = probe.membarrier.is_ok();
    let unknown = probe.wanted == Wanted::Unknown;
    match verdict {
        Ok(offset) => {
            let backend = Backend::Rseq;
            Decision { backend, reason: Reason::Works, offset, cpus, membarrier, unknown }
        }
        Err(reason) => {
            let backend = Backend::Portable;
            Decision { backend, reason, offset: 0, cpus, membarrier, unknown }
        }
    }
}

fn why_absent(absent: Absent) -> Reason {
    match absent {
        Absent::NoSymbols => Reason::NoSymbols,
        Absent::NotRegistered => Reason::NotRegistered,
        Absent::BadSize(_) => Reason::BadSize,
        Absent::ThreadNotRegistered => Reason::ThreadNotRegistered,
    }
}

pub(crate) fn pack(d: Decision) -> u64 {
    let offset = u64::from(d.offset.cast_unsigned());
    let cpus = (d.cpus.min(MAX_CPUS) as u64) << 32;
    let reason = (d.reason as u64) << 48;
    let rseq = if d.backend == Backend::Rseq { RSEQ } else { 0 };
    let membarrier = if d.membarrier { MEMBARRIER } else { 0 };
    let unknown = if d.unknown { UNKNOWN } else { 0 };
    offset | cpus | reason | rseq | membarrier | unknown | DECIDED
}

#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
