//! Functions and USDT probes of programs that do not link Owlet: the kernel as second back end.
//!
//! The kernel can put a breakpoint on any instruction of any program's file (a *uprobe*) and run a BPF
//! program when it is hit. That costs about a microsecond a hit, a thousand times what a trace point of
//! Owlet's own costs while it is off and some hundred times what it costs while it is on; and it needs
//! nothing of the program. What is recorded goes into the same trace directory.
//!
//! 1. [`Pattern::parse`]: what is asked for.
//! 2. [`find`]: the process' files, their functions and probes, those that match.
//! 3. [`Attachment::new`]: maps, programs, links.
//! 4. [`Attachment::read`]: hits in the order of time; [`Events::push`] makes records of them.
//! 5. Dropping it detaches; so does the kernel, however we end.
//!
//! The clock is `CLOCK_MONOTONIC`, which is what `bpf_ktime_get_ns` reads: a trace of it and one of Owlet's
//! own (TSC, or that clock) are merged by the time since 1970 that both state.
//!
//! | module | owns |
//! |---|---|
//! | `pattern` | what is asked for |
//! | `process` | the files of a process |
//! | `elf`, `usdt`, `demangle` | what a file offers |
//! | `sites` | what of it is meant |
//! | `caps` | whether we may |
//! | `bpf` | the system calls |
//! | `program` | the BPF programs |
//! | `attach` | maps, programs, links |
//! | `ring`, `order`, `hit` | what the programs recorded, in order |
//! | `events` | records of the trace; entries paired with returns |
//!
//! # What it does to the program
//! A breakpoint in a private copy of a page of its code, and a microsecond at each hit. Nothing else, with
//! one exception: to see a *return*, the kernel replaces the return address on the stack. Unwinders cannot
//! pass that, so that a panic or exception through a watched call aborts the program, and backtraces end
//! there. So returns of programs that can unwind are refused unless [`Options::allow_abort`] is set.
//!
//! # Measurements
//! AMD EPYC (Zen 4), 2 virtual CPUs, Linux 6.18, 2026-11-30, a busy machine, the least of five; repeat with
//! `cargo run --release -p owlet-uprobe --example uprobe_cost`.
//!
//! | | |
//! |---|---|
//! | attach 1,000 sites of a file, programs and maps included | 13 to 21 ms |
//! | detach them; after every one was hit | 23 to 27 ms; 148 to 174 ms |
//! | detach 10 perf events | 980 to 1,040 ms |
//! | a hit recorded, CPU time: function begins with a 5-byte nop / `push` / what is single-stepped | 905 / 1,159 / 12,400 ns |
//! | a call recorded as a span: the same | 1,887 / 2,176 / 13,600 ns |
//!
//! # Limits
//! - x86-64. Linux 6.10 for one link a file (6.6 if nobody is filtered by process), 5.15 for perf events.
//! - Calls that are running when a probe is attached are seen only by their next entry.
//! - The kernel counts neither hits that it drops for nesting deeper than 64 returns nor frames that it
//!   gives up when a program changes stacks.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod attach;
mod bpf;
mod caps;
mod demangle;
mod elf;
mod error;
mod events;
mod hit;
mod order;
mod pattern;
mod process;
mod program;
mod ring;
mod sites;
mod usdt;

pub use attach::{Attachment, Moments, Options, Refused, available};
pub use bpf::Way;
pub use caps::check;
pub use elf::{Function, Image, Probe};
pub use error::{Error, ErrorKind, Result};
pub use events::{Events, Paired, site_of};
pub use hit::Hit;
pub use pattern::{Pattern, Wanted};
pub use process::{ObjectFile, inner_pid, object_files};
pub use sites::{Found, NoMatch, Of, Scope, Site, find};
pub use usdt::Argument;
