//! Helper threads, made past the standard library.
//!
//! `std::thread` takes process-wide locks while a thread begins (for its table of guard pages, for
//! one). In a forked child such a lock may be held for ever by a thread that stayed behind: about one
//! child in two hundred of a program that makes threads all the time then has a thread that never
//! gets as far as its first line. The C library puts its own locks right in a child, so threads that
//! a child needs are made with `pthread_create`.

use core::ffi::c_void;
use core::ptr::null_mut;

use crate::Result;
use crate::choke::{Family, call, set_errno};

/// Runs `body` on a thread of its own, with every signal blocked, that nobody joins. Allocates; not
/// for signal handlers. A panic ends the thread and nothing else.
///
/// # Errors
/// `EAGAIN` (a limit on threads, or no memory).
pub fn spawn_detached(body: fn()) -> Result<()> {
    // SAFETY: sets of signals are plain integers; `sigfillset` makes `all` a valid one.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { core::mem::zeroed() };
    // SAFETY: `all` is ours.
    unsafe { libc::sigfillset(&raw mut all) };
    // The new thread inherits the mask, so there is no moment at which it takes a signal.
    // SAFETY: both sets are ours.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let mut thread = core::mem::MaybeUninit::<libc::pthread_t>::uninit();
    let made = call(Family::Process, "pthread_create", || {
        // SAFETY: `thread` is ours; `begin` takes a `fn()` as its argument.
        let error = unsafe {
            libc::pthread_create(thread.as_mut_ptr(), core::ptr::null(), begin, body as *mut c_void)
        };
        if error == 0 {
            return 0;
        }
        set_errno(error);
        -1
    });
    // SAFETY: the mask this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut()) };
    made?;
    // SAFETY: `pthread_create` succeeded and has written it.
    let thread = unsafe { thread.assume_init() };
    // SAFETY: just made, neither joined nor detached.
    unsafe { libc::pthread_detach(thread) };
    Ok(())
}

extern "C" fn begin(body: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn_detached` passes a `fn()`.
    let body = unsafe { core::mem::transmute::<*mut c_void, fn()>(body) };
    let _ = std::panic::catch_unwind(body);
    null_mut()
}
