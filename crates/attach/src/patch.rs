//! Writing one byte of our own code.
//!
//! A site is a five-byte instruction of which one byte is ever changed: `a9 <rel32>` (`test eax, imm32`,
//! off) and `e9 <rel32>` (`jmp`, on). Either is right at any time, so nothing has to be stopped and
//! nothing can be seen half-written. Any other first byte belongs to somebody else (a debugger, a kernel
//! uprobe) and is left alone.
//!
//! # Ways
//! | way | cost | works | when |
//! |---|---|---|---|
//! | `pwrite` to `/proc/self/mem` | 1.2 us a site | without privileges, also where memory may never be writable and executable | few sites, or no window allowed |
//! | window: the pages are made writable for some stores | two `mprotect` a run of pages | unless forbidden (`PR_SET_MDWE`, SELinux) | many sites that lie together; and where there is no `/proc` |
//!
//! `/proc/self/mem` is opened for each change and closed after it: a descriptor kept over a fork would
//! write the parent's memory. A window stays executable meanwhile: other threads may be running in it.
//!
//! # A batch ([`Writer::apply`])
//! 1. Read every byte; what has the right one or is not ours is settled.
//! 2. If enough are left, sort them by address, cut them into runs of adjacent pages, and open one window
//!    for each run that has enough sites: each page is visited once.
//! 3. Write what is left through `/proc/self/mem`.
//!
//! The caller then makes one [`sync`], however many sites there were.
//!
//! # One window at a time
//! Whoever closes a window takes the right to write away from everybody in those pages, so windows are
//! opened under one lock, `WINDOW`. It holds the fork generation of its holder: a child that was forked
//! while another thread held it finds a generation that is not its own, and takes it.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | free |
//! | n | held by a thread of the process of generation n |
//!
//! What batches cost: `owlet-bench batch-attach`.

use owlet_percpu::atomic::{AtomicU64, Ordering};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Once;

const OFF: u8 = 0xa9;
const ON: u8 = 0xe9;

/// From this many sites on a batch looks for runs of pages.
const MANY: usize = 32;
/// From this many sites on a run of pages gets a window.
const RUN: usize = 16;

/// The process does not let its code be changed, not even one byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why `/proc/self/mem` could not be written.
    pub mem_errno: i32,
    /// Why the page could not be made writable.
    pub mprotect_errno: i32,
}

/// What to do about [`Refused`].
pub const REFUSED_HINT: &str = "build the program with the feature `flag-sites` of the owlet crate, which needs no code patching";

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "trace points cannot be switched: writing /proc/self/mem failed ({}) and so did mprotect ({})",
            std::io::Error::from_raw_os_error(self.mem_errno),
            std::io::Error::from_raw_os_error(self.mprotect_errno),
        )
    }
}

impl std::error::Error for Refused {}

/// What a change did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switched {
    /// Sites whose byte was written.
    pub written: usize,
    /// Sites left alone because their byte is not ours.
    pub busy: usize,
}

impl Switched {
    /// Adds what another change did.
    pub fn add(&mut self, other: Self) {
        self.written += other.written;
        self.busy += other.busy;
    }
}

/// What became of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not looked at yet.
    Open,
    /// It had the right byte.
    Same,
    /// It has now.
    Written,
    /// Its byte is not ours.
    Busy,
}

/// One site and what it is to be.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    at: *mut u8,
    on: bool,
    /// What became of it.
    pub outcome: Outcome,
}

impl Change {
    /// The site at `at` is to be on or off.
    ///
    /// # Safety
    /// `at` is the first byte of a site that a macro of ours put into text that stays mapped.
    #[must_use]
    pub const unsafe fn new(at: *mut u8, on: bool) -> Self {
        Self { at, on, outcome: Outcome::Open }
    }

    /// Where the site is.
    #[must_use]
    pub fn address(&self) -> usize {
        self.at.addr()
    }

    /// Reads the byte, settles what needs no write; whether one is needed.
    fn look(&mut self) -> bool {
        let found = read(self.at);
        self.outcome = match decide(found, self.on) {
            Some(_) => Outcome::Open,
            None if matches!(found, OFF | ON) => Outcome::Same,
            None => Outcome::Busy,
        };
        self.outcome == Outcome::Open
    }

    fn byte(&self) -> u8 {
        if self.on { ON } else { OFF }
    }
}

/// What has been written so far by this copy of the crate, for tests and statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes written through `/proc/self/mem`.
    pub mem_writes: u64,
    /// Windows opened.
    pub windows: u64,
    /// Bytes written in windows.
    pub window_writes: u64,
    /// Core-serialising barriers.
    pub syncs: u64,
}

static MEM_WRITES: AtomicU64 = AtomicU64::new(0);
static WINDOWS: AtomicU64 = AtomicU64::new(0);
static WINDOW_WRITES: AtomicU64 = AtomicU64::new(0);
static SYNCS: AtomicU64 = AtomicU64::new(0);

/// See [`Counts`].
#[must_use]
pub fn counts() -> Counts {
    Counts {
        mem_writes: MEM_WRITES.load(Ordering::Relaxed),
        windows: WINDOWS.load(Ordering::Relaxed),
        window_writes: WINDOW_WRITES.load(Ordering::Relaxed),
        syncs: SYNCS.load(Ordering::Relaxed),
    }
}

/// Registers the process for [`sync`], once. Cheap while there is one thread.
pub fn register() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        let _ = owlet_sys::membarrier::register_private_expedited_sync_core();
    });
}

/// Has every running thread of the process see the code as it is now.
///
/// Without it (old kernels, seccomp) the other CPUs see a byte a moment later: both instructions are
/// right at any time.
pub fn sync() {
    SYNCS.fetch_add(1, Ordering::Relaxed);
    let _ = owlet_sys::membarrier::private_expedited_sync_core();
}

/// Writes code while one change lasts.
#[derive(Debug, Default)]
pub struct Writer {
    mem: Option<Result<File, i32>>,
    no_window: bool,
}

/// What a site's byte asks for.
fn decide(found: u8, on: bool) -> Option<u8> {
    let wanted = if on { ON } else { OFF };
    (matches!(found, OFF | ON) && found != wanted).then_some(wanted)
}

fn read(at: *mut u8) -> u8 {
    // SAFETY: `Change::new`'s caller gave the address of readable text that stays. Volatile: other
    // threads of the kernel and of debuggers change it behind the compiler's back.
    unsafe { at.read_volatile() }
}

/// Stores inside a window.
fn store(at: *mut u8, byte: u8) {
    // SAFETY: the page is ours and writable now; both values of the byte are whole instructions.
    unsafe { at.write_volatile(byte) };
}

impl Writer {
    /// Nothing is opened yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { mem: None, no_window: false }
    }

    /// Brings every site to what it is to be, and notes in each what became of it. The order of
    /// `changes` is not kept.
    ///
    /// # Errors
    /// [`Refused`] as soon as one site can be written in no way; those written before stay written.
    pub fn apply(&mut self, changes: &mut [Change]) -> Result<Switched, Refused> {
        let open = changes.iter_mut().filter_map(|change| change.look().then_some(())).count();
        if open >= MANY && !self.no_window {
            changes.sort_unstable_by_key(Change::address);
            let size = owlet_sys::memory::page_size();
            let adjacent = |a: &Change, b: &Change| b.address() / size - a.address() / size <= 1;
            for run in changes.chunk_by_mut(adjacent) {
                if run.iter().filter(|change| change.outcome == Outcome::Open).count() >= RUN {
                    self.window(run, size);
                }
            }
        }
        for change in changes.iter_mut().filter(|change| change.outcome == Outcome::Open) {
            self.write(change.at, change.byte())?;
            change.outcome = Outcome::Written;
        }
        let count = |outcome| changes.iter().filter(|change| change.outcome == outcome).count();
        Ok(Switched { written: count(Outcome::Written), busy: count(Outcome::Busy) })
    }

    /// Opens one window over a run of pages. Refused, it leaves the run to the other way.
    fn window(&mut self, run: &mut [Change], size: usize) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
        let start = first.at.map_addr(|addr| addr & !(size - 1));
        let len = (last.address() & !(size - 1)) + size - start.addr();
        let written = in_window(start, len, || {
            let mut written = 0;
            for change in run.iter_mut().filter(|change| change.outcome == Outcome::Open) {
                store(change.at, change.byte());
                change.outcome = Outcome::Written;
                written += 1;
            }
            written
        });
        self.no_window |= written.is_err();
    }

    /// Writes the byte that is there already: whether sites can be switched at all.
    ///
    /// # Errors
    /// [`Refused`].
    ///
    /// # Safety
    /// As [`Change::new`].
    pub unsafe fn try_rewrite(&mut self, at: *mut u8) -> Result<(), Refused> {
        let found = read(at);
        if matches!(found, OFF | ON) { self.write(at, found) } else { Ok(()) }
    }

    fn write(&mut self, at: *mut u8, byte: u8) -> Result<(), Refused> {
        let mem_errno = match self.write_mem(at, byte) {
            Ok(()) => return Ok(()),
            Err(errno) => errno,
        };
        let size = owlet_sys::memory::page_size();
        let page = at.map_addr(|addr| addr & !(size - 1));
        let store = || {
            store(at, byte);
            1
        };
        in_window(page, size, store).map_err(|mprotect_errno| Refused { mem_errno, mprotect_errno })
    }

    fn write_mem(&mut self, at: *mut u8, byte: u8) -> Result<(), i32> {
        if let Some(errno) = fake::refused(fake::Way::Mem) {
            return Err(errno);
        }
        let mem = self.mem.get_or_insert_with(|| {
            // std opens close-on-exec.
            OpenOptions::new().write(true).open("/proc/self/mem").map_err(|e| errno_of(&e))
        });
        match mem {
            Ok(mem) => match mem.write_at(&[byte], at.addr() as u64) {
                Ok(1) => {
                    MEM_WRITES.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                Ok(_) => Err(libc::EIO),
                Err(error) => Err(errno_of(&error)),
            },
            Err(errno) => Err(*errno),
        }
    }
}

/// 0, or the fork generation of the process whose thread has a window open.
static WINDOW: AtomicU64 = AtomicU64::new(0);

/// Opens a window over some pages, has `store` write (it says how many bytes), closes it.
fn in_window(start: *mut u8, len: usize, store: impl FnOnce() -> usize) -> Result<(), i32> {
    if let Some(errno) = fake::refused(fake::Way::Mprotect) {
        return Err(errno);
    }
    let me = owlet_sys::fork::generation();
    let mut seen = 0;
    // [W] Acquire: pairs with [X]; the last holder has closed its window. Without it: it closes ours.
    while let Err(now) =
        WINDOW.compare_exchange_weak(seen, me, Ordering::Acquire, Ordering::Relaxed)
    {
        // Held by a thread that this process does not have: nobody will let go.
        seen = if now == me { 0 } else { now };
        if now == me {
            std::thread::yield_now();
        }
    }
    let text = libc::PROT_READ | libc::PROT_EXEC;
    let opened = protect(start, len, text | libc::PROT_WRITE);
    if opened.is_ok() {
        WINDOWS.fetch_add(1, Ordering::Relaxed);
        WINDOW_WRITES.fetch_add(store() as u64, Ordering::Relaxed);
        // Failing to close the window leaves pages writable; the switch itself is done.
        let _ = protect(start, len, text);
    }
    // [X] Release: pairs with [W].
    WINDOW.store(0, Ordering::Release);
    opened
}

fn protect(start: *mut u8, len: usize, prot: i32) -> Result<(), i32> {
    // SAFETY: the pages hold our own code and stay readable and executable throughout.
    match unsafe { libc::mprotect(start.cast(), len, prot) } {
        0 => Ok(()),
        _ => Err(errno_of(&std::io::Error::last_os_error())),
    }
}

fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(not(any(test, feature = "fake")))]
mod fake {
    pub(super) enum Way {
        Mem,
        Mprotect,
    }

    #[inline(always)]
    pub(super) fn refused(_: Way) -> Option<i32> {
        None
    }
}

/// Writes that fail on purpose.
#[cfg(any(test, feature = "fake"))]
pub mod fake {
    use std::cell::Cell;

    thread_local! { static REFUSED: Cell<(usize, i32, i32)> = const { Cell::new((0, 0, 0)) } }

    pub(super) enum Way {
        Mem,
        Mprotect,
    }

    /// Runs `f` while this thread's writes fail with these numbers; 0 lets one pass.
    pub fn refuse<R>(mem: i32, mprotect: i32, f: impl FnOnce() -> R) -> R {
        refuse_after(0, mem, mprotect, f)
    }

    /// As [`refuse`], once this thread has asked for `passes` writes.
    pub fn refuse_after<R>(passes: usize, mem: i32, mprotect: i32, f: impl FnOnce() -> R) -> R {
        REFUSED.set((passes, mem, mprotect));
        let result = f();
        REFUSED.set((0, 0, 0));
        result
    }

    pub(super) fn refused(way: Way) -> Option<i32> {
        let (passes, mem, mprotect) = REFUSED.get();
        if passes > 0 {
            REFUSED.set((passes - 1, mem, mprotect));
            return None;
        }
        let errno = match way {
            Way::Mem => mem,
            Way::Mprotect => mprotect,
        };
        (errno != 0).then_some(errno)
    }
}
