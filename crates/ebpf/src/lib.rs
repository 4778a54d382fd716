//! eBPF programs in user space.
//!
//! An [`image::Image`] holds programs and the maps they share. A [`Module`] is an image brought to life: maps with
//! all their memory, and [`Program`]s that any thread may [run](Program::run), in a signal handler, too, for a
//! few nanoseconds. Programs see a [`Context`] of 56 bytes, a stack, their maps and the helpers of the
//! kernel's numbers. Other memory of the process they reach by the `probe_read` helpers only: to read, as a copy.
//!
//! ```
//! use owlet_ebpf::asm::{self, Alu, Reg};
//! use owlet_ebpf::image::{Image, ProgramDef, ProgramKind};
//! use owlet_ebpf::{Context, Limits, Module};
//!
//! let code = [asm::load(8, Reg::R0, Reg::R1, 0), asm::alu_imm(Alu::Mul, Reg::R0, 2), asm::exit()];
//! let program = ProgramDef {
//!     name: "twice".to_owned(),
//!     kind: ProgramKind::Entry,
//!     pattern: String::new(),
//!     code: asm::bytes(&code),
//! };
//! let image = Image { maps: Vec::new(), programs: vec![program] };
//! let module = Module::interpreted(&image, Limits::default())?;
//! let context = Context { arg: [21, 0, 0, 0], ..Context::default() };
//! assert_eq!(module.program("twice").unwrap().run(&context), 42);
//! # Ok::<(), owlet_ebpf::Error>(())
//! ```
//!
//! # Who keeps a program harmless
//! | what | shape | types, bounds, ends | at run time |
//! |---|---|---|---|
//! | interpreted | the decoder | - | every access is checked, fuel |
//! | compiled | the decoder | the verifier (feature `load`) | fuel |
//!
//! Verification happens where the object is: in the command, or in a process that loads objects itself. A
//! process that is only handed images compiles none of it; making compiled code of an image is `unsafe`,
//! because it trusts that the image was verified.
//!
//! *Fuel* is the second line behind the verifier's proof of termination: each backward jump costs one;
//! when there is none left the run ends, returns 0 and is counted.
//!
//! # Helpers
//! | number | name (with `bpf_` before it) | notes |
//! |---|---|---|
//! | 1, 2, 3 | `map_lookup_elem`, `map_update_elem`, `map_delete_elem` | not for ring buffers |
//! | 5 | `ktime_get_ns` | `CLOCK_MONOTONIC` |
//! | 6 | `trace_printk` | counted, prints nothing |
//! | 7 | `get_prandom_u32` | |
//! | 8 | `get_smp_processor_id` | a hint: the thread may move on |
//! | 14 | `get_current_pid_tgid` | process id in the upper half, thread id in the lower |
//! | 16 | `get_current_comm` | |
//! | 4, 112, 113 | `probe_read`, `probe_read_user`, `probe_read_kernel` | this process's memory, all three; a system call, some 300 ns |
//! | 45, 114, 115 | `probe_read_str`, `probe_read_user_str`, `probe_read_kernel_str` | the same for strings; a call for each 256 bytes |
//! | 130, 134 | `ringbuf_output`, `ringbuf_query` | |
//! | 131, 132, 133 | `ringbuf_reserve`, `ringbuf_submit`, `ringbuf_discard` | at most half the buffer, at most 4 at once |
//! | 173, 174 | `get_func_ip`, `get_attach_cookie` | |
//! | 183, 184, 185 | `get_func_arg`, `get_func_ret`, `get_func_arg_cnt` | the second not at entry; the third is 4 |
//! | 10001 | `owlet_session_is_return` | sessions only: 1 at the return, 0 at the entry |
//! | 10002, 10003 | `owlet_session_get`, `owlet_session_set` | sessions only: a word that entry and return of a call share |
//!
//! The last three are ours: the kernel has functions for them that cannot be called here
//! (`bpf_session_is_return`, `bpf_session_cookie`).
//!
//! A bad address is no harm to `probe_read` and its like: the kernel does the copying
//! (`process_vm_readv` of this process, which asks for no privilege). Where it cannot, they return -14
//! (EFAULT) and fill the place with zeros; also where a system-call filter forbids it.
//!
//! # Reservations
//! What a program reserves in a ring buffer it must submit or discard, on every way to its end, and not
//! touch again: the verifier follows reservations through registers and stack. The engines have a table of
//! them for each run. A record that is left over there (fuel has run out, an interpreted program is not
//! verified) is discarded, so that it does not hold up the buffer, and counted:
//! [`MapStats::abandoned`](map::MapStats::abandoned).
//!
//! # Side
//! The crate without features runs in traced programs and needs `libc` only, through `owlet-sys` and
//! `owlet-percpu`. It knows no function, no site and no attachment.
// Under loom only the protocols of maps are compiled, by the models themselves.
#![cfg(not(loom))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod asm;
mod decode;
mod error;
mod helper;
pub mod image;
mod interp;
#[cfg(target_arch = "x86_64")]
mod jit;
#[cfg(feature = "load")]
pub mod load;
pub mod map;
mod memory;
mod program;
mod reserved;

pub use error::{Error, Result};
pub use program::{
    ARGS, Context, Engine, FUEL, Fault, Limits, Module, Program, ProgramStats, Session,
};
