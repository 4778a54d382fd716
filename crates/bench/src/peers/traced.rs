//! Calls of a traced function: the cases of `hit-cost`.
//!
//! A function of its own for each case, so that programs stay attached for the life of the worker. The
//! programs do nothing but what the library does for them: they count their runs.

use crate::harness::serve::{Case, keep};
use anyhow::{Context as _, Result, anyhow};
use owlet_attach::patch::{Change, Writer};
use owlet_attach::{AtExit, Context, Kind, Machine, Program};
use owlet_ebpf::asm::{self, Alu, Cond, Reg, Slot};
use owlet_ebpf::image::{Image, MapDef, ProgramDef, ProgramKind};
use owlet_ebpf::{Engine, Limits, Module};
use std::sync::Arc;

/// A function, traced or not, and the loop that calls it.
macro_rules! functions {
    ($($(#[$traced:meta])* $name:ident = $case:literal;)*) => {
        mod hit {
            $(
                $(#[$traced])*
                #[inline(never)]
                pub(super) fn $name(n: u64) -> u64 {
                    crate::harness::serve::keep(n) + 1
                }
            )*
        }

        fn loops() -> Vec<Case> {
            vec![$(Case::new($case, |n| {
                for i in 0..n {
                    keep(hit::$name(i));
                }
            }),)*]
        }
    };
}

functions! {
    bare = "bare";
    #[owlet_attach::traced] off = "off";
    #[owlet_attach::traced] native_0 = "native-0";
    #[owlet_attach::traced] native_1 = "native-1";
    #[owlet_attach::traced] native_2 = "native-2";
    #[owlet_attach::traced] native_8 = "native-8";
    #[owlet_attach::traced] filtered = "native-filter";
    #[owlet_attach::traced] sleepable = "native-sleepable";
    #[owlet_attach::traced] exit = "exit";
    #[owlet_attach::traced] session = "session";
    #[owlet_attach::traced] both = "entry+exit";
    #[owlet_attach::traced] ebpf_ret0 = "ebpf-ret0";
    #[owlet_attach::traced] ebpf_map = "ebpf-map";
    #[owlet_attach::traced] ebpf_atomic = "ebpf-map-atomic";
    #[owlet_attach::traced] ebpf_slow = "ebpf-map-interpreted";
}

/// The cases.
pub(crate) fn cases() -> Result<Vec<Case>> {
    let attach = |program: &Program, name: &str| -> Result<()> {
        program.attach(&format!("*::hit::{name}")).map(owlet_attach::Attached::keep)?;
        Ok(())
    };
    let native = || Program::entry(|_| ());
    attach(&native().build(), "native_1")?;
    (0..2).try_for_each(|_| attach(&native().build(), "native_2"))?;
    (0..8).try_for_each(|_| attach(&native().build(), "native_8"))?;
    let odd = native().filter(|call| call.arg(0).is_some_and(|n| n.word() < u64::MAX));
    attach(&odd.build(), "filtered")?;
    attach(&native().sleepable().build(), "sleepable")?;
    attach(&Program::exit(|_| ()).build(), "exit")?;
    attach(&Program::session(|_| AtExit::Run, |_| ()).build(), "session")?;
    attach(&native().build(), "both")?;
    attach(&Program::exit(|_| ()).build(), "both")?;
    attach(&machine(&[ret0()], true)?, "ebpf_ret0")?;
    attach(&machine(&[count(false)], true)?, "ebpf_map")?;
    attach(&machine(&[count(true)], true)?, "ebpf_atomic")?;
    attach(&machine(&[count(false)], false)?, "ebpf_slow")?;
    switch_on("native_0")?;
    Ok(loops())
}

/// A function that is on without a program: the site's byte, by hand.
fn switch_on(name: &str) -> Result<()> {
    let found = owlet_attach::find(&format!("*::hit::{name}"));
    let function = found.first().with_context(|| format!("no function {name}"))?;
    let sites = owlet_attach::sites(function);
    let mut changes: Vec<_> = sites
        .into_iter()
        // SAFETY: the table lists sites of this program, which stay.
        .map(|at| unsafe { Change::new(std::ptr::with_exposed_provenance_mut(at), true) })
        .collect();
    Writer::new().apply(&mut changes)?;
    Ok(())
}

fn ret0() -> Vec<Slot> {
    vec![asm::alu_imm(Alu::Mov, Reg::R0, 0), asm::exit()]
}

/// `(*bpf_map_lookup_elem(&array, &(u32){0}))++`.
fn count(atomic: bool) -> Vec<Slot> {
    const LOOKUP: i32 = 1;
    let mut code = vec![
        asm::store_imm(4, Reg::R10, -4, 0),
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -4),
    ];
    code.extend(asm::load_map(Reg::R1, 0));
    code.push(asm::call(LOOKUP));
    let add = if atomic {
        vec![
            asm::alu_imm(Alu::Mov, Reg::R1, 1),
            asm::atomic(asm::Atomic::Add, true, Reg::R0, 0, Reg::R1),
        ]
    } else {
        vec![
            asm::load(8, Reg::R1, Reg::R0, 0),
            asm::alu_imm(Alu::Add, Reg::R1, 1),
            asm::store(8, Reg::R0, 0, Reg::R1),
        ]
    };
    code.push(asm::jump_imm(Cond::Eq, Reg::R0, 0, add.len() as i16));
    code.extend(add);
    code.extend(ret0());
    code
}

/// An eBPF program as a program of ours.
struct Ebpf(Arc<owlet_ebpf::Program>);

impl Machine for Ebpf {
    #[inline]
    fn run(&self, context: &Context, _session: &mut u64) -> u64 {
        let Context { arg, ret, ip, cookie } = *context;
        self.0.run(&owlet_ebpf::Context { arg, ret, ip, cookie })
    }
}

fn machine(codes: &[Vec<Slot>], compiled: bool) -> Result<Program> {
    let program = |code: &Vec<Slot>| ProgramDef {
        name: "program".to_owned(),
        kind: ProgramKind::Entry,
        pattern: String::new(),
        code: asm::bytes(code),
    };
    let maps = vec![MapDef::array("counts", 8, 1)];
    let image = Image { maps, programs: codes.iter().map(program).collect() };
    let module = if compiled {
        // SAFETY: the programs above read and write the map's only value, and end.
        unsafe { Module::compiled(&image, Limits::default()) }
    } else {
        Module::interpreted(&image, Limits::default())
    };
    let module = module.map_err(|error| anyhow!("{error}"))?;
    let program = module.programs().first().context("no program")?;
    let engine = if compiled { Engine::Jit } else { Engine::Interpreter };
    anyhow::ensure!(program.engine() == engine, "{}", program.engine_why());
    Ok(Program::machine(Kind::Entry, Ebpf(Arc::clone(program))).build())
}
