//! eBPF programs in user space.
//!
//! An [`image::Image`] holds programs and the maps they share. A [`Module`] is an image brought to life: maps with
//! all their memory, and [`Program`]s that any thread may [run](Program::run), in a signal handler, too, for a
//! few nanoseconds. Programs see a [`Context`] of 56 bytes, a stack, their maps and the helpers of the
//! kernel's numbers; nothing else of the process.
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
//! | 130, 134 | `ringbuf_output`, `ringbuf_query` | reserve, submit and discard are not there: nothing would make a program submit |
//! | 173, 174 | `get_func_ip`, `get_attach_cookie` | |
//! | 183, 184, 185 | `get_func_arg`, `get_func_ret`, `get_func_arg_cnt` | the second not at entry; the third is 4 |
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

pub use error::{Error, Result};
pub use program::{ARGS, Context, Engine, FUEL, Fault, Limits, Module, Program, ProgramStats};
