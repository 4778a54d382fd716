//! Runnable programs: an image brought to life.

use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use crate::decode::{self, Code};
use crate::error::{Error, Result};
use crate::helper::Env;
#[cfg(target_arch = "x86_64")]
use crate::helper::UNALIGNED;
use crate::image::{Image, ProgramKind};
use crate::interp;
#[cfg(target_arch = "x86_64")]
use crate::jit;
use crate::map::Map;
use crate::reserved::Reserved;

/// Arguments in a [`Context`].
pub const ARGS: usize = 4;
/// Backward jumps that a run may take if the module does not say otherwise: about 1 ms.
pub const FUEL: u32 = 1_000_000;

/// What a program is told about the call it runs at: 56 bytes, which it may read and not write.
///
/// In C: `struct owlet_ctx { u64 arg[4]; u64 ret; u64 ip; u64 cookie; };`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Context {
    /// The first arguments, as words; 0 where there is none.
    pub arg: [u64; ARGS],
    /// The return value as a word, at exit; otherwise 0.
    pub ret: u64,
    /// Address of the function, or of its site.
    pub ip: u64,
    /// What the attachment was given.
    pub cookie: u64,
}

const _: () = assert!(size_of::<Context>() == 56);

/// What a session program is told beside its [`Context`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// It runs at the return of the function, not at its entry.
    pub is_return: bool,
    /// A word that entry and return of one call share; 0 at entry. The program may change it.
    pub word: u64,
}

/// What runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Compiled to machine code.
    Jit,
    /// Interpreted, every access checked.
    Interpreter,
}

impl core::fmt::Display for Engine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Jit => "jit",
            Self::Interpreter => "interpreter",
        })
    }
}

/// What a module may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all maps together.
    pub map_bytes: usize,
    /// Backward jumps of one run, at most 2^31 - 1. When they are used up, the run ends with 0.
    pub fuel: u32,
}

impl Default for Limits {
    /// 64 MiB of maps, [`FUEL`].
    fn default() -> Self {
        Self { map_bytes: 64 << 20, fuel: FUEL }
    }
}

/// Why a run of the interpreter ended before the program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A read outside of what the program may read.
    Read {
        /// Slot number.
        at: usize,
    },
    /// A write outside of what the program may write.
    Write {
        /// Slot number.
        at: usize,
    },
    /// A helper was given something else than it wants.
    Argument {
        /// Slot number.
        at: usize,
        /// Argument number, from 1.
        argument: usize,
    },
    /// Too many backward jumps.
    Fuel,
}

/// What happened to a program's runs since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// Runs that were out of fuel and returned 0.
    pub exhausted: u64,
    /// Runs that returned 0 because of a fault: interpreted ones that touched what is not theirs; in both
    /// engines, an atomic operation on what is not aligned to its width.
    pub faults: u64,
}

/// What all programs of a module share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) maps: Box<[Map]>,
    /// Calls of `trace_printk`.
    pub(crate) printk: AtomicU64,
    /// State of `get_prandom_u32`.
    pub(crate) random: AtomicU64,
}

/// Maps and programs of an image, ready to run.
#[derive(Debug)]
pub struct Module {
    shared: Arc<Shared>,
    programs: Vec<Arc<Program>>,
}

impl Module {
    /// Makes maps and programs that are interpreted. Safe whatever the image holds: the interpreter
    /// checks every access.
    ///
    /// Allocates all that runs will need.
    ///
    /// # Errors
    /// [`Image::check`]'s; maps over the limit; no memory.
    pub fn interpreted(image: &Image, limits: Limits) -> Result<Self> {
        let why = |_: &Code, _: &Shared| (None, "asked for");
        Self::new(image, limits, why)
    }

    /// Makes maps and programs that are compiled, or interpreted where that cannot be:
    /// [`Program::engine`] says which and [`Program::engine_why`] why.
    ///
    /// # Safety
    /// Compiled code checks nothing. Every program of the image has passed the verifier, under this
    /// [`PLATFORM`](crate::image::PLATFORM): it comes from `load::Verified`, by a way on which only those
    /// could change it who may do with this process as they like.
    ///
    /// # Errors
    /// As [`Module::interpreted`].
    pub unsafe fn compiled(image: &Image, limits: Limits) -> Result<Self> {
        #[cfg(target_arch = "x86_64")]
        let compile = |code: &Code, shared: &Shared| match jit::compile(code, shared, limits.fuel) {
            Ok(compiled) => (Some(compiled), "compiled"),
            Err(why) => (None, why),
        };
        #[cfg(not(target_arch = "x86_64"))]
        let compile = |_: &Code, _: &Shared| (None, "no compiler for this architecture");
        Self::new(image, limits, compile)
    }

    fn new(
        image: &Image,
        limits: Limits,
        compile: impl Fn(&Code, &Shared) -> (Option<Compiled>, &'static str),
    ) -> Result<Self> {
        image.check()?;
        if i32::try_from(limits.fuel).is_err() {
            return Err(Error::Image("more fuel than 2^31 - 1"));
        }
        let mut budget = limits.map_bytes;
        let maps = image.maps.iter().map(|def| Map::new(def, &mut budget));
        let shared = Arc::new(Shared {
            maps: maps.collect::<Result<_>>()?,
            printk: AtomicU64::new(0),
            random: AtomicU64::new(owlet_sys::clock::monotonic_ns()),
        });
        let mut programs = Vec::with_capacity(image.programs.len());
        for def in &image.programs {
            let code = decode::decode(&def.code, &image.maps)?;
            let (compiled, why) = compile(&code, &shared);
            programs.push(Arc::new(Program {
                name: def.name.clone(),
                kind: def.kind,
                pattern: def.pattern.clone(),
                code,
                compiled,
                why,
                fuel: limits.fuel,
                exhausted: AtomicU64::new(0),
                faults: AtomicU64::new(0),
                shared: Arc::clone(&shared),
            }));
        }
        Ok(Self { shared, programs })
    }

    /// The programs, in the image's order. Each keeps the maps alive.
    #[must_use]
    pub fn programs(&self) -> &[Arc<Program>] {
        &self.programs
    }

    /// The program of a name.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<&Arc<Program>> {
        self.programs.iter().find(|program| program.name == name)
    }

    /// The maps, in the image's order.
    #[must_use]
    pub fn maps(&self) -> &[Map] {
        &self.shared.maps
    }

    /// The map of a name.
    #[must_use]
    pub fn map(&self, name: &str) -> Option<&Map> {
        self.shared.maps.iter().find(|map| map.def().name == name)
    }

    /// Calls of `trace_printk`, which prints nothing.
    #[must_use]
    pub fn printk_dropped(&self) -> u64 {
        self.shared.printk.load(Relaxed)
    }
}

#[cfg(target_arch = "x86_64")]
type Compiled = jit::Compiled;
/// There is none.
#[cfg(not(target_arch = "x86_64"))]
type Compiled = core::convert::Infallible;

/// A program, ready to run on any thread.
#[derive(Debug)]
pub struct Program {
    name: String,
    kind: ProgramKind,
    pattern: String,
    code: Code,
    compiled: Option<Compiled>,
    why: &'static str,
    fuel: u32,
    exhausted: AtomicU64,
    faults: AtomicU64,
    shared: Arc<Shared>,
}

impl Program {
    /// Runs the program and returns its R0; 0 if it ran out of fuel or met a [fault](ProgramStats::faults).
    /// Both are counted. A session program runs as at entry: see [`Program::run_session`].
    ///
    /// Neither allocates nor locks nor waits; async-signal-safe. Programs may run on many threads, and
    /// inside each other, at once. Costs 1 to 2 ns above the instructions if compiled.
    ///
    /// Stack: under 1.5 KiB, and 512 bytes for each function that calls another, if compiled; 5 KiB
    /// interpreted.
    #[inline]
    pub fn run(&self, context: &Context) -> u64 {
        self.execute(context, &self.env(Session::default()))
    }

    /// As [`Program::run`], for a session program: `session` says which end of the call it is and carries
    /// the word from the one to the other.
    #[inline]
    pub fn run_session(&self, context: &Context, session: &mut Session) -> u64 {
        let env = self.env(*session);
        let value = self.execute(context, &env);
        session.word = env.session.get();
        value
    }

    #[inline(always)]
    fn execute(&self, context: &Context, env: &Env) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if let Some(compiled) = &self.compiled {
            // SAFETY: who made the module promised that the program is verified; `shared`, which the code
            // refers to, lives as long as `self`.
            let value = unsafe { compiled.call(context, env) };
            if env.ended.get() != 0 || !env.reserved.is_empty() {
                self.cut_short(env);
            }
            return value;
        }
        self.interpret(context, env).unwrap_or(0)
    }

    /// Counts a run that compiled code has ended, and gives back what it had reserved.
    #[cfg(target_arch = "x86_64")]
    #[cold]
    fn cut_short(&self, env: &Env) {
        match env.ended.get() {
            0 => {}
            UNALIGNED => _ = self.faults.fetch_add(1, Relaxed),
            _ => _ = self.exhausted.fetch_add(1, Relaxed),
        }
        env.reserved.abandon();
    }

    /// Interprets the program, whichever its engine, and says why it did not end by itself. Faults are
    /// counted. Async-signal-safe.
    ///
    /// # Errors
    /// Why the run ended.
    pub fn run_checked(&self, context: &Context) -> core::result::Result<u64, Fault> {
        self.interpret(context, &self.env(Session::default()))
    }

    fn interpret(&self, context: &Context, env: &Env) -> core::result::Result<u64, Fault> {
        let outcome = interp::run(&self.code, &self.shared, context, env, self.fuel);
        if !env.reserved.is_empty() {
            env.reserved.abandon();
        }
        match outcome {
            Ok(_) => {}
            Err(Fault::Fuel) => {
                self.exhausted.fetch_add(1, Relaxed);
            }
            Err(_) => {
                self.faults.fetch_add(1, Relaxed);
            }
        }
        outcome
    }

    #[inline(always)]
    fn env(&self, session: Session) -> Env {
        Env {
            frame: Cell::new(0),
            ended: Cell::new(0),
            shared: NonNull::from(&*self.shared).as_ptr(),
            session: Cell::new(session.word),
            is_return: session.is_return.into(),
            reserved: Reserved::new(),
        }
    }

    /// Name of its function.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When it is meant to run.
    #[must_use]
    pub fn kind(&self) -> ProgramKind {
        self.kind
    }

    /// Which functions it is for, if the object said so; otherwise empty.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// What runs it.
    #[must_use]
    pub fn engine(&self) -> Engine {
        if self.compiled.is_some() { Engine::Jit } else { Engine::Interpreter }
    }

    /// Why that one: one line for people.
    #[must_use]
    pub fn engine_why(&self) -> &'static str {
        self.why
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> ProgramStats {
        ProgramStats { exhausted: self.exhausted.load(Relaxed), faults: self.faults.load(Relaxed) }
    }

    /// The maps of its module, in the image's order.
    #[must_use]
    pub fn maps(&self) -> &[Map] {
        &self.shared.maps
    }

    /// The map of a name.
    #[must_use]
    pub fn map(&self, name: &str) -> Option<&Map> {
        self.shared.maps.iter().find(|map| map.def().name == name)
    }
}
