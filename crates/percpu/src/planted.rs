//! Faults planted on purpose, in builds that show that the tests would find them.
//!
//! Built with `--cfg owlet_mutants`, the code of every fault is there, and the environment variable
//! `OWLET_MUTANT` says which one acts, if any. Otherwise [`planted!`](crate::planted) is `false` and
//! nothing is left of them.

/// True if the fault of this name (at most eight bytes) is to act in this process.
#[macro_export]
macro_rules! planted {
    ($id:literal) => {
        cfg!(owlet_mutants) && $crate::planted::acts(const { $crate::planted::packed($id) })
    };
}

/// A name as a number.
#[must_use]
pub const fn packed(id: &str) -> u64 {
    let mut bytes = id.as_bytes();
    let mut number = 0;
    while let [first, rest @ ..] = bytes {
        number = number << 8 | *first as u64;
        bytes = rest;
    }
    number
}

/// Whether the fault acts. Async-signal-safe.
#[cfg(owlet_mutants)]
#[must_use]
pub fn acts(id: u64) -> bool {
    use core::sync::atomic::{AtomicU64, Ordering};

    /// The packed name; 0 = not looked yet, 1 = none.
    static ACTING: AtomicU64 = AtomicU64::new(0);

    let mut acting = ACTING.load(Ordering::Relaxed);
    if acting == 0 {
        // SAFETY: a string with its end; nobody changes the environment of such a build's runs.
        let value = unsafe { libc::getenv(c"OWLET_MUTANT".as_ptr()) };
        acting = if value.is_null() {
            1
        } else {
            // SAFETY: getenv's strings have an end.
            let value = unsafe { core::ffi::CStr::from_ptr(value) };
            packed(value.to_str().unwrap_or("")).max(1)
        };
        ACTING.store(acting, Ordering::Relaxed);
    }
    acting == id
}

/// Whether the fault acts: never, in this build.
#[cfg(not(owlet_mutants))]
#[must_use]
#[inline(always)]
pub const fn acts(_: u64) -> bool {
    false
}
