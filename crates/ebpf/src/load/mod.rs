//! Object files: loading and verification. Feature `load`; not for the traced thread.
//!
//! [`object`] takes what `clang -target bpf -c` makes (programs include [`HEADER`]);
//! [`verify`] takes an [`Image`] that was put together otherwise. Both give a [`Verified`] image or the
//! [`Refusal`] of the first program that is not fit, with the instruction and, if the object has debug
//! information (`-g`), the line of source.
//!
//! Loading and verification run on a thread of their own with a stack of 64 MiB: both recurse, and neither
//! of the libraries behind them promises not to panic on damaged input. A panic there is an error here.

mod elf;
mod object;
mod platform;
mod reservations;
mod verify;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};
use crate::image::Image;
use crate::program::{Limits, Module};
use object::Lines;

/// The header that programs in C include, to be written to `owlet.bpf.h`.
pub const HEADER: &str = include_str!("../../include/owlet.bpf.h");
/// Most slots that are verified: the analysis takes seconds for some thousands of branching ones.
pub const MAX_VERIFIED_SLOTS: usize = 16_384;

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file, as the compiler was given it.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// The line itself, without surrounding space; may be empty.
    pub text: String,
}

/// Why a program was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The program.
    pub program: String,
    /// Slot number, if the reason has a place.
    pub at: Option<usize>,
    /// The instruction there, in the verifier's notation.
    pub instruction: Option<String>,
    /// The line of source there, if the object knows.
    pub source: Option<SourceLine>,
    /// The reason, in the verifier's words.
    pub why: String,
}

impl Refusal {
    /// What to do about it, for reasons that are met often.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        const HINTS: &[(&str, &str)] = &[
            (
                "null access",
                "check the result of bpf_map_lookup_elem or bpf_ringbuf_reserve for 0 before using it",
            ),
            ("may be 0", "check the result of bpf_ringbuf_reserve for 0 before using it"),
            (
                "neither submitted nor discarded",
                "end every record with bpf_ringbuf_submit or bpf_ringbuf_discard, on every way",
            ),
            (
                "Loop counter",
                "give the loop a constant bound, and put barrier_var(i) into it: \
                 the compiler turns < into !=, which proves nothing",
            ),
            ("at most 56", "the context has 56 bytes: arg[4], ret, ip, cookie"),
            ("stack_size", "a function has 512 bytes of stack"),
            ("shared_region_size", "compare the index with the size of the value before using it"),
            (
                "in {ctx, stack",
                "an argument is a number; only context, stack and values of maps can be followed",
            ),
            ("(r0.type == number)", "set R0 to a number, on every way to the end"),
            ("does not exist here", "the documentation of owlet-ebpf lists the helpers there are"),
        ];
        HINTS.iter().find(|(word, _)| self.why.contains(word)).map(|(_, hint)| *hint)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} is refused: {}", self.program, self.why)?;
        match (self.at, &self.instruction) {
            (Some(at), Some(instruction)) => write!(f, "\n  at instruction {at}: {instruction}")?,
            (Some(at), None) => write!(f, "\n  at instruction {at}")?,
            _ => {}
        }
        if let Some(source) = &self.source {
            write!(f, "\n  at {}:{}", source.file, source.line)?;
            if !source.text.is_empty() {
                write!(f, ": {}", source.text)?;
            }
        }
        match self.hint() {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}

/// An image whose programs all passed the verifier of this build.
#[derive(Clone, Debug)]
pub struct Verified {
    image: Image,
}

impl Verified {
    /// The image.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Its binary form, to be sent to the process that runs it.
    ///
    /// # Errors
    /// None that verification has not found.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.image.to_bytes()
    }

    /// Maps and compiled programs, for this process.
    ///
    /// # Errors
    /// As [`Module::compiled`].
    pub fn module(&self, limits: Limits) -> Result<Module> {
        // SAFETY: nothing but this module's verification makes a `Verified`, and nothing changes it.
        unsafe { Module::compiled(&self.image, limits) }
    }
}

/// Loads and verifies an object file.
///
/// Takes milliseconds; allocates; starts a thread.
///
/// # Errors
/// [`Error::Object`], [`Error::Map`], [`Error::Program`]: what cannot be loaded; [`Error::Refused`]: the verifier's
/// reason.
pub fn object(bytes: &[u8]) -> Result<Verified> {
    aside(|| {
        let loaded = object::load(bytes)?;
        check(loaded.image, &loaded.lines)
    })
}

/// Verifies an image.
///
/// # Errors
/// As [`object`].
pub fn verify(image: Image) -> Result<Verified> {
    aside(|| check(image, &[]))
}

/// Where the verifier panics.
const GAVE_UP: &str = "the verifier has given up on it: it does not bear every program, loops inside loops least\n\
                       hint: unroll the inner loop, or have a function without loops do what is in it";

/// The name of the thread that loads and verifies. What it may meet there panics now and then; that is an
/// error here, and a hook of the program's may want to keep quiet about it.
pub const VERIFIER: &str = "owlet-verify";

/// Runs `work` on a thread with room for its recursion.
fn aside<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(VERIFIER.to_owned())
            .stack_size(64 << 20)
            .spawn_scoped(scope, work);
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => {
                Err(Error::Object("it is damaged, or more than the verifier bears".to_owned()))
            }
            Err(error) => Err(Error::Object(format!("no thread to verify on: {error}"))),
        }
    })
}

fn check(image: Image, lines: &[Lines]) -> Result<Verified> {
    for (index, program) in image.programs.iter().enumerate() {
        let refuse = |at: Option<usize>, instruction, why: String| {
            let lines = lines.get(index);
            let source = at.and_then(|at| lines.and_then(|lines| lines.get(&at))).cloned();
            let program = program.name.clone();
            Error::Refused(Box::new(Refusal { program, at, instruction, source, why }))
        };
        if program.code.len() / 8 > MAX_VERIFIED_SLOTS {
            let why = format!("more than {MAX_VERIFIED_SLOTS} instructions");
            return Err(refuse(None, None, why));
        }
        // Shape first: what is wrong there has a place, too.
        let code = match crate::decode::decode(&program.code, &image.maps) {
            Err(Error::Program { at, what }) => return Err(refuse(Some(at), None, what)),
            Err(other) => return Err(other),
            Ok(code) => code,
        };
        let verify = || verify::verify(program, &code, &image.maps);
        catch_unwind(AssertUnwindSafe(verify))
            .map_err(|_| refuse(None, None, GAVE_UP.to_owned()))?
            .map_err(|found| refuse(found.at, found.instruction, found.why))?;
    }
    image.check()?;
    Ok(Verified { image })
}
