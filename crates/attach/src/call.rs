//! What a program is told about the call it runs for.

use crate::function::Function;
use crate::value::{RawValue, Value};
use core::cell::Cell;

/// Where in a call a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Before the body.
    Entry,
    /// The body has returned.
    Return,
    /// The body unwinds: there is no return value.
    Unwound,
    /// The future was dropped before it was done: there is no return value.
    Dropped,
}

impl Phase {
    /// Before the body?
    #[inline(always)]
    #[must_use]
    pub const fn is_entry(self) -> bool {
        matches!(self, Self::Entry)
    }
}

/// What is known of a call at its entry: filled in where the function is.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Captured<V: ?Sized = [RawValue]> {
    /// The function.
    pub function: &'static Function,
    /// An address in it.
    pub ip: usize,
    /// Its arguments.
    pub values: V,
}

/// One call, as a program sees it.
#[derive(Debug)]
pub struct Call<'a> {
    captured: &'a Captured,
    ret: Option<&'a Value<'a>>,
    phase: Phase,
    pub(crate) cookie: Cell<u64>,
    session: Cell<u64>,
}

impl<'a> Call<'a> {
    /// # Safety
    /// The arguments are alive, or it is not the entry (invariant 1 of `value`).
    #[inline(always)]
    pub(crate) unsafe fn new(
        captured: &'a Captured,
        ret: Option<&'a Value<'a>>,
        phase: Phase,
    ) -> Self {
        Self { captured, ret, phase, cookie: Cell::new(0), session: Cell::new(0) }
    }

    /// The function.
    #[must_use]
    pub fn function(&self) -> &'static Function {
        self.captured.function
    }

    /// The function's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.captured.function.name()
    }

    /// An address inside the code of the function, of the instance or inlined copy that was called. (On
    /// platforms without toggle sites, an address that stands for the function.)
    #[must_use]
    pub fn ip(&self) -> usize {
        self.captured.ip
    }

    /// Where in the call we are.
    #[inline(always)]
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The n-th parameter's value, `self` included; `None` beyond the last.
    #[inline]
    #[must_use]
    pub fn arg(&self, n: usize) -> Option<Value<'_>> {
        // SAFETY: `new`'s caller promised what `get` asks for.
        self.captured.values.get(n).map(|raw| unsafe { raw.get(self.phase.is_entry()) })
    }

    /// The value of the parameter of that name.
    #[must_use]
    pub fn arg_named(&self, name: &str) -> Option<Value<'_>> {
        self.arg(self.function().params().iter().position(|param| *param == name)?)
    }

    /// Names and values of all parameters, in their order.
    pub fn args(&self) -> impl Iterator<Item = (&'static str, Value<'_>)> {
        let names = self.function().params().iter();
        names.enumerate().filter_map(|(n, name)| Some((*name, self.arg(n)?)))
    }

    /// The return value: after a body that returned, unless it is skipped.
    #[inline]
    #[must_use]
    pub fn ret(&self) -> Option<Value<'_>> {
        self.ret.copied()
    }

    /// What the program was attached with.
    #[inline]
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie.get()
    }

    /// The word that this call's entry and exit of a session share.
    #[inline]
    #[must_use]
    pub fn session(&self) -> u64 {
        self.session.get()
    }

    /// Sets [`Call::session`].
    #[inline]
    pub fn set_session(&self, word: u64) {
        self.session.set(word);
    }
}

/// The context of programs that are no closures: 56 bytes, all words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The first four arguments, as [`Value::word`]s; 0 beyond the last.
    pub arg: [u64; 4],
    /// The return value's word at exit, else 0.
    pub ret: u64,
    /// [`Call::ip`].
    pub ip: u64,
    /// [`Call::cookie`].
    pub cookie: u64,
}

const _: () = assert!(size_of::<Context>() == 56);

impl Context {
    /// The context of a call.
    #[must_use]
    pub fn of(call: &Call<'_>) -> Self {
        let word = |n| call.arg(n).map_or(0, |value| value.word());
        Self {
            arg: [word(0), word(1), word(2), word(3)],
            ret: call.ret().map_or(0, |value| value.word()),
            ip: call.ip() as u64,
            cookie: call.cookie(),
        }
    }
}
