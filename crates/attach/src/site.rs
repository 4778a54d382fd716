//! Sites of traced functions, and the table of them.
//!
//! The same one-byte toggle as tracepoints have (`patch`): off `a9 rel32`, on `e9 rel32`, a jump to the
//! slow path inside the same function. Elsewhere, under Miri and with the feature `flag-sites`, a relaxed
//! load and a branch.
//!
//! Every site leaves an entry of four relative words in the section `owlet_functions`; a generic or inlined
//! function has several. The linker bounds the section of each executable and shared object by two
//! symbols; an object that links this crate statically has its own copy of the crate, and therefore its own
//! table and its own programs. The first change pins the object (`RTLD_NODELETE`): code with sites that may
//! be on stays mapped.
//!
//! | word | relative to itself |
//! |---|---|
//! | 0 | the site, or 0 for a flag site |
//! | 1 | the slow path, or 0 |
//! | 2 | the [`Function`] |
//! | 3 | kind: 0 none, 1 toggle, 2 flag (absolute) |

use crate::function::Function;
use crate::patch::Change;

/// How this build's sites are switched: `toggle` or `flag`.
pub const KIND: &str = if cfg!(owlet_site = "toggle") { "toggle" } else { "flag" };

/// One entry of the table.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Record {
    site: i32,
    slow: i32,
    key: i32,
    kind: u32,
}

const NONE: u32 = 0;
const TOGGLE: u32 = 1;

fn resolve(word: &i32) -> *const u8 {
    (&raw const *word).cast::<u8>().wrapping_offset(*word as isize)
}

impl Record {
    pub(crate) fn function(&self) -> Option<&'static Function> {
        if self.kind == NONE {
            return None;
        }
        // SAFETY: the macro puts the address of a `static` of this type here.
        Some(unsafe { &*resolve(&self.key).cast::<Function>() })
    }

    /// The site is to be on or off; of a toggle only.
    pub(crate) fn change(&self, on: bool) -> Option<Change> {
        let at = resolve(&self.site).cast_mut();
        // SAFETY: the table lists sites in our own text only, which stays as long as this code does.
        (self.kind == TOGGLE).then(|| unsafe { Change::new(at, on) })
    }
}

/// The sites of this executable or shared object.
#[cfg(owlet_table)]
pub(crate) fn table() -> &'static [Record] {
    let (start, stop): (*const Record, *const Record);
    // The entry of kind `NONE` makes sure that the section and therefore its two symbols exist.
    // SAFETY: the block computes two addresses and emits data; it touches no memory and no stack.
    unsafe {
        core::arch::asm!(
            ".pushsection owlet_functions,\"aR\",@progbits",
            ".p2align 4",
            ".long 0, 0, 0, 0",
            ".popsection",
            ".hidden __start_owlet_functions",
            ".hidden __stop_owlet_functions",
            "lea {start}, [rip + __start_owlet_functions]",
            "lea {stop}, [rip + __stop_owlet_functions]",
            start = out(reg) start,
            stop = out(reg) stop,
            options(nomem, nostack, preserves_flags)
        );
    }
    let len = (stop.addr() - start.addr()) / size_of::<Record>();
    // SAFETY: the linker put every `owlet_functions` section of this object between the two symbols, the
    // macro fills them with whole, 16-aligned records, and the section is read-only.
    unsafe { core::slice::from_raw_parts(start, len) }
}

#[cfg(not(owlet_table))]
pub(crate) fn table() -> &'static [Record] {
    &[]
}

/// An address in the code where this is inlined.
#[cfg(owlet_table)]
#[doc(hidden)]
#[inline(always)]
#[must_use]
pub fn here(_function: &'static Function) -> usize {
    let here;
    // SAFETY: computes an address.
    unsafe {
        core::arch::asm!(
            "lea {here}, [rip]",
            here = out(reg) here,
            options(nomem, nostack, preserves_flags)
        );
    }
    here
}

/// An address that stands for the function.
#[cfg(not(owlet_table))]
#[doc(hidden)]
#[must_use]
pub fn here(function: &'static Function) -> usize {
    core::ptr::from_ref(function).addr()
}

/// Keeps the shared object this code is in, once: its sites are switched and its programs run.
pub fn pin() {
    static PIN: std::sync::Once = std::sync::Once::new();
    PIN.call_once(|| {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
        let here: fn() = pin;
        // SAFETY: `info` is room for the answer; the address is one of our own functions.
        let found = unsafe { libc::dladdr(here as *const libc::c_void, info.as_mut_ptr()) };
        if found == 0 {
            return; // a static executable
        }
        // SAFETY: `dladdr` succeeded and filled `info`.
        let name = unsafe { info.assume_init() }.dli_fname;
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // The executable itself cannot be closed, and its name need not be a path that can be opened.
        // SAFETY: the name is a string of the dynamic linker's; NOLOAD runs no constructor.
        unsafe { libc::dlopen(name, flags) };
    });
}

/// One toggle site: runs `$on` when its function is on.
#[cfg(owlet_site = "toggle")]
#[doc(hidden)]
#[macro_export]
macro_rules! __traced_site {
    ($function:path, $on:block) => {
        // SAFETY: the instruction changes flags only, and jumps to the label when it is switched on;
        // the rest is data in a section of its own.
        unsafe {
            ::core::arch::asm!(
                "2: .byte 0xa9",
                ".long {slow} - . - 4",
                ".pushsection owlet_functions,\"aR\",@progbits",
                ".p2align 4",
                ".long 2b - .",
                ".long {slow} - .",
                ".long {key} - .",
                ".long 1",
                ".popsection",
                slow = label $on,
                key = sym $function,
                options(nomem, nostack)
            )
        }
    };
}

/// One flag site: runs `$on` when its function is on.
#[cfg(all(not(owlet_site = "toggle"), owlet_table))]
#[doc(hidden)]
#[macro_export]
macro_rules! __traced_site {
    ($function:path, $on:block) => {{
        // SAFETY: no instruction, only data in a section of its own.
        unsafe {
            ::core::arch::asm!(
                ".pushsection owlet_functions,\"aR\",@progbits",
                ".p2align 4",
                ".long 0",
                ".long 0",
                ".long {key} - .",
                ".long 2",
                ".popsection",
                key = sym $function,
                options(nomem, nostack, preserves_flags)
            )
        };
        if $function.is_on() $on
    }};
}

/// One flag site without a table entry: such a function cannot be found.
#[cfg(all(not(owlet_site = "toggle"), not(owlet_table)))]
#[doc(hidden)]
#[macro_export]
macro_rules! __traced_site {
    ($function:path, $on:block) => {
        if $function.is_on() $on
    };
}
