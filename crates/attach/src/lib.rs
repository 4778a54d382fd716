//! Programs on functions of a running process.
//!
//! ```
//! use owlet_attach::{AtExit, Program, Value};
//!
//! #[owlet_attach::traced]
//! fn parse(line: &str) -> Result<u32, std::num::ParseIntError> {
//!     Ok(line.trim().parse::<u32>()?)
//! }
//!
//! assert_eq!(parse("1"), Ok(1)); // one instruction more than without the attribute
//! let failures = Program::exit(|call| println!("{} failed", call.name()))
//!     .filter(|call| call.ret() == Some(Value::Err))
//!     .build();
//! let attached = failures.attach("*::parse")?; // waits for nobody
//! assert!(parse("x").is_err());
//! assert_eq!(failures.stats().runs, 1);
//! attached.detach()?; // nothing of the program runs any more
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! A function with [`#[traced]`](macro@traced) has a *site* of one instruction. Off, it falls through to the
//! body. On, it jumps to a slow path in the same function, ordinary compiled Rust: entry programs, the
//! body, exit programs. No return address is touched, no code is made at run time and none is freed; so
//! unwinding, backtraces, `longjmp` and profilers see what they always see, and attaching waits for no
//! grace period: only lists of programs are replaced.
//!
//! So there is no stub that functions are entered through, for `extern "C"` ones either: whoever has taken such a
//! function's address, C's `qsort` say, has that of the function with its site, and the unwind tables are the
//! compiler's. (What a stub would add is functions that another compiler has compiled.)
//!
//! | module | owns |
//! |---|---|
//! | [`patch`] | writing one byte of code, alone or many together; tracepoints use it too |
//! | `site` | the toggle, the table of functions |
//! | `function`, `list`, `slot` | a function's programs, and how they are replaced |
//! | `program`, `call`, `value` | what runs, and what it is told |
//! | `run`, `future` | what happens around a body |
//! | `control`, `batch` | attaching and detaching, all or nothing |
//!
//! It knows nothing of sessions, rings and sinks.
//!
//! # Order
//! Normal programs before sleepable ones at entry and after them at exit; entries in the order of attaching,
//! exits in the opposite one.
//!
//! # Cost
//! Off: one instruction. On: for each end of a call that has programs a read section, the list, and for each
//! program two checks, an indirect call and a per-CPU count; where an end has but one, normal program, no walk
//! (`run`). No lock, no allocation, no system call; the path is async-signal-safe if the programs are. Async
//! calls that are on and have an exit allocate once.
//!
//! Measured (AMD Zen 4 VM, 2 vCPUs, Linux 6.18, 2026-12-01, load 1.4, `owlet-bench hit-cost`, above the bare
//! call; instructions do not depend on the load):
//!
//! | programs | ns | instructions |
//! |---|---|---|
//! | none: off | 0 | 2 |
//! | one without programs, on | 4.0 | 45 |
//! | one entry | 8.8 | 136 |
//! | the same, with a filter | 12.6 | 177 |
//! | two entries, eight | 16.6, 34.0 | 247, 481 |
//! | one exit | 11.0 | 165 |
//! | a session; an entry and an exit | 18.7; 19.1 | 278; 277 |
//! | one sleepable entry | 21.6 | 308 |
//! | a count in an eBPF array | 16.7 | 235 |
//!
//! Of the 136 a read section has 43 and the count 12; the frames of the function's slow path, of `run::call` and
//! of the entry have 56, the rest is the list, the recursion mark and the program. A session pays nearly all of
//! it twice, since no section may last over the body. Kernel uprobes on the same machine take 541 ns (nop5) and
//! 717 (int3) a hit.
//!
//! # Limits
//! 38 programs a function, as a kernel trampoline has. Functions of the tracer itself are refused. A `longjmp`
//! out of a *program* (not out of a body) is not allowed. An object with sites that were once on stays loaded
//! when it is closed.
//!
//! Whose breakpoint or kernel uprobe is on a site has it: attaching there is refused. One that is put on a site
//! which is on runs instead of our programs, and when it is removed the kernel leaves the site off: they run
//! again once the last of them has been detached and one is attached anew.
// Under loom only the protocol is compiled, by the models themselves.
#![cfg(not(loom))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

// By the name that the macro uses.
#[cfg(test)]
extern crate self as owlet_attach;

mod batch;
mod call;
mod control;
mod error;
mod function;
mod future;
mod letter;
mod list;
#[cfg(doctest)]
mod mistakes;
pub mod patch;
mod pattern;
mod program;
mod run;
pub mod site;
mod slot;
mod value;

pub use batch::{Attached, Batch};
pub use call::{Call, Context, Phase};
pub use control::{functions, prepare, programs, sites};
pub use error::{AttachError, DetachError};
pub use function::Function;
pub use owlet_macros::traced_attach as traced;
pub use pattern::matches;
pub use program::{AtExit, Builder, Flavour, Kind, Machine, Program, ProgramStats};
pub use site::pin;
pub use value::{AsValue, Value};

/// Programs that one function takes.
pub const LINKS: usize = slot::LINKS;

impl Program {
    /// Attaches the program to every function that matches. As a [`Batch`] of one.
    ///
    /// # Errors
    /// [`AttachError`]: nothing is attached.
    pub fn attach(&self, pattern: &str) -> Result<Attached, AttachError> {
        Batch::new().add(self, pattern).attach()
    }
}

/// Traced functions whose name matches, by name.
#[must_use]
pub fn find(pattern: &str) -> Vec<&'static Function> {
    let mut found = functions();
    found.retain(|function| matches(pattern, function.name()));
    found
}

/// Waits until what was detached without waiting has ended, and its state has been dropped. Not inside a
/// program, nor in a destructor of what a program owns.
pub fn quiesce() {
    program::NORMAL.retire_barrier();
    program::SLEEPABLE.retire_barrier();
}

/// What waits for normal programs and for sleepable ones have cost so far.
#[must_use]
pub fn grace_periods() -> (owlet_rcu::Stats, owlet_rcu::Stats) {
    (program::NORMAL.stats(), program::SLEEPABLE.stats())
}

/// Steps that fail on purpose, for tests.
#[cfg(any(test, feature = "fake"))]
pub mod fake {
    pub use crate::list::fake::memory_for;
    pub use crate::patch::fake::{refuse, refuse_after};
}

/// For the macro.
#[doc(hidden)]
pub mod __private {
    pub use crate::call::Captured;
    pub use crate::function::{Description, Function};
    pub use crate::future::call_async;
    pub use crate::run::{call, call_modifiable};
    pub use crate::site::here;
    pub use crate::value::{CaptureName, CaptureShape, CaptureValue, RawValue, Wrap};

    /// A closure that is called once, whatever it does with what it captured.
    #[inline(always)]
    pub const fn once<R, F: FnOnce() -> R>(body: F) -> F {
        body
    }

    /// What stands for the result of a function in a program's word.
    pub trait Modified {
        /// The result.
        fn from_word(word: u64) -> Self;
    }

    impl Modified for () {
        fn from_word(_word: u64) {}
    }

    impl Modified for bool {
        fn from_word(word: u64) -> Self {
            word != 0
        }
    }

    macro_rules! modified {
        ($($ty:ty)*) => {$(
            impl Modified for $ty {
                fn from_word(word: u64) -> Self {
                    word as Self
                }
            }
        )*};
    }

    modified!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);
}
