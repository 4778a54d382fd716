//! Writing one byte of our own code.
//!
//! First choice: `pwrite` to `/proc/self/mem`, which works for unprivileged processes and where
//! memory may never be writable and executable. It is opened for each change and closed after it:
//! a descriptor kept over a fork would write the parent's memory.
//! Second choice (no /proc, no descriptor left, not dumpable): the page is made writable for the
//! moment of one store. It stays executable meanwhile: other threads may be running in it.

use super::Refused;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

const OFF: u8 = 0xa9;
const ON: u8 = 0xe9;

/// What became of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It had the right byte.
    Same,
    /// It has now.
    Written,
    /// Its byte is not ours.
    Busy,
}

/// Writes code while one change lasts.
pub(super) struct Writer {
    mem: Option<Result<File, i32>>,
}

/// What a site's byte asks for.
pub(super) fn decide(found: u8, on: bool) -> Option<u8> {
    let wanted = if on { ON } else { OFF };
    (matches!(found, OFF | ON) && found != wanted).then_some(wanted)
}

/// Switches the site at `at`, which holds an instruction that a macro of ours put there.
pub(super) fn set(writer: &mut Writer, at: *mut u8, on: bool) -> Result<Outcome, Refused> {
    // SAFETY: the site table lists addresses in our own readable text only. Volatile: other threads
    // of the kernel and of debuggers change it behind the compiler's back.
    let found = unsafe { at.read_volatile() };
    match decide(found, on) {
        Some(byte) => writer.write(at, byte).map(|()| Outcome::Written),
        None if matches!(found, OFF | ON) => Ok(Outcome::Same),
        None => Ok(Outcome::Busy),
    }
}

impl Writer {
    pub(super) const fn new() -> Self {
        Self { mem: None }
    }

    /// Ends the change.
    pub(super) fn finish(self) {
        drop(self);
    }

    /// Writes the byte that is there already.
    pub(super) fn try_rewrite(&mut self, at: *mut u8) -> Result<(), Refused> {
        // SAFETY: as in `set`.
        let found = unsafe { at.read_volatile() };
        if matches!(found, OFF | ON) { self.write(at, found) } else { Ok(()) }
    }

    fn write(&mut self, at: *mut u8, byte: u8) -> Result<(), Refused> {
        let mem_errno = match self.write_mem(at, byte) {
            Ok(()) => return Ok(()),
            Err(errno) => errno,
        };
        write_mapped(at, byte).map_err(|mprotect_errno| Refused { mem_errno, mprotect_errno })
    }

    fn write_mem(&mut self, at: *mut u8, byte: u8) -> Result<(), i32> {
        if let Some(errno) = refused(Way::Mem) {
            return Err(errno);
        }
        let mem = self.mem.get_or_insert_with(|| {
            // std opens close-on-exec.
            OpenOptions::new().write(true).open("/proc/self/mem").map_err(|e| errno_of(&e))
        });
        match mem {
            Ok(mem) => match mem.write_at(&[byte], at.addr() as u64) {
                Ok(1) => Ok(()),
                Ok(_) => Err(libc::EIO),
                Err(error) => Err(errno_of(&error)),
            },
            Err(errno) => Err(*errno),
        }
    }
}

/// Opens a window in the page, writes, closes it.
fn write_mapped(at: *mut u8, byte: u8) -> Result<(), i32> {
    if let Some(errno) = refused(Way::Mprotect) {
        return Err(errno);
    }
    let size = owlet_sys::memory::page_size();
    let page = at.map_addr(|addr| addr & !(size - 1));
    let text = libc::PROT_READ | libc::PROT_EXEC;
    protect(page, size, text | libc::PROT_WRITE)?;
    // SAFETY: the page is ours and writable now; both values of the byte are whole instructions.
    unsafe { at.write_volatile(byte) };
    // Failing to close the window leaves a page writable; the switch itself is done.
    let _ = protect(page, size, text);
    Ok(())
}

fn protect(page: *mut u8, size: usize, prot: i32) -> Result<(), i32> {
    // SAFETY: the page holds our own code and stays readable and executable throughout.
    match unsafe { libc::mprotect(page.cast(), size, prot) } {
        0 => Ok(()),
        _ => Err(errno_of(&std::io::Error::last_os_error())),
    }
}

fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

enum Way {
    Mem,
    Mprotect,
}

#[cfg(not(test))]
fn refused(_way: Way) -> Option<i32> {
    None
}

#[cfg(test)]
pub(crate) use fake::refuse;
#[cfg(test)]
use fake::refused;

#[cfg(test)]
mod fake {
    use super::Way;
    use std::cell::Cell;

    thread_local! { static REFUSED: Cell<(i32, i32)> = const { Cell::new((0, 0)) } }

    /// Runs `f` while this thread's writes fail with these numbers; 0 lets one pass.
    pub(crate) fn refuse<R>(mem: i32, mprotect: i32, f: impl FnOnce() -> R) -> R {
        REFUSED.set((mem, mprotect));
        let result = f();
        REFUSED.set((0, 0));
        result
    }

    pub(in crate::site) fn refused(way: Way) -> Option<i32> {
        let (mem, mprotect) = REFUSED.get();
        let errno = match way {
            Way::Mem => mem,
            Way::Mprotect => mprotect,
        };
        (errno != 0).then_some(errno)
    }
}
