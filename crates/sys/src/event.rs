//! `eventfd(2)`: a descriptor that `poll` and `epoll` see as readable while its counter is not 0.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::choke::{Family, call};
use crate::{Result, SysError};

/// Makes an eventfd with counter 0, close-on-exec and non-blocking.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSYS`.
pub fn eventfd() -> Result<OwnedFd> {
    let fd = call(Family::Memory, "eventfd", || {
        // SAFETY: takes no pointers.
        libc::c_long::from(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
    })?;
    let fd = i32::try_from(fd).map_err(|_| SysError { call: "eventfd", errno: libc::EBADF })?;
    // SAFETY: a descriptor the kernel has just given us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds 1: the descriptor becomes readable.
///
/// # Errors
/// `EAGAIN` if the counter is at its end (it is readable then anyway).
pub fn raise(fd: impl AsFd) -> Result<()> {
    let raw = fd.as_fd().as_raw_fd();
    let one = 1_u64;
    call(Family::Memory, "write(eventfd)", || {
        // SAFETY: eight readable bytes.
        libc::c_long::try_from(unsafe { libc::write(raw, (&raw const one).cast(), 8) })
            .unwrap_or(-1)
    })
    .map(drop)
}

/// Sets the counter to 0 and says what it was: the descriptor is unreadable until raised again.
pub fn clear(fd: impl AsFd) -> u64 {
    let raw = fd.as_fd().as_raw_fd();
    let mut count = 0_u64;
    let answer = call(Family::Memory, "read(eventfd)", || {
        // SAFETY: eight writable bytes.
        libc::c_long::try_from(unsafe { libc::read(raw, (&raw mut count).cast(), 8) }).unwrap_or(-1)
    });
    answer.map_or(0, |_| count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let fd = eventfd().expect("an eventfd");
        assert_eq!(clear(&fd), 0);
        raise(&fd).expect("room");
        raise(&fd).expect("room");
        assert_eq!(clear(&fd), 2);
        assert_eq!(clear(&fd), 0);
    }
}
