//! liburcu, when Debian's liburcu-dev is installed: a C program with three of its flavours, each
//! with its readers inlined. It has the cases of `rcu-read`, `rcu-sync` and, from version 0.14 on,
//! `rcu-poll`.

use super::flavours::Protect;
use crate::harness::worker::{Started, Worker};
use crate::peers::program;
use anyhow::{Context, Result};
use std::ffi::CStr;
use std::process::Command;
use std::sync::OnceLock;

/// Builds and starts it; the reason, where it is not installed.
pub(crate) fn start() -> Result<Started> {
    let folder = tempfile::tempdir()?;
    let libraries = ["-lurcu-memb", "-lurcu-qsbr", "-lurcu-bp", "-lurcu-common"];
    let files = [("bench.c", include_str!("urcu/bench.c"))];
    if let Err(why) = program::build(folder.path(), &files, &libraries) {
        return Ok(Err(format!("{why:#}")));
    }
    // The folder may go as soon as the program runs.
    Worker::start_program(Command::new(folder.path().join("bench")))
        .context("start the liburcu program")
}

/// liburcu's QSBR as [`Notify`](super::flavours::Notify) has ours: its functions, called in its
/// shared library, in this program.
pub(super) struct Notify;

/// `void urcu_qsbr_..(void)`.
type Function = unsafe extern "C" fn();

struct Functions {
    register: Function,
    unregister: Function,
    online: Function,
    offline: Function,
}

impl Functions {
    /// None where the library is not installed.
    fn get() -> Option<&'static Self> {
        static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
        FUNCTIONS.get_or_init(Self::find).as_ref()
    }

    fn find() -> Option<Self> {
        // SAFETY: runs liburcu's constructors, which register it with membarrier(2).
        let library = unsafe { libc::dlopen(c"liburcu-qsbr.so.8".as_ptr(), libc::RTLD_NOW) };
        let function = |name: &CStr| {
            // SAFETY: a library that is never closed, and the name of a function in it.
            let at = unsafe { libc::dlsym(library, name.as_ptr()) };
            // SAFETY: null is None; else a function of that signature (urcu-qsbr.h).
            (!library.is_null()).then(|| unsafe {
                std::mem::transmute::<*mut libc::c_void, Option<Function>>(at)
            })?
        };
        Some(Self {
            register: function(c"urcu_qsbr_register_thread")?,
            unregister: function(c"urcu_qsbr_unregister_thread")?,
            online: function(c"urcu_qsbr_thread_online")?,
            offline: function(c"urcu_qsbr_thread_offline")?,
        })
    }
}

impl Notify {
    /// Whether it can be used.
    pub(super) fn is_installed() -> bool {
        Functions::get().is_some()
    }
}

/// A registered thread.
pub(super) struct Thread(Option<&'static Functions>);

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(functions) = self.0 {
            // SAFETY: this thread is registered; it made this, which is not Send.
            unsafe { (functions.unregister)() };
        }
    }
}

impl Protect for Notify {
    type Thread = Thread;

    fn thread() -> Thread {
        let functions = Functions::get();
        if let Some(functions) = functions {
            // SAFETY: this thread is not registered.
            unsafe { (functions.register)() };
            // SAFETY: registered, in no section.
            unsafe { (functions.offline)() };
        }
        Thread(functions)
    }

    #[inline(always)]
    fn section<R>(thread: &mut Thread, f: impl FnOnce() -> R) -> R {
        let Some(functions) = thread.0 else { return f() };
        // SAFETY: registered and offline.
        unsafe { (functions.online)() };
        let result = f();
        // SAFETY: registered and online, in no section any more.
        unsafe { (functions.offline)() };
        result
    }
}
